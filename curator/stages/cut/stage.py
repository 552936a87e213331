"""The stages that write clips of the survivors, and that sample frames of clips before."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import av

from curator.cut_requests import cut_request
from curator.media.clip_frames import FrameChoice, FrameSampler
from curator.media.encode import refuse_without
from curator.records.clips import Span, Written
from curator.records.cuts import Crop, CutRequest, NotCopied, SampledFrames, crop_columns
from curator.records.sources import Failure, SourceRef, decode_limit_s
from curator.records.tracks import SourceFrames
from curator.sample_frames import read_text
from curator.stage import (
    DECISIONS,
    OFF,
    Phase,
    PixelStage,
    Resources,
    Scope,
    Stage,
    StageConfig,
    Wait,
)
from curator.stages.cut.clip_cutter import ClipCutter, MakeSampler
from curator.stages.cut.config import CutConfig
from curator.stages.cut.output_form import formed
from curator.storage import open_blocks, open_source


class CutStageConfig(StageConfig):
    """The section `cut`, and `analyze.max_pixels`."""

    cut: CutConfig
    max_pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToCut:
    """A clip that survived and is not written yet.

    Attributes:
        min_frames: Fewest frames with which a copy of it is of use.
        track_part: Part of `tracks` that has the source's timestamps.
        crop: The picture inside its borders, as it was proposed; None to keep all of it.
        size: Width and height that the recipe wants; None for the picture's own.
        frames: Frames that another stage wants of it.
    """

    source: SourceRef
    clip_id: str
    span: Span
    min_frames: int
    track_part: str = ""
    crop: Crop | None = None
    size: tuple[int, int] | None = None
    frames: FrameChoice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutItem:
    """A clip to cut, and when the frames of its source are shown."""

    clip: ClipToCut
    track: SourceFrames

    @property
    def uri(self) -> str:
        """Address of the source."""
        return self.clip.source.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOutcome:
    """A clip that was written or looked at, or why it was not.

    The span is the one that was written: the clip's own, or for a copy one within it.
    """

    clip_id: str
    written: Written | None = None
    failure: Failure | None = None
    worker_s: float = 0.0
    video_s: float = 0.0
    not_copied: NotCopied | None = None
    is_decoded: bool = True
    """Whether all frames of a copy were decoded as a check."""
    mp4: bytes = field(default=b"", repr=False)
    """The clip, until it is stored."""
    sampled: SampledFrames | None = None
    """Frames that another stage wants, until they are stored."""


MAX_CUT_BYTES = 6 << 30
"""Memory for a clip, which is held as an MP4: 8K takes 1.5 GB, more with each decoder thread."""
NVENC_GPUS = 1 / 8
"""Share of a GPU for one encoder. A GeForce opens eight sessions at a time (since driver 551; other
GPUs more), and each worker decodes on a core: eight cores keep no NVENC engine waiting for long."""
PIXELS_PER_CUT_S = 1e6
"""A twentieth of what x264 encodes on one core at its slowest preset in use."""


class CutStage(Stage[CutStageConfig, CutItem, CutOutcome]):
    """Writes clips: copies packets where that loses nothing, encodes otherwise.

    A source stays open for its next clips.

    Args:
        pixels: Stages that change pixels before the encoder.
        threads: Decoder threads; changes no result.
    """

    name = "cut"
    version = 4
    sandboxed = True
    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips", "tracks")
    writes = ("cuts", "clips")
    by_content = frozenset({"clips", "tracks"})
    config_type = CutConfig

    def __init__(
        self, config: CutStageConfig, pixels: Sequence[PixelStage[Any]] = (), *, threads: int = 1
    ) -> None:
        super().__init__(config)
        self.pixels = tuple(pixels)
        self._threads = threads
        self._opened: tuple[str, ExitStack, ClipCutter] | None = None

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """What may still reject a clip comes first."""
        if any(wait.on == DECISIONS for wait in before):
            return self.waits_for("every kept clip to be annotated", "answers may reject it")
        wait = self.waits_for_decisions(before)
        asks = any(
            wait.stage == "caption" and wait.granularity != OFF and not wait.on for wait in before
        )
        if wait.is_needed or asks:
            return wait
        where = "on a cluster or a machine with a GPU, clips are cut as they are decided about"
        return replace(wait, why=f"{wait.why}; {where}")

    @property
    def resources(self) -> Resources:
        """A core, and a share of a GPU where that encodes."""
        return Resources(gpus=NVENC_GPUS if self._is_on_gpu else 0.0)

    @property
    def limit_bytes(self) -> int | None:
        """Memory for a clip; none on a GPU, whose driver maps more than it uses."""
        return None if self._is_on_gpu else MAX_CUT_BYTES

    @property
    def _is_on_gpu(self) -> bool:
        return self.config.cut.encoder == "nvenc"

    def models(self) -> tuple[object, ...]:
        """The encoder's version, and the stages that change pixels."""
        return (av.library_versions["libavcodec"], *self.pixel_fingerprints())

    def pixel_fingerprints(self) -> list[tuple[str, str, str]]:
        """Module, class and fingerprint of each stage that changes pixels."""
        return [
            (type(stage).__module__, type(stage).__qualname__, stage.fingerprint({}))
            for stage in self.pixels
        ]

    def settings(self) -> dict[str, object]:
        """Settings that results depend on: crop and form are those of each clip."""
        return self.config.cut.model_dump(mode="json", exclude={"verify_share"})

    def setup(self) -> None:
        """Sets up the stages that change pixels.

        NVENC is opened once, so that a run ends where it does not open, and loses no clip.
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
        """Those of the stages that change pixels."""
        return tuple(file for stage in self.pixels for file in stage.files())

    def limit_s(self, unit: CutItem) -> float:
        """CPU-seconds for a clip: in the worst case its source is decoded from its start."""
        pixels = unit.clip.span.n_frames * unit.track.width * unit.track.height
        return decode_limit_s(unit.clip.source) + pixels / PIXELS_PER_CUT_S

    @contextmanager
    def _cutter(self, unit: CutItem) -> Iterator[ClipCutter]:
        """Opens a source; it stays open unless something goes wrong.

        Its bytes must be those that were analyzed: spans and scores are of these.
        """
        source = unit.clip.source
        if self._opened is None or self._opened[0] != source.uri:
            self.release()
            stack = ExitStack()
            reader = open_blocks(
                partial(open_source, source.uri, expected_version=source.version, checks=True),
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
            )
            self._opened = source.uri, stack, stack.enter_context(cutter)
        try:
            yield self._opened[2]
        except BaseException:
            self.release()
            raise

    def _sampler(self, request: CutRequest, unit: CutItem) -> MakeSampler | None:
        track, clip = unit.track, unit.clip
        choice = clip.frames
        if choice is None:
            return None

        def make(n_frames: int, first: int) -> FrameSampler:
            start_s = track.seconds(int(track.frame_pts[clip.span.start_frame + first]))
            return FrameSampler(choice.wanted(n_frames, float(request.fps), start_s), read_text)

        return make

    def _request(self, unit: CutItem) -> CutRequest:
        clip = unit.clip
        request = cut_request(
            unit.track, clip.clip_id, clip.span, crop=clip.crop, min_frames=clip.min_frames
        )
        cut = self.config.cut
        return formed(request, size=clip.size, fps=cut.rate, n_frames=cut.length_frames)

    def process(self, unit: CutItem) -> CutOutcome:
        """Writes a clip."""
        begun = time.monotonic()
        request = self._request(unit)
        with self._cutter(unit) as cutter:
            cut = cutter.cut(request, self._sampler(request, unit))
        track, span = unit.track, unit.clip.span
        first_pts = int(track.frame_pts[span.start_frame])
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
            mp4_bytes=len(cut.mp4),
            mp4_sha256=cut.mp4_sha256,
            **crop_columns(request.crop),
        )
        return CutOutcome(
            clip_id=unit.clip.clip_id,
            written=written,
            worker_s=time.monotonic() - begun,
            video_s=track.seconds(track.pts_of_end(span.end_frame)) - track.seconds(first_pts),
            not_copied=cut.not_copied,
            is_decoded=cut.is_decoded,
            mp4=cut.mp4,
            sampled=cut.sampled,
        )

    def failed(self, unit: CutItem, failure: Failure) -> CutOutcome:
        """The outcome of a clip that could not be written."""
        return CutOutcome(clip_id=unit.clip.clip_id, failure=failure)

    def video_s(self, result: CutOutcome) -> float:
        """Length of the clip as proposed."""
        return result.video_s


class LookStage(CutStage):
    """Samples frames of clips that are not written yet, and encodes nothing."""

    name = "look"

    @property
    def _is_on_gpu(self) -> bool:
        return False

    def process(self, unit: CutItem) -> CutOutcome:
        """Samples the frames of a clip."""
        request = self._request(unit)
        make_sampler = self._sampler(request, unit)
        assert make_sampler is not None
        with self._cutter(unit) as cutter:
            return CutOutcome(clip_id=unit.clip.clip_id, sampled=cutter.look(request, make_sampler))

    def failed(self, unit: CutItem, failure: Failure) -> CutOutcome:
        """The outcome of a clip whose frames could not be sampled."""
        return CutOutcome(clip_id=unit.clip.clip_id, sampled=SampledFrames(error=failure.message))
