"""Measures the frames of one source while they are decoded, and makes its track.

Every frame gets shot probabilities, from TransNetV2 and from the head that reads its features.
Every frame also gets the mean and spread of luma. Every sample on a grid gets the signals of
`sample_signals.SIGNALS` and the perceptual descriptor. Memory does not grow with pixels times
duration: full-size frames are dropped at once, and only a few numbers per frame stay.
"""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curator.frame_size import upright_size
from curator.measures.camera import camera_signals
from curator.measures.distortion import DISTORTION
from curator.measures.local_change import LocalChange
from curator.measures.measure_contract import Measure
from curator.measures.motion import SURE_SHARE, DenseFlow, Flow, fitted_flow, motion_signals
from curator.measures.noise import FULL_FRAME_NOISE, NATIVE_NOISE, full_frame_noise, with_noise
from curator.measures.picture_quality import change_signals
from curator.media.container import Orientation
from curator.media.decode import DecodedFrame, DeviceFrame
from curator.media.device_graphs import DeviceGraphs
from curator.media.nvdec import Nvdec
from curator.media.opencv import cv2
from curator.models.clip_model import ClipEncoder
from curator.models.distortion_network import DistortionNetwork
from curator.models.perceptual import DIM
from curator.models.picture_network import PictureStream
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork, tiny_luma
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.device_samples import DeviceView
from curator.stages.analyze.families import SIGNALS_OF
from curator.stages.analyze.frame_views import HostScalers, HostView
from curator.stages.analyze.overlay_samples import OverlaySamples
from curator.stages.analyze.sampling_grid import Role, SamplePlan, steps_of
from curator.stages.analyze.user_measures import UserMeasures
from curator.tables.track_items import FRAMES

if TYPE_CHECKING:
    from torch import Tensor

AnyFrame = DecodedFrame | DeviceFrame
View = HostView | DeviceView

_OTHER_PICTURE = 12.0
"""Mean difference of 8x8 cells between two samples, in levels of 255. Above it, the second sample
gets its own thumbnail and scene vector."""
_THUMBNAIL_QUALITY = 80  # of JPEGs: 6.1 KB each over the labelled media


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisModels:
    """Networks, decoder and measures of a worker; a network that no family needs is None."""

    network: ShotNetwork | None = None
    detector: TextDetector | None = None
    clip: ClipEncoder | None = None
    scenes: SceneNetwork | None = None
    distortion: DistortionNetwork | None = None
    nvdec: Nvdec | None = None  # video engines of a GPU; None decodes on the CPU
    graphs: DeviceGraphs = field(default_factory=DeviceGraphs)  # CUDA graphs of the GPU's work
    flow: Flow | None = None  # dense optical flow; None for `DenseFlow`, made per source
    measures: Mapping[str, Measure] = field(default_factory=dict)  # users' measures, by family

    def n_halved(self) -> int:
        """Returns how many batches were halved because GPU memory was too small."""
        kept = (self.network, self.clip, self.scenes, self.detector, self.nvdec, self.graphs)
        return sum(model.n_halved for model in kept if model is not None)

    def families(self, config: AnalyzeConfig) -> frozenset[str]:
        """Returns all families that these models can measure and that the settings have."""
        named = {"shots": self.network, "text": self.detector, "clip": self.clip,
                 "scenes": self.scenes, "distortion": self.distortion,
                 "audio": config.audio or None,
                 "activity": config.activity or None}  # fmt: skip
        able = {name for name, model in named.items() if model is not None}
        return frozenset(able | {FRAMES, "pictures", "motion", "overlays", *self.measures})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMeasuring:
    """Models and settings for one source."""

    models: AnalysisModels
    families: Set[str]  # only what these families need is computed
    config: AnalyzeConfig
    time_base: Fraction  # seconds per tick of the source's timestamps
    anchor_pts: int | None  # start of the sampling grid; None for the first frame
    # Whether the decoder applies its loop filter to all frames, or only to reference frames.
    smooths_all: bool
    in_background: bool  # run the networks in separate threads
    is_still: bool = False  # a still image, whose one sample has no later frame

    @property
    def measures(self) -> dict[str, Measure]:
        """The measures of users that this source needs, by family."""
        return {n: own for n, own in self.models.measures.items() if n in self.families}

    def plan(self, first_pts: int) -> SamplePlan:
        """Returns the sampling grid; `first_pts` is the timestamp of the first frame."""
        anchor_pts = first_pts if self.anchor_pts is None else self.anchor_pts
        return SamplePlan(self.config, self.time_base, anchor_pts, first_pts)


