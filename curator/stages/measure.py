"""Measures the frames of one source while they are decoded, and makes its track.

Every frame: TransNetV2's two probabilities, luma mean and spread. On a grid of samples: motion from
dense optical flow, sharpness, exposure, and the perceptual descriptor. Memory does not grow with
pixels times duration: full-size frames are dropped as they come, and what stays is a few numbers a
frame.
"""

# ruff: noqa: N802, N803, N806 - shape letters

import time
from fractions import Fraction

import cv2
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from curator.media.decode import DecodedFrame, DecodeReport, upright_size
from curator.media.scale import Scaler, fit_inside
from curator.models.perceptual import DIM, describe
from curator.models.transnet import HEIGHT, WIDTH, ShotNetwork

PICTURE_PX = 640
"""Longer side of the picture for sharpness and exposure: out-of-focus edges still show at it."""
SMALL_PX = 320
"""Longer side of the picture for flow and the descriptor: fixed, so that motion in pixels does not
depend on the source's resolution."""
THUMBNAIL_PX = 160
LUMA = np.array([0.2126, 0.7152, 0.0722], np.float32)
"""ITU-R BT.709 luma weights."""


def needs_smoothing(stream: VideoStream) -> bool:
    """Whether a stream is so small that the loop filter of all frames shows in a measurement.

    At half the size and below, what it does to a block's edge is gone.
    """
    return max(stream.width, stream.height) < 2 * PICTURE_PX


class Measurer:
    """Collects the measurements of one source.

    Args:
        network: Shot network of this worker.
        time_base: Seconds per tick of the source's timestamps.
        pixel_aspect: Width of a pixel by its height, after rotation.
        samples_per_s: Samples per second of video.
        pair_s: Distance from a sample to the frame its motion is measured to, in seconds.
        thumbnail_every: One thumbnail for so many steps of the sampling grid.
        anchor_pts: Where the sampling grid begins; None for the first frame that comes.
        in_background: Run the network in a thread of its own.
    """

    def __init__(
        self,
        network: ShotNetwork,
        *,
        time_base: Fraction,
        pixel_aspect: Fraction,
        samples_per_s: float,
        pair_s: float,
        thumbnail_every: int,
        anchor_pts: int | None = None,
        in_background: bool = False,
    ) -> None:
        self._shots = network.stream(in_background=in_background)
        self._pixel_aspect = pixel_aspect
        self._sample_ticks = max(1, round(1 / samples_per_s / time_base))
        self._pair_ticks = max(1, round(pair_s / time_base))
        self._tick_s = float(time_base)
        self._thumbnail_every = thumbnail_every
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
        self._tiny: Scaler | None = None
        self._anchor_pts = anchor_pts
        self._next_sample_pts: int | None = None
        self._thumbnail_block: int | None = None
        self._pending: tuple[int, int, NDArray[np.uint8]] | None = None
        self._last_small: tuple[int, int, NDArray[np.uint8]] | None = None
        self.scale_s = 0.0
        self.measure_s = 0.0
        self.frame_pts: list[int] = []
        self.frame_bytes: list[int] = []
        self.frame_flags: list[int] = []
        self.luma_mean: list[float] = []
        self.luma_spread: list[float] = []
        self.sample_frame: list[int] = []
        self.sample_pair_frame: list[int] = []
        self.motion: list[float] = []
        self.sharpness: list[float] = []
        self.dark_fraction: list[float] = []
        self.bright_fraction: list[float] = []
        self.descriptor: list[NDArray[np.float32]] = []
        self.thumbnails: list[bytes] = []
        self.thumbnail_frame: list[int] = []

    def add(self, frame: DecodedFrame, report: DecodeReport) -> None:
        """Measures the next frame.

        Args:
            frame: The frame.
            report: The decoder's report, which knows the rotation.
        """
        if self._tiny is None:
            self._prepare(frame, report)
        assert self._tiny is not None
        assert self._next_sample_pts is not None
        begun_s = time.thread_time()
        tiny = self._tiny.rgb_HWC(frame.picture)
        self.scale_s += time.thread_time() - begun_s
        self._shots.push(tiny)
        begun_s = time.thread_time()
        luma_mean, luma_spread = tiny_luma(tiny)
        self.luma_mean.append(luma_mean)
        self.luma_spread.append(luma_spread)
        self.frame_pts.append(frame.pts)
        self.frame_bytes.append(frame.n_bytes)
        self.frame_flags.append(int(frame.picture.key_frame) | int(frame.picture.is_corrupt) << 1)
        if self._pending is not None and frame.pts >= self._pending[1] + self._pair_ticks:
            self._pair(frame, self._gray(frame))
        if frame.pts >= self._next_sample_pts:
            self._sample(frame)
            self._next_sample_pts = self._grid_after(frame.pts)
        self.measure_s += time.thread_time() - begun_s

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ends the source; drops a last sample that found no frame to measure motion to.

        Returns:
            The shot network's probabilities, float32 [F] each.
        """
        if self._pending is not None:
            self._drop_pending()
        return self._shots.finish()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU-seconds of scaling for the network, of the network, and of all other measurements."""
        return {
            "scale": self.scale_s,
            "shot_network": self._shots.cpu_s,
            "measure": self.measure_s,
        }

    def descriptors_SD(self) -> NDArray[np.float32]:
        """The samples' descriptors, float32 [S, D]."""
        if not self.descriptor:
            return np.zeros((0, DIM), np.float32)
        return np.stack(self.descriptor)

    def _prepare(self, frame: DecodedFrame, report: DecodeReport) -> None:
        turn = report.rotation_deg
        width, height = upright_size(
            frame.picture.width, frame.picture.height, turn, self._pixel_aspect
        )
        self._tiny = tiny_scaler(turn)
        picture = fit_inside(width, height, PICTURE_PX)
        self._small_size = fit_inside(width, height, SMALL_PX)
        self._picture = Scaler(*picture, method="area", rotation_deg=turn)
        self._small = Scaler(*self._small_size, method="area", rotation_deg=turn)
        if self._anchor_pts is None:
            self._anchor_pts = frame.pts
        self._next_sample_pts = self._grid_after(frame.pts - 1)

    def _grid_after(self, pts: int) -> int:
        """The first point of the sampling grid after a timestamp."""
        assert self._anchor_pts is not None
        steps = (pts - self._anchor_pts) // self._sample_ticks + 1
        return self._anchor_pts + steps * self._sample_ticks

    def _gray(self, frame: DecodedFrame) -> NDArray[np.uint8]:
        return _gray_of(self._small.rgb_HWC(frame.picture))

    def _sample(self, frame: DecodedFrame) -> None:
        if self._pending is not None:
            self._drop_pending()
        assert self._anchor_pts is not None
        picture = self._picture.rgb_HWC(frame.picture)
        small = _shrunk(picture, self._small_size)
        gray = _gray_of(picture)
        self._pending = (frame.index, frame.pts, _gray_of(small))
        block = (frame.pts - self._anchor_pts) // (self._sample_ticks * self._thumbnail_every)
        if block != self._thumbnail_block:
            self._thumbnail_block = block
            self._thumbnail(frame.index, small)
        self.sample_frame.append(frame.index)
        self.sharpness.append(sharpness(gray))
        self.dark_fraction.append(float(np.mean(gray <= 16)))
        self.bright_fraction.append(float(np.mean(gray >= 250)))
        self.descriptor.append(describe(small))

    def _pair(self, frame: DecodedFrame, gray: NDArray[np.uint8]) -> None:
        assert self._pending is not None
        _, pts, before = self._pending
        seconds = (frame.pts - pts) * self._tick_s
        self.motion.append(self._motion(before, gray, seconds))
        self.sample_pair_frame.append(frame.index)
        self._pending = None

    def _motion(self, before: NDArray[np.uint8], after: NDArray[np.uint8], seconds: float) -> float:
        if min(before.shape) < 16:
            return 0.0 if np.array_equal(before, after) else float("nan")
        flow_HW2 = np.asarray(self._flow.calc(before, after, None))  # type: ignore[call-overload]
        pixels = float(np.mean(np.hypot(flow_HW2[..., 0], flow_HW2[..., 1])))
        return pixels / int(min(before.shape)) / seconds

    def _drop_pending(self) -> None:
        for column in (
            self.sample_frame, self.sharpness, self.dark_fraction, self.bright_fraction,
            self.descriptor,
        ):  # fmt: skip
            column.pop()
        self._pending = None

    def _thumbnail(self, index: int, small: NDArray[np.uint8]) -> None:
        size = fit_inside(small.shape[1], small.shape[0], THUMBNAIL_PX)
        bgr = cv2.cvtColor(_shrunk(small, size), cv2.COLOR_RGB2BGR)
        _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 70])
        self.thumbnails.append(jpeg.tobytes())
        self.thumbnail_frame.append(index)


