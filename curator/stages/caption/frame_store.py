"""The steps that get a captioner the frames of clips, each by the cheapest way there is.

Pictures lie in parts of `frames`, a row group per clip, until the run has finished.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import CuratorError, CutError
from curator.executor.attempts import CpuClock
from curator.fingerprints import fingerprint
from curator.media.frame_tap import Reads, Tap, look_at_clip
from curator.records import Looked
from curator.stages.caption.caption_records import Frames, Task
from curator.stages.caption.config import CaptionConfig, frames_fingerprint
from curator.stages.caption.windows import Moment, windows_of
from curator.stages.cut.clip_cutter import MakeTap
from curator.storage import Store
from curator.tables.clip_locations import Location, clip_bytes
from curator.tables.parts import Parts, rows_to_table
from curator.tables.schemas import CROP_COLUMNS

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
"""Row of `frames`: pictures of one clip, and the text that was read in them as JSON."""
_CONTENT = ("clip_id", "start_frame", "end_frame", "n_frames", "width", "height", *CROP_COLUMNS)
_FACTS = ("clip_id", "n_frames", "text")
_KEPT_ROWS = 16
_READERS = 16
READ_FRAMES = 4
"""Frames of a clip in which text is read: subtitles of one shot stand for seconds."""


def content_of(clip: Mapping[str, Any]) -> str:
    """Fingerprint of a clip's pixels: its source and span, crop and form.

    Args:
        clip: Row of `clips`, or what was written of one.
    """
    return fingerprint("clip content", [clip[name] for name in _CONTENT])


def pictures_key(content: str, moments: Sequence[Moment]) -> str:
    """What makes the pictures of a clip, for one configuration.

    Args:
        content: Of the clip.
        moments: Of the events that the source has.
    """
    return fingerprint("clip pictures", content, moments) if moments else content


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedClip:
    """Where the pictures of a clip lie, or why there are none."""

    clip_id: str
    content: str = ""
    part: str = ""
    row: int = 0
    n_frames: int = 0
    text: str = ""
    """What was read in the pictures, as JSON; empty where nothing was to be read."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Pictures of a clip on their way into a part."""

    clip_id: str
    content: str
    looked: Looked
    moments: tuple[Moment, ...] = ()
    """Of the events that the source has."""

    @property
    def text(self) -> str:
        """What was read, as JSON: lines by the number of the frame; empty for nothing read."""
        if not self.looked.text:
            return ""
        by_frame = {str(frame): lines for frame, lines in self.looked.text.items()}
        return orjson.dumps(by_frame, option=orjson.OPT_SORT_KEYS).decode()

    def row(self) -> dict[str, Any]:
        """Row of `FRAMES_SCHEMA`."""
        return {
            "clip_id": self.clip_id,
            "n_frames": self.looked.n_frames,
            "frames": list(self.looked.jpegs),
            "jpegs": list(self.looked.jpegs.values()),
            "text": self.text,
        }


