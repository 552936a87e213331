"""Measures the frames of one source while they are decoded, and makes its track.

Every frame: TransNetV2's two probabilities, what changed, luma mean and spread. On a grid of
samples: the signals of `signals.SIGNALS` and the perceptual descriptor. Memory does not grow with
pixels times duration: full-size frames are dropped as they come, and what stays is a few numbers a
frame.
"""

# ruff: noqa: N802, N803, N806 - shape letters

import time
from dataclasses import dataclass
from fractions import Fraction

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.measures.camera import camera_signals
from curator.measures.camera_fit import SURE_SHARE, fitted_flow
from curator.measures.change import ChangeStream
from curator.measures.motion import DenseFlow, Flow, motion_signals
from curator.measures.noise import full_frame_noise
from curator.measures.sample_signals import SIGNALS, picture_signals
from curator.measures.stillness import change_signals
from curator.media.decode import DecodedFrame, DecodeReport, DeviceFrame, upright_size
from curator.media.nvdec import Nvdec
from curator.media.scale import fit_inside
from curator.models.clip_model import ClipEncoder
from curator.models.perceptual import DIM, describe
from curator.models.shot_pictures import PICTURE_PX, tiny_luma
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.stages.analyze.frame_views import Sizes, Views, views_of
from curator.stages.analyze.overlay_samples import Looks

AnyFrame = DecodedFrame | DeviceFrame

SMALL_PX = 320
"""Longer side of the picture for flow and the descriptor: fixed, so that motion in pixels does not
depend on the source's resolution."""
THUMBNAIL_PX = 160


@dataclass(slots=True)
class _Sample:
    """A sample that waits for the frames it needs."""

    index: int
    pts: int
    gray: NDArray[np.uint8]
    values: dict[str, float]
    descriptor: NDArray[np.float32]
    pair_index: int | None = None
    wants_native: bool = True
    full_frame_noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What a worker keeps to decode and measure with.

    Attributes:
        network: Shot network.
        detector: Text detector; None leaves text out.
        clip: CLIP model; None for none.
        nvdec: Video engines of a GPU; None decodes on the CPU.
        flow: Dense flow; None makes one for each source.
    """

    network: ShotNetwork
    detector: TextDetector | None = None
    clip: ClipEncoder | None = None
    nvdec: Nvdec | None = None
    flow: Flow | None = None

    def n_halved(self) -> int:
        """Batches that did not fit a GPU's memory, and were halved."""
        kept = (self.network, self.clip, self.nvdec)
        return sum(one.n_halved for one in kept if one is not None)


