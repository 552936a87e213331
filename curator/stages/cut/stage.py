"""The steps that write clips of the survivors, and that look at them before."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from curator.cut_requests import cut_request
from curator.errors import CutError, SourceError
from curator.executor.attempts import MAX_ATTEMPTS, CpuClock, internal_failure
from curator.executor.ledger import AttemptLedger
from curator.media.frame_tap import FrameTaker, FrameWish, MakeTap, StoredFrames, TakenFrames
from curator.records import (
    ClipForm,
    CutClip,
    CutRequest,
    NotCopied,
    SourceRef,
    Span,
    Track,
    Written,
)
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig
from curator.stages.cut.output_form import formed
from curator.storage import Store, open_source
from curator.tables.parts import Parts, rows_to_table
from curator.tables.schemas import CUT_SCHEMA, crop_columns
from curator.tables.track_table import table_to_tracks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToCut:
    """A clip that survived and is not written yet."""

    clip_id: str
    span: Span
    min_frames: int
    """Fewest frames with which a copy of it is of use."""
    form: ClipForm | None = None
    """What the recipe asks of it; None where nothing."""
    wish: FrameWish | None = None
    """Frames that another stage wants of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGroup:
    """Clips of one source to cut, and the part of `tracks` that has its timestamps."""

    source: SourceRef
    track_part: str
    clips: tuple[ClipToCut, ...]
    """In order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOutcome:
    """A clip that was written to a part of `cuts`, or why it was not.

    The span is the one that was written: the clip's own, or for a copy what lies within it.
    """

    clip_id: str
    written: Written | None = None
    error: str | None = None
    worker_s: float = 0.0
    not_copied: NotCopied | None = None


_Result = tuple[CutOutcome, CutClip | None]
"""What became of a clip, and the clip itself where it was written."""
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnitResult:
    """One outcome for each clip of a unit, and the worker's CPU-seconds by what they went into."""

    outcomes: list[CutOutcome]
    cpu_s: Mapping[str, float]
    frames: Sequence[StoredFrames] = ()
    """Frames that were taken of written clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUnitResult:
    """Frames of the clips of a unit, and the worker's CPU-seconds by what they went into."""

    frames: list[StoredFrames]
    cpu_s: Mapping[str, float]


