"""The stage that writes kept clips."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import av
import numpy as np

from curator.cut_requests import cut_request, windowed
from curator.dataset.output_form import as_output
from curator.media.encode import refuse_without
from curator.records.clips import Reason, Span, Written
from curator.records.cuts import Crop, CutRequest, NotCopied, crop_columns
from curator.records.sources import Failure, Note, SourceRef, decode_limit_s
from curator.records.tracks import KEY, SourceFrames
from curator.sample_frames import SampleFramesStage
from curator.stage import (
    Phase,
    PixelStage,
    Resources,
    Scope,
    Stage,
    StageConfig,
    StageReason,
    Wait,
)
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig
from curator.storage import open_blocks, open_source
from curator.storage.scratch import MAX_MP4S


class CutStageConfig(StageConfig):
    """The section `cut`, and `analyze.max_pixels`."""

    cut: CutConfig
    max_pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToCut:
    """A clip to write.

    Attributes:
        min_frames: Minimum number of frames of a copy; a shorter copy is not used.
        track_part: Part of `tracks` with the timestamps of the source.
        crop: The picture without its black borders, as proposed; None keeps the whole picture.
        size: Width and height to write; None keeps those of the picture.
        note: What the next step of the chain needs to know about the clip; None without such a
            step.
        window: Frames to write, and their rate; None for a clip that is no window.
        work_s: Estimated work, in seconds of analysis of 1080p; for the progress.
    """

    source: SourceRef
    clip_id: str
    span: Span
    min_frames: int
    track_part: str = ""
    crop: Crop | None = None
    size: tuple[int, int] | None = None
    note: Any = None
    window: tuple[int, Fraction] | None = None
    work_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutItem:
    """A clip to cut, and the timestamps of its source."""

    clip: ClipToCut
    track: SourceFrames
    others: tuple[ClipToCut, ...] = ()
    """The next clips of the unit, if one decode of the source reaches them, too."""

    @property
    def uri(self) -> str:
        """Address of the source."""
        return self.clip.source.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOutcome:
    """The result for one clip: the written clip, or a failure.

    A copy may be shorter than the proposed clip; `written` has the span of the copy.
    """

    clip_id: str
    written: Written | None = None
    failure: Failure | None = None
    worker_s: float = 0.0
    not_copied: NotCopied | None = None
    is_decoded: bool = True
    """Whether the check of a copy decoded all frames."""
    decoded_frames: int = 0
    """Frames of the source that were decoded for this clip, and for clips after it."""
    mp4: bytes = field(default=b"", repr=False)
    """The clip, until it is stored."""


MAX_CUT_BYTES = 6 << 30
"""Memory for one clip and its MP4. 8K takes 1.5 GB, and more with each decoder thread."""
NVENC_GPUS = 1 / 8
"""Share of a GPU for one encoder. A GeForce opens at most eight sessions (since driver 551; other
GPUs open more). Each worker decodes on one core, and eight cores are enough to use NVENC well."""
MAX_PIXELS_AT_ONCE = 4 * 3840 * 2160
"""Pixels of the frames of all encoders that are open at a time; an encoder takes about 50 bytes for
each."""
PIXELS_PER_CUT_S = 1e6
"""A twentieth of the speed of x264 on one core with the slowest preset of `cut.preset`."""


class CutStage(Stage[CutStageConfig, CutItem, CutOutcome]):
    """Writes clips: copies packets if the copy is exact, and otherwise encodes.

    A source stays open for its next clip.

    Args:
        pixels: Stages that change pixels before the encoder.
        threads: Decoder threads; changes no result.
    """

    name = "cut"
    version = 7
    sandboxed = True
    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips", "tracks")
    writes = ("cuts", "clips")
    by_content = frozenset({"clips", "tracks"})
    config_type = CutConfig
    change_effect = "clips are cut again"
    noun = "clip"
    time_share = 25.0
    helpers = (SampleFramesStage.name,)

    def __init__(
        self, config: CutStageConfig, pixels: Sequence[PixelStage[Any]] = (), *, threads: int = 1
    ) -> None:
        super().__init__(config)
        self.pixels = tuple(pixels)
        self._threads = threads
        self._opened: tuple[str, ExitStack, ClipCutter] | None = None

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons of failures, of HDR, and of removed clips that are written again."""
        yield StageReason(name=Reason.HIGH_DYNAMIC_RANGE, is_listed=False)
        for failure in (Reason.CUT_FAILED, Reason.SOURCE_CHANGED):
            yield StageReason(name=failure, is_listed=False, is_failure=True)
        yield StageReason(name=Reason.REMOVED, is_listed=False)

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for the stages that may still reject clips."""
        wait = self.waits_for_decisions(before)
        if wait.is_needed:
            return wait
        where = "on a cluster or a machine with a GPU, cutting begins before all are decided"
        return replace(wait, why=f"{wait.why}; {where}")

    @property
    def resources(self) -> Resources:
        """A core, and a share of a GPU if the encoder is NVENC."""
        return Resources(gpus=NVENC_GPUS if self._is_on_gpu else 0.0)

    @property
    def limit_bytes(self) -> int | None:
        """Memory limit for a clip; no limit with a GPU: its driver maps more than it uses."""
        return None if self._is_on_gpu else MAX_CUT_BYTES

    @property
    def _is_on_gpu(self) -> bool:
        return self.config.cut.encoder == "nvenc"

    def models(self) -> tuple[object, ...]:
        """Returns the version of libavcodec, and the fingerprints of stages that change pixels."""
        return (av.library_versions["libavcodec"], *pixel_fingerprints(self.pixels))

    def settings(self) -> dict[str, object]:
        """Returns the settings that change results.

        A list of sizes does not: the id of a clip has its size, so another size leaves the others.
        """
        decides = {"enlarge", "most_cropped", "most_repeated"}
        cut = self.config.cut
        settings = cut.model_dump(mode="json", exclude={"verify_share", *decides})
        return settings | ({"size": None} if cut.sizes else {})

    def preflight(self) -> None:
        """Checks what the stages that change pixels need."""
        for stage in self.pixels:
            stage.preflight()

    def setup(self) -> None:
        """Sets up the stages that change pixels.

        Tests NVENC: if it does not open, the run ends here, instead of failing clip by clip.
        """
        for stage in self.pixels:
            stage.setup()
        if self._is_on_gpu:
            refuse_without("nvenc")

    def release(self) -> None:
        """Closes the source."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    def files(self) -> tuple[str, ...]:
        """Returns the files of the stages that change pixels."""
        return tuple(file for stage in self.pixels for file in stage.files())

    def limit_s(self, unit: CutItem) -> float:
        """Returns CPU-seconds for clips; the worst case decodes the source from its start."""
        clips = unit.clip, *unit.others
        n_frames = sum(clip.span.n_frames for clip in clips)
        pixels = n_frames * unit.track.width * unit.track.height
        return len(clips) * decode_limit_s(unit.clip.source) + pixels / PIXELS_PER_CUT_S

    def retried(self, unit: CutItem) -> CutItem:
        """Returns the clip without others, one of which may have caused the death of a worker."""
        return replace(unit, others=())

    @contextmanager
    def _cutter(self, unit: CutItem) -> Iterator[ClipCutter]:
        """Opens a source, which stays open until an error or a clip of another source.

        Refuses a source with other bytes than the analysis read.
        """
        source = unit.clip.source
        if self._opened is None or self._opened[0] != source.uri:
            self.release()
            stack = ExitStack()
            reader = open_blocks(
                partial(open_source, source.uri, expected_version=source.version),
                source.uri,
                n_bytes=source.n_bytes,
                hashes=unit.track.block_hashes,
            )
            stack.enter_context(reader)
            cutter = ClipCutter(
                reader,
                source.uri,
                n_bytes=source.n_bytes,
                config=self.config.cut,
                max_pixels=self.config.max_pixels,
                decoder_threads=self._threads,
                pixels=self.pixels,
                is_image=source.is_image,
                on_reached=self.on_reached,
            )
            self._opened = source.uri, stack, stack.enter_context(cutter)
        try:
            yield self._opened[2]
        except BaseException:
            self.release()
            raise

    def process(self, unit: CutItem) -> CutOutcome:
        """Writes a clip."""
        begun = time.monotonic()
        track, span = unit.track, unit.clip.span
        request = request_of(unit.clip, track, self.config.cut)
        others = [request_of(clip, track, self.config.cut) for clip in unit.others]
        with self._cutter(unit) as cutter:
            before = cutter.n_decoded
            cut = cutter.cut(request, others, track.frame_pts)
            decoded_frames = cutter.n_decoded - before
        start_frame, end_frame = span.start_frame + cut.first, span.start_frame + cut.end
        start_pts, end_pts = int(track.frame_pts[start_frame]), track.pts_of_end(end_frame)
        written = Written(
            cut_mode=cut.cut_mode,
            format=cut.format,
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
            mp4_bytes=len(cut.mp4),
            mp4_sha256=cut.mp4_sha256,
            **crop_columns(request.crop),
        )
        return CutOutcome(
            clip_id=unit.clip.clip_id,
            written=written,
            worker_s=time.monotonic() - begun,
            not_copied=cut.not_copied,
            is_decoded=cut.is_decoded,
            decoded_frames=decoded_frames,
            mp4=cut.mp4,
        )

    def failed(self, unit: CutItem, failure: Failure) -> CutOutcome:
        """Returns the outcome of a clip that could not be written."""
        return CutOutcome(clip_id=unit.clip.clip_id, failure=failure)

    def video_s(self, unit: CutItem) -> float:
        """Returns the duration of the clip as proposed, in seconds."""
        track, span = unit.track, unit.clip.span
        start_pts = int(track.frame_pts[span.start_frame])
        return track.seconds(track.pts_of_end(span.end_frame)) - track.seconds(start_pts)

    def work_s(self, unit: CutItem) -> float:
        """Returns the estimated work of the clip."""
        return unit.clip.work_s


