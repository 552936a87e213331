"""Stores the frames of clips for captions, in parts that stay until the run has finished."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from curator.errors import CuratorError, CutError, DamagedError
from curator.fingerprints import fingerprint
from curator.records.clips import Clip, Written
from curator.records.cuts import CROP_COLUMNS, FreshClip, SampledFrames, StoredFrames
from curator.sample_frames import ClipToSample
from curator.stages.caption.caption_records import Frames, Task
from curator.stages.caption.config import CaptionConfig, frames_fingerprint
from curator.stages.caption.windows import Moment, WindowFrames
from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.clip_locations import Location, located_bytes
from curator.tables.out_layout import FRAME_PARTS
from curator.tables.parts import Parts, columns_schema, rows_to_table

FRAMES_SCHEMA = columns_schema(
    ("clip_id", pa.string()),
    ("n_frames", pa.int32()),
    ("frames", pa.list_(pa.int32())),
    ("jpegs", pa.list_(pa.binary())),
    ("text", pa.string()),
)
"""A row has the pictures of one clip, and the text in them as JSON."""
_CONTENT = ("start_frame", "end_frame", "n_frames", "width", "height", *CROP_COLUMNS)
_TEXT = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_KEPT_ROWS = 16
_READERS = 16


def content_of(clip_id: str, clip: Clip | Written, pixels: str) -> str:
    """Returns the fingerprint of a clip's pixels: of id, span, size, crop and `pixels`."""
    own = [clip_id, *(getattr(clip, name) for name in _CONTENT)]
    return fingerprint("clip content", own, *([pixels] if pixels else []))


def frames_key(content: str, moments: Sequence[Moment]) -> str:
    """Returns the key of a clip's frames under the fingerprint of one configuration."""
    return fingerprint("clip pictures", content, moments) if moments else content


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToCaption(ClipToSample):
    """A written clip, the frames to sample from it, and the key of these frames."""

    clip_id: str
    key: str


@dataclass(slots=True)
class _KeptRow:
    lock: threading.Lock = field(default_factory=threading.Lock)
    jpegs: dict[int, bytes] | None = None
    """By frame number; None until a thread has read the row."""


