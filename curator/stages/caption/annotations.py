"""Stores annotations, decides with them about clips, and writes them into tables and samples.

An annotation is stored as a reply, under a key of its window: reading the annotation takes 0.1 ms,
and replaying the dialog over stored replies takes 3 ms, mostly for the rules on captions. Deleting
the folder of replies deletes the annotations, too.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from pydantic import TypeAdapter

from curator.fingerprints import fingerprint
from curator.records.clips import Clip, Reason
from curator.stages.caption.caption_records import (
    JSON_FIELDS,
    SCORES,
    TRANSIENT,
    Annotation,
    Answer,
    Reply,
    Task,
)
from curator.stages.caption.captioners.captioner_contract import outside_version
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig
from curator.stages.caption.dialogs.answers import answer_text
from curator.stages.caption.dialogs.prompt_files import has_value, load_prompt
from curator.stages.caption.dialogs.question_answers import WindowSpan, questions_of
from curator.stages.caption.dialogs.window_dialog import Asker
from curator.stages.caption.reply_store import Replies
from curator.tables.clip_locations import KeyIndex
from curator.tables.clip_rows import ClipRow, ClipRows, reject
from curator.tables.parts import rows_to_table
from curator.tables.schemas import ANNOTATIONS_SCHEMA
from curator.tables.spill_file import Spill

_REASONS = {"failed": Reason.NOT_ANNOTATED, "judge_score": Reason.JUDGED_TOO_LOW}
_ROWS_AT_ONCE = 4096
_REACHED = {"url", "key_from", "in_flight", "timeout_s", "tries", "guided"} | {
    "server",
    "server_args",
}
"""Settings for reaching a model, which change no annotation."""
_DECIDED = {"enabled", "reject", "failed", "budget_s", "embedding", "text"}
"""Settings for the use of annotations, which change no annotation either."""
_MADE = [field.name for field in fields(Annotation) if field.name != "task"]


def answers_fingerprint(config: CaptionConfig) -> str:
    """Returns the fingerprint of all settings and prompts that turn replies into annotations."""
    # Annotations of versions without these settings stay valid.
    unused = {"column"}
    if not config.repair_contradictions:
        unused.add("repair_contradictions")
    exclude: Any = {name: True for name in _REACHED | _DECIDED | unused} | {
        "judge": _REACHED | {"min_score"}
    }
    return fingerprint(
        "annotations",
        ANNOTATE_VERSION,
        config.model_dump(mode="json", exclude=exclude),
        [load_prompt(model.prompt).fingerprint for model in config.models] if config.asks else [],
        *(outside_version(config.captioner) if config.asks else ()),
    )


def annotation_key(task: Task, of_config: str) -> str:
    """Returns the key of an annotation among replies and in the table `annotations`."""
    window = task.window
    asked = [task.content, window.start_frame, window.end_frame, window.shown, task.facts]
    if task.measured is not None:
        asked.append(asdict(task.measured))
    return fingerprint(of_config, asked)


def remember(annotation: Annotation, of_config: str, replies: Replies) -> None:
    """Stores an annotation, unless its failure is transient."""
    if annotation.failure not in TRANSIENT:
        made = {name: getattr(annotation, name) for name in _MADE}
        if len(annotation.candidates) == 1 and annotation.candidates[0].score is None:
            # The only candidate repeats the answer.
            made["candidates"] = ()
        replies.keep(
            annotation_key(annotation.task, of_config),
            Reply(text=orjson.dumps(made).decode(), n_tries=0),
        )


def remembered(task: Task, of_config: str, replies: Mapping[str, Reply]) -> Annotation | None:
    """Returns a window's stored annotation; None if it or one of its replies is missing."""
    reply = replies.get(annotation_key(task, of_config))
    if reply is None:
        return None
    made = orjson.loads(reply.text)
    # Users delete replies to get new annotations.
    if not all(key in replies for key in made["request_keys"]):
        return None
    return _adapter().validate_python({"task": task, **made})


@cache
def _adapter() -> TypeAdapter[Annotation]:
    # Built on first use: this takes milliseconds, and most commands read no annotation.
    return TypeAdapter(Annotation)


