"""What measurements need of frames on a device: computed there, and copied once per batch.

A program of `media.device_frames`. Three batches are on their way at a time: of the newest,
pictures and what borders are found by are being computed; of the one before, the host finds the
borders, and the device measures what is inside of them; the oldest is handed on. So every copy has
ended when it is needed.

`device_signals` imports torch, and so is imported in functions.

Shape letters: B frames of a batch, S samples, H, W height and width, C channels.
"""

# ruff: noqa: N803, N806 - shape letters

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.errors import DeviceMemoryError
from curator.measures.borders import EVERY, Box, Sides, borders_of, find_borders, inside
from curator.measures.device_looks import LEAST_PX as LEAST_LOOK_PX
from curator.measures.device_looks import edges_of, lines_of, moved_of, standing_of
from curator.measures.drawn_marks import edge_map, straight_lines
from curator.measures.look_maps import moved_map, packed_codes, standing_lines
from curator.measures.measure_contract import Full
from curator.measures.sample_signals import MIN_PX
from curator.media.decode import FrameTime, upright_size
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
)
from curator.media.device_graphs import DeviceGraphs
from curator.media.nvdec import Nvdec
from curator.media.scale import fit_inside
from curator.models.device_descriptor import LEAST_PX as LEAST_DESCRIBED_PX
from curator.models.device_descriptor import describe_of
from curator.models.perceptual import bar_box, describe
from curator.models.text_detector import TextDetector
from curator.models.transnet import HEIGHT, PICTURE_PX, WIDTH, tiny_luma_of
from curator.stages.analyze.config import AnalyzeConfig, look_every
from curator.stages.analyze.frame_views import SMALL_PX
from curator.stages.analyze.overlay_samples import LookGrid
from curator.stages.analyze.sampling_grid import SamplePlan

if TYPE_CHECKING:
    from torch import Tensor

_Pixels = NDArray[np.uint8]


def _nothing() -> NDArray[Any]:
    """In the place of an array that a frame has none of."""
    return np.zeros((0, 0), np.uint8)


@dataclass(slots=True, kw_only=True)
class DeviceView:
    """What was computed of one frame; arrays are the host's. Sizes are those of `HostView`.

    Attributes:
        tiny: The shot network's pictures of all frames of a batch, uint8 [B, 27, 48, 3] on the
            device, and this frame's row.
        tiny_luma: Mean and spread of luma, 0 to 1.
        small_gray: Luma of 320 px, of samples and of frames that end a pair.
        small: RGB of 320 px, of samples; so is all that follows.
        gray: Luma of 640 px.
        picture: RGB of 640 px, where something on the host looks at it.
        full_rgb: The picture of full size, where a user's measure looks at it; `full_luma`: its
            luma of full range. Of a sample, and of the frame after it where pairs are asked for.
        text_map: Probabilities of text, of a look.
        edges: Cells with edges of a look; `lines`: its straight lines.
        standing: Lines that stood since the look before; `moved`: codes of what moved.
        described: The perceptual descriptor.
        signals: Values by name; those that could not be measured are missing.

    Of pictures that are too small for the device's way, the host makes maps and descriptor.
    """

    tiny: "tuple[Tensor, int]"
    tiny_luma: NDArray[np.float32] = field(default_factory=_nothing)
    small_gray: _Pixels = field(default_factory=_nothing)
    small: _Pixels = field(default_factory=_nothing)
    gray: _Pixels = field(default_factory=_nothing)
    picture: _Pixels = field(default_factory=_nothing)
    full_rgb: _Pixels | None = None
    full_luma: _Pixels | None = None
    text_map: NDArray[Any] | None = None
    edges: _Pixels | None = None
    lines: NDArray[np.float32] = field(default_factory=_nothing)
    standing: _Pixels | None = None
    moved: _Pixels = field(default_factory=_nothing)
    described: NDArray[np.float32] | None = None
    signals: dict[str, float] = field(default_factory=dict)

    is_whole = True
    """An engine smooths the blocks of all frames."""

    def full(self, kind: Full) -> _Pixels:
        """The picture of full size, for users' measures."""
        picture = self.full_rgb if kind == "rgb" else self.full_luma
        assert picture is not None, "only samples and frames after them have it"
        return picture

    def descriptor(self) -> NDArray[np.float32]:
        """The perceptual descriptor."""
        return describe(self.small) if self.described is None else self.described

    def look_maps(self) -> tuple[_Pixels, NDArray[np.float32]]:
        """Edges and straight lines of the larger picture."""
        if self.edges is None:
            return edge_map(self.gray), straight_lines(self.gray)
        return np.packbits(self.edges), self.lines

    def maps_since(self, before_HW: _Pixels) -> tuple[_Pixels, _Pixels]:
        """Lines that stood and what moved since a look with this luma."""
        if self.standing is None:
            return standing_lines(before_HW, self.gray), moved_map(before_HW, self.gray)
        return np.packbits(self.standing), packed_codes(self.moved)

    def native_signals(self) -> dict[str, float]:
        """All signals but quantisers, which an engine is not asked for."""
        return self.signals

    def picture_signals(self) -> dict[str, float]:
        """Nothing: they are among the others."""
        return {}