class FrameParts:
    """The parts of `frames` for one recipe, a row group per clip; workers get a pickled copy.

    `pixels` is the fingerprint of the stages that change pixels; empty without such stages.
    """

    def __init__(self, store: Store, config: CaptionConfig, pixels: str = "") -> None:
        self._parts = Parts(store, FRAME_PARTS, frames_fingerprint(config))
        self._config, self._pixels = config, pixels
        # A cache for several threads: windows of one clip follow each other.
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], _KeptRow] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Leaves out cached rows."""
        return FrameParts, (self._parts.store, self._config, self._pixels)

    def put(
        self, clips: Sequence[ClipToCaption], results: Sequence[SampledFrames]
    ) -> list[StoredFrames]:
        """Stores the frames of some clips as one part; returns their places, then the failures."""
        rows, keys = [], []
        stored: list[StoredFrames] = []
        failed: list[StoredFrames] = []
        for clip, sampled in zip(clips, results, strict=True):
            if sampled.error is not None:
                failed.append(StoredFrames(clip_id=clip.clip_id, error=sampled.error))
                continue
            facts: dict[str, Any] = {
                "clip_id": clip.clip_id,
                "n_frames": sampled.n_frames,
                # Lines of text by frame number.
                "text": orjson.dumps(sampled.text, option=_TEXT).decode() if sampled.text else "",
            }
            jpegs = sampled.jpegs
            rows.append({**facts, "frames": list(jpegs), "jpegs": list(jpegs.values())})
            keys.append(clip.key)
            stored.append(StoredFrames(**facts, row=len(stored)))
        if not rows:
            return failed
        part = self._parts.write(rows_to_table(rows, FRAMES_SCHEMA), keys, one_row_groups=True)
        return [*(replace(where, part=part) for where in stored), *failed]

    def to_sample(
        self, choice: WindowFrames, clip: Clip | Written, uri: str, mp4: bytes = b""
    ) -> ClipToCaption:
        """Returns a written clip with the frames to sample from it."""
        content = content_of(choice.clip_id, clip, self._pixels)
        return ClipToCaption(
            uri=uri,
            n_frames=clip.n_frames,
            wanted=choice.wanted(clip.n_frames, clip.start_s),
            mp4=mp4,
            clip_id=choice.clip_id,
            key=frames_key(content, choice.moments),
        )

    def stored(self) -> dict[str, StoredFrames]:
        """Returns places of frames from an unfinished run, by `frames_key`."""
        frames: dict[str, StoredFrames] = {}
        names = self._parts.names()
        facts = partial(self._parts.read_columns, columns=("clip_id", "n_frames", "text"))
        with ThreadPoolExecutor(_READERS) as pool:
            keys, tables = pool.map(self._parts.keys, names), pool.map(facts, names)
            for part, its_keys, table in zip(names, keys, tables, strict=True):
                rows = enumerate(table.to_pylist())
                places = (StoredFrames(part=part, row=number, **row) for number, row in rows)
                frames |= zip(its_keys, places, strict=True)
        return frames

    def frames(self, where: StoredFrames, task: Task) -> Frames:
        """Returns the pictures of a window; raises a `CutError` if some are missing."""
        with self._lock:
            row = self._kept.setdefault((where.part, where.row), _KeptRow())
            while len(self._kept) > _KEPT_ROWS:
                del self._kept[next(iter(self._kept))]
        # The first caller reads the row; only other callers of the same row wait.
        with row.lock:
            if row.jpegs is None:
                row.jpegs = self._read(where)
        shown = task.window.shown
        missing = [frame for frame in shown if frame not in row.jpegs]
        if missing:
            raise CutError(f"{where.part}: frames {missing} of clip {task.clip_id} are missing")
        return Frames(
            jpegs=tuple(row.jpegs[frame] for frame in shown),
            times_s=tuple(frame / task.fps for frame in shown),
        )

    def _read(self, where: StoredFrames) -> dict[int, bytes]:
        table = read_rows(
            self._parts.store,
            where.part,
            lambda file: file.read_row_group(where.row, ["frames", "jpegs"]),
        )
        (row,) = table.to_pylist()
        return dict(zip(row["frames"], row["jpegs"], strict=True))


class SampleFresh:
    """Samples frames of clips in the process that wrote them: the step after the cut."""

    def __init__(self, parts: FrameParts) -> None:
        self._parts = parts
        self._unit: Any = None

    def load(self, unit: Any) -> list[ClipToCaption] | None:  # noqa: ANN401 - the cut's result
        """Returns the clips that the unit wrote; None if it wrote none."""
        self._unit = unit
        fresh: Sequence[FreshClip] = unit.fresh
        return [
            self._parts.to_sample(clip.note, clip.written, clip.note.clip_id, clip.mp4)
            for clip in fresh
        ] or None

    def keep(self, clips: Sequence[ClipToCaption], results: Sequence[SampledFrames]) -> Any:  # noqa: ANN401
        """Stores the frames; returns the unit with their places, and without the clips."""
        return replace(self._unit, fresh=(), frames=self._parts.put(clips, results))


def read_clips(
    store: Store, clips: Sequence[tuple[ClipToCaption, Location]]
) -> list[ClipToCaption]:
    """Returns clips with their MP4s, from parts of `cuts` or tars, or with an error."""

    def read(clip: ClipToCaption, where: Location) -> ClipToCaption:
        try:
            return replace(clip, mp4=located_bytes(store, where))
        except DamagedError:
            raise
        except CuratorError as error:
            return replace(clip, error=str(error))

    return [read(*pair) for pair in clips]