class CutStep:
    """Writes the clips of a unit and stores them as one part of `cuts`."""

    _stage = "cut"

    def __init__(
        self,
        *,
        store: Store,
        stamp: str,
        track_stamp: str,
        config: CutConfig,
        crop_borders: bool,
        max_pixels: int,
        threads: int,
        log: AttemptLedger | None,
        taker: FrameTaker | None = None,
    ) -> None:
        self._taker = taker
        self._crop_borders = crop_borders
        self._parts = Parts(store, "cuts", stamp)
        self._tracks = Parts(store, "tracks", track_stamp)
        self._config = config
        self._max_pixels = max_pixels
        self._threads = threads
        self._log = log
        self._clock = CpuClock()

    def __call__(self, unit: Sequence[CutGroup]) -> CutUnitResult:
        """Writes the clips of a unit."""
        spent = self._clock.begin()
        outcomes: list[CutOutcome] = []
        rows: list[dict[str, Any]] = []
        taken: list[TakenFrames] = []
        wishes = {clip.clip_id: clip.wish for group in unit for clip in group.clips}
        for group in unit:
            for outcome, clip in self._each(group, self._clip, _failed):
                outcomes.append(outcome)
                if clip is None or outcome.written is None:
                    continue
                facts = asdict(outcome.written) | {"clip_id": clip.clip_id}
                rows.append(facts | {"mp4": clip.mp4})
                wish = wishes[clip.clip_id]
                if clip.looked is not None and wish is not None:
                    taken.append(
                        TakenFrames(
                            clip_id=clip.clip_id, wish=wish, looked=clip.looked, written=facts
                        )
                    )
        # Frames first: a clip that is found written is not decoded again for them.
        frames = self._taker.store(taken) if self._taker is not None else []
        if rows:
            table = rows_to_table(rows, CUT_SCHEMA)
            self._parts.write(table, table["clip_id"].to_pylist(), one_row_groups=True)
        cpu_s = self._clock.end(spent, rest="cut")
        return CutUnitResult(outcomes=outcomes, cpu_s=cpu_s, frames=frames)

    def _each(
        self,
        group: CutGroup,
        do: Callable[[ClipCutter, Track, ClipToCut], _Made],
        failed: Callable[[ClipToCut, str], _Made],
    ) -> Iterator[_Made]:
        """What is made of each clip of a source, or of its failure."""
        source = group.source
        source_id = str(source.source_id)
        table = self._tracks.read(group.track_part)
        ((_, track),) = table_to_tracks(table, {source_id: source.uri})
        if not isinstance(track, Track):
            raise TypeError(f"{source.uri} has clips and no track")
        with ExitStack() as stack:
            cutter: ClipCutter | None = None
            for clip in group.clips:
                key = f"{self._stage} {clip.clip_id}"
                if self._log is not None and self._log.begin(key) > MAX_ATTEMPTS:
                    made = failed(clip, "the worker died twice while working on it")
                else:
                    try:
                        cutter = cutter or self._cutter(source, stack)
                        made = do(cutter, track, clip)
                    except (CutError, SourceError) as error:
                        cutter, made = None, failed(clip, str(error))
                    except Exception as error:  # noqa: BLE001 - becomes the clip's outcome
                        failure = internal_failure(source.uri, self._stage, error)
                        cutter, made = None, failed(clip, failure.message)
                yield made
                if self._log is not None:
                    start = track.seconds(int(track.frame_pts[clip.span.start_frame]))
                    end = track.seconds(track.pts_of_end(clip.span.end_frame))
                    self._log.end(key, end - start)

    def _cutter(self, source: SourceRef, stack: ExitStack) -> ClipCutter:
        """Opens a source, for all of its clips unless one fails; `stack` closes it."""
        reader = stack.enter_context(open_source(source.uri, expected_version=source.version))
        cutter = ClipCutter(
            reader,
            source.uri,
            n_bytes=source.n_bytes,
            config=self._config,
            max_pixels=self._max_pixels,
            decoder_threads=self._threads,
        )
        return stack.enter_context(cutter)

    def _clip(self, cutter: ClipCutter, track: Track, clip: ClipToCut) -> _Result:
        span, start = clip.span, time.monotonic()
        request = self._request(track, clip)
        cut = cutter.cut(request, self._tap(request, track, clip))
        start_frame, end_frame = span.start_frame + cut.first, span.start_frame + cut.end
        start_pts, end_pts = int(track.frame_pts[start_frame]), track.pts_of_end(end_frame)
        written = Written(
            cut_mode=cut.cut_mode,
            copy_frames=cut.copy_frames,
            crf=cut.crf,
            audio=cut.audio,
            start_frame=start_frame,
            end_frame=end_frame,
            start_s=track.seconds(start_pts),
            end_s=track.seconds(end_pts),
            start_pts=start_pts,
            end_pts=end_pts,
            n_frames=cut.n_frames,
            width=cut.width,
            height=cut.height,
            mp4_bytes=cut.mp4_bytes,
            mp4_sha256=cut.mp4_sha256,
            **crop_columns(request.crop),
        )
        outcome = CutOutcome(
            clip_id=clip.clip_id,
            written=written,
            worker_s=time.monotonic() - start,
            not_copied=cut.not_copied,
        )
        return outcome, cut

    def _tap(self, request: CutRequest, track: Track, clip: ClipToCut) -> MakeTap | None:
        if self._taker is None or clip.wish is None:
            return None

        def start_s(first: int) -> float:
            return track.seconds(int(track.frame_pts[clip.span.start_frame + first]))

        return self._taker.tap(clip.wish, request.fps, start_s)

    def _request(self, track: Track, clip: ClipToCut) -> CutRequest:
        request = cut_request(
            track,
            clip.clip_id,
            clip.span,
            crop_borders=self._crop_borders,
            min_frames=clip.min_frames,
        )
        return formed(request, clip.form)


class LookStep(CutStep):
    """Takes frames of clips that are not written yet, and encodes nothing."""

    _stage = "look"

    def __call__(self, unit: Sequence[CutGroup]) -> LookUnitResult:  # type: ignore[override]
        """Takes the frames of a unit's clips."""
        spent = self._clock.begin()
        assert self._taker is not None
        made = [one for group in unit for one in self._each(group, self._look, _not_looked)]
        stored = self._taker.store([one for one in made if isinstance(one, TakenFrames)])
        return LookUnitResult(
            frames=[*stored, *(one for one in made if isinstance(one, StoredFrames))],
            cpu_s=self._clock.end(spent, rest="look"),
        )

    def _look(
        self, cutter: ClipCutter, track: Track, clip: ClipToCut
    ) -> TakenFrames | StoredFrames:
        request = self._request(track, clip)
        make_tap = self._tap(request, track, clip)
        assert make_tap is not None
        assert clip.wish is not None
        looked = cutter.look(request, make_tap)
        return TakenFrames(clip_id=clip.clip_id, wish=clip.wish, looked=looked)


def _not_looked(clip: ClipToCut, error: str) -> TakenFrames | StoredFrames:
    return StoredFrames(clip_id=clip.clip_id, error=error)


def _failed(clip: ClipToCut, error: str) -> _Result:
    return CutOutcome(clip_id=clip.clip_id, error=error), None
