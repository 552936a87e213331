"""The annotator `picture_metrics`: scores of published networks for frames of each clip.

stages:
  - use: picture_metrics
    config: {models: [musiq-koniq], frames_per_s: 0.5}
filters:
  musiq_koniq: {min: 40}
"""

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from curator.errors import ModelError, RecipeError, raised_as
from curator.family import ColumnKind, Columns, Family, Scope
from curator.models.catalogue import ModelEntry
from curator.models.picture_score import (
    PictureScore,
    Scores,
    check_runtime,
    load_picture_score,
)
from curator.models.weight_store import ModelStore
from curator.stage import (
    WORKER_BYTES,
    Annotator,
    FrameRequest,
    Resources,
    SampledClip,
    StageConfig,
    setting,
)


class PictureMetricsConfig(StageConfig):
    """Settings of networks that score pictures."""

    models: tuple[str, ...] = setting(min_length=1, unit="names")
    """models of kind `picture`, see `curate models list`"""
    frames_per_s: float = setting(1.0, gt=0, le=30, unit="1/s")
    """frames per second that the networks see, evenly spread"""
    longer_px: int | None = setting(None, ge=32, unit="px")
    """longer side to which frames are scaled before; null: the size of the clip, at which most
    metrics of image quality are defined"""
    models_folder: str | None = setting(None, unit="folder or bucket")
    """models folder or bucket prefix; null: the recipe's `models`"""


class PictureMetrics(Annotator[PictureMetricsConfig]):
    """Gives frames to networks: a column NAME with the mean, and NAME_worst, for each network.

    In column names, `-` and `.` of a model's name are `_`. The worst value is the lowest one, or
    the highest one of a model for which lower is better. A column is null if the network gave no
    number for any frame.
    """

    name = "picture_metrics"
    version = 1
    config_type = PictureMetricsConfig
    # The fingerprints of the models count.
    results_ignore = frozenset({"models_folder"})
    batch = 4

    def __init__(self, config: PictureMetricsConfig) -> None:
        super().__init__(config)
        with raised_as(RecipeError, ModelError, of="stages: 'picture_metrics': "):
            self._store = ModelStore.at(config.models_folder)
        names = [name for base in map(column_of, config.models) for name in (base, f"{base}_worst")]
        if len(set(names)) < len(names):
            raise RecipeError(
                f"stages: 'picture_metrics': models are {', '.join(config.models)}; expected each "
                "name once, and no other name with -worst at its end"
            )
        self.frames = (FrameRequest(at=config.frames_per_s, size=config.longer_px),)
        columns: dict[str, ColumnKind] = dict.fromkeys(names, "f32")
        self.families = (Family("picture_metrics", Scope.CLIP, Columns(columns)),)
        self._networks: list[PictureScore] = []

    @cached_property
    def _entries(self) -> list[ModelEntry]:
        """The entries, which only computing needs: a snapshot is read without the catalogue."""
        with raised_as(RecipeError, ModelError, of="stages: 'picture_metrics': "):
            try:
                return [self._store.catalogue.find(name, "picture") for name in self.config.models]
            except ModelError as error:
                raise ModelError(f"{error}, with those of {self._store.folder}") from None

    @cached_property
    def kinds(self) -> tuple[Resources, ...]:  # type: ignore[override]
        """Workers with a GPU if there is one and a metric uses it."""
        memory_bytes = WORKER_BYTES + 4 * sum(entry.total_bytes or 0 for entry in self._entries)
        on_cpu = Resources(memory_bytes=memory_bytes)
        if any(map(_uses_gpu, self._entries)):
            return Resources(gpus=1, memory_bytes=memory_bytes), on_cpu
        return (on_cpu,)

    def models(self) -> tuple[object, ...]:
        """Returns the fingerprints of the files, and how their outputs are read."""
        return tuple(
            (self._store.fingerprint(entry), entry.picture and entry.picture.model_dump())
            for entry in self._entries
        )

    def preflight(self) -> None:
        """Raises `ModelError` if a package or a file is missing."""
        for entry in self._entries:
            check_runtime(entry)
            self._store.find(entry)

    def setup(self) -> None:
        """Loads the networks."""
        self._networks = [
            load_picture_score(entry, self._store.find(entry)) for entry in self._entries
        ]

    def process(self, unit: Sequence[SampledClip]) -> list[dict[str, float | None]]:
        """Returns mean and worst score of each clip, by column."""
        found: list[dict[str, float | None]] = [{} for _ in unit]
        for entry, network in zip(self._entries, self._networks, strict=True):
            for columns, clip in zip(found, unit, strict=True):
                columns |= _columns(entry, network.scores_N(clip.frames))
        return found


def column_of(model: str) -> str:
    """Returns the column of a model's scores: its name, with `_` in place of `-` and `.`."""
    return re.sub(r"[-.]", "_", model)


def _uses_gpu(entry: ModelEntry) -> bool:
    return entry.picture is not None and entry.picture.runs == "pyiqa"


def _columns(entry: ModelEntry, scores: Scores) -> dict[str, float | None]:
    finite = scores[np.isfinite(scores)]
    name = column_of(entry.name)
    if not len(finite):
        return {name: None, f"{name}_worst": None}
    assert entry.picture is not None
    worst = finite.max() if entry.picture.lower_is_better else finite.min()
    return {name: float(finite.mean()), f"{name}_worst": float(worst)}
