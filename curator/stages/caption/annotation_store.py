"""Keeps annotations: with the replies for later runs, and on the local disk for this run.

What was made of replies is kept as a reply to the question about the window as a whole. To run a
dialog again over stored replies takes 3 ms a window, mostly for rules on captions; to read what
came of it takes 0.1 ms. Both are deleted together, with the folder of the replies.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, Self

import numpy as np
import orjson
import pyarrow as pa
from pydantic import TypeAdapter

from curator.fingerprints import fingerprint
from curator.records.clips import Clip
from curator.stages.caption.caption_records import TRANSIENT, Annotation, Reply, Task
from curator.stages.caption.captioners.captioner_contract import outside_version
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.reply_store import Replies
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import KeyRows
from curator.tables.clip_rows import ClipRow, ClipRows, fields_of
from curator.tables.schemas import ANNOTATIONS_SCHEMA
from curator.tables.spill_file import Spill

_REACHED = {"url", "key_from", "in_flight", "timeout_s", "tries", "guided", "batch_tokens"}
"""Settings for reaching a model, which change no annotation."""
_DECIDED = {"enabled", "reject", "failed", "budget_s", "embedding", "text"}
"""Settings for decisions by annotations."""
_MADE = [field.name for field in fields(Annotation) if field.name != "task"]
_ANNOTATION = TypeAdapter(Annotation)


def answers_fingerprint(config: CaptionConfig) -> str:
    """Returns the fingerprint of all settings and words that turn replies into annotations."""
    exclude: Any = {name: True for name in _REACHED | _DECIDED} | {
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
    return fingerprint(of_config, asked)


def remember(annotation: Annotation, of_config: str, replies: Replies) -> None:
    """Keeps an annotation, unless another run may make another one."""
    if annotation.failure not in TRANSIENT:
        made = {name: getattr(annotation, name) for name in _MADE}
        if len(annotation.candidates) == 1 and annotation.candidates[0].score is None:
            # It says no more than the answer.
            made["candidates"] = ()
        replies.keep(
            annotation_key(annotation.task, of_config),
            Reply(text=orjson.dumps(made).decode(), n_tries=0),
        )


def remembered(task: Task, of_config: str, replies: Mapping[str, Reply]) -> Annotation | None:
    """Returns the annotation that was kept of a window; None without, or without its replies."""
    reply = replies.get(annotation_key(task, of_config))
    if reply is None:
        return None
    made = orjson.loads(reply.text)
    # Users delete replies to get windows annotated again.
    if not all(key in replies for key in made["request_keys"]):
        return None
    annotation: Annotation = _ANNOTATION.validate_python({"task": task, **made})
    return annotation


class CaptionedSpan(NamedTuple):
    """A clip's span in its source at the time of annotation: half-open frames, and seconds.

    The names are those of columns of `clips`; `annotations` prefixes them with `clip_`.
    """

    start_frame: int
    end_frame: int
    start_s: float
    end_s: float

    @classmethod
    def of(cls, clip: Clip) -> Self:
        """Returns the current span of a clip."""
        return cls(*(getattr(clip, name) for name in cls._fields))


class ClipAnnotations(NamedTuple):
    """A clip's span at the time of annotation, and the annotations of its windows, in order."""

    span: CaptionedSpan
    annotations: list[Annotation]


class AnnotatedClips:
    """The rows of clips, and the annotations of finished clips: 12 bytes of memory per clip."""

    def __init__(self, clips: ClipRows) -> None:
        self.clips = clips
        self._rows = KeyRows(clips.column("clip_id"))
        self._spill = Spill()
        self._begin = np.full(len(clips), -1, np.int64)
        self._n_bytes = np.zeros(len(clips), np.int32)
        self.counts: Counter[str] = Counter()
        """Windows, tokens, failures by reason and rejected answers, for the summary."""
        self.events: set[tuple[Any, ...]] = set()

    def row(self, clip_id: str) -> ClipRow:
        """Returns the row of a clip."""
        return self.clips[self._number(clip_id)]

    def __contains__(self, clip_id: str) -> bool:
        """Returns whether all windows of a clip are done."""
        return bool(self._begin[self._number(clip_id)] >= 0)

    def __getitem__(self, clip_id: str) -> ClipAnnotations:
        number = self._number(clip_id)
        assert self._begin[number] >= 0, f"{clip_id} has open windows"
        return self._read(number)

    def add(self, clip_id: str, done: ClipAnnotations) -> None:
        """Stores the annotations of a clip."""
        number = self._number(clip_id)
        # Only this process reads the file, which has no name, so pickle is safe.
        data = pickle.dumps(done, pickle.HIGHEST_PROTOCOL)
        self._begin[number], self._n_bytes[number] = self._spill.add(data), len(data)
        counts = self.counts
        for annotation in done.annotations:
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

    def items(self) -> Iterator[tuple[ClipRow, ClipAnnotations]]:
        """Yields rows and annotations of finished clips, in the order of the rows."""
        for number in np.flatnonzero(self._begin >= 0).tolist():
            yield self.clips[number], self._read(number)

    def _number(self, clip_id: str) -> int:
        number = self._rows.find(clip_id)
        if number is None:
            raise KeyError(clip_id)
        return number

    def _read(self, number: int) -> ClipAnnotations:
        data = self._spill.read(int(self._begin[number]), int(self._n_bytes[number]))
        done: ClipAnnotations = pickle.loads(data)
        return done


class CaptionedSpans:
    """Spans of clips at the time of annotation, by id.

    `parts` are parts of the table `annotations`; those of older versions have no spans.
    """

    def __init__(self, store: Store, parts: Iterable[str] = ()) -> None:
        columns = ["clip_id", *(f"clip_{name}" for name in CaptionedSpan._fields)]
        tables = [fields_of(ANNOTATIONS_SCHEMA, columns).empty_table()]
        for name in parts:
            table = read_parquet(store, name, columns)
            tables += [table] if set(columns) <= set(table.column_names) else []
        self._table = pa.concat_tables(tables)
        self._rows = KeyRows(self._table["clip_id"])

    def get(self, clip_id: str) -> CaptionedSpan | None:
        """Returns the span of a clip, or None."""
        row = self._rows.find(clip_id)
        if row is None:
            return None
        values = (self._table[f"clip_{name}"][row].as_py() for name in CaptionedSpan._fields)
        return CaptionedSpan(*values)
