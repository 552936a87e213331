"""Gets the frames of clips for a captioner, in the cheapest way available.

Parts of `frames` hold the pictures, a row group per clip, until the run has finished.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from curator.errors import CuratorError, CutError, DamagedError
from curator.fingerprints import fingerprint
from curator.media.frame_tap import (
    FrameTaker,
    FrameWish,
    MakeTap,
    Moment,
    Reads,
    StoredFrames,
    TakenFrames,
    Tap,
    look_at_clip,
    store_looked,
)
from curator.records.clips import Clip, Written
from curator.records.cuts import CROP_COLUMNS, Looked
from curator.records.sources import Failure
from curator.stage import Scope, Stage
from curator.stages.caption.caption_records import Frames, Task
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig, frames_fingerprint
from curator.stages.caption.windows import windows_of
from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.clip_locations import Location, located_bytes
from curator.tables.parts import Parts, rows_to_table

FRAMES = "frames"
FRAMES_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("n_frames", pa.int32()),
        ("frames", pa.list_(pa.int32())),
        ("jpegs", pa.list_(pa.binary())),
        ("text", pa.string()),
    ]
)
"""Row of `frames`: pictures of one clip, and the text read in them as JSON."""
_CONTENT = ("start_frame", "end_frame", "n_frames", "width", "height", *CROP_COLUMNS)
_FACTS = ("clip_id", "n_frames", "text")
_KEPT_ROWS = 16
_READERS = 16
READ_FRAMES = 4
"""Frames of a clip in which text is read: subtitles of one shot stay for seconds."""


def content_of(clip_id: str, clip: Clip | Written, pixels: str) -> str:
    """Fingerprint of a clip's pixels, as proposed or written: its source and span, crop and form.

    `pixels` is the fingerprint of the stages that change pixels; empty without any.
    """
    own = [clip_id, *(getattr(clip, name) for name in _CONTENT)]
    return fingerprint("clip content", own, *([pixels] if pixels else []))


def frames_key(content: str, moments: Sequence[Moment]) -> str:
    """Returns the key of a clip's frames, for one configuration."""
    return fingerprint("clip pictures", content, moments) if moments else content