@dataclass(slots=True)
class _PendingSample:
    index: int
    pts: int
    gray: NDArray[np.uint8] | None  # luma of the small picture; None if no flow is measured
    wants_native: bool
    wants_crops: bool
    values: dict[str, float] = field(default_factory=dict)
    descriptor: NDArray[np.float32] | None = None
    pair_index: int | None = None


class Measurer:
    """Collects the measurements of one source.

    `first` is the first frame; the caller adds it afterwards. `orientation` turns the source
    upright. `pixel_aspect` is the width of a pixel divided by its height, after the rotation.
    """

    def __init__(
        self,
        of: SourceMeasuring,
        first: AnyFrame,
        orientation: Orientation,
        pixel_aspect: Fraction,
    ) -> None:
        models, config, self._families = of.models, of.config, of.families
        self._shots = self.looks = None
        self._pictures: dict[str, PictureStream] = {}
        own = {"clip": models.clip, "scenes": models.scenes, DISTORTION: models.distortion}
        for name, model in own.items():
            if name in self._families:
                assert model is not None
                self._pictures[name] = model.stream(in_background=of.in_background)
        if "shots" in self._families:
            assert models.network is not None
            self._shots = models.network.stream(in_background=of.in_background)
        self._activity = LocalChange() if "activity" in self._families else None
        if self._families & {"overlays", "text"}:
            self.looks = OverlaySamples(
                every=steps_of(config, config.text_every_s),
                with_overlays="overlays" in self._families,
                detector=models.detector if "text" in self._families else None,
            )
        device = "cpu" if models.nvdec is None else models.nvdec.device
        self._users = UserMeasures(of.measures, device=device)
        self._flow = models.flow or DenseFlow()
        self._is_still = of.is_still
        self._scalers: HostScalers | None = None
        if isinstance(first, DecodedFrame):
            shown = first.picture
            turn_deg = orientation.rotation_deg
            size = upright_size(shown.width, shown.height, turn_deg, pixel_aspect)
            self._scalers = HostScalers(size, orientation, smooths_all=of.smooths_all)
        # The shot network's pictures of the latest batch on the device, and the number of pictures
        # of this batch that `add` has received.
        self._tiny: tuple[Tensor | None, int] = (None, 0)
        self._plan = of.plan(first.pts)
        self._tick_s = float(of.time_base)
        self._clip_ticks = max(1, round(config.clip_every_s / of.time_base))
        self._thumbnail_every = config.thumbnail_every
        self._scene_every = steps_of(config, config.scene_every_s)
        # A long source is measured in segments. If a block of time begins in one segment and
        # continues in the next segment, the earlier segment measures the block.
        self._clip_block = (first.pts - 1 - self._plan.anchor_pts) // self._clip_ticks
        self._distortion_every = steps_of(config, config.distortion_every_s)
        self._scene_block = self._plan.step(first.pts - 1) // self._scene_every
        self._distortion_block = self._plan.step(first.pts - 1) // self._distortion_every
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
        if isinstance(frame, DecodedFrame):
            assert self._scalers is not None
            view: View = HostView(frame.picture, self._scalers)
        else:
            view = frame.picture.view
        if self._families & {FRAMES, "shots", "activity"}:
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

    def _add_tiny(self, view: View) -> None:
        begun_s = time.thread_time()
        if isinstance(view, DeviceView):
            # The shot network gets a batch when the next batch begins. Frames of the batch that
            # `add` did not receive are left out.
            if FRAMES in self._families:
                self._luma.append(view.tiny_luma)
            tiny_BHWC, row = view.tiny
            if tiny_BHWC is not self._tiny[0]:
                self._push_tiny()
            self._tiny = tiny_BHWC, row + 1
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
        if self._activity is not None:
            self._activity.push(tiny)
        self._measure_s += time.thread_time() - scaled_s

    def _push_tiny(self) -> None:
        tiny_BHWC, n_taken = self._tiny
        self._tiny = None, 0
        if self._shots is not None and tiny_BHWC is not None:
            self._shots.push_batch(tiny_BHWC[:n_taken])
        if self._activity is not None and tiny_BHWC is not None:
            self._activity.push_batch(tiny_BHWC[:n_taken])

    def cpu_seconds(self) -> dict[str, float]:
        """Returns CPU-seconds of scaling for the shot network, networks, overlays, and the rest."""
        overlay_s = self.looks.cpu_s if self.looks is not None else 0.0
        measure_s = self._measure_s - overlay_s
        spent = {"scale": self._scale_s, "measure": measure_s, "overlay": overlay_s}
        if self._shots is not None:
            spent["shot_network"] = self._shots.cpu_s
        return spent | {name: stream.cpu_s for name, stream in self._pictures.items()}

    def columns(self) -> dict[str, Any]:
        """Ends the source, and returns the fields of `Track` that its families provide.

        Motion is measured between a sample and a later frame. The last sample is dropped if this
        later frame is missing; the sample of a still image is its own pair, and has no motion.
        """
        self._settle()
        self._users.flush()
        self._push_tiny()
        if (distortion := self._pictures.get(DISTORTION)) is not None:
            frames, scores = distortion.finish()
            score_of = dict(zip(frames.tolist(), scores[:, 0].tolist(), strict=True))
            for sample in self._samples:
                sample.values[DISTORTION] = score_of.get(sample.index, float("nan"))
        pairs = [(sample.index, sample.pair_index) for sample in self._samples]
        frames_S2 = np.array(pairs, np.int32).reshape(-1, 2)
        luma_F2 = np.array(self._luma, np.float32).reshape(-1, 2)
        names = [name for family in self._families for name in SIGNALS_OF.get(family, ())]
        signals = {
            name: np.array([s.values.get(name, np.nan) for s in self._samples], np.float32)
            for name in (*names, *self._users.signals)
        }
        made: dict[str, Any] = {
            "frame_pts": np.array(self.frame_pts, np.int64),
            "frame_bytes": np.array(self._bytes, np.int32),
            "frame_flags": np.array(self._flags, np.uint8),
            "luma_mean": luma_F2[:, 0].copy(),
            "luma_spread": luma_F2[:, 1].copy(),
            "sample_frame": frames_S2[:, 0].copy(),
            "sample_pair_frame": frames_S2[:, 1].copy(),
            "signals": with_noise(signals),
        }
        if self._shots is not None:
            probabilities = self._shots.finish()._asdict()
            made |= {f"{name}_probability": values for name, values in probabilities.items()}
        if self._activity is not None:
            made["local_change"] = self._activity.finish()
        if "pictures" in self._families:
            descriptors = [sample.descriptor for sample in self._samples]
            made["descriptor"] = np.array(descriptors, np.float32).reshape(-1, DIM)
            made["thumbnail_frame"] = np.array([n for n, _ in self._thumbnails], np.int32)
            made["thumbnails"] = tuple(jpeg for _, jpeg in self._thumbnails)
        if self.looks is not None:
            made |= self.looks.columns()
        if (clip := self._pictures.get("clip")) is not None:
            made["clip_frame"], made["clip_embedding"] = clip.finish()
        if (scenes := self._pictures.get("scenes")) is not None:
            made["scene_frame"], made["scene_vector"] = scenes.finish()
        return made

    def _begin(self, frame: AnyFrame, view: View, step: int) -> _PendingSample:
        with_pictures = "pictures" in self._families
        if with_pictures or "scenes" in self._pictures:
            self._keep_picture(frame, view, step)
        if self.looks is not None:
            self.looks.sample(step, frame.index, view)
        # The CLIP model sees the first sample of each of its blocks of time.
        block = (frame.pts - self._plan.anchor_pts) // self._clip_ticks
        if "clip" in self._pictures and block != self._clip_block:
            self._clip_block = block
            self._show("clip", frame.index, view.picture)
        has_flow = "motion" in self._families or (
            self.looks is not None and self.looks.wants_pair(frame.index)
        )
        distortion_block = step // self._distortion_every
        wants_crops = DISTORTION in self._pictures and distortion_block != self._distortion_block
        self._distortion_block = distortion_block
        sample = _PendingSample(
            index=frame.index,
            pts=frame.pts,
            gray=view.small_gray if has_flow else None,
            wants_native=with_pictures,
            wants_crops=wants_crops,
        )
        if with_pictures:
            sample.values |= view.picture_signals()
            sample.descriptor = view.descriptor()
        self._users.begin(view, self._seconds(frame))
        self._take_native(sample, view)
        return sample

    def _keep_picture(self, frame: AnyFrame, view: View, step: int) -> None:
        """Keeps thumbnail and scene vector of the first sample of a block, and of new pictures.

        A picture is new if it differs from the sample before.
        """
        cells = cv2.resize(view.small, (8, 8), interpolation=cv2.INTER_AREA).astype(np.int16)
        before, self._cells = self._cells, cells
        is_other = before is None or np.abs(cells - before).mean() > _OTHER_PICTURE
        block = step // self._thumbnail_every
        if "pictures" in self._families and (block != self._thumbnail_block or is_other):
            self._thumbnail_block = block
            self._thumbnails.append((frame.index, _thumbnail(view.small)))
        block = step // self._scene_every
        if "scenes" in self._pictures and (block != self._scene_block or is_other):
            self._scene_block = block
            self._show("scenes", frame.index, view.small)

    def _show(self, name: str, index: int, picture: NDArray[np.uint8]) -> None:
        stream = self._pictures[name]
        # The caller adds the CPU time of this call to `_measure_s`. `stream.cpu_s` already counts
        # the network's part of this time, so the network's part is subtracted here.
        before_s = stream.own_s
        stream.push(index, picture)
        self._measure_s -= stream.own_s - before_s

    def _complete(self, sample: _PendingSample, frame: AnyFrame, view: View, role: Role) -> None:
        """Adds the measurements that need a later frame to a sample."""
        self._take_native(sample, view)
        self._users.see(view, self._seconds(frame))
        if not role.ends_pair:
            return
        sample.pair_index = frame.index
        if sample.gray is None:
            return
        before, after = sample.gray, view.small_gray
        seconds = (frame.pts - sample.pts) * self._tick_s
        flow, fit = fitted_flow(self._flow, before, after)
        if "motion" in self._families:
            sample.values |= motion_signals(before, after, flow, seconds)
            sample.values |= change_signals(before, after)
            # After a fast pan over fine texture, two frames have as little in common as noise. If
            # one camera motion explains enough of the picture, the noise is set to 0.
            is_unclear = fit is None or fit.share < SURE_SHARE
            sample.values[FULL_FRAME_NOISE] = full_frame_noise(before, after) if is_unclear else 0.0
            sample.values |= camera_signals(fit, seconds)
        if self.looks is not None and self.looks.wants_pair(sample.index):
            self.looks.pair(before, after, flow, seconds)

    def _take_native(self, sample: _PendingSample, view: View) -> None:
        """Measures full-size pixels, once for each sample.

        Uses the sample itself. If its loop filter may have been skipped, uses the first later frame
        whose loop filter was applied.
        """
        if not view.is_whole:
            return
        if sample.wants_crops:
            sample.wants_crops = False
            self._show(DISTORTION, sample.index, view.crops())
        if sample.wants_native:
            sample.wants_native = False
            native = view.native_signals()
            sample.values |= {NATIVE_NOISE if n == "noise" else n: v for n, v in native.items()}

    def _settle(self) -> None:
        if self._sample is None:
            return
        if self._is_still:
            self._sample.pair_index = self._sample.index
        is_kept = self._sample.pair_index is not None
        self._users.settle(self._sample.values if is_kept else None)
        if is_kept:
            self._samples.append(self._sample)
        self._sample = None

    def _seconds(self, frame: AnyFrame) -> float:
        return (frame.pts - self._plan.anchor_pts) * self._tick_s


def _thumbnail(small_HWC: NDArray[np.uint8]) -> bytes:
    bgr_HWC = cv2.cvtColor(small_HWC, cv2.COLOR_RGB2BGR)
    _, jpeg = cv2.imencode(".jpg", bgr_HWC, [cv2.IMWRITE_JPEG_QUALITY, _THUMBNAIL_QUALITY])
    return bytes(jpeg.tobytes())