def request_of(clip: ClipToCut, track: SourceFrames, cut: CutConfig) -> CutRequest:
    """Returns the request to write a clip of a source as the recipe says."""
    request = cut_request(
        track, clip.clip_id, clip.span, crop=clip.crop, min_frames=clip.min_frames
    )
    if clip.source.is_image:
        # A still image has no rate and no length.
        return as_output(replace(request, is_seekable=False), size=clip.size)
    if clip.window is not None:
        n_frames, fps = clip.window
        return as_output(windowed(request, fps=fps, n_frames=n_frames), size=clip.size)
    return as_output(request, size=clip.size, fps=cut.rate, n_frames=cut.length_frames)


def decoded_together(items: Sequence[CutItem], cut: CutConfig) -> list[CutItem]:
    """Returns items that know the clips after them which one decode of the source reaches.

    Such a clip overlaps those before it, or no key frame is between their end and its start, so
    that its own decode would begin before their end.
    """
    groups: list[list[CutItem]] = []
    ends: list[int] = []
    for item in items:
        track, start = item.track, item.clip.span.start_frame
        n_frames = _n_source_frames(item, cut)
        if not (
            groups
            and n_frames > 0
            and groups[-1][0].track is track
            and start >= groups[-1][-1].clip.span.start_frame
            and not np.any(track.frame_flags[max(ends) : start + 1] & KEY)
            and _n_at_once(ends, start) < MAX_MP4S
            and (_n_at_once(ends, start) + 1) * track.width * track.height <= MAX_PIXELS_AT_ONCE
        ):
            groups.append([])
            ends = []
        groups[-1].append(item)
        ends.append(start + n_frames)
    return [
        replace(item, others=tuple(replace(other.clip, note=None) for other in group[number:]))
        for group in groups
        for number, item in enumerate(group, 1)
    ]


def _n_source_frames(item: CutItem, cut: CutConfig) -> int:
    """Returns the frames that are decoded for a clip; 0 for a clip that is decoded by itself."""
    if Note.TIMES_START_AGAIN in item.track.notes or item.clip.source.is_image:
        return 0
    try:
        return len(request_of(item.clip, item.track, cut).frame_pts)
    except Exception:  # noqa: BLE001 - `process` fails the clip, with the traceback
        return 0


def _n_at_once(ends: Sequence[int], start: int) -> int:
    """Returns how many of some clips have not ended at a frame."""
    return sum(end > start for end in ends)


def pixel_fingerprints(stages: Sequence[PixelStage[Any]]) -> list[tuple[str, str, str]]:
    """Returns module, class and fingerprint of each stage that changes pixels."""
    return [
        (type(stage).__module__, type(stage).__qualname__, stage.fingerprint({}))
        for stage in stages
    ]
