"""Computes on a GPU the pictures and signals that measurements need of decoded frames.

Three batches are in progress at a time. For the newest batch, the device computes pictures and the
rows and columns that show borders. For the batch before, the host finds the borders, and the device
measures the pictures within the borders. The oldest batch is passed on. So a copy to the host has
usually ended when the host needs it.

`device_signals` imports torch, so functions import `device_signals`.

Shape letters: B frames of a batch, S samples, H height, W width, C channels.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.errors import DeviceMemoryError
from curator.frame_size import upright_size
from curator.measures.borders import EVERY, Box, Sides, borders_of, find_borders, inside
from curator.measures.device_overlays import LEAST_PX as LEAST_LOOK_PX
from curator.measures.device_overlays import edges_of, moved_of, standing_of
from curator.measures.distortion import DISTORTION
from curator.measures.drawn_boxes import drawn_boxes
from curator.measures.drawn_marks import edge_map
from curator.measures.look_maps import moved_map, packed_codes, standing_lines
from curator.measures.measure_contract import Full
from curator.measures.sample_signals import MIN_PX
from curator.media.container import Orientation
from curator.media.decode import FrameTime
from curator.media.device_frames import (
    DeviceBatch,
    DeviceScaler,
    Form,
    HostCopy,
    ScaledColours,
    gray_of,
    luma_of,
    rgb_of_scaled,
    unscaled_rgb_BHWC,
    upright_BHWC,
)
from curator.media.nvdec import Nvdec
from curator.media.scale import fit_inside
from curator.models.device_descriptor import LEAST_PX as LEAST_DESCRIBED_PX
from curator.models.device_descriptor import describe_of
from curator.models.distortion_network import CROP_PX, full_range, read_corners
from curator.models.perceptual import bar_box, describe
from curator.models.transnet import HEIGHT, PICTURE_PX, WIDTH, tiny_luma_of
from curator.stages.analyze.frame_views import SMALL_PX
from curator.stages.analyze.sampling_grid import LookGrid, SamplePlan, steps_of
from curator.stages.analyze.user_measures import full_sizes

if TYPE_CHECKING:
    from torch import Tensor

    from curator.stages.analyze.measurer import SourceMeasuring

_Pixels = NDArray[np.uint8]
_CROPS = ("crops of luma",)


def _none() -> NDArray[Any]:
    return np.zeros((0, 0), np.uint8)


@dataclass(slots=True, kw_only=True)
class DeviceView:
    """Views and signals of one frame, with the sizes of `HostView`; arrays are on the host.

    If pictures are too small for the device's algorithms, the host computes maps and descriptor.
    """

    # The shot network's pictures of all frames of a batch, uint8 [B, 27, 48, 3] on the device, and
    # this frame's row.
    tiny: "tuple[Tensor, int]"
    tiny_luma: NDArray[Any] = field(default_factory=_none)  # mean and spread of luma, 0 to 1
    # Luma of 320 px, for samples and for frames that end a pair.
    small_gray: _Pixels = field(default_factory=_none)
    # Other fields are for samples only.
    small: _Pixels = field(default_factory=_none)  # RGB of 320 px
    gray: _Pixels = field(default_factory=_none)  # luma of 640 px
    picture: _Pixels = field(default_factory=_none)  # RGB of 640 px, for a look, CLIP or a measure
    # Picture of full size, or its luma in full range, if a user's measure needs it. With pairs, the
    # frame after a sample has these too.
    full_rgb: _Pixels | None = None
    full_luma: _Pixels | None = None
    text_map: NDArray[Any] | None = None  # probabilities of text, for a look
    edges: _Pixels | None = None  # cells with edges, for a look
    standing: _Pixels | None = None  # lines that did not move since the look before
    moved: _Pixels = field(default_factory=_none)  # codes of the motion since the look before
    described: NDArray[np.float32] | None = None  # the perceptual descriptor
    distortion_crops: _Pixels = field(default_factory=_none)  # of luma, for the distortion score
    signals: dict[str, float] = field(default_factory=dict)  # only the measured ones

    is_whole = True  # a video engine applies the loop filter to all frames

    def full(self, kind: Full) -> _Pixels:
        """The picture of full size, for users' measures."""
        picture = self.full_rgb if kind == "rgb" else self.full_luma
        assert picture is not None, "only samples and frames after them have it"
        return picture

    def descriptor(self) -> NDArray[np.float32]:
        """The perceptual descriptor."""
        return describe(self.small) if self.described is None else self.described

    def look_maps(self) -> tuple[_Pixels, NDArray[np.uint16]]:
        """Edges and drawn boxes of the larger picture."""
        edges = edge_map(self.gray) if self.edges is None else np.packbits(self.edges)
        return edges, drawn_boxes(self.picture)

    def maps_since(self, before_HW: _Pixels) -> tuple[_Pixels, _Pixels]:
        """Returns the lines that did not move, and the motion, since a look with this luma."""
        if self.standing is None:
            return standing_lines(before_HW, self.gray), moved_map(before_HW, self.gray)
        return np.packbits(self.standing), packed_codes(self.moved)

    def crops(self) -> _Pixels:
        """Crops of full-size luma inside the borders, for the distortion score."""
        return self.distortion_crops

    def native_signals(self) -> dict[str, float]:
        """All signals except quantisers, which video engines do not report."""
        return self.signals

    def picture_signals(self) -> dict[str, float]:
        """Nothing, because `native_signals` returns these too."""
        return {}