class CaptionFrames:
    """Chooses, reads and stores the frames of clips for a captioner: a `FrameTaker`."""

    def __init__(self, store: Store, config: CaptionConfig, pixels: str = "") -> None:
        self._config = config
        self._pixels = pixels
        self._parts = Parts(store, FRAMES, frames_fingerprint(config))
        self._reader: Any = None

    def tap(
        self, wish: FrameWish, fps: Fraction | float, start_s: Callable[[int], float]
    ) -> MakeTap:
        """As `FrameTaker.tap`."""
        config = self._config
        reads = self._reads() if wish.reads_text else None

        def make(n_frames: int, first: int) -> Tap:
            windows = windows_of(n_frames, float(fps), config, wish.moments, start_s(first))
            wanted = sorted({frame for window in windows for frame in window.shown})
            n_read = min(READ_FRAMES, len(wanted))
            read_at = [wanted[(2 * i + 1) * len(wanted) // (2 * n_read)] for i in range(n_read)]
            return Tap(wanted, longest_px=config.frame_px, reads=reads, read_at=read_at)

        return make

    def store(self, taken: Sequence[TakenFrames]) -> list[StoredFrames]:
        """As `FrameTaker.store`: writes one part of `frames`, with a row group per clip."""
        rows, keys = [], []
        stored: list[StoredFrames] = []
        for clip in taken:
            content = clip.wish.content
            if clip.written is not None:
                content = content_of(clip.clip_id, clip.written, self._pixels)
            facts: dict[str, Any] = {
                "clip_id": clip.clip_id,
                "n_frames": clip.looked.n_frames,
                "text": _text_json(clip.looked),
            }
            jpegs = clip.looked.jpegs
            rows.append({**facts, "frames": list(jpegs), "jpegs": list(jpegs.values())})
            keys.append(frames_key(content, clip.wish.moments))
            stored.append(StoredFrames(**facts, content=content, row=len(stored)))
        if not rows:
            return []
        part = self._parts.write(rows_to_table(rows, FRAMES_SCHEMA), keys, one_row_groups=True)
        return [replace(where, part=part) for where in stored]

    def _reads(self) -> Reads:
        if self._reader is None:
            from curator.models.text_reader import TextReader

            self._reader = TextReader()
        reader = self._reader
        return lambda rgb_HWC: tuple(reader.read(rgb_HWC))  # noqa: N803


def _text_json(looked: Looked) -> str:
    """Returns lines of text by frame number, as JSON; empty without text."""
    if not looked.text:
        return ""
    by_frame = {str(frame): lines for frame, lines in looked.text.items()}
    return orjson.dumps(by_frame, option=orjson.OPT_SORT_KEYS).decode()


class FrameParts:
    """Parts of `frames` of one recipe."""

    def __init__(self, store: Store, config: CaptionConfig) -> None:
        self._parts = Parts(store, FRAMES, frames_fingerprint(config))
        # Several threads read it; the windows of a clip come in a row.
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], Future[dict[str, Any]]] = {}

    def stored(self) -> dict[str, StoredFrames]:
        """Returns the frames that an unfinished run left, by `frames_key`; `content` is empty."""
        found: dict[str, StoredFrames] = {}
        names = self._parts.names()
        with ThreadPoolExecutor(_READERS) as pool:
            keys = pool.map(self._parts.keys, names)
            tables = pool.map(partial(self._parts.read_columns, columns=_FACTS), names)
            for name, its_keys, table in zip(names, keys, tables, strict=True):
                for row, (key, facts) in enumerate(zip(its_keys, table.to_pylist(), strict=True)):
                    found[key] = StoredFrames(part=name, row=row, **facts)
        return found

    def frames(self, where: StoredFrames, task: Task) -> Frames:
        """Returns the pictures of a window.

        Raises:
            CutError: Some are missing.
        """
        row = self._row(where.part, where.row)
        by_frame = dict(zip(row["frames"], row["jpegs"], strict=True))
        missing = [frame for frame in task.window.shown if frame not in by_frame]
        if missing:
            raise CutError(f"{where.part}: frames {missing} of clip {task.clip_id} are not there")
        return Frames(
            jpegs=tuple(by_frame[frame] for frame in task.window.shown),
            times_s=tuple(frame / task.fps for frame in task.window.shown),
        )

    def _row(self, part: str, number: int) -> dict[str, Any]:
        """Returns a row. The first caller reads it, and others wait for that row alone."""
        key = part, number
        with self._lock:
            row = self._kept.get(key)
            is_first = row is None
            if row is None:
                row = self._kept[key] = Future()
                while len(self._kept) > _KEPT_ROWS:
                    del self._kept[next(iter(self._kept))]
        if is_first:
            try:
                row.set_result(self._loaded(part, number))
            except BaseException as error:  # noqa: BLE001 - raised where it is asked for
                # Another try may find it.
                with self._lock:
                    self._kept.pop(key, None)
                row.set_exception(error)
        return row.result()

    def _loaded(self, part: str, number: int) -> dict[str, Any]:
        table = read_rows(
            self._parts.store, part, lambda f: f.read_row_group(number, ["frames", "jpegs"])
        )
        row: dict[str, Any] = table.to_pylist()[0]
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenClip:
    """A written clip whose frames are needed."""

    clip_id: str
    wish: FrameWish
    location: Location
    n_frames: int
    fps: float
    start_s: float = 0.0
    """Start of the clip in the source."""
    mp4: bytes | str = field(default=b"", repr=False)
    """The clip as `ReadClips` reads it, or why it cannot be read."""

    @property
    def uri(self) -> str:
        """URI of the object that holds the clip."""
        return self.location.name


@dataclass(frozen=True, slots=True)
class ReadClips:
    """Reads written clips from parts of `cuts` and from shards."""

    store: Store

    def __call__(self, clips: Sequence[WrittenClip]) -> list[WrittenClip]:
        """Returns the clips with their MP4s."""
        return [replace(clip, mp4=self._read(clip.location)) for clip in clips]

    def _read(self, location: Location) -> bytes | str:
        try:
            return located_bytes(self.store, location)
        except DamagedError:
            raise
        except CuratorError as error:
            return str(error)


class WrittenFramesStage(Stage[CaptionConfig, WrittenClip, Looked | StoredFrames]):
    """Takes frames of written clips."""

    name = "look"
    version = ANNOTATE_VERSION
    scope = Scope.CLIP
    reads = ("clips",)
    writes = (FRAMES,)
    boxed = True

    def __init__(self, config: CaptionConfig, *, taker: FrameTaker, threads: int) -> None:
        super().__init__(config)
        self._taker = taker
        self._threads = threads

    def process(self, unit: WrittenClip) -> Looked:
        """Takes the frames of a clip."""
        make_tap = self._taker.tap(unit.wish, unit.fps, lambda first: unit.start_s)
        if isinstance(unit.mp4, str):
            raise CutError(unit.mp4)
        looked = look_at_clip(unit.mp4, make_tap(unit.n_frames, 0), threads=self._threads)
        if looked.n_frames != unit.n_frames:
            raise CutError(
                f"{unit.location.name}: clip {unit.clip_id} decodes to "
                f"{looked.n_frames} frames, {unit.n_frames} were written; see `curate verify`"
            )
        return looked

    def failed(self, unit: WrittenClip, failure: Failure) -> StoredFrames:
        """Returns a clip without frames."""
        return StoredFrames(clip_id=unit.clip_id, error=failure.message)

    def store(
        self, clips: Sequence[WrittenClip], results: Sequence[Looked | StoredFrames]
    ) -> list[StoredFrames]:
        """Stores the frames of a unit, and passes on clips without frames."""
        return store_looked(self._taker, [(clip.clip_id, clip.wish) for clip in clips], results)
