"""Signals of pictures in a device's memory: those of `sample_signals`, for many pictures at once.

A call only queues work. No step depends on a value, so the host never waits: shapes depend only on
sizes, and masks exclude values. A call's cost is its number of kernels. So rows and columns
share one axis, and each linear step is a product with a constant matrix. The code runs on any torch
device. Its thresholds are those of the modules that measure pictures in the host's memory.

It imports torch, so a worker imports this module where it sets up.

Shape letters: S samples, H and W height and width, N lines, L places along lines, D directions
(rows, columns), G segments of lines, K places in a segment or its frequencies, B blocks of 8 px.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad, threshold

from curator.measures import picture_quality, strips
from curator.measures.strips import STRIP_PX
from curator.media.device_graphs import constants

NATIVE = ("noise", "blocking", "flattening", "banding", "combing", "resolution")
"""Order of the values of `native_signals_of`."""
PICTURE = ("sharpness", "stripes")  # order of the values of `picture_signals_of`
EXPOSURE = ("dark_fraction", "bright_fraction")  # order of the values of `exposure_signals_of`

_MIN_PX = 32
_PAD_PX = 10  # places that lines gain at both ends, for windows of up to 21 px
_AROUND_PX = 8  # on each side of a step are its surroundings in `blocking`
_N_GRIDS = len(strips._ENLARGED)
_BLUR = 43 / 256, 170 / 256  # OpenCV's 8-bit weights of a Gaussian, 3 px, deviation 0.6
_keep = constants(16)  # keeps constants of a size on a device: 4 MB for 1080p
_keep_short = constants(256)  # keeps a line of places


def native_signals_of(luma_SHW: Tensor, *, black: int, white: int) -> Tensor:
    """Returns the signals of full-size luma inside borders, as `native_signals` does.

    `luma_SHW` is uint8, or uint16 with the level in the upper 8 bits; its rows are dense in memory.
    `black` and `white` are levels of 255.

    Returns:
        float32 [S, 6] in the order of `NATIVE`; NaN where a signal could not be measured.
    """
    if luma_SHW.dtype == torch.uint16:
        # A view of the upper bytes: some kernels do not take 16 bits without a sign.
        luma_SHW = luma_SHW.view(torch.uint8)[..., 1::2]
    n_samples, H, W = luma_SHW.shape
    if min(H, W) < _MIN_PX:
        return torch.full((n_samples, len(NATIVE)), torch.nan, device=luma_SHW.device)
    groups = _lines(luma_SHW)
    sums = [_line_sums(group, black, white) for group in groups]
    if len(sums) == 1:
        ((profile, bands, grid, flat),) = sums
    else:
        profile, bands, grid, flat = (torch.cat(parts, 1) for parts in zip(*sums, strict=True))
    scale = 255 / (white - black)
    noise = _noise(groups[0], black, white)
    n_flat, n_places = flat.sum(1).unbind(-1)
    values = (
        noise,
        _blocking(profile),
        (n_flat / n_places).masked_fill(n_places < 200, torch.nan),
        (bands.sum(2) - bands.amax(2)).sum(1) * scale**2,
        _combing(groups[-1]),
        _resolution(luma_SHW, grid.argmax(2), noise, scale),
    )
    return torch.stack(values, 1)


def picture_signals_of(gray_SHW: Tensor) -> Tensor:
    """Returns signals of uint8 luma of 640 px inside borders, float32 [S, 2] as in `PICTURE`."""
    return torch.stack((_sharpness(gray_SHW), _stripes(gray_SHW)), 1)


def exposure_signals_of(gray_SHW: Tensor) -> Tensor:
    """Returns the shares of dark and of bright pixels, float32 [S, 2] as in `EXPOSURE`."""
    clipped = torch.stack((gray_SHW <= 16, gray_SHW >= 250), 1)
    return clipped.mean((2, 3), dtype=torch.float32)


class _Lines(NamedTuple):
    """Lines of one direction, or lines of both directions, joined along the lines.

    Each line has `_PAD_PX` mirrored places at both ends. Strips that few measures read are last.
    """

    levels: Tensor  # float32 [S, N, L]
    steps: Tensor  # absolute difference of each place and the next
    sizes: tuple[int, ...]  # length of the lines of each direction, without the mirrored places

    @property
    def n_few(self) -> int:
        """Number of lines in every other strip."""
        return -(-self.levels.shape[1] // (2 * STRIP_PX)) * STRIP_PX


def _lines(luma_SHW: Tensor) -> list[_Lines]:
    """Returns rows and columns as one group if their numbers are equal, else as two groups."""
    H, W = luma_SHW.shape[1:]
    device = luma_SHW.device
    of_rows, of_columns = _places_of_lines(H, device), _places_of_lines(W, device)
    rows = luma_SHW[:, of_rows[:, None], _mirrored(W, _PAD_PX, device)[None]]
    columns = luma_SHW[:, _mirrored(H, _PAD_PX, device)[None], of_columns[:, None]]
    if len(of_rows) == len(of_columns):
        parts: list[tuple[Tensor, tuple[int, ...]]] = [(torch.cat((rows, columns), 2), (W, H))]
    else:
        parts = [(rows, (W,)), (columns, (H,))]
    groups = []
    for levels, sizes in parts:
        values = levels.float()
        groups.append(_Lines(values, _difference(values[..., 1:], values[..., :-1]), sizes))
    return groups


def _difference(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs()


@_keep_short
def _places_of_lines(size: int, device: torch.device) -> Tensor:
    """Returns the rows that `strips` reads in a picture of this height, every other strip first."""
    places: Any = np.arange(size)[:, None]
    chosen = strips.strips(places)[:, 0].reshape(-1, STRIP_PX)
    return _on(device, np.concatenate([chosen[::2], chosen[1::2]]).ravel())


@_keep_short
def _mirrored(size: int, pad: int, device: torch.device) -> Tensor:
    """Returns places of a line with mirrored ends, as with OpenCV's BORDER_REFLECT_101."""
    return _on(device, np.pad(np.arange(size), pad, mode="reflect"))