@dataclass(slots=True, kw_only=True)
class _Underway:
    places: Sequence[FrameTime]
    form: Form
    tiny: "Tensor"
    samples: list[int] = field(default_factory=list)
    small_rows: list[int] = field(default_factory=list)
    # Tensors of the first copy: the attribute of views that gets the values, and the frames.
    fills: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    tensors: "dict[str, Tensor]" = field(default_factory=dict)
    first: HostCopy | None = None
    kept: "Tensor | None" = None  # planes of the samples, on the device
    gray: "Tensor | None" = None
    small_gray: "Tensor | None" = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    sides: list[Sides] = field(default_factory=list)
    # Tensors of the second copy: names of signals, `_CROPS`, or None for descriptors; the samples.
    inside: list[tuple[Sequence[str] | None, list[int]]] = field(default_factory=list)
    second: HostCopy | None = None

    def copies(self, name: str, rows: Sequence[int], tensor: "Tensor") -> None:
        """Adds a tensor to the first copy, for an attribute of the views of some frames."""
        if rows:
            self.tensors[name] = tensor
            self.fills.append((name, rows))

    def measured(self, signals: Sequence[str] | None, members: list[int], tensor: "Tensor") -> None:
        """Adds a tensor to the second copy, with values of some samples."""
        self.tensors[str(len(self.inside))] = tensor
        self.inside.append((signals, members))


class _FrameRow(NamedTuple):
    is_sample: bool
    ends_pair: bool
    is_look: bool
    follows_sample: bool


