"""Collects pictures of samples for users' measures, and calls the measures in batches.

A sample waits for later frames that a measure needs, and for the other samples of its batch. The
waiting pictures of full size take at most `WAITING_BYTES`, plus the pictures of one sample.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from curator.measures.measure_contract import Full, Measure, SamplePictures

if TYPE_CHECKING:
    from curator.stages.analyze.device_samples import DeviceView
    from curator.stages.analyze.frame_views import HostView

WAITING_BYTES = 256 << 20  # 20 pairs of RGB pictures in 1080p

Values = dict[str, float]


class UserMeasures:
    """Runs users' measures on one source.

    `measures` has the measures by family. `device` holds the tensors.
    """

    def __init__(self, measures: Mapping[str, Measure], *, device: str) -> None:
        self._measures = tuple(measures.values())
        self._device = device
        self._kinds = full_sizes(self._measures)
        # The current sample, and its pictures of full size by kind, each with its time.
        self._begun: SamplePictures | None = None
        self._full: dict[Full, list[tuple[float, Any]]] = {}
        self._waiting: list[list[tuple[SamplePictures, Values]]] = [[] for _ in self._measures]

    @property
    def signals(self) -> list[str]:
        """Names of the signals of all measures."""
        return [name for measure in self._measures for name in measure.signals]

    def begin(self, view: "HostView | DeviceView", seconds: float) -> None:
        """Begins a sample at `seconds` of the source."""
        if self._measures:
            self._begun = SamplePictures(
                picture_HWC=view.picture, small_HWC=view.small, seconds=seconds
            )
            self._full = {kind: [] for kind in self._kinds}
            self.see(view, seconds)

    def see(self, view: "HostView | DeviceView", seconds: float) -> None:
        """Adds pictures of full size to the sample, from its own frame or from a later frame.

        Skips frames for which the decoder may have skipped the loop filter: they show blocks that
        are not in the video.
        """
        if self._begun is None or not view.is_whole:
            return
        for kind, seen in self._full.items():
            if len(seen) < self._kinds[kind]:
                seen.append((seconds, view.full(kind)))

    def settle(self, values: Values | None) -> None:
        """Ends the sample. `values` gets its signals, at the latest at `flush`; None drops it.

        A measure is not called for a sample without all pictures that the measure needs.
        """
        begun, self._begun = self._begun, None
        if begun is None or values is None:
            return
        for measure, waiting in zip(self._measures, self._waiting, strict=True):
            seen = self._full[measure.full] if measure.full is not None else []
            if len(seen) < (measure.full is not None) + measure.pairs:
                continue
            pictures = begun
            if seen:
                pictures = replace(pictures, full=seen[0][1])
            if measure.pairs:
                after_s = seen[1][0] - seen[0][0]
                pictures = replace(pictures, full_after=seen[1][1], after_s=after_s)
            waiting.append((pictures, values))
            if len(waiting) >= measure.batch:
                self._measure(measure, waiting)
        # Measures share pictures, so each picture counts once.
        bytes_by_picture = {
            id(picture): picture.nbytes
            for waiting in self._waiting
            for pictures, _ in waiting
            for picture in (pictures.full, pictures.full_after)
            if picture is not None
        }
        if sum(bytes_by_picture.values()) > WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Measures all waiting samples."""
        for measure, waiting in zip(self._measures, self._waiting, strict=True):
            if waiting:
                self._measure(measure, waiting)

    def _measure(self, measure: Measure, waiting: list[tuple[SamplePictures, Values]]) -> None:
        samples = [pictures for pictures, _ in waiting]
        if measure.tensors:
            samples = [_as_tensors(pictures, self._device) for pictures in samples]
        rows = list(measure.measure_batch(samples))
        if len(rows) != len(samples):
            raise ValueError(f"measure_batch gave {len(rows)} results for {len(samples)} samples")
        for (_, values), own in zip(waiting, rows, strict=True):
            if lacking := set(measure.signals).difference(own):
                raise ValueError(
                    f"signals {sorted(own)}; expected {sorted(measure.signals)}: "
                    f"{', '.join(sorted(lacking))} is missing"
                )
            values |= {name: own[name] for name in measure.signals}
        waiting.clear()


def full_sizes(measures: Iterable[Measure]) -> dict[Full, int]:
    """Returns the number of frames per sample that measures need in full size, by kind."""
    n_pictures: dict[Full, int] = {}
    for measure in measures:
        if measure.full is not None:
            n_pictures[measure.full] = max(n_pictures.get(measure.full, 1), 1 + measure.pairs)
    return n_pictures


def _as_tensors(pictures: SamplePictures, device: str) -> SamplePictures:
    import torch

    tensors: dict[str, Any] = {
        name: torch.from_numpy(np.array(array)).to(device)
        for name in ("picture_HWC", "small_HWC", "full", "full_after")
        if (array := getattr(pictures, name)) is not None
    }
    return replace(pictures, **tensors)
