"""Maps colours of other primaries, and of PQ and HLG, to BT.709.

FFmpeg's `scale` converts matrices and ranges. For primaries and high dynamic range, numpy computes
a colour table that FFmpeg's `lut3d` applies. PyAV's wheel has no zscale, and the perceptual tone
mapping of its swscale (8.1) turns blue skies magenta (`benchmarks/results/cutting.md`).

All light is display light: PQ by SMPTE ST 2084, HLG by BT.2100 with a system gamma of 1.2 for a
display of 1,000 cd/m2, all others by BT.1886 (a power of 2.4). The curve of ITU-R BT.2390 maps high
dynamic range from 1,000 cd/m2 to SDR white at 203 cd/m2 (BT.2408). It is applied to the largest of
R, G and B, which preserves hues. Colours outside BT.709 move towards grey of equal luminance until
they are inside.
"""

import atexit
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curator.storage.scratch import ScratchFolder, full_disk_named, given_file

PQ, HLG = 16, 18
"""Transfer characteristics of ITU-T H.273."""

_WHITE_D65 = (0.3127, 0.3290)
_PRIMARIES = {
    1: ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060)),
    5: ((0.640, 0.330), (0.290, 0.600), (0.150, 0.060)),
    6: ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070)),
    7: ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070)),
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
}
"""Code of ITU-T H.273 -> chromaticities of red, green and blue. The codes are BT.709, BT.470 BG,
BT.601 of 525 lines, SMPTE 240M, BT.2020 and P3-D65, all with D65 as white."""

_BT709, _BT2020 = 1, 9
_PEAK_NITS, _WHITE_NITS = 1000.0, 203.0
_EDGE = 65
"""Colours along each side of a table. The error of interpolation is below a level of 8 bits."""

Colours = NDArray[np.float64]


def colour_table(primaries: int, transfer: int) -> str | None:
    """Writes a table for `lut3d` that converts coded R, G, B to BT.709, and returns its path.

    `primaries` and `transfer` are codes of H.273. The next table overwrites the file. None if no
    conversion is needed: BT.709, unspecified primaries, or primaries with another white than D65
    (film, NTSC of 1953, cinema), which are treated as BT.709.
    """
    if transfer in (PQ, HLG):
        wanted = primaries if primaries in _PRIMARIES else _BT2020, transfer
    elif primaries == _BT709 or primaries not in _PRIMARIES:
        return None
    else:
        wanted = primaries, 0
    global _now
    if _now != wanted:
        _now = None
        with full_disk_named():
            Path(_path()).write_bytes(_table(*wanted))
        _now = wanted
    return _path()


_now: tuple[int, int] | None = None
"""Primaries and transfer of the table in the file; the process has one such file."""


@cache
def _path() -> str:
    """Returns the path of the table; `lut3d` accepts only files with certain suffixes."""
    if (given := given_file(".cube")) is not None:
        return given
    folder = ScratchFolder("curate-colour-")
    atexit.register(folder.close)
    return str(folder.path / "table.cube")


@lru_cache(maxsize=4)
def _table(primaries: int, transfer: int) -> bytes:
    axis = np.linspace(0, 1, _EDGE)
    # Red changes fastest in a .cube file.
    blues, greens, reds = np.meshgrid(axis, axis, axis, indexing="ij")
    coded = np.stack([reds, greens, blues], axis=-1).reshape(-1, 3)
    table = to_bt709(coded, primaries, transfer)
    rows = "\n".join(f"{red:.6f} {green:.6f} {blue:.6f}" for red, green, blue in table.tolist())
    return f"LUT_3D_SIZE {_EDGE}\n{rows}\n".encode()


def to_bt709(coded: Colours, primaries: int, transfer: int) -> Colours:
    """Converts coded colours to colours coded as in BT.709, float64 [N, 3] from 0 to 1.

    Args:
        coded: Colours of the source, float64 [N, 3], R, G, B from 0 to 1.
        primaries: Primaries of the source by ITU-T H.273: 1, 5, 6, 7, 9 or 12.
        transfer: 16 for PQ, 18 for HLG, any other for a power of 2.4.
    """
    light = np.clip(coded, 0, 1) ** 2.4
    if transfer in (PQ, HLG):
        nits = pq_to_nits(coded) if transfer == PQ else _hlg_to_nits(coded, primaries)
        light = _compressed(nits)
    inside = _within_gamut(light @ (np.linalg.inv(_to_xyz(_BT709)) @ _to_xyz(primaries)).T)
    return np.asarray(inside ** (1 / 2.4), np.float64)


def pq_to_nits(coded: Colours) -> Colours:
    """Converts PQ code values from 0 to 1 to light in cd/m2, by SMPTE ST 2084."""
    power = np.clip(coded, 0, 1) ** (32 / 2523)
    ratio = np.maximum(power - 3424 / 4096, 0) / (2413 / 128 - 2392 / 128 * power)
    return np.asarray(10_000 * ratio ** (16_384 / 2610), np.float64)


def _nits_to_pq(nits: Colours) -> Colours:
    power = (nits / 10_000) ** (2610 / 16_384)
    coded = (3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)
    return np.asarray(coded ** (2523 / 32), np.float64)


def _hlg_to_nits(coded: Colours, primaries: int) -> Colours:
    a = 0.17883277
    b, c = 1 - 4 * a, 0.5 - a * np.log(4 * a)
    scene = np.where(coded <= 0.5, coded**2 / 3, (np.exp((coded - c) / a) + b) / 12)
    luminance = scene @ _to_xyz(primaries)[1]
    return np.asarray(_PEAK_NITS * luminance[:, None] ** 0.2 * scene, np.float64)


def _compressed(nits: Colours) -> Colours:
    """Maps light in cd/m2 to 0 to 1, where 1 is SDR white, by BT.2390's curve."""
    largest = np.maximum(nits.max(axis=-1, keepdims=True), 1e-6)
    peak = float(_nits_to_pq(np.array(_PEAK_NITS)))
    white = float(_nits_to_pq(np.array(_WHITE_NITS))) / peak
    knee = 1.5 * white - 0.5
    code = np.minimum(_nits_to_pq(largest) / peak, 1)
    t = np.maximum(code - knee, 0) / (1 - knee)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee
        + (t**3 - 2 * t**2 + t) * (1 - knee)
        + (3 * t**2 - 2 * t**3) * white
    )
    mapped = pq_to_nits(np.where(code < knee, code, spline) * peak)
    return np.asarray(nits * mapped / largest / _WHITE_NITS, np.float64)


def _within_gamut(light: Colours) -> Colours:
    grey = np.clip(light @ _to_xyz(_BT709)[1], 0, 1)[:, None]
    away = light - grey
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(away > 0, (1 - grey) / away, np.where(away < 0, -grey / away, np.inf))
    share = np.minimum(np.nan_to_num(room, nan=1.0, posinf=1.0).min(axis=-1, keepdims=True), 1)
    return np.asarray(np.clip(grey + away * share, 0, 1), np.float64)


@cache
def _to_xyz(primaries: int) -> Colours:
    x, y = np.array([*_PRIMARIES[primaries], _WHITE_D65]).T
    columns = np.stack([x / y, np.ones(4), (1 - x - y) / y])
    scale = np.linalg.solve(columns[:, :3], columns[:, 3])
    return np.asarray(columns[:, :3] * scale, np.float64)