class DeviceSampler:
    """Computes the views that `Measurer` needs, for the frames of one source.

    `nvdec` counts halved batches. `aspect_of` returns the pixel aspect ratio after a rotation in
    degrees.
    """

    def __init__(
        self, of: "SourceMeasuring", nvdec: Nvdec, aspect_of: Callable[[int], Fraction]
    ) -> None:
        self._of, self._nvdec, self._aspect_of = of, nvdec, aspect_of
        self._families, self._graphs = of.families, of.models.graphs
        text = of.models.detector if "text" in of.families else None
        self._maps_text = text.maps if text is not None else None
        # Whether a measure or CLIP needs pictures of 640 px in colour on the host.
        self._with_pictures = bool(of.models.measures) or "clip" in of.families
        self._full = full_sizes(of.measures.values())
        self._follows_sample = False
        self._grid = LookGrid(steps_of(of.config, of.config.text_every_s))
        self._plan: SamplePlan | None = None
        self._looked: Tensor | None = None  # luma of a look that waits for the sample after it

    def __call__(
        self, batches: Iterator[DeviceBatch]
    ) -> Iterator[tuple[Sequence[FrameTime], Sequence[DeviceView]]]:
        """Yields times and views of the frames of each batch."""
        underway: deque[_Underway] = deque()
        for batch in batches:
            for newest in self._begun(batch, self._roles(batch)):
                underway.append(newest)
                if len(underway) > 1:
                    self._measure_inside(underway[-2])
                if len(underway) > 2:
                    oldest = underway.popleft()
                    yield oldest.places, self._views(oldest)
        if underway:
            self._measure_inside(underway[-1])
        for rest in underway:
            yield rest.places, self._views(rest)

    def _roles(self, batch: DeviceBatch) -> list[_FrameRow]:
        if self._plan is None:
            self._plan = self._of.plan(batch.places[0].pts)
            self._make_scalers(batch)
        rows = []
        for place in batch.places:
            role = self._plan.role(place.pts)
            is_sample = role.step is not None
            is_look = role.step is not None and self._grid.is_due(role.step)
            rows.append(_FrameRow(is_sample, role.ends_pair, is_look, self._follows_sample))
            self._follows_sample = is_sample
        return rows

    def _make_scalers(self, batch: DeviceBatch) -> None:
        turn, is_mirrored = batch.rotation_deg, batch.is_mirrored
        upright = Orientation(turn, is_mirrored)._asdict()
        self._turns, self._is_mirrored = turn // 90, is_mirrored
        size = upright_size(batch.form.width, batch.form.height, turn, self._aspect_of(turn))
        self._tiny = DeviceScaler(WIDTH, HEIGHT, **upright)
        own = upright_size(batch.form.width, batch.form.height, turn, Fraction(1))
        self._own_size = DeviceScaler(*own, method="area", **upright)
        self._picture, self._small = (
            DeviceScaler(*fit_inside(*size, px), method="area", **upright)
            for px in (PICTURE_PX, SMALL_PX)
        )

    def _begun(self, batch: DeviceBatch, roles: list[_FrameRow]) -> Iterator[_Underway]:
        """Queues the first part of a batch; halves the batch if the device lacks memory."""
        import torch

        looked = self._looked
        try:
            begun = self._first(batch, roles)
        except torch.OutOfMemoryError as error:
            self._looked = looked
            if len(batch) == 1:
                raise DeviceMemoryError(
                    "the GPU's memory does not hold the pictures of one frame"
                ) from error
        else:
            yield begun
            return
        # Outside of the handler, because the error keeps the allocated memory alive.
        self._nvdec.n_halved += 1
        self._graphs.give_up()
        torch.cuda.empty_cache()
        middle = (len(batch) + 1) // 2
        for rows in (slice(middle), slice(middle, None)):
            yield from self._begun(batch.part(rows), roles[rows])

    def _first(self, batch: DeviceBatch, roles: list[_FrameRow]) -> _Underway:
        """Scales frames, and begins to copy the views that the host needs."""
        tiny, luma = self._scaled(_tiny_of, self._tiny, batch.planes, batch.form)
        begun = _Underway(places=batch.places, form=batch.form, tiny=tiny)
        begun.copies("tiny_luma", range(len(batch)), luma)
        begun.samples = [row for row, role in enumerate(roles) if role.is_sample]
        pairs = [row for row, role in enumerate(roles) if role.ends_pair]
        begun.small_rows = small_rows = sorted({*begun.samples, *pairs})
        if small_rows:
            small, begun.small_gray = self._scaled(
                _picture_of, self._small, batch.taken(small_rows), batch.form
            )
            begun.copies("small_gray", small_rows, begun.small_gray)
            if at := [small_rows.index(row) for row in begun.samples]:
                begun.small_gray = _rows(begun.small_gray, at)
                begun.copies("small", begun.samples, _rows(small, at))
        if begun.samples:
            self._see_samples(begun, batch, [role.is_look for role in roles])
        for kind, n_frames in self._full.items():
            rows = [
                row
                for row, role in enumerate(roles)
                if role.is_sample or (n_frames > 1 and role.follows_sample)
            ]
            if rows:
                planes = batch.taken(rows)
                begun.copies(f"full_{kind}", rows, self._of_full_size(planes, batch.form, kind))
        begun.first, begun.tensors = HostCopy(begun.tensors), {}
        return begun

    def _of_full_size(self, planes: "Tensor", form: Form, kind: Full) -> "Tensor":
        """Returns upright pictures of full size; 8-bit RGB of even size has the bits of a CPU."""
        if kind == "luma":
            import torch

            scale = 255 / (form.white - form.black)
            pixels = (luma_of(planes, form).float() - form.black) * scale
            pixels = pixels.clamp(0, 255).to(torch.uint8)
        elif form.bits == 8 and form.width % 2 == 0 == form.height % 2:
            pixels = unscaled_rgb_BHWC(planes, form)
        else:
            return self._own_size.rgb_BHWC(planes, form)
        return upright_BHWC(pixels, turns=self._turns, is_mirrored=self._is_mirrored)

    def _scaled(
        self,
        function: "Callable[..., Sequence[Tensor]]",
        scaler: DeviceScaler,
        planes: "Tensor",
        form: Form,
    ) -> "list[Tensor]":
        return self._graphs(function, *scaler.scaled(planes, form), colours=scaler.colours(form))

    def _see_samples(self, begun: _Underway, batch: DeviceBatch, is_look: Sequence[bool]) -> None:
        """Computes views and maps of samples that do not depend on borders."""
        samples = begun.samples
        kept = batch.taken(samples)
        picture, gray, exposure = self._scaled(_sample_of, self._picture, kept, batch.form)
        begun.copies("gray", samples, gray)
        if self._families & {"pictures", DISTORTION}:
            begun.kept, begun.gray = kept, gray
            luma = luma_of(kept, batch.form)
            begun.tensors["rows"] = luma[:, EVERY]
            begun.tensors["columns"] = luma[:, :, EVERY].transpose(1, 2)
            begun.tensors["exposure"] = exposure
        looks = [at for at, row in enumerate(samples) if is_look[row]]
        look_rows = [samples[at] for at in looks]
        if self._with_pictures:
            begun.copies("picture", samples, picture)
        elif looks and "overlays" in self._families:
            begun.copies("picture", look_rows, _rows(picture, looks))
        if looks and self._maps_text is not None:
            begun.copies("text_map", look_rows, self._maps_text(_rows(picture, looks)))
        if "overlays" not in self._families or min(gray.shape[1:]) < LEAST_LOOK_PX:
            return
        if looks:
            (edges,) = self._graphs(_look_of, _rows(gray, looks))
            begun.copies("edges", look_rows, edges)
        before, after = [], []
        for at, gray_HW in enumerate(gray):
            if self._looked is not None:
                before.append(self._looked)
                after.append(at)
            self._looked = gray_HW if at in looks else None
        if after:
            import torch

            standing, moved = self._graphs(_change_of, torch.stack(before), _rows(gray, after))
            begun.copies("standing", [samples[at] for at in after], standing)
            begun.copies("moved", [samples[at] for at in after], moved)

    def _measure_inside(self, batch: _Underway) -> None:
        """Finds the borders of samples, and queues the measures of pictures within the borders."""
        import torch

        from curator.measures import device_signals as signals

        assert batch.first is not None
        batch.arrays = batch.first.arrays()
        kept, gray, small_gray = batch.kept, batch.gray, batch.small_gray
        if kept is None or gray is None or small_gray is None:
            return
        luma, form, arrays = luma_of(kept, batch.form), batch.form, batch.arrays
        native, pictures, bars = (defaultdict[Box, list[int]](list) for _ in range(3))
        small = dict(zip(batch.small_rows, arrays["small_gray"], strict=True))
        for at, gray_HW in enumerate(arrays["gray"]):
            thin = arrays["rows"][at], arrays["columns"][at]
            batch.sides.append(borders_of(*thin, black=form.black, white=form.white))
            native[inside(luma.shape[1], luma.shape[2], batch.sides[at])].append(at)
            height, width = gray_HW.shape
            pictures[inside(height, width, find_borders(gray_HW))].append(at)
            bars[bar_box(small[batch.samples[at]])].append(at)
        levels = {"black": form.black, "white": form.white}
        measures: tuple[tuple[Any, ...], ...] = (
            (native, luma, MIN_PX, signals.NATIVE, signals.native_signals_of, levels),
            (pictures, gray, 0, signals.PICTURE, signals.picture_signals_of, {}),
            (bars, small_gray, LEAST_DESCRIBED_PX, None, describe_of, {}),
        )
        try:
            for groups, of, least_px, names, measure, more in measures:
                for (top, bottom, left, right), members in groups.items():
                    if min(bottom - top, right - left) >= least_px:
                        part = _rows(of, members)[:, top:bottom, left:right]
                        (values,) = self._graphs(measure, part, **more)
                        batch.measured(names, members, values)
            for box, members in native.items() if DISTORTION in self._families else ():
                corners, some = read_corners(box), _rows(luma, members)
                crops = [some[:, y : y + CROP_PX, x : x + CROP_PX] for y, x in corners]
                batch.measured(_CROPS, members, torch.stack(crops, dim=1))
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"the GPU's memory does not hold the measures of {len(batch.samples)} pictures"
            ) from error
        batch.kept = batch.gray = batch.small_gray = None
        batch.second, batch.tensors = HostCopy(batch.tensors), {}

    def _views(self, batch: _Underway) -> list[DeviceView]:
        """Returns the views of all frames of a batch; waits for the second copy."""
        from curator.measures import device_signals

        views = [DeviceView(tiny=(batch.tiny, row)) for row in range(len(batch.places))]
        for name, rows in batch.fills:
            for row, value in zip(rows, batch.arrays[name], strict=True):
                setattr(views[row], name, value)
        if batch.second is None:
            return views
        for at, row in enumerate(batch.samples):
            exposure = batch.arrays["exposure"][at].tolist()
            views[row].signals |= zip(device_signals.EXPOSURE, exposure, strict=True)
            sides = batch.sides[at]._asdict().items()
            views[row].signals |= {f"border_{name}": share for name, share in sides}
        arrays = batch.second.arrays()
        for number, (signals, members) in enumerate(batch.inside):
            for at, values in zip(members, arrays[str(number)], strict=True):
                view = views[batch.samples[at]]
                if signals is None:
                    view.described = values
                elif signals is _CROPS:
                    levels = {"black": batch.form.black, "white": batch.form.white}
                    view.distortion_crops = full_range(values, **levels)
                else:
                    view.signals |= zip(signals, values.tolist(), strict=True)
        return views


