"""Measures the frames of one source while they are decoded, and makes its track.

Every frame: probabilities of TransNetV2 and of the head over it, luma mean and spread. On a grid of
samples: the signals of `signals.SIGNALS` and the perceptual descriptor. Memory does not grow with
pixels times duration: full-size frames are dropped as they come, and what stays is a few numbers a
frame.
"""

# ruff: noqa: N803, N806 - shape letters

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.camera import camera_signals
from curator.measures.camera_fit import SURE_SHARE, fitted_flow
from curator.measures.measure_contract import Measure
from curator.measures.motion import DenseFlow, Flow, motion_signals
from curator.measures.noise import FULL_FRAME_NOISE, NATIVE_NOISE, full_frame_noise, with_noise
from curator.measures.stillness import change_signals
from curator.media.decode import DecodedFrame, DeviceFrame, upright_size
from curator.media.device_graphs import DeviceGraphs
from curator.media.nvdec import Nvdec
from curator.media.opencv import cv2
from curator.models.clip_model import ClipEncoder
from curator.models.perceptual import DIM
from curator.models.picture_network import PictureStream
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork, tiny_luma
from curator.stages.analyze.config import AnalyzeConfig, look_every, scene_every
from curator.stages.analyze.device_samples import DeviceView
from curator.stages.analyze.families import SIGNALS_OF
from curator.stages.analyze.frame_views import HostScalers, HostView
from curator.stages.analyze.overlay_samples import OverlaySamples
from curator.stages.analyze.sampling_grid import Role, SamplePlan
from curator.stages.analyze.user_measures import UserMeasures
from curator.tables.track_items import FRAMES

if TYPE_CHECKING:
    from torch import Tensor

AnyFrame = DecodedFrame | DeviceFrame
View = HostView | DeviceView

OTHER_PICTURE = 12.0
"""Mean difference of 8x8 cells, of 255, from which on a sample gets a thumbnail and a scene vector
of its own."""
THUMBNAIL_QUALITY = 80
"""Of JPEGs: 6.1 KB each over the labelled media, 13 KB of edited films in 1080p."""


@dataclass(slots=True)
class _PendingSample:
    """A sample that waits for the frames it needs."""

    index: int
    pts: int
    gray: NDArray[np.uint8] | None
    """The small picture's luma, where there is flow to measure from it."""
    wants_native: bool
    values: dict[str, float] = field(default_factory=dict)
    descriptor: NDArray[np.float32] | None = None
    pair_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisModels:
    """What a worker keeps to decode and measure with.

    Networks are None where no family needs them.

    Attributes:
        nvdec: Video engines of a GPU; None decodes on the CPU.
        graphs: Of what the GPU computes of samples.
        flow: Dense flow; None makes one for each source.
        measures: Users' measures, by the names of their families.
    """

    network: ShotNetwork | None = None
    detector: TextDetector | None = None
    clip: ClipEncoder | None = None
    scenes: SceneNetwork | None = None
    nvdec: Nvdec | None = None
    graphs: DeviceGraphs = field(default_factory=DeviceGraphs)
    flow: Flow | None = None
    measures: Mapping[str, Measure] = field(default_factory=dict)

    def n_halved(self) -> int:
        """Batches that did not fit a GPU's memory, and were halved."""
        kept = (self.network, self.clip, self.scenes, self.detector, self.nvdec, self.graphs)
        return sum(model.n_halved for model in kept if model is not None)

    def families(self, *, audio: bool) -> frozenset[str]:
        """All families that they can measure, with `audio` or without."""
        named = {
            "shots": self.network,
            "text": self.detector,
            "clip": self.clip,
            "scenes": self.scenes,
        }
        names = {name for name, model in named.items() if model is not None}
        always = {FRAMES, "pictures", "motion", "overlays", *self.measures}
        return frozenset(names | always | ({"audio"} if audio else set()))