class AnnotatedClips:
    """The rows of clips, and their annotations on the local disk: 12 bytes of memory per clip."""

    def __init__(self, clips: ClipRows, config: CaptionConfig) -> None:
        self.clips, self._config = clips, config
        self._rows = KeyIndex(clips.column("clip_id"))
        self._spill = Spill()
        self._begin = np.full(len(clips), -1, np.int64)
        self._n_bytes = np.zeros(len(clips), np.int32)
        self.counts: Counter[str] = Counter()
        """Windows, tokens, failures by reason and rejected answers, for the summary."""
        self.events: set[tuple[Any, ...]] = set()
        self._models = {
            "model": config.name,
            "prompt": config.prompt if config.asks else None,
            "judge": config.judge.name if config.judge is not None else None,
        }

    def row(self, clip_id: str) -> ClipRow:
        """Returns the row of a clip."""
        return self.clips[self._number(clip_id)]

    def __contains__(self, clip_id: str) -> bool:
        """Returns whether all windows of a clip have annotations or failures."""
        return bool(self._begin[self._number(clip_id)] >= 0)

    def __getitem__(self, clip_id: str) -> list[Annotation]:
        """Returns the annotations of a clip's windows, in order."""
        number = self._number(clip_id)
        assert self._begin[number] >= 0, f"{clip_id} has open windows"
        return self._read(number)

    def add(self, clip_id: str, done: list[Annotation]) -> None:
        """Stores the annotations of a clip's windows, in order."""
        number = self._number(clip_id)
        # Only this process reads the file, which has no name, so pickle is safe.
        data = pickle.dumps(done, pickle.HIGHEST_PROTOCOL)
        self._begin[number], self._n_bytes[number] = self._spill.add(data), len(data)
        counts = self.counts
        for annotation in done:
            counts["caption_windows"] += 1
            counts["caption_tokens_in"] += annotation.tokens_in
            counts["caption_tokens_out"] += annotation.tokens_out
            if annotation.failure is not None:
                counts[f"caption_failed_{annotation.failure}"] += 1
            for name, n in annotation.set_aside.items():
                counts[f"caption_set_aside_{name}"] += n
            if annotation.task.metadata is not None:
                uri = self.clips[number].source_uri
                self.events |= {
                    (uri, e.label, e.start_s, e.end_s) for e in annotation.task.metadata.events
                }

    def first_failure(self) -> str:
        """Returns why the first failed window has no annotation; empty if none failed."""
        for clip in self.clips.kept():
            for window in self[clip.clip_id]:
                if window.failure is not None:
                    return f"{clip.clip_id}: {window.failure}: {window.detail}".rstrip(": ")
        return ""

    def apply(self, clips: Iterable[ClipRow]) -> None:
        """Writes captions into clips, and rejects clips by the recipe."""
        config = self._config
        for clip in clips:
            windows = self[clip.clip_id]
            clip.caption, clip.caption_failure = caption_of(windows, config)
            clip.caption_model = config.name
            against = rejection_of(windows, config)
            if against is not None:
                detail = f"{against.field} is {against.value} in window {against.window}"
                reject(clip, _REASONS.get(against.field, Reason.ANSWER_UNWANTED), detail=detail)

    def sample(self, clip: Clip) -> dict[str, Any]:
        """Returns the annotation in a sample's JSON."""
        return self._models | {"windows": [_window(each) for each in self[clip.clip_id]]}

    def tables(self) -> Iterator[pa.Table]:
        """Yields rows of `annotations` in batches, in the order of clips and windows."""
        config, judge = self._config, self._config.judge
        of_config = self._models | {
            "prompt_fingerprint": load_prompt(config.prompt).fingerprint if config.asks else None,
            "judge_prompt_fingerprint": load_prompt(judge.prompt).fingerprint if judge else None,
        }
        config_fingerprint = answers_fingerprint(config)
        asker = Asker(config) if config.asks else None
        done = ((self.clips[n], self._read(n)) for n in np.flatnonzero(self._begin >= 0).tolist())
        rows = (
            {
                "annotation_key": annotation_key(annotation.task, config_fingerprint),
                **_row(clip, annotation, config, asker),
                **of_config,
            }
            for clip, windows in done
            for annotation in windows
        )
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            yield rows_to_table(some, ANNOTATIONS_SCHEMA)

    def _number(self, clip_id: str) -> int:
        number = self._rows.find(clip_id)
        if number is None:
            raise KeyError(clip_id)
        return number

    def _read(self, number: int) -> list[Annotation]:
        data = self._spill.read(int(self._begin[number]), int(self._n_bytes[number]))
        done: list[Annotation] = pickle.loads(data)
        return done


class CaptionRejection(NamedTuple):
    """The field of an answer that rejects a clip, the value, and the first window with the value.

    The field may also be `failed`, with the failure, or `judge_score`, with the score or None.
    """

    field: str
    value: str | bool | int | None
    window: int


def rejection_of(
    annotations: Sequence[Annotation], config: CaptionConfig
) -> CaptionRejection | None:
    """Returns the first answer that rejects a clip, or None for a kept clip.

    Windows are checked in order: first for unwanted answers, then for missing answers.
    """
    in_order = _in_order(annotations)
    for annotation in in_order:
        for name, values in config.reject.items():
            answered = _field(annotation.answer, name, config)
            for value in values:
                if has_value(answered, value):
                    return CaptionRejection(name, value, annotation.task.window.index)
    if config.failed != "reject":
        return None
    lacks = (_lack(annotation, config) for annotation in in_order)
    return next((lack for lack in lacks if lack is not None), None)


