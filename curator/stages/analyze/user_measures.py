"""Users' measures: what they see of a sample, and when they are asked.

A sample waits for the frames after it that a measure asks for, and for others of its batch.
Pictures of full size that wait take at most `WAITING_BYTES`, and those of one sample more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from curator.measures.measure_contract import Full, Measure, SamplePictures

if TYPE_CHECKING:
    from curator.stages.analyze.device_samples import DeviceView
    from curator.stages.analyze.frame_views import HostView

WAITING_BYTES = 256 << 20  # pictures that wait for a batch: 20 pairs of 1080p in RGB

Values = dict[str, float]


class UserMeasures:
    """The measures of users, by family, that one source is measured with.

    `device` is where tensors are.
    """

    def __init__(self, measures: Mapping[str, Measure], *, device: str) -> None:
        self._measures = tuple(measures.values())
        self._device = device
        self._kinds = full_sizes(self._measures)
        # The sample under way, and its pictures of full size by kind, each with its time.
        self._begun: SamplePictures | None = None
        self._full: dict[Full, list[tuple[float, Any]]] = {}
        self._waiting: list[list[tuple[SamplePictures, Values]]] = [[] for _ in self._measures]

    @property
    def signals(self) -> list[str]:
        """Names of what they measure."""
        return [name for measure in self._measures for name in measure.signals]

    def begin(self, view: "HostView | DeviceView", seconds: float) -> None:
        """Begins a sample, at a time of the source."""
        if self._measures:
            self._begun = SamplePictures(
                picture_HWC=view.picture, small_HWC=view.small, seconds=seconds
            )
            self._full = {kind: [] for kind in self._kinds}
            self.see(view, seconds)

    def see(self, view: "HostView | DeviceView", seconds: float) -> None:
        """Takes pictures of full size of the sample's frame, or of one after it.

        A frame that no other refers to may come without the loop filter, and shows blocks that are
        not in the video: it is passed over.
        """
        if self._begun is None or not view.is_whole:
            return
        for kind, seen in self._full.items():
            if len(seen) < self._kinds[kind]:
                seen.append((seconds, view.full(kind)))

    def settle(self, values: Values | None) -> None:
        """Ends the sample: `values` gets what is measured, at the latest at `flush`; None drops it.

        A measure that lacks a picture that it asks for is not asked.
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
        # Measures share pictures.
        held = {
            id(picture): picture.nbytes
            for waiting in self._waiting
            for pictures, _ in waiting
            for picture in (pictures.full, pictures.full_after)
            if picture is not None
        }
        if sum(held.values()) > WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Measures all samples that wait."""
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
    """The kinds of pictures of full size that measures see, and of how many frames of a sample."""
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