def tiny_scaler(rotation_deg: int) -> Scaler:
    """Scaler to the shot network's picture, which luma is measured on too.

    Args:
        rotation_deg: Clockwise rotation that shows the source upright.
    """
    return Scaler(WIDTH, HEIGHT, rotation_deg=rotation_deg)


def tiny_luma(rgb_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation of luma, 0 (black) to 1 (white).

    Args:
        rgb_HWC: uint8 RGB, of the size that `tiny_scaler` gives.
    """
    luma = rgb_HWC.astype(np.float32) @ LUMA
    return float(luma.mean()) / 255, float(luma.std()) / 255


def _gray_of(rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY), np.uint8)


def _shrunk(rgb_HWC: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(rgb_HWC, size, interpolation=cv2.INTER_AREA), np.uint8)


def sharpness(gray_HW: NDArray[np.uint8]) -> float:
    """Strength of the sharpest edges relative to the picture's contrast.

    The 99th percentile of the absolute Laplacian over the 1st-to-99th percentile range of luma: a
    smooth sky beside one sharp edge is sharp, a picture out of focus has no sharp edge anywhere.

    Args:
        gray_HW: uint8 luma; the longer side is `PICTURE_PX` or the source's own.

    Returns:
        0 for a flat picture; about 0.1 out of focus; above 0.3 in focus.
    """
    if min(gray_HW.shape) < 3:
        return 0.0
    low, high = _quantile(gray_HW, 0.01, 256), _quantile(gray_HW, 0.99, 256)
    if high - low < 8:
        return 0.0
    edges = np.abs(cv2.Laplacian(gray_HW, cv2.CV_16S, ksize=1)).astype(np.uint16)
    return _quantile(edges, 0.99, 4 * 255 + 1) / (high - low)


def _quantile(
    values_HW: NDArray[np.uint8] | NDArray[np.uint16], share: float, n_levels: int
) -> int:
    """Smallest level that at least this share of the values does not exceed."""
    counts = cv2.calcHist([values_HW], [0], None, [n_levels], [0, n_levels])
    return int(np.searchsorted(np.cumsum(counts), share * values_HW.size))