class Measurer:
    """Collects the measurements of one source.

    Args:
        analysis_models: Those of this worker.
        families: Those that are measured; nothing is computed that none of them needs.
        config: The grids of samples, thumbnails and looks.
        first: The first frame, before it is added.
        rotation_deg: Clockwise rotation that shows the source upright.
        time_base: Seconds per tick of the source's timestamps.
        pixel_aspect: Width of a pixel by its height, after rotation.
        smooths_all: Whether the decoder smooths the blocks of all frames, or only of those that
            others refer to.
        anchor_pts: Where the sampling grid begins; None for the first frame that comes.
        in_background: Run the networks in threads of their own.
    """

    def __init__(
        self,
        analysis_models: AnalysisModels,
        families: Set[str],
        config: AnalyzeConfig,
        *,
        first: AnyFrame,
        rotation_deg: int,
        time_base: Fraction,
        pixel_aspect: Fraction,
        smooths_all: bool,
        anchor_pts: int | None,
        in_background: bool,
    ) -> None:
        self._families = families
        self._clip = self._scenes = self._shots = self.looks = None
        if "clip" in families:
            assert analysis_models.clip is not None
            self._clip = analysis_models.clip.stream(in_background=in_background)
        if "scenes" in families:
            assert analysis_models.scenes is not None
            self._scenes = analysis_models.scenes.stream(in_background=in_background)
        if "shots" in families:
            assert analysis_models.network is not None
            self._shots = analysis_models.network.stream(in_background=in_background)
        if families & {"overlays", "text"}:
            self.looks = OverlaySamples(
                every=look_every(config),
                with_overlays="overlays" in families,
                detector=analysis_models.detector if "text" in families else None,
            )
        self._users = UserMeasures(
            {
                name: measure
                for name, measure in analysis_models.measures.items()
                if name in families
            },
            device="cpu" if analysis_models.nvdec is None else analysis_models.nvdec.device,
        )
        self._clip_ticks = max(1, round(config.clip_every_s / time_base))
        self._tick_s = float(time_base)
        self._thumbnail_every, self._scene_every = config.thumbnail_every, scene_every(config)
        self._flow = analysis_models.flow or DenseFlow()
        self._scalers: HostScalers | None = None
        if isinstance(first, DecodedFrame):
            shown = first.picture
            size = upright_size(shown.width, shown.height, rotation_deg, pixel_aspect)
            self._scalers = HostScalers(size, rotation_deg, smooths_all=smooths_all)
        self._tiny: tuple[Tensor | None, int] = (None, 0)
        """The shot network's pictures of a device's batch, and how many of them were taken."""
        self._anchor_pts = first.pts if anchor_pts is None else anchor_pts
        self._plan = SamplePlan(config, time_base, self._anchor_pts, first.pts)
        # A segment that begins within a block leaves it to the one before.
        self._clip_block = (first.pts - 1 - self._anchor_pts) // self._clip_ticks
        self._scene_block = self._plan.step(first.pts - 1) // self._scene_every
        self._thumbnail_block: int | None = None
        self._cells: NDArray[np.int16] | None = None
        self._sample: _PendingSample | None = None
        self._samples: list[_PendingSample] = []
        self._scale_s = self._measure_s = 0.0
        self.frame_pts: list[int] = []
        self._bytes: list[int] = []
        self._flags: list[int] = []
        self._luma: list[tuple[float, float] | NDArray[np.float32]] = []
        self._thumbnails: list[tuple[int, bytes]] = []

    def add(self, frame: AnyFrame) -> None:
        """Measures the next frame."""
        view = self._view_of(frame)
        if self._families & {FRAMES, "shots"}:
            self._add_tiny(view)
        begun_s = time.thread_time()
        self.frame_pts.append(frame.pts)
        self._bytes.append(frame.n_bytes)
        flags = (frame.picture.key_frame, frame.picture.is_corrupt, frame.is_uniform)
        self._flags.append(sum(bool(flag) << bit for bit, flag in enumerate(flags)))
        role = self._plan.role(frame.pts)
        if self._sample is not None:
            self._complete(self._sample, frame, view, role)
        if role.step is not None:
            self._settle()
            self._sample = self._begin(frame, view, role.step)
        self._measure_s += time.thread_time() - begun_s

    def _view_of(self, frame: AnyFrame) -> View:
        if isinstance(frame, DecodedFrame):
            assert self._scalers is not None
            return HostView(frame.picture, self._scalers)
        view: DeviceView = frame.picture.view
        return view

    def _add_tiny(self, view: View) -> None:
        begun_s = time.thread_time()
        if isinstance(view, DeviceView):
            self._add_device_tiny(view)
            self._measure_s += time.thread_time() - begun_s
            return
        tiny = view.tiny()
        scaled_s = time.thread_time()
        self._scale_s += scaled_s - begun_s
        if self._shots is not None:
            self._shots.push(tiny)
            scaled_s = time.thread_time()
        if FRAMES in self._families:
            self._luma.append(tiny_luma(tiny))
        self._measure_s += time.thread_time() - scaled_s

    def _add_device_tiny(self, view: DeviceView) -> None:
        """Gives the shot network the pictures of a batch as far as its frames were taken."""
        if FRAMES in self._families:
            self._luma.append(view.tiny_luma)
        tiny_BHWC, row = view.tiny
        if tiny_BHWC is not self._tiny[0]:
            self._push_tiny()
        self._tiny = tiny_BHWC, row + 1

    def _push_tiny(self) -> None:
        tiny_BHWC, n_taken = self._tiny
        self._tiny = None, 0
        if self._shots is not None and tiny_BHWC is not None:
            self._shots.push_batch(tiny_BHWC[:n_taken])

    def cpu_seconds(self) -> dict[str, float]:
        """CPU-seconds of scaling for the network, of the network, of overlays, and of all else."""
        overlay_s = self.looks.cpu_s if self.looks is not None else 0.0
        measure_s = self._measure_s - overlay_s
        spent = {"scale": self._scale_s, "measure": measure_s, "overlay": overlay_s}
        if self._shots is not None:
            spent["shot_network"] = self._shots.cpu_s
        if self._clip is not None:
            spent["clip"] = self._clip.cpu_s
        if self._scenes is not None:
            spent["scenes"] = self._scenes.cpu_s
        return spent

    def columns(self) -> dict[str, Any]:
        """Ends the source; gives the fields of `Track` that its families make.

        A last sample that found no frame to measure motion to is dropped.
        """
        self._settle()
        self._users.flush()
        self._push_tiny()
        pairs = [(sample.index, sample.pair_index) for sample in self._samples]
        frames_S2 = np.array(pairs, np.int32).reshape(-1, 2)
        luma_F2 = np.array(self._luma, np.float32).reshape(-1, 2)
        made: dict[str, Any] = {
            "frame_pts": np.array(self.frame_pts, np.int64),
            "frame_bytes": np.array(self._bytes, np.int32),
            "frame_flags": np.array(self._flags, np.uint8),
            "luma_mean": luma_F2[:, 0].copy(),
            "luma_spread": luma_F2[:, 1].copy(),
            "sample_frame": frames_S2[:, 0].copy(),
            "sample_pair_frame": frames_S2[:, 1].copy(),
            "signals": with_noise(self._signals()),
        }
        if self._shots is not None:
            probabilities = self._shots.finish()._asdict()
            made |= {f"{name}_probability": values for name, values in probabilities.items()}
        if "pictures" in self._families:
            made["descriptor"] = np.array(
                [sample.descriptor for sample in self._samples], np.float32
            ).reshape(-1, DIM)
            made["thumbnail_frame"] = np.array([n for n, _ in self._thumbnails], np.int32)
            made["thumbnails"] = tuple(jpeg for _, jpeg in self._thumbnails)
        if self.looks is not None:
            made |= self.looks.columns()
        if self._clip is not None:
            made["clip_frame"], made["clip_embedding"] = self._clip.finish()
        if self._scenes is not None:
            made["scene_frame"], made["scene_vector"] = self._scenes.finish()
        return made

    def _signals(self) -> dict[str, NDArray[np.float32]]:
        """All values of the samples, float32 [S] each, NaN where one could not be measured."""
        names = [name for family in self._families for name in SIGNALS_OF.get(family, ())]
        names += self._users.signals
        nan = float("nan")
        return {
            name: np.array([sample.values.get(name, nan) for sample in self._samples], np.float32)
            for name in names
        }

    def _begin(self, frame: AnyFrame, view: View, step: int) -> _PendingSample:
        with_pictures = "pictures" in self._families
        if with_pictures or self._scenes is not None:
            self._keep_picture(frame, view, step)
        if self.looks is not None:
            self.looks.sample(step, frame.index, view)
        self._show_clip(frame, view)
        has_flow = "motion" in self._families or (
            self.looks is not None and self.looks.wants_pair(frame.index)
        )
        sample = _PendingSample(
            index=frame.index,
            pts=frame.pts,
            gray=view.small_gray if has_flow else None,
            wants_native=with_pictures,
        )
        if with_pictures:
            sample.values |= view.picture_signals()
            sample.descriptor = view.descriptor()
        self._users.begin(view, self._seconds(frame))
        self._take_native(sample, view)
        return sample

    def _keep_picture(self, frame: AnyFrame, view: View, step: int) -> None:
        """Keeps the thumbnail and scene vector of the first sample of each of their blocks.

        A sample that differs much from the one before it has both.
        """
        cells = cv2.resize(view.small, (8, 8), interpolation=cv2.INTER_AREA).astype(np.int16)
        before, self._cells = self._cells, cells
        is_other = before is None or np.abs(cells - before).mean() > OTHER_PICTURE
        block = step // self._thumbnail_every
        if "pictures" in self._families and (block != self._thumbnail_block or is_other):
            self._thumbnail_block = block
            self._thumbnails.append((frame.index, _thumbnail(view.small)))
        block = step // self._scene_every
        if self._scenes is not None and (block != self._scene_block or is_other):
            self._scene_block = block
            self._show(self._scenes, frame, view.small)

    def _show_clip(self, frame: AnyFrame, view: View) -> None:
        """Shows the CLIP model the first sample of each of its blocks of time."""
        block = (frame.pts - self._anchor_pts) // self._clip_ticks
        if self._clip is not None and block != self._clip_block:
            self._clip_block = block
            self._show(self._clip, frame, view.picture)

    def _show(self, stream: PictureStream, frame: AnyFrame, picture_HWC: NDArray[np.uint8]) -> None:
        # The measuring around this call counts none of the network's time.
        before_s = stream.own_s
        stream.push(frame.index, picture_HWC)
        self._measure_s -= stream.own_s - before_s

    def _complete(self, sample: _PendingSample, frame: AnyFrame, view: View, role: Role) -> None:
        """Gives a sample what a frame after it has for it."""
        self._take_native(sample, view)
        self._users.see(view, self._seconds(frame))
        if role.ends_pair:
            sample.pair_index = frame.index
            if sample.gray is not None:
                after = view.small_gray
                self._measure_pair(sample, sample.gray, after, (frame.pts - sample.pts))

    def _measure_pair(
        self,
        sample: _PendingSample,
        before: NDArray[np.uint8],
        after: NDArray[np.uint8],
        ticks: int,
    ) -> None:
        seconds = ticks * self._tick_s
        flow, fit = fitted_flow(self._flow, before, after)
        if "motion" in self._families:
            sample.values |= motion_signals(before, after, flow, seconds)
            sample.values |= change_signals(before, after)
            # A fast pan over fine texture leaves as little in common as noise, but is one motion.
            is_unclear = fit is None or fit.share < SURE_SHARE
            sample.values[FULL_FRAME_NOISE] = full_frame_noise(before, after) if is_unclear else 0.0
            sample.values |= camera_signals(fit, seconds)
        if self.looks is not None and self.looks.wants_pair(sample.index):
            self.looks.pair(before, after, flow, seconds)

    def _take_native(self, sample: _PendingSample, view: View) -> None:
        """Measures what needs full-size pixels, on the sample or the first frame after it.

        A frame that no other refers to may come without the loop filter, and shows blocks that are
        not in the video.
        """
        if sample.wants_native and view.is_whole:
            sample.wants_native = False
            native = view.native_signals()
            sample.values |= {NATIVE_NOISE if n == "noise" else n: v for n, v in native.items()}

    def _settle(self) -> None:
        if self._sample is None:
            return
        is_kept = self._sample.pair_index is not None
        self._users.settle(self._sample.values if is_kept else None)
        if is_kept:
            self._samples.append(self._sample)
        self._sample = None

    def _seconds(self, frame: AnyFrame) -> float:
        return (frame.pts - self._anchor_pts) * self._tick_s


def _thumbnail(small_HWC: NDArray[np.uint8]) -> bytes:
    bgr_HWC = cv2.cvtColor(small_HWC, cv2.COLOR_RGB2BGR)
    _, jpeg = cv2.imencode(".jpg", bgr_HWC, [cv2.IMWRITE_JPEG_QUALITY, THUMBNAIL_QUALITY])
    return bytes(jpeg.tobytes())
