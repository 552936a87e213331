"""Reuses annotations of the last finished run if all their inputs are unchanged.

Replaying a dialog takes 1 to 4 ms a window, mostly for rules on captions; reading an annotation
takes 0.04 ms. Single candidates without a judgement are not stored.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.fingerprints import fingerprint
from curator.stages.caption.caption_records import (
    ANSWER_FIELDS,
    JSON_FIELDS,
    SCORES,
    TRANSIENT,
    Annotation,
    Answer,
    Candidate,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.captioner_list import outside_version
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.disk_records import Keyed
from curator.tables.parts import columns_to_rows

_REACHED = {"url", "key_from", "in_flight", "timeout_s", "tries", "guided", "batch_tokens"}
"""Settings for reaching a model, which change no annotation."""
_DECIDED = {"enabled", "reject", "failed", "budget_s", "embedding", "text"}
"""Settings for decisions by annotations."""
_COLUMNS = (
    "annotation_key", *ANSWER_FIELDS, "failure", "failure_detail", "set_aside", "lost",
    "n_unscored", "candidates", "tokens_in", "tokens_out", "request_keys",
)  # fmt: skip
_ROWS_AT_ONCE = 2048


def answers_stamp(config: CaptionConfig) -> str:
    """Returns the fingerprint of all settings and words that turn replies into annotations."""
    exclude: Any = {name: True for name in _REACHED | _DECIDED} | {
        "judge": _REACHED | {"min_score"}
    }
    return fingerprint(
        "annotations",
        ANNOTATE_VERSION,
        config.model_dump(mode="json", exclude=exclude),
        [load_prompt(one.prompt).fingerprint for one in config.models] if config.asks else [],
        *(outside_version(config.captioner) if config.asks else ()),
    )


def annotation_key(task: Task, stamp: str) -> str:
    """Returns the key of an annotation in the table `annotations`."""
    window = task.window
    asked = [task.content, window.start_frame, window.end_frame, window.shown, task.facts]
    return fingerprint(stamp, asked)


class PreviousAnnotations:
    """Annotations of the last finished run, by key."""

    def __init__(self, store: Store, names: Iterable[str]) -> None:
        self._store = store
        self._groups: list[tuple[str, int]] = []
        self._rows = Keyed(self._read)
        keys = []
        for name in names:
            found = read_rows(store, name, _keys)
            self._groups += [(name, group) for group in range(len(found))]
            keys += found
        self._rows.expect_all(keys)

    def find(self, task: Task, stamp: str) -> Annotation | None:
        """Returns the annotation of a window, or None."""
        if not self._groups:
            return None
        key = annotation_key(task, stamp)
        record = self._rows.get(key)
        row = {} if record is None else orjson.loads(record)
        if row.get("annotation_key") != key:
            return None
        failure = row["failure"]
        return Annotation(
            task=task,
            answer=_answer(row) if failure is None else None,
            failure=None if failure is None else Unanswered(failure),
            detail=row["failure_detail"] or "",
            candidates=candidates_of(row),
            set_aside=_loaded(row["set_aside"], {}),
            lost=_loaded(row["lost"], {}),
            request_keys=tuple(row["request_keys"]),
            **{name: row[name] for name in ("n_unscored", "tokens_in", "tokens_out")},
        )

    def _read(self, number: int) -> Iterator[tuple[str, bytes]]:
        name, group = self._groups[number]
        table = read_rows(self._store, name, lambda file: file.read_row_group(group, _COLUMNS))
        for start in range(0, table.num_rows, _ROWS_AT_ONCE):
            some = table.slice(start, _ROWS_AT_ONCE)
            for row in columns_to_rows(some.filter(_lasts(some))):
                yield row["annotation_key"], orjson.dumps(row)


def _keys(file: pq.ParquetFile) -> list[list[str]]:
    """Returns the keys of each row group; none of a table of an older version."""
    if not set(_COLUMNS) <= set(file.schema_arrow.names):
        return []
    groups = range(file.num_row_groups)
    tables = (file.read_row_group(group, ["annotation_key", "failure"]) for group in groups)
    return [table.filter(_lasts(table))["annotation_key"].to_pylist() for table in tables]


def _lasts(table: pa.Table) -> pa.ChunkedArray:
    """Returns which annotations are final."""
    passing = pa.array(sorted(map(str, TRANSIENT)), pa.string())
    return pc.invert(pc.is_in(table["failure"], value_set=passing))


def _answer(row: Mapping[str, Any]) -> Answer:
    values = {name: row[name] for name in ANSWER_FIELDS}
    for name in JSON_FIELDS:
        values[name] = _loaded(row[name], None if name == "structured" else {})
    return Answer(**values)


def candidates_of(row: Mapping[str, Any]) -> tuple[Candidate, ...]:
    """Returns the candidates in a row of `annotations`."""
    return tuple(
        Candidate(
            answer=Answer(**{name: stored[name] for name in ANSWER_FIELDS}),
            reply_key=stored["reply"],
            why=stored.get("why", ""),
            **{name: stored[name] for name in SCORES},
        )
        for stored in _loaded(row["candidates"], [])
    )


def _loaded(stored: str | None, absent: Any) -> Any:  # noqa: ANN401
    return absent if stored is None else orjson.loads(stored)