def caption_of(
    annotations: Sequence[Annotation], config: CaptionConfig
) -> tuple[str | None, str | None]:
    """Joins the captions of a clip's windows, in the length `config.text`.

    The caption uses event windows only if the clip has no other windows. Returns the caption and
    None, or None and why the caption is missing.
    """
    if not annotations:
        return None, "it has no annotation"
    texts = []
    has_even = any(not annotation.task.window.is_event for annotation in annotations)
    for annotation in _in_order(annotations):
        if (lack := _lack(annotation, config)) is not None:
            problem = str(lack.value) if lack.field == "failed" else f"judged {lack.value}"
            detail = f": {annotation.detail}" if annotation.detail else ""
            return None, f"window {lack.window} {problem}{detail}"
        if not (annotation.task.window.is_event and has_even):
            texts.append(getattr(annotation.answer, config.text))
    return " ".join(text for text in texts if text), None


def judge_score(annotation: Annotation) -> int | None:
    """Returns the judge's score of the kept answer; None without a score."""
    kept = (c for c in annotation.candidates if c.answer == annotation.answer)
    # The dialog kept the best of equal answers.
    return max((c.score for c in kept if c.score is not None), default=None)


def _in_order(annotations: Sequence[Annotation]) -> list[Annotation]:
    return sorted(annotations, key=lambda annotation: annotation.task.window.index)


def _lack(annotation: Annotation, config: CaptionConfig) -> CaptionRejection | None:
    index = annotation.task.window.index
    if annotation.failure is not None:
        return CaptionRejection("failed", str(annotation.failure), index)
    if config.judge is not None and config.judge.min_score > 1:
        score = judge_score(annotation)
        if score is None or score < config.judge.min_score:
            return CaptionRejection("judge_score", score, index)
    return None


def _field(answer: Answer | None, name: str, config: CaptionConfig) -> object:
    if answer is None:
        return None
    if name in ("content_type", "safety"):
        return getattr(answer, name)
    return (answer.answers if name in config.questions else answer.extra).get(name)


def _window(annotation: Annotation) -> dict[str, Any]:
    """Returns the entry of a window in a sample's JSON."""
    answer, metadata = annotation.answer, annotation.task.metadata
    of = annotation.task.window
    window: dict[str, Any] = {"start_frame": of.start_frame, "end_frame": of.end_frame}
    if answer is not None:
        items = asdict(answer).items()
        window |= {name: value for name, value in items if value not in (None, {})}
    if metadata is not None:
        values = {name: getattr(metadata, name) for name in ("caption", "label")}
        values["problems"] = list(metadata.problems)
        window["metadata"] = {name: value for name, value in values.items() if value}
    if annotation.failure is not None:
        window["failure"] = str(annotation.failure)
    return window


def _row(
    clip: Clip, annotation: Annotation, config: CaptionConfig, asker: Asker | None
) -> dict[str, Any]:
    window, fps = annotation.task.window, annotation.task.fps
    metadata = annotation.task.metadata
    fields = asdict(annotation.answer) if annotation.answer is not None else {}
    fields |= {name: _json(fields[name]) for name in JSON_FIELDS if fields}
    begin_s, end_s = window.start_frame / fps, window.end_frame / fps
    span = WindowSpan(begin_s, end_s, clip.n_frames / fps, clip.start_s)
    questions = questions_of(annotation, config, span)
    candidates = _candidates(annotation, asker) if asker is not None else []
    return {
        "clip_id": clip.clip_id,
        "source_id": clip.source_id,
        "window": window.index,
        "start_frame": window.start_frame,
        "end_frame": window.end_frame,
        "shown": list(window.shown),
        "label": metadata.label if metadata is not None else None,
        "known": _json(asdict(metadata)) if metadata is not None else None,
        "questions": _json([asdict(question) for question in questions]),
        "facts": annotation.task.facts,
        **fields,
        "failure": annotation.failure,
        "failure_detail": annotation.detail or None,
        "set_aside": _json(annotation.set_aside),
        "lost": _json(annotation.lost),
        "candidates": _json(candidates),
        "asked": _json(asker.asked(annotation.task)) if asker and candidates else None,
        "request_keys": list(annotation.request_keys),
        "text_key": annotation.task.text_key,
        **{name: getattr(annotation, name) for name in ("n_unscored", "tokens_in", "tokens_out")},
    }


def _candidates(annotation: Annotation, asker: Asker) -> list[dict[str, Any]]:
    return [
        {
            **asdict(candidate.answer),
            **{name: getattr(candidate, name) for name in (*SCORES, "score", "why")},
            "reply": candidate.reply_key,
            "text": answer_text(candidate.answer, asker.config, asker.prompt),
        }
        for candidate in annotation.candidates
        if len(annotation.candidates) > 1 or candidate.score is not None
    ]


def _json(value: object) -> str | None:
    if not value:
        return None
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