def _on(device: torch.device, array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _line_sums(lines: _Lines, black: int, white: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns sums over lines.

    Returns:
        For `blocking` [S, D, 59]; for `banding` [S, D, 8]; for the phase of the grid in
        `resolution` [S, D, 8]; for `flattening` [S, 1, 2].
    """
    steps_SNL, n_directions = lines.steps, len(lines.sizes)
    maps = _line_maps(lines.sizes, steps_SNL.shape[1], steps_SNL.device)
    capped = steps_SNL[:, ::2].clamp(max=20)
    mirrored = capped.index_select(2, maps.with_surroundings)
    around = avg_pool2d(mirrored, (1, 2 * _AROUND_PX + 1), 1) + 1
    profile = (mirrored[..., _AROUND_PX:-_AROUND_PX] / around).mean(1) @ maps.profile
    grid = capped[:, ::2].sum(1) @ maps.grid
    # A small step counts 1 and a larger one more, so a sum of 1 is one small step alone.
    rank = (steps_SNL * (1 / (strips._BAND_STEP + 0.5))).ceil()
    near = avg_pool2d(rank, (1, 2 * _PAD_PX + 1), 1, divisor_override=1)
    height = steps_SNL[..., _PAD_PX:-_PAD_PX].masked_fill(near != 1, 0)
    bands = height.square().sum(1) @ maps.bands
    flat = (_flat_places(lines, black, white) @ maps.inside).transpose(1, 2)
    profile, bands, grid = (x.unflatten(1, (n_directions, -1)) for x in (profile, bands, grid))
    return profile, bands, grid, flat


def _flat_places(lines: _Lines, black: int, white: int) -> Tensor:
    """Returns at each place the numbers of flat lines and of lines amid contrast, [S, 2, L]."""
    few = lines.levels[:, : lines.n_few : 2]
    # Mirrored places repeat places of the window, so its extremes do not change.
    contrast = _running_max(torch.stack((few, -few)), strips._CONTRAST_PX).sum(0)
    margin = strips._CONTRAST_PX // 2
    levels = few[..., margin:-margin]
    counted = (contrast >= strips._CONTRAST) & (levels == levels.clamp(black + 5, white - 6))
    run = strips._FLAT_PX - 1
    above, below = lines.steps[:, : lines.n_few].unflatten(1, (-1, 2)).unbind(2)
    largest = _running_max(above.maximum(below), run)
    # The steps around the step to a place decide whether the place is flat.
    first = margin - 1 - run // 2
    flat = largest[..., first : first + levels.shape[2]] == 0
    return torch.stack((counted & flat, counted), 1).sum(2, dtype=torch.float32)


def _running_max(values: Tensor, n: int) -> Tensor:
    """Returns the largest of each `n` consecutive values along the last axis.

    The maximum of a window is the maximum of two shorter windows, so a few operations on whole
    arrays are enough; torch's pooling reads each value `n` times.
    """
    width = 1
    while width < n:
        step = min(width, n - width)
        values = values[..., :-step].maximum(values[..., step:])
        width += step
    return values


class _LineMaps(NamedTuple):
    """Matrices from places along lines to sums; the weight of places that are no step is 0."""

    with_surroundings: Tensor  # steps of each direction in turn, mirrored at the ends
    # For each direction: means of the 8 phases of a grid of 8 px; these without the mean of every
    # other phase; the mean; real and imaginary parts of the waves of enlarged grids.
    profile: Tensor
    bands: Tensor  # sums of the 8 phases in the unit of `banding`
    grid: Tensor  # sums of the 8 phases
    inside: Tensor  # 1 at the places that `flattening` counts


@_keep
def _line_maps(sizes: tuple[int, ...], n_lines: int, device: torch.device) -> _LineMaps:
    margin = strips._CONTRAST_PX // 2
    surroundings, profile, bands, grid, inside = [], [], [], [], []
    start = 0
    for size in sizes:
        steps = np.arange(size - 1)
        surroundings.append(start + _PAD_PX + np.pad(steps, _AROUND_PX, mode="reflect"))
        profile.append(_padded(_profile_map(size - 1), _AROUND_PX, _AROUND_PX))
        phases = np.eye(8)[steps % 8]
        # Half for each direction: the value is their mean.
        unit = 8 / 7 / (n_lines * size) * 1000 / 2
        bands.append(_padded(phases * unit, _PAD_PX, _PAD_PX + 1))
        phases[len(steps) // 8 * 8 :] = 0
        grid.append(_padded(phases, _PAD_PX, _PAD_PX + 1))
        inside.append(_padded(np.ones((size - 1, 1)), _PAD_PX + 1, _PAD_PX))
        start += size + 2 * _PAD_PX
    return _LineMaps(
        with_surroundings=_on(device, np.concatenate(surroundings)),
        profile=torch.block_diag(*profile)[_AROUND_PX:-_AROUND_PX].to(device),
        bands=torch.block_diag(*bands)[_PAD_PX : -_PAD_PX - 1].to(device),
        grid=torch.block_diag(*grid)[:-1].to(device),
        inside=torch.cat(inside)[margin:-margin].to(device),
    )


def _padded(matrix: NDArray[np.float64], before: int, behind: int) -> Tensor:
    rows = np.pad(matrix, ((before, behind), (0, 0)))
    return torch.from_numpy(rows.astype(np.float32))


def _profile_map(n_steps: int) -> NDArray[np.float64]:
    """Returns `profile` of `_LineMaps` for one direction, [steps, 59]."""
    n_periods = n_steps // 8
    phases = np.eye(8)[np.arange(n_steps) % 8] / n_periods
    phases[n_periods * 8 :] = 0
    others = sum(np.roll(phases, -shift, axis=1) for shift in (2, 4, 6)) / 3
    mean = np.full((n_steps, 1), 1 / n_steps)
    waves = strips._waves(n_steps)
    waves = 4 * (waves - waves.mean(axis=0))
    parts = np.stack((waves.real, waves.imag), axis=2).reshape(n_steps, -1)
    return np.concatenate([phases, phases - others, mean, parts], axis=1)


def _blocking(profile_SDK: Tensor) -> Tensor:
    phases, above, mean, waves = profile_SDK.split([8, 8, 1, 2 * 3 * _N_GRIDS], 2)
    level = mean + 0.05
    native = (above.gather(2, phases.argmax(2, keepdim=True)) / level).mean((1, 2))
    strength = torch.linalg.vector_norm(waves.unflatten(2, (_N_GRIDS, -1)), dim=3) / level
    return native.maximum(threshold(strength, 0.2, 0).amin(1).amax(1))  # type: ignore[no-any-return]


def _combing(columns: _Lines) -> Tensor:
    size = columns.sizes[-1]
    first = columns.levels.shape[2] - size - _PAD_PX
    stretch = strips._COMB_PX
    n = (size - 2) // stretch
    lines = columns.levels[:, ::2, first : first + n * stretch + 2]
    near = columns.steps[:, ::2, first + 1 : first + 1 + n * stretch]
    far = _difference(lines[..., 2:], lines[..., :-2])
    near, far = (x.unflatten(2, (n, stretch)).sum(3) for x in (near, far))
    combs = near > (2 * far).clamp(min=stretch * strips._COMB_STEP)
    return combs.mean((1, 2), dtype=torch.float32)  # type: ignore[no-any-return]


def _noise(rows: _Lines, black: int, white: int) -> Tensor:
    """Returns the signal `noise`, [S].

    Among equally flat blocks, the first blocks are chosen; `noise` chooses any. With fewer than 80
    blocks, the 8 flattest are chosen; `noise` chooses 8 blocks that include the flattest tenth.
    """
    size = rows.sizes[0] // STRIP_PX * STRIP_PX
    lines = rows.levels[:, : rows.n_few, _PAD_PX : _PAD_PX + size]
    device = lines.device
    strips_SNPL = lines.unflatten(1, (-1, STRIP_PX))
    # Immerkaer's kernel is one second difference down and one across.
    above, middle, below = (strips_SNPL[:, :, i : i + STRIP_PX - 2] for i in range(3))
    down = (above + below).sub(middle, alpha=2).index_select(3, _mirrored(size, 1, device))
    left, middle, right = (down[..., i : i + size] for i in range(3))
    both = (left + right).sub(middle, alpha=2)
    fine = avg_pool2d(both.abs().clamp(max=255), (STRIP_PX - 2, STRIP_PX)).flatten(1)
    blocks = (lines - 128).unflatten(1, (-1, STRIP_PX)).unflatten(3, (-1, STRIP_PX))
    blocks_SBK = blocks.permute(0, 1, 3, 2, 4).reshape(len(lines), -1, STRIP_PX**2)
    planes = blocks_SBK @ _planes(device)
    mean, slopes = planes[..., 0], planes[..., 1:]
    # Sums are exact, and each step rounds as in `noise`, so that the same blocks are flattest.
    variance = blocks_SBK.square().mean(2) - mean.square() - slopes.square().sum(2) / _RAMP_POWER
    coarse = variance.clamp(min=0).sqrt()
    span = white - black
    is_clipped = mean != mean.clamp(black + 0.02 * span - 128, white - 0.02 * span - 128)
    ordered, order = coarse.masked_fill(is_clipped, 1e4).sort(dim=1, stable=True)
    n_blocks = ordered.shape[1]
    n_usable = n_blocks - is_clipped.sum(1)
    n_flat = (n_usable // 10).clamp(min=8)[:, None]
    chosen = _mirrored(n_blocks, 0, device) < n_flat
    pair = torch.stack((fine.gather(1, order), ordered), 1) * chosen[:, None]
    level, total = (pair.sum(2) / n_flat).unbind(1)
    ratio = level / total.clamp(min=0.3 / _OF_COARSE)
    is_noise = (ratio * (_OF_FINE / _OF_COARSE / 0.4) - 1).clamp(0, 1)
    noise = level * is_noise * (_OF_FINE / 0.9 * 255 / span)
    return noise.masked_fill(n_usable < 32, torch.nan)  # type: ignore[no-any-return]


_OF_FINE, _OF_COARSE = (np.pi / 2) ** 0.5 / 6, (64 / 61) ** 0.5
"""Factors from the mean response, and from the deviation around planes, to noise (see `noise`)."""
_RAMP = np.arange(STRIP_PX) - (STRIP_PX - 1) / 2
_RAMP_POWER = float((_RAMP**2).mean())


@_keep_short
def _planes(device: torch.device) -> Tensor:
    """Returns the map from a block to its mean and its products with two ramps, [64, 3]."""
    even = np.ones(STRIP_PX)
    maps = (np.outer(even, even), np.outer(even, _RAMP), np.outer(_RAMP, even))
    return _on(device, np.stack([m.ravel() for m in maps], 1).astype(np.float32) / STRIP_PX**2)


class _Segments(NamedTuple):
    """Places and matrices of segments of lines; both directions are padded to one size."""

    rows: Tensor  # places in the picture, [D, G, 64]
    columns: Tensor
    mean: Tensor  # 1 / length of a segment, [D, 1, 64]
    is_none: Tensor  # whether a segment is padding, [D, G]
    weights: Tensor  # 1 for busy and for flat segments, by their order of variance, [D, 2, G]
    least: Tensor  # smallest variance of busy and of flat segments, [2, 1]
    # For each phase of the grid of 8 px: maps from levels to their mean, and to the real and
    # imaginary parts of the spectrum of smoothed steps, [D, 8, 64, 65]. White noise of 1 level has
    # power 1.
    spectra: Tensor
    whitening: Tensor  # weights of frequencies, [D, 32]
    share: Tensor  # share of the nominal resolution per frequency, [D]


@_keep
def _segments(height: int, width: int, device: torch.device) -> _Segments:
    most = strips._SEGMENT_PX
    sides = []
    for across, along in ((height, width), (width, height)):
        lines = _places_of_lines(across, torch.device("cpu")).numpy()[::4]
        size = min(most, along // STRIP_PX * STRIP_PX)
        sides.append((lines, size, along // size))
    n_segments = [len(lines) * n for lines, _, n in sides]
    G = max(n_segments)
    places = np.zeros((2, 2, G, most), np.int64)
    mean, spectra = np.zeros((2, 1, most)), np.zeros((2, 8, most, 1 + most))
    weights, whitening, share = np.zeros((2, 2, G)), np.zeros((2, most // 2)), np.zeros(2)
    for side, (lines, size, n) in enumerate(sides):
        count = n_segments[side]
        within = np.minimum(np.arange(most), size - 1) + np.arange(n)[:, None] * size
        places[side, side, :count] = np.repeat(lines, n)[:, None]
        places[1 - side, side, :count] = np.tile(within, (len(lines), 1))
        mean[side, 0, :size] = 1 / size
        quarter = int(count * strips._BUSIEST)
        weights[side, 0, G - max(1, quarter) :] = 1
        weights[side, 1, G - count : G - count + max(8, quarter)] = 1
        spectra[side] = _spectra(size)
        bins = size // 2
        whitening[side, :bins] = (np.arange(1, bins + 1) / bins) ** strips._WHITENING
        share[side] = 1 / bins / strips._MOST_ENERGY
    is_none = np.arange(G) >= np.array(n_segments)[:, None]
    least = np.array([[strips._DETAIL**2], [-np.inf]])
    floats = (weights, least, spectra, mean, whitening, share)
    names = ("weights", "least", "spectra", "mean", "whitening", "share")
    return _Segments(
        rows=_on(device, places[0]),
        columns=_on(device, places[1]),
        is_none=_on(device, is_none),
        **{name: _on(device, x.astype(np.float32)) for name, x in zip(names, floats, strict=True)},
    )


@lru_cache
def _spectra(size: int) -> NDArray[np.float64]:
    """Returns `spectra` of `_Segments` for one direction, [8, 64, 65]."""
    most = strips._SEGMENT_PX
    maps = np.zeros((8, most, 1 + most))
    maps[:, :size, 0] = 1 / size
    window, of_steps = strips._window(size)
    for phase in range(8):
        steps = strips._smooth_steps(np.eye(size, dtype=np.float32), phase)
        spectrum = np.fft.rfft(steps * window, axis=1)[:, 1:] / np.sqrt(of_steps[1:])
        maps[phase, :size, 1 : 1 + size // 2] = spectrum.real
        maps[phase, :size, 1 + most // 2 : 1 + most // 2 + size // 2] = spectrum.imag
    return maps


def _resolution(luma_SHW: Tensor, phase_SD: Tensor, noise_S: Tensor, scale: float) -> Tensor:
    H, W = luma_SHW.shape[1:]
    maps = _segments(H, W, luma_SHW.device)
    segments_SDGK = luma_SHW[:, maps.rows, maps.columns].float()
    products = segments_SDGK @ maps.spectra[_mirrored(2, 0, luma_SHW.device), phase_SD]
    mean, spectra = products[..., 0], products[..., 1:]
    square = (segments_SDGK.square() * maps.mean).sum(3)
    variance = (square - mean.square()).masked_fill(maps.is_none, -torch.inf)
    rank = variance.argsort(dim=2, stable=True).argsort(2)[:, :, None].expand(-1, -1, 2, -1)
    chosen = maps.weights.expand(len(rank), -1, -1, -1).gather(3, rank)
    weights = chosen * (variance[:, :, None] >= maps.least)
    count = weights.sum(3)
    power = (weights @ spectra.square()).unflatten(3, (2, -1)).sum(3) / count[..., None]
    busy, flat = power.unbind(2)
    loudest = (noise_S.nan_to_num(0) * (strips._LOUDEST / scale)).square()[:, None, None]
    hidden = (flat * strips._FLATTEST).minimum(loudest)
    detail = (busy - hidden - strips._ROUNDING**2).clamp(min=0)
    detail = detail.masked_fill(busy <= hidden * strips._ABOVE_NOISE, 0) * maps.whitening
    white = detail.cumsum(2)
    # Part of each frequency below the place with 95% of the energy; NaN without energy.
    below = (white[..., -1:] * strips._MOST_ENERGY - (white - detail)) / detail
    place = (below.clamp(0, 1).sum(2) * maps.share).clamp(max=1)
    finest = place.masked_fill(count[..., 0] < 8, 1)
    return torch.fmax(finest[:, 0], finest[:, 1])


def _sharpness(gray_SHW: Tensor) -> Tensor:
    n_samples, H, W = gray_SHW.shape
    size = min(picture_quality.WINDOW_PX, H, W)
    if size < 4:
        return torch.ones(n_samples, device=gray_SHW.device)
    down, across = (_mirrored(side // size * size, 1, gray_SHW.device) for side in (H, W))
    outer, middle = _BLUR
    # With half a level more, rounding down is rounding to the nearest; all sums are exact.
    x = gray_SHW[:, down[:, None], across[None]] + 0.5
    x = (x[:, 1:-1] * middle).add(x[:, :-2] + x[:, 2:], alpha=outer)
    smooth = (x[..., 1:-1] * middle).add(x[..., :-2] + x[..., 2:], alpha=outer).floor()
    inner = smooth[:, 1:, 1:]
    slope = _difference(inner, smooth[:, 1:, :-1]).maximum(_difference(inner, smooth[:, :-1, 1:]))
    # The first row and column have no slope, so they are 0.
    slopes, levels = (
        x.unflatten(2, (-1, size)).unflatten(1, (-1, size))
        for x in (pad(slope, (1, 0, 1, 0)), smooth)
    )
    steepest = slopes.amax((2, 4)).flatten(1)
    contrast = (levels.amax((2, 4)) - levels.amin((2, 4))).flatten(1)
    has_none = contrast < picture_quality._EDGE_CONTRAST
    ratios = (steepest / contrast).masked_fill(has_none, -1).sort(dim=1).values
    # Windows without edge come first; the 90th percentile of the others is between two windows.
    n_none = has_none.sum(1, keepdim=True)
    n_windows = ratios.shape[1]
    place = n_none * 0.1 + 0.9 * (n_windows - 1)
    near = (1 - (_mirrored(n_windows, 0, gray_SHW.device) - place).abs()).clamp(min=0)
    value = (ratios * near).sum(1).clamp(max=1)
    return value.masked_fill(n_none[:, 0] == n_windows, 1)  # type: ignore[no-any-return]


class _FourierMaps(NamedTuple):
    """Maps from the spectrum of a square to cells; cells are padded to M places each."""

    window: Tensor  # [size, size]
    floor: float  # power of noise of one level
    used: Tensor  # places in `rfft2`'s result, by cell, [cells M]
    of_rings: Tensor  # weights of the means of rings, [cells M, rings]
    ring: Tensor  # the ring of each place, [cells M]
    of_cell: Tensor  # weights of a cell's mean, [cells, M]
    around: Tensor  # weights of the mean of the wedges around each wedge, [wedges, wedges]


@_keep
def _fourier_maps(size: int, device: torch.device) -> _FourierMaps:
    window, used, ring, cell, n_of_ring, n_of_cell = picture_quality._fourier_maps(size)
    order = np.argsort(cell, kind="stable")
    first = np.searchsorted(cell[order], np.arange(len(n_of_cell)))
    n_in_cell = np.bincount(cell, minlength=len(n_of_cell))
    member = np.arange(n_in_cell.max())
    is_there = member < n_in_cell[:, None]
    chosen = order[np.minimum(first[:, None] + member, len(order) - 1)]
    of_rings = np.eye(len(n_of_ring))[ring[chosen]] / n_of_ring * is_there[..., None]
    # OpenCV's half spectrum has one column less than torch's.
    half = size // 2
    used = used // half * (half + 1) + used % half
    around = np.zeros((picture_quality._WEDGES, picture_quality._WEDGES), np.float32)
    np.add.at(around, (np.arange(picture_quality._WEDGES)[:, None], picture_quality._BESIDE), 1 / 6)
    return _FourierMaps(
        window=_on(device, window),
        floor=float((window**2).sum()),
        used=_on(device, used[chosen].ravel()),
        of_rings=_on(device, of_rings.reshape(-1, len(n_of_ring)).astype(np.float32)),
        ring=_on(device, ring[chosen].ravel()),
        of_cell=_on(device, (is_there / n_of_cell[:, None]).astype(np.float32)),
        around=_on(device, around),
    )


def _stripes(gray_SHW: Tensor) -> Tensor:
    n_samples, H, W = gray_SHW.shape
    size = min(picture_quality._FOURIER_PX, H, W) // 2 * 2
    if size < 64:
        return torch.full((n_samples,), torch.nan, device=gray_SHW.device)
    top, left = (H - size) // 2, (W - size) // 2
    maps = _fourier_maps(size, gray_SHW.device)
    square = gray_SHW[:, top : top + size, left : left + size].float()
    square = (square - square.mean((1, 2), keepdim=True)) * maps.window
    spectrum = torch.view_as_real(torch.fft.rfft2(square)).flatten(1, 2)
    power = spectrum.index_select(1, maps.used).square().sum(2)
    level = (power @ maps.of_rings + maps.floor).index_select(1, maps.ring)
    even = (power / level).clamp(max=12).unflatten(1, maps.of_cell.shape)
    energy = (
        (even * maps.of_cell).sum(2).unflatten(1, (picture_quality._WEDGES, picture_quality._BANDS))
    )
    middle = picture_quality._WEDGES // 2
    median = energy.sort(dim=1).values[:, middle - 1 : middle + 1].mean(1, keepdim=True)
    reference = (maps.around @ energy).maximum(median)
    return (energy / (reference + 0.25)).amin(2).amax(1)  # type: ignore[no-any-return]
