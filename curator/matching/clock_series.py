"""Series of a source by which cameras of one event are aligned in time, from its stored track.

| series | from | what cameras share |
|---|---|---|
| `light` | `luma_mean` of each frame | lamps, flashes, clouds, cuts of one programme |
| `motion` | `local_change` of each frame | when things move, from whatever side |
| `sound` | `audio_rms_db`, ten per second | when it is loud |

Cameras differ in exposure, gain, view and rate, so levels and slow changes say nothing. Each series
is resampled, filtered to what both slow and fast cameras show, whitened, and limited: then every
frequency counts the same, a regular beat does not stand out, and no single flash decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator.records.tracks import CELLS_PER_S, Track

RATE = 60.0
"""Values of a series per second."""
SOUND = "sound"
_LOWEST_HZ, _HIGHEST_HZ, _OF_FRAME_RATE = 0.15, 12.0, 0.45
_SOUND_HZ = 4.5
_RISE_HZ, _FALL_HZ = 0.1, 1.0
"""Widths of the filter's edges."""
_SMOOTH_HZ = 0.3
"""Width over which a spectrum is smoothed for whitening."""
_LEAST_POWER = 1e-4
"""Least power of a frequency that is amplified in full, relative to the strongest."""
_PAD_S = 2.0
_LIMIT = 5.0
"""Largest value, in robust standard deviations."""
_DARK, _STILL = 0.02, 5e-4
"""Luma and change that are too small to tell from noise."""
_QUIET_DB = -70.0
_LONG = 1.5
"""Least interval between frames, in usual ones, over which a change is not that of one frame."""
_LEAST_S = 2.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSeries:
    """What a source shows over time.

    Attributes:
        duration_s: Length of the source by its own clock.
        frame_s: Usual interval of its frames.
        values: Name -> float64 values of about unit variance, `RATE` per second; the first is at
            the first frame. A series that does not vary is absent.
    """

    duration_s: float
    frame_s: float
    values: Mapping[str, Floats]

    def with_losses(self, losses: Sequence[tuple[float, float]]) -> "ClockSeries":
        """Returns the series with seconds inserted; without sound, which may not have lost them.

        Args:
            losses: Time by the source's clock, and the seconds that it lost there; in order.
        """
        if not losses:
            return self
        at_s = np.array([at for at, _ in losses])
        lost_s = np.cumsum([lost for _, lost in losses])
        shown_s = np.arange(int(self.duration_s * RATE) + 1) / RATE
        true_s = shown_s + np.concatenate([[0.0], lost_s])[np.searchsorted(at_s, shown_s, "right")]
        duration_s = self.duration_s + float(lost_s[-1])
        grid_s = np.arange(int(duration_s * RATE)) / RATE
        values = {}
        for name, series in self.values.items():
            if name != SOUND:
                within = true_s[: len(series)], series[: len(true_s)]
                values[name] = np.interp(grid_s, *within, left=0.0, right=0.0)
        return ClockSeries(duration_s=duration_s, frame_s=self.frame_s, values=values)


def clock_series(track: Track) -> ClockSeries:
    """Returns the series of a track.

    The track needs the families `frames`, `activity` and `audio`; without the last two, or without
    audio in the source, fewer series are there.
    """
    tick_s = float(track.time_base)
    shown_s = (track.frame_pts - track.frame_pts[0]) * tick_s
    first_cell_s = track.audio_rms_first / CELLS_PER_S - int(track.frame_pts[0]) * tick_s
    return series_of(
        shown_s,
        duration_s=track.duration_s,
        luma_F=track.luma_mean,
        change_F=track.local_change,
        level_A=track.audio_rms_db,
        first_level_s=first_cell_s,
    )


def series_of(
    shown_s: Floats,
    *,
    duration_s: float,
    luma_F: NDArray[np.floating],
    change_F: NDArray[np.floating],
    level_A: NDArray[np.floating],
    first_level_s: float = 0.0,
) -> ClockSeries:
    """Returns the series of measured values.

    Args:
        shown_s: Time of each frame from the first one, [F].
        duration_s: Seconds from the first frame to the end of the last one.
        luma_F: Mean luma of each frame, 0 to 1.
        change_F: `local_change` of each frame, or empty.
        level_A: Level of each cell of a tenth of a second in dBFS, NaN for unknown; or empty.
        first_level_s: Beginning of the first cell.
    """
    n = int(duration_s * RATE)
    if len(shown_s) < 3 or duration_s < _LEAST_S:
        return ClockSeries(duration_s=duration_s, frame_s=duration_s, values={})
    interval_s = np.diff(shown_s)
    frame_s = float(np.median(interval_s))
    # The change between two frames is at the middle between them.
    middle_s = (shown_s[1:] + shown_s[:-1]) / 2
    is_usual = interval_s < _LONG * frame_s
    highest_hz = min(_HIGHEST_HZ, _OF_FRAME_RATE / frame_s)
    found: dict[str, Floats | None] = {}
    rise = np.diff(np.log(luma_F.astype(np.float64) + _DARK)) / interval_s
    found["light"] = _whitened(middle_s, rise, n, highest_hz)
    if len(change_F) and is_usual.sum() > 2:
        change = np.log(change_F[1:][is_usual].astype(np.float64) + _STILL)
        found["motion"] = _whitened(middle_s[is_usual], change, n, highest_hz)
    is_heard = np.isfinite(level_A)
    if is_heard.sum() > 2:
        cell_s = first_level_s + (np.flatnonzero(is_heard) + 0.5) / CELLS_PER_S
        level = np.maximum(level_A[is_heard].astype(np.float64), _QUIET_DB)
        found[SOUND] = _whitened(cell_s, level, n, _SOUND_HZ)
    values = {name: series for name, series in found.items() if series is not None}
    return ClockSeries(duration_s=duration_s, frame_s=frame_s, values=values)


def _whitened(times_s: Floats, values: Floats, n: int, highest_hz: float) -> Floats | None:
    """Returns a series on the grid, filtered, whitened and limited; None if it does not vary."""
    series = np.interp(np.arange(n) / RATE, times_s, values)
    pad = int(_PAD_S * RATE)
    padded = np.pad(series - series.mean(), pad, mode="reflect" if n > pad else "edge")
    ramp = np.linspace(0, 1, pad)
    padded[:pad] *= ramp
    padded[-pad:] *= ramp[::-1]
    spectrum = np.fft.rfft(padded)
    hz = np.fft.rfftfreq(len(padded), 1 / RATE)
    width = max(3, int(_SMOOTH_HZ * len(padded) / RATE) | 1)
    power = np.convolve(np.abs(spectrum) ** 2, np.ones(width) / width, "same")
    passed = np.clip((hz - _LOWEST_HZ) / _RISE_HZ, 0, 1) * np.clip(
        (highest_hz - hz) / _FALL_HZ, 0, 1
    )
    strongest = float(np.max(power * (passed > 0)))
    if strongest <= 1e-9:
        return None
    filtered = spectrum * passed / np.sqrt(power + _LEAST_POWER * strongest)
    white = np.fft.irfft(filtered, len(padded))[pad : pad + n]
    spread = float(np.std(white))
    if spread <= 0:
        return None
    usual = max(1.4826 * float(np.median(np.abs(white))), 0.1 * spread)
    limited = _LIMIT * np.tanh(white / usual / _LIMIT)
    return np.asarray(limited / np.std(limited), np.float64)