class Measurer:
    """Collects the measurements of one source.

    Args:
        instruments: Of this worker.
        time_base: Seconds per tick of the source's timestamps.
        pixel_aspect: Width of a pixel by its height, after rotation.
        samples_per_s: Samples per second of video.
        pair_s: Distance from a sample to the frame its motion is measured to, in seconds.
        thumbnail_every: One thumbnail for so many steps of the sampling grid.
        look_every: One look for overlays for so many steps of the sampling grid.
        smooths_all: Whether the decoder smooths the blocks of all frames, or only of those that
            others refer to.
        anchor_pts: Where the sampling grid begins; None for the first frame that comes.
        in_background: Run the networks in threads of their own.
        clip_every_s: Time between the samples that it looks at.
    """

    def __init__(
        self,
        instruments: Instruments,
        *,
        time_base: Fraction,
        pixel_aspect: Fraction,
        samples_per_s: float,
        pair_s: float,
        thumbnail_every: int,
        look_every: int,
        smooths_all: bool,
        anchor_pts: int | None = None,
        in_background: bool = False,
        clip_every_s: float = 1.0,
    ) -> None:
        clip = instruments.clip
        self._clip = clip.stream(in_background=in_background) if clip is not None else None
        self._clip_ticks = max(1, round(clip_every_s / time_base))
        self._clip_block: int | None = None
        self._shots = instruments.network.stream(in_background=in_background)
        self._pixel_aspect = pixel_aspect
        self._sample_ticks = max(1, round(1 / samples_per_s / time_base))
        self._pair_ticks = max(1, round(pair_s / time_base))
        self._tick_s = float(time_base)
        self._thumbnail_every = thumbnail_every
        self._smooths_all = smooths_all
        self._changes = ChangeStream()
        self._flow = instruments.flow or DenseFlow()
        self.looks = Looks(every=look_every, detector=instruments.detector)
        self._views: Views | None = None
        self._anchor_pts = anchor_pts
        self._next_sample_pts: int | None = None
        self._thumbnail_block: int | None = None
        self._sample: _Sample | None = None
        self._samples: list[_Sample] = []
        self.scale_s = 0.0
        self.measure_s = 0.0
        self.frame_pts: list[int] = []
        self.frame_bytes: list[int] = []
        self.frame_flags: list[int] = []
        self.luma_mean: list[float] = []
        self.luma_spread: list[float] = []
        self.thumbnails: list[bytes] = []
        self.thumbnail_frame: list[int] = []

    def add(self, frame: AnyFrame, report: DecodeReport) -> None:
        """Measures the next frame.

        Args:
            frame: The frame.
            report: The decoder's report, which knows the rotation.
        """
        if self._views is None:
            self._views = self._prepare(frame, report)
        assert self._next_sample_pts is not None
        begun_s = time.thread_time()
        tiny = self._views.tiny(frame.picture)
        self.scale_s += time.thread_time() - begun_s
        self._shots.push(tiny)
        begun_s = time.thread_time()
        self._changes.push(tiny)
        luma_mean, luma_spread = tiny_luma(tiny)
        self.luma_mean.append(luma_mean)
        self.luma_spread.append(luma_spread)
        self.frame_pts.append(frame.pts)
        self.frame_bytes.append(frame.n_bytes)
        self.frame_flags.append(int(frame.picture.key_frame) | int(frame.picture.is_corrupt) << 1)
        if self._sample is not None:
            self._complete(self._sample, frame)
        if frame.pts >= self._next_sample_pts:
            self._settle()
            self._sample = self._begin(frame)
            self._next_sample_pts = self._grid_after(frame.pts)
        self.measure_s += time.thread_time() - begun_s

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ends the source; drops a last sample that found no frame to measure motion to.

        Returns:
            The shot network's probabilities, float32 [F] each.
        """
        self._settle()
        return self._shots.finish()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU-seconds of scaling for the network, of the network, of overlays, and of all else."""
        return {
            "scale": self.scale_s,
            "shot_network": self._shots.cpu_s,
            "measure": self.measure_s - self.looks.cpu_s,
            "overlay": self.looks.cpu_s,
        } | ({"clip": self._clip.cpu_s} if self._clip is not None else {})

    def sample_frames(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Indices of the sampled frames, and of those their motion is measured to, int32 [S]."""
        pairs = [(sample.index, sample.pair_index) for sample in self._samples]
        frames_S2 = np.array(pairs, np.int32).reshape(-1, 2)
        return frames_S2[:, 0].copy(), frames_S2[:, 1].copy()

    def signals(self) -> dict[str, NDArray[np.float32]]:
        """All values of the samples, float32 [S] each, NaN where one could not be measured."""
        nan = float("nan")
        return {
            name: np.array([sample.values.get(name, nan) for sample in self._samples], np.float32)
            for name in SIGNALS
        }

    def changes(self) -> dict[str, NDArray[np.float32]]:
        """How the film changes at each frame, float32 [F] each; ends the film."""
        return self._changes.finish()

    def descriptors_SD(self) -> NDArray[np.float32]:
        """The samples' descriptors, float32 [S, D]."""
        if not self._samples:
            return np.zeros((0, DIM), np.float32)
        return np.stack([sample.descriptor for sample in self._samples])

    def clip_embeddings(self) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        """Frames that the CLIP model looked at, int32 [C], and embeddings, float16 [C, D]."""
        if self._clip is None:
            return np.zeros(0, np.int32), np.zeros((0, 0), np.float16)
        return self._clip.finish()

    def _prepare(self, frame: AnyFrame, report: DecodeReport) -> Views:
        turn = report.rotation_deg
        width, height = upright_size(
            frame.picture.width, frame.picture.height, turn, self._pixel_aspect
        )
        picture = fit_inside(width, height, PICTURE_PX)
        self._small_size = fit_inside(width, height, SMALL_PX)
        if self._anchor_pts is None:
            self._anchor_pts = frame.pts
        # A segment that begins within a block leaves it to the one before.
        self._clip_block = (frame.pts - 1 - self._anchor_pts) // self._clip_ticks
        self._next_sample_pts = self._grid_after(frame.pts - 1)
        sizes = Sizes(picture=picture, small=self._small_size, rotation_deg=turn)
        return views_of(frame.picture, sizes, smooths_all=self._smooths_all)

    def _grid_after(self, pts: int) -> int:
        """The first point of the sampling grid after a timestamp."""
        assert self._anchor_pts is not None
        steps = (pts - self._anchor_pts) // self._sample_ticks + 1
        return self._anchor_pts + steps * self._sample_ticks

    def _begin(self, frame: AnyFrame) -> _Sample:
        assert self._anchor_pts is not None
        assert self._views is not None
        picture = self._views.picture(frame.picture)
        # Not from the larger picture: flow would see the difference of two scalers as motion.
        small = self._views.small(frame.picture)
        gray = _gray_of(picture)
        block = (frame.pts - self._anchor_pts) // (self._sample_ticks * self._thumbnail_every)
        if block != self._thumbnail_block:
            self._thumbnail_block = block
            self._thumbnail(frame.index, small)
        step = (frame.pts - self._anchor_pts) // self._sample_ticks
        self.looks.sample(step, frame.index, picture, gray)
        self._show_clip(frame, picture)
        sample = _Sample(
            index=frame.index,
            pts=frame.pts,
            gray=_gray_of(small),
            values=picture_signals(gray) | self._views.coding_signals(frame.picture),
            descriptor=describe(small),
        )
        self._take_native(sample, frame)
        return sample

    def _show_clip(self, frame: AnyFrame, picture: NDArray[np.uint8]) -> None:
        """Shows the CLIP model the first sample of each of its blocks of time."""
        assert self._anchor_pts is not None
        block = (frame.pts - self._anchor_pts) // self._clip_ticks
        if self._clip is not None and block != self._clip_block:
            # The measuring around this call counts none of the network's time.
            before_s = self._clip.own_s
            self._clip.push(frame.index, picture)
            self.measure_s -= self._clip.own_s - before_s
            self._clip_block = block

    def _complete(self, sample: _Sample, frame: AnyFrame) -> None:
        """Gives a sample what a frame after it has for it."""
        self._take_native(sample, frame)
        assert self._views is not None
        if sample.pair_index is None and frame.pts >= sample.pts + self._pair_ticks:
            sample.pair_index = frame.index
            after = _gray_of(self._views.small(frame.picture))
            seconds = (frame.pts - sample.pts) * self._tick_s
            flow, fit = fitted_flow(self._flow, sample.gray, after)
            sample.values |= motion_signals(sample.gray, after, flow, seconds)
            sample.values |= change_signals(sample.gray, after)
            # A fast pan over fine texture leaves as little in common as noise, but is one motion.
            if fit is None or fit.share < SURE_SHARE:
                sample.full_frame_noise = full_frame_noise(sample.gray, after)
            sample.values |= camera_signals(fit, seconds)
            self.looks.pair(sample.index, sample.gray, after, flow, seconds)

    def _take_native(self, sample: _Sample, frame: AnyFrame) -> None:
        """Measures what needs full-size pixels, on the sample or the first frame after it.

        A frame that no other refers to may come without the loop filter, and shows blocks that are
        not in the video.
        """
        assert self._views is not None
        if sample.wants_native and self._views.is_whole(frame.picture):
            sample.wants_native = False
            sample.values |= self._views.native_signals(frame.picture)

    def _settle(self) -> None:
        sample = self._sample
        if sample is not None and sample.pair_index is not None:
            if sample.full_frame_noise > 0:
                noise = sample.values.get("noise", 0.0)
                sample.values["noise"] = float(np.fmax(noise, sample.full_frame_noise))
            self._samples.append(sample)
        self._sample = None

    def _thumbnail(self, index: int, small: NDArray[np.uint8]) -> None:
        size = fit_inside(small.shape[1], small.shape[0], THUMBNAIL_PX)
        bgr = cv2.cvtColor(_shrunk(small, size), cv2.COLOR_RGB2BGR)
        _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 70])
        self.thumbnails.append(jpeg.tobytes())
        self.thumbnail_frame.append(index)


def _gray_of(rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY), np.uint8)


def _shrunk(rgb_HWC: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(rgb_HWC, size, interpolation=cv2.INTER_AREA), np.uint8)