@dataclass(slots=True, kw_only=True)
class _Underway:
    """A batch of which something is being computed.

    Attributes:
        fills: What is copied: a tensor's name, which attribute of views it is, and of which frames.
        inside: Of the second copy: a tensor's name, its signals, None for descriptors, and of which
            samples.
    """

    places: Sequence[FrameTime]
    form: Form
    tiny: "Tensor"
    samples: list[int] = field(default_factory=list)
    small_rows: list[int] = field(default_factory=list)
    fills: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    tensors: "dict[str, Tensor]" = field(default_factory=dict)
    first: HostCopy | None = None
    kept: "Tensor | None" = None
    """Planes of the samples, on the device."""
    gray: "Tensor | None" = None
    small_gray: "Tensor | None" = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    sides: list[Sides] = field(default_factory=list)
    inside: list[tuple[str, Sequence[str] | None, list[int]]] = field(default_factory=list)
    second: HostCopy | None = None

    def copies(self, name: str, rows: Sequence[int], tensor: "Tensor") -> None:
        """Lets an attribute of the views of some frames be copied."""
        if rows:
            self.tensors[name] = tensor
            self.fills.append((name, rows))

    def measured(self, signals: Sequence[str] | None, members: list[int], tensor: "Tensor") -> None:
        """Lets values of some samples be copied."""
        name = str(len(self.inside))
        self.tensors[name] = tensor
        self.inside.append((name, signals, members))


class _FrameRow(NamedTuple):
    """What a frame of a batch is for the samples."""

    is_sample: bool
    ends_pair: bool
    is_look: bool
    follows_sample: bool


