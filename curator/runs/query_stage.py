"""Decodes the picture or video of a query in a sandbox."""

# ruff: noqa: N806 - shape letters

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from curator.errors import ErrorCode, SourceError
from curator.media.opencv import cv2
from curator.models.scene_network import scene_picture
from curator.records.sources import Failure, SourceRef, decode_limit_s
from curator.records.tracks import Track
from curator.stage import Scope, Stage
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.stage import load_analysis_models
from curator.storage import open_source
from curator.tables.track_items import FRAMES

FAMILIES = frozenset({FRAMES, "pictures", "scenes", "shots"})
SIDE_PX = 320
"""Longer side of pictures before vectors are computed, as in analysis."""
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFile:
    """The picture or video of a query."""

    uri: str
    n_bytes: int
    version: str
    is_picture: bool


class QueryStage(Stage[AnalyzeConfig, QueryFile, Track | NDArray[np.float32] | Failure]):
    """Computes the vector of a picture, float32 [D], or the track of a video."""

    name = "query"
    version = 1
    scope = Scope.SOURCE
    config_type = AnalyzeConfig
    sandboxed = True
    imports = ("torch", "cv2")
    limit_bytes = 4 << 30

    def setup(self) -> None:
        """Loads the scene network and the shot network."""
        self._models: AnalysisModels = load_analysis_models(self.config, FAMILIES, None, None)

    def limit_s(self, unit: QueryFile) -> float:
        """Returns a limit in CPU-seconds for the most pixels that the file's bytes may contain."""
        source = SourceRef(
            uri=unit.uri, n_bytes=unit.n_bytes, version=unit.version, header_duration_s=math.inf
        )
        return min(self.config.max_decode_s, decode_limit_s(source))

    def process(self, unit: QueryFile) -> Track | NDArray[np.float32] | Failure:
        """Returns the vector of a picture or the track of a video."""
        with open_source(unit.uri, expected_version=unit.version) as reader:
            return self._vector(reader) if unit.is_picture else self._track(unit, reader)

    def failed(self, unit: QueryFile, failure: Failure) -> Failure:
        """Returns the failure."""
        return failure

    def _vector(self, reader: BinaryIO) -> NDArray[np.float32]:
        data, bgr_HWC = np.frombuffer(reader.read(), np.uint8), None
        with suppress(cv2.error):
            bgr_HWC = cv2.imdecode(data, cv2.IMREAD_COLOR)
        if bgr_HWC is None:
            raise SourceError(
                ErrorCode.UNREADABLE,
                f"OpenCV cannot read its {len(data):,} bytes; expected PNG, JPEG or WebP; for a "
                "video, use --video",
            )
        scale = SIDE_PX / max(bgr_HWC.shape[:2])
        if scale < 1:
            height, width = (max(1, round(side * scale)) for side in bgr_HWC.shape[:2])
            bgr_HWC = cv2.resize(bgr_HWC, (width, height), interpolation=cv2.INTER_AREA)
        rgb_HWC = np.asarray(cv2.cvtColor(bgr_HWC, cv2.COLOR_BGR2RGB), np.uint8)
        assert self._models.scenes is not None
        vector: NDArray[np.float32] = self._models.scenes.embed([scene_picture(rgb_HWC)])[0]
        return vector

    def _track(self, unit: QueryFile, reader: BinaryIO) -> Track:
        return analyze_source(
            reader,
            unit.uri,
            source_id="query",
            n_bytes=unit.n_bytes,
            analysis_models=self._models,
            config=self.config,
            decoder_threads=min(_THREADS, os.cpu_count() or 1),
            families=FAMILIES,
        )
