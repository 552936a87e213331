"""Annotations of the last finished run, taken over where nothing that makes them has changed.

Telling a dialog its stored replies takes 1 to 4 ms a window, most of it for rules on captions: a
rerun over many clips reads what came of it instead, in 0.04. A candidate that was neither judged
nor one of several is not stored, and so not there again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from curator.captions.config import ANNOTATE_VERSION, CaptionConfig
from curator.captions.prompts import load_prompt
from curator.captions.records import TRANSIENT, Annotation, Answer, Candidate, Task, Unanswered
from curator.lake import columns_to_rows, fingerprint, read_parquet
from curator.storage import Store

_REACHED = {"url", "key_from", "in_flight", "timeout_s", "tries", "guided", "batch_tokens"}
"""How a model is reached; changes no annotation."""
_DECIDED = {"enabled", "reject", "failed", "budget_s", "embedding", "text"}
"""What becomes of annotations."""
_COLUMNS = (
    "annotation_key", "short", "medium", "long", "structured", "content_type", "answers", "safety",
    "extra", "failure", "failure_detail", "set_aside", "lost", "n_unscored", "candidates",
    "tokens_in", "tokens_out", "request_keys",
)  # fmt: skip


def answers_stamp(config: CaptionConfig) -> str:
    """Fingerprint of all settings and words that make the same replies other annotations."""
    asked = [config, *filter(None, [config.judge])]
    exclude: Any = {name: True for name in _REACHED | _DECIDED} | {
        "judge": _REACHED | {"min_score"}
    }
    return fingerprint(
        "annotations",
        ANNOTATE_VERSION,
        config.model_dump(mode="json", exclude=exclude),
        [load_prompt(one.prompt).fingerprint for one in asked] if config.asks else [],
    )


def annotation_key(task: Task, stamp: str) -> str:
    """What an annotation is known by in the table `annotations`.

    Args:
        task: The window.
        stamp: From `answers_stamp`.
    """
    window = task.window
    asked = [task.content, window.start_frame, window.end_frame, window.shown, task.facts]
    return fingerprint(stamp, asked)


class Answered:
    """Annotations of the last finished run, by key.

    Args:
        store: Output root.
        names: Parts of its table `annotations`; none for no such run.
    """

    def __init__(self, store: Store, names: Iterable[str]) -> None:
        self._rows: dict[str, Mapping[str, Any]] = {}
        for name in names:
            table = read_parquet(store, name)
            if not set(_COLUMNS) <= set(table.column_names):
                # Written by an older version.
                continue
            for row in columns_to_rows(table.select(_COLUMNS)):
                failure = row["failure"]
                if failure is None or Unanswered(failure) not in TRANSIENT:
                    self._rows[row["annotation_key"]] = row

    def find(self, task: Task, stamp: str) -> Annotation | None:
        """The annotation of a window; None for one that has none yet.

        Args:
            task: The window.
            stamp: From `answers_stamp`.
        """
        if not self._rows:
            return None
        row = self._rows.get(annotation_key(task, stamp))
        if row is None:
            return None
        failure = row["failure"]
        return Annotation(
            task=task,
            answer=_answer(row) if failure is None else None,
            failure=None if failure is None else Unanswered(failure),
            detail=row["failure_detail"] or "",
            candidates=tuple(_candidate(one) for one in _loaded(row["candidates"], [])),
            set_aside=_loaded(row["set_aside"], {}),
            lost=_loaded(row["lost"], {}),
            n_unscored=row["n_unscored"],
            request_keys=tuple(row["request_keys"]),
            tokens_in=row["tokens_in"],
            tokens_out=row["tokens_out"],
        )


def _answer(row: Mapping[str, Any]) -> Answer:
    return Answer(
        short=row["short"],
        medium=row["medium"],
        long=row["long"],
        structured=_loaded(row["structured"], None),
        content_type=row["content_type"],
        answers=_loaded(row["answers"], {}),
        safety=row["safety"],
        extra=_loaded(row["extra"], {}),
    )


def _candidate(stored: Mapping[str, Any]) -> Candidate:
    scores = {name: stored[name] for name in ("faithfulness", "completeness", "correctness")}
    fields = ("short", "medium", "long", "structured", "content_type", "answers", "safety", "extra")
    return Candidate(
        answer=Answer(**{name: stored[name] for name in fields}),
        reply_key=stored["reply"],
        why=stored["why"],
        **scores,
    )


def _loaded(stored: str | None, absent: Any) -> Any:  # noqa: ANN401
    return absent if stored is None else orjson.loads(stored)