class Taps:
    """Makes taps for a recipe; the reader of text is made when it is first needed.

    Args:
        config: Windows, frames and size.
    """

    def __init__(self, config: CaptionConfig) -> None:
        self._config = config
        self._reader: Any = None

    def of(
        self,
        fps: Fraction | float,
        *,
        reads_text: bool,
        moments: Sequence[Moment] = (),
        start_s: Callable[[int], float] = lambda first: 0.0,
    ) -> MakeTap:
        """Makes the tap of a clip by its number of frames.

        Args:
            fps: Rate of the clip as written.
            reads_text: Whether text in the pictures is read.
            moments: Of the source's events.
            start_s: Seconds of the source at which the clip begins, by its first frame.
        """
        config = self._config
        reads = self._reads() if reads_text else None

        def make(n_frames: int, first: int) -> Tap:
            windows = windows_of(n_frames, float(fps), config, moments, start_s(first))
            wanted = sorted({frame for window in windows for frame in window.shown})
            n_read = min(READ_FRAMES, len(wanted))
            read_at = [wanted[(2 * i + 1) * len(wanted) // (2 * n_read)] for i in range(n_read)]
            return Tap(wanted, longest_px=config.frame_px, reads=reads, read_at=read_at)

        return make

    def _reads(self) -> Reads:
        if self._reader is None:
            from curator.models.text_reader import TextReader

            self._reader = TextReader()
        reader = self._reader
        return lambda rgb_HWC: tuple(reader.read(rgb_HWC))  # noqa: N803


class FrameParts:
    """Parts of `frames` of one recipe.

    Args:
        store: Output root.
        config: What is taken of clips.
    """

    def __init__(self, store: Store, config: CaptionConfig) -> None:
        self._parts = Parts(store, FRAMES, frames_fingerprint(config))
        # Asked by several threads; a clip's windows come one after the other.
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Future[dict[str, Any]]] = OrderedDict()

    def write(self, taken: Sequence[Taken]) -> list[LookedClip]:
        """Stores pictures of clips as one part, and says where they are."""
        if not taken:
            return []
        table = rows_to_table([clip.row() for clip in taken], FRAMES_SCHEMA)
        keys = [pictures_key(clip.content, clip.moments) for clip in taken]
        name = self._parts.write(table, keys, one_row_groups=True)
        return [
            LookedClip(
                clip_id=clip.clip_id,
                content=clip.content,
                part=name,
                row=row,
                n_frames=clip.looked.n_frames,
                text=clip.text,
            )
            for row, clip in enumerate(taken)
        ]

    def stored(self) -> dict[str, LookedClip]:
        """What a run that did not finish has left, by `pictures_key`; contents are not told."""
        found: dict[str, LookedClip] = {}
        names = self._parts.names()
        with ThreadPoolExecutor(_READERS) as pool:
            keys = pool.map(self._parts.keys, names)
            tables = pool.map(partial(self._parts.read, columns=_FACTS), names)
            for name, its_keys, table in zip(names, keys, tables, strict=True):
                for row, (key, facts) in enumerate(zip(its_keys, table.to_pylist(), strict=True)):
                    found[key] = LookedClip(part=name, row=row, **facts)
        return found

    def frames(self, where: LookedClip, task: Task) -> Frames:
        """The pictures of a window.

        Raises:
            CutError: They are not all there.
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
        """A row, read once by whoever asks first; others wait for that row alone."""
        key = part, number
        with self._lock:
            row = self._kept.get(key)
            is_first = row is None
            if row is None:
                row = self._kept[key] = Future()
                while len(self._kept) > _KEPT_ROWS:
                    self._kept.popitem(last=False)
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
        with self._parts.store.open(part) as reader:
            table = pq.ParquetFile(reader).read_row_group(number, columns=["frames", "jpegs"])
        row: dict[str, Any] = table.to_pylist()[0]
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenClip:
    """A clip that is written, and whose frames are wanted."""

    clip_id: str
    content: str
    location: Location
    n_frames: int
    fps: float
    reads_text: bool
    start_s: float = 0.0
    """Where it begins in the source."""
    moments: tuple[Moment, ...] = ()
    """Of the source's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUnitResult:
    """One outcome for each clip of a unit, and the worker's CPU-seconds by what they went into."""

    looked: list[LookedClip]
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class LookWrittenStep:
    """Takes frames out of written clips, in parts of `cuts` or in shards.

    Args:
        store: Output root.
        config: What is taken.
        threads: Decoder threads.
    """

    def __init__(self, *, store: Store, config: CaptionConfig, threads: int) -> None:
        self._store = store
        self._taps = Taps(config)
        self._parts = FrameParts(store, config)
        self._threads = threads
        self._clock = CpuClock()

    def __call__(self, unit: Sequence[WrittenClip]) -> LookUnitResult:
        """Takes the frames of a unit's clips."""
        spent, start = self._clock.begin(), time.monotonic()
        taken: list[Taken] = []
        failed: list[LookedClip] = []
        for clip in unit:
            make_tap = self._taps.of(
                clip.fps,
                reads_text=clip.reads_text,
                moments=clip.moments,
                start_s=partial(_begins, clip),
            )
            try:
                looked = self._look(clip, make_tap)
            except CuratorError as error:
                failed.append(LookedClip(clip_id=clip.clip_id, error=str(error)))
            else:
                taken.append(
                    Taken(
                        clip_id=clip.clip_id,
                        content=clip.content,
                        looked=looked,
                        moments=clip.moments,
                    )
                )
        return LookUnitResult(
            looked=[*self._parts.write(taken), *failed],
            cpu_s=self._clock.end(spent, rest="look"),
            seconds=time.monotonic() - start,
        )

    def _look(self, clip: WrittenClip, make_tap: MakeTap) -> Looked:
        mp4 = clip_bytes(self._store, clip.location)
        looked = look_at_clip(mp4, make_tap(clip.n_frames, 0), threads=self._threads)
        if looked.n_frames != clip.n_frames:
            raise CutError(
                f"{self._store.uri}/{clip.location.name}: clip {clip.clip_id} decodes to "
                f"{looked.n_frames} frames, {clip.n_frames} were written; see `curate verify`"
            )
        return looked


def _begins(clip: WrittenClip, first: int) -> float:
    return clip.start_s