def _tiny_of(
    luma: "Tensor", chroma: "Tensor", *, colours: ScaledColours
) -> "tuple[Tensor, Tensor]":
    rgb = rgb_of_scaled(luma, chroma, colours=colours)
    return rgb, tiny_luma_of(rgb)


def _picture_of(
    luma: "Tensor", chroma: "Tensor", *, colours: ScaledColours
) -> "tuple[Tensor, Tensor]":
    rgb = rgb_of_scaled(luma, chroma, colours=colours)
    return rgb, gray_of(rgb)


def _sample_of(
    luma: "Tensor", chroma: "Tensor", *, colours: ScaledColours
) -> "tuple[Tensor, Tensor, Tensor]":
    from curator.measures.device_signals import exposure_signals_of

    rgb, gray = _picture_of(luma, chroma, colours=colours)
    return rgb, gray, exposure_signals_of(gray)


def _look_of(gray_SHW: "Tensor") -> "tuple[Tensor]":
    return (edges_of(gray_SHW),)


def _change_of(before_SHW: "Tensor", after_SHW: "Tensor") -> "tuple[Tensor, Tensor]":
    return standing_of(before_SHW, after_SHW), moved_of(before_SHW, after_SHW)


def _rows(pictures_SXY: "Tensor", rows: Sequence[int]) -> "Tensor":
    """Selects pictures without a tensor of indices, which would need a copy to the device."""
    import torch

    if len(rows) == len(pictures_SXY):
        return pictures_SXY
    return torch.stack([pictures_SXY[row] for row in rows])