class DeviceSampler:
    """Computes what `Measurer` measures with, for the frames of one source.

    Args:
        config: Grids of samples and looks.
        families: Those that are measured.
        nvdec: Engines of the device; counts batches that are halved.
        graphs: Of the worker, for the functions that are computed.
        time_base: Seconds per tick.
        anchor_pts: Where the sampling grid begins; None for the first frame.
        aspect_of: Width of a pixel by its height, by the rotation in degrees.
        detector: Text detector; None leaves text out.
        with_pictures: Whether something on the host looks at pictures of 640 px in colour.
        full: Kinds of pictures of full size that users' measures look at, and of how many frames of
            a sample: 1, or 2 with the one after it.
    """

    def __init__(
        self,
        config: AnalyzeConfig,
        families: Set[str],
        *,
        nvdec: Nvdec,
        graphs: DeviceGraphs,
        time_base: Fraction,
        anchor_pts: int | None,
        aspect_of: Callable[[int], Fraction],
        detector: TextDetector | None,
        with_pictures: bool,
        full: Mapping[Full, int],
    ) -> None:
        self._config = config
        self._families = families
        self._nvdec = nvdec
        self._graphs = graphs
        self._time_base = time_base
        self._anchor_pts = anchor_pts
        self._aspect_of = aspect_of
        text = detector if "text" in families else None
        self._maps_text = text.maps if text is not None else None
        self._with_pictures = with_pictures
        self._full = full
        self._follows_sample = False
        self._grid = LookGrid(look_every(config))
        self._plan: SamplePlan | None = None
        self._looked: Tensor | None = None
        """Luma of a look that waits for the sample after it."""

    def __call__(
        self, batches: Iterator[DeviceBatch]
    ) -> Iterator[tuple[Sequence[FrameTime], Sequence[DeviceView]]]:
        """Yields places and views of the frames of batches."""
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
        """What each frame is for the samples."""
        first_pts = batch.places[0].pts
        if self._plan is None:
            anchor_pts = first_pts if self._anchor_pts is None else self._anchor_pts
            self._plan = SamplePlan(self._config, self._time_base, anchor_pts, first_pts)
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
        turn = batch.rotation_deg
        self._turns = turn // 90
        size = upright_size(batch.form.width, batch.form.height, turn, self._aspect_of(turn))
        self._tiny = DeviceScaler(WIDTH, HEIGHT, rotation_deg=turn)
        own = upright_size(batch.form.width, batch.form.height, turn, Fraction(1))
        self._own_size = DeviceScaler(*own, method="area", rotation_deg=turn)
        self._picture, self._small = (
            DeviceScaler(*fit_inside(*size, px), method="area", rotation_deg=turn)
            for px in (PICTURE_PX, SMALL_PX)
        )

    def _begun(self, batch: DeviceBatch, roles: list[_FrameRow]) -> Iterator[_Underway]:
        """Queues the first part; in halves where the device's memory is too small."""
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
        # Outside of the handler, whose error holds on to what was allocated.
        self._nvdec.n_halved += 1
        self._graphs.give_up()
        torch.cuda.empty_cache()
        middle = (len(batch) + 1) // 2
        for rows in (slice(middle), slice(middle, None)):
            yield from self._begun(batch.part(rows), roles[rows])

    def _first(self, batch: DeviceBatch, roles: list[_FrameRow]) -> _Underway:
        """Scales frames, and copies what the host needs of them."""
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
            at = [small_rows.index(row) for row in begun.samples]
            if at:
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
        """Pictures at the source's own size, upright; those of a CPU, of 8 bits to the bit."""
        import torch

        if kind == "luma":
            scale = 255 / (form.white - form.black)
            pixels = (luma_of(planes, form).float() - form.black) * scale
            pixels = pixels.clamp(0, 255).to(torch.uint8)
        elif form.bits == 8 and form.width % 2 == 0 == form.height % 2:
            pixels = unscaled_rgb_BHWC(planes, form)
        else:
            return self._own_size.rgb_BHWC(planes, form)
        return torch.rot90(pixels, k=-self._turns, dims=(1, 2)).contiguous()

    def _scaled(
        self,
        function: "Callable[..., Sequence[Tensor]]",
        scaler: DeviceScaler,
        planes: "Tensor",
        form: Form,
    ) -> "list[Tensor]":
        """What a function makes of frames that a scaler has shrunk."""
        return self._graphs(function, *scaler.scaled(planes, form), colours=scaler.colours(form))

    def _see_samples(self, begun: _Underway, batch: DeviceBatch, is_look: Sequence[bool]) -> None:
        """Computes what is asked of samples before their borders are known."""
        samples = begun.samples
        kept = batch.taken(samples)
        picture, gray, exposure = self._scaled(_sample_of, self._picture, kept, batch.form)
        begun.copies("gray", samples, gray)
        if self._with_pictures:
            begun.copies("picture", samples, picture)
        if "pictures" in self._families:
            begun.kept, begun.gray = kept, gray
            luma = luma_of(kept, batch.form)
            begun.tensors["rows"] = luma[:, EVERY]
            begun.tensors["columns"] = luma[:, :, EVERY].transpose(1, 2)
            begun.tensors["exposure"] = exposure
        looks = [at for at, row in enumerate(samples) if is_look[row]]
        look_rows = [samples[at] for at in looks]
        if looks and self._maps_text is not None:
            begun.copies("text_map", look_rows, self._maps_text(_rows(picture, looks)))
        if "overlays" in self._families and min(gray.shape[1:]) >= LEAST_LOOK_PX:
            self._map_looks(begun, gray, looks)

    def _map_looks(self, begun: _Underway, gray: "Tensor", looks: Sequence[int]) -> None:
        """Computes the maps of looks, and of each with the sample after it."""
        samples = begun.samples
        if looks:
            edges, lines = self._graphs(_look_of, _rows(gray, looks))
            begun.copies("edges", [samples[at] for at in looks], edges)
            begun.copies("lines", [samples[at] for at in looks], lines)
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
        """Finds the borders of samples, and queues the measures of what is inside of them."""
        import torch

        from curator.measures import device_signals

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
            pictures[inside(*_size(gray_HW), find_borders(gray_HW))].append(at)
            bars[bar_box(small[batch.samples[at]])].append(at)
        try:
            for box, members in native.items():
                if _shorter(box) >= MIN_PX:
                    part = _part(luma, members, box)
                    (values,) = self._graphs(
                        device_signals.native_signals_of, part, black=form.black, white=form.white
                    )
                    batch.measured(device_signals.NATIVE, members, values)
            for box, members in pictures.items():
                (values,) = self._graphs(
                    device_signals.picture_signals_of, _part(gray, members, box)
                )
                batch.measured(device_signals.PICTURE, members, values)
            for box, members in bars.items():
                if _shorter(box) >= LEAST_DESCRIBED_PX:
                    (values,) = self._graphs(describe_of, _part(small_gray, members, box))
                    batch.measured(None, members, values)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"the GPU's memory does not hold the measures of {len(batch.samples)} pictures"
            ) from error
        batch.kept = batch.gray = batch.small_gray = None
        batch.second, batch.tensors = HostCopy(batch.tensors), {}

    def _views(self, batch: _Underway) -> list[DeviceView]:
        """What was computed of each frame; waits for the last of it."""
        from curator.measures import device_signals

        views = [DeviceView(tiny=(batch.tiny, row)) for row in range(len(batch.places))]
        for name, rows in batch.fills:
            for row, value in zip(rows, batch.arrays[name], strict=True):
                setattr(views[row], name, value)
        if batch.second is None:
            return views
        for at, row in enumerate(batch.samples):
            own_signals = views[row].signals
            own_signals |= zip(
                device_signals.EXPOSURE, batch.arrays["exposure"][at].tolist(), strict=True
            )
            own_signals |= {f"border_{n}": share for n, share in batch.sides[at]._asdict().items()}
        arrays = batch.second.arrays()
        for name, signals, members in batch.inside:
            for at, values in zip(members, arrays[name], strict=True):
                view = views[batch.samples[at]]
                if signals is None:
                    view.described = values
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


def _look_of(gray_SHW: "Tensor") -> "tuple[Tensor, Tensor]":
    return edges_of(gray_SHW), lines_of(gray_SHW)


def _change_of(before_SHW: "Tensor", after_SHW: "Tensor") -> "tuple[Tensor, Tensor]":
    return standing_of(before_SHW, after_SHW), moved_of(before_SHW, after_SHW)


def _rows(pictures_SXY: "Tensor", rows: Sequence[int]) -> "Tensor":
    """Some pictures, without a list of numbers that would have to cross to the device."""
    import torch

    if len(rows) == len(pictures_SXY):
        return pictures_SXY
    return torch.stack([pictures_SXY[row] for row in rows])


def _part(full_SHW: "Tensor", rows: Sequence[int], box: Box) -> "Tensor":
    """Of some pictures the part within a box."""
    top, bottom, left, right = box
    return _rows(full_SHW, rows)[:, top:bottom, left:right]


def _size(picture_HW: NDArray[np.uint8]) -> tuple[int, int]:
    return picture_HW.shape[0], picture_HW.shape[1]


def _shorter(box: Box) -> int:
    top, bottom, left, right = box
    return min(bottom - top, right - left)
