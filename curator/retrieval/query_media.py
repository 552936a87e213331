"""Vectors of what a user asks by: a picture, a video or a text.

Shape letters: D dimensions.
"""
# ruff: noqa: N806 - shape letters

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, SourceError, UsageError
from curator.matching.clip_footage import ClipFootage
from curator.measures.clip_view import ClipView
from curator.media.opencv import cv2
from curator.models.clip_model import text_embedder
from curator.models.scene_network import SceneNetwork, scene_picture
from curator.models.weight_store import ModelStore
from curator.recipe import Recipe
from curator.records.clips import Span
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.propose.clip_footage_rows import footage_row, pictures_row
from curator.storage import open_source, stat_source
from curator.storage.base import has_scheme
from curator.tables.footage_store import as_footage
from curator.tables.track_items import FRAMES

SPAN_S = 60.0
"""Longest part of a video that is compared with clips at a time."""
SIDE_PX = 320
"""Longer side of pictures, as analysis has them before it computes vectors."""
FAMILIES = frozenset({FRAMES, "pictures", "scenes"})
_THREADS = 4
_DENSE = {"samples_per_s": 4.0, "thumbnail_every": 1, "scene_every_s": 0.5}
"""Pictures of a video, more of them than clips have: each of a clip has one of the same moment."""


def picture_vector(file: str | os.PathLike[str]) -> NDArray[np.float32]:
    """Returns the vector of an image file, float32 [D].

    Raises:
        UsageError: It cannot be read, or shows no structure.
    """
    path, expected = os.fspath(file), "expected an image file that OpenCV reads, such as PNG"
    try:
        data = np.frombuffer(Path(path).read_bytes(), np.uint8)
    except OSError as error:
        raise UsageError(f"{path!r}: {error.strerror}; {expected}") from error
    try:
        bgr_HWC = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
    except cv2.error:
        bgr_HWC = None
    if bgr_HWC is None:
        raise UsageError(
            f"{path!r} is no image ({len(data):,} bytes); {expected}, JPEG or WebP; of a video, "
            "use --video"
        )
    scale = SIDE_PX / max(bgr_HWC.shape[:2])
    if scale < 1:
        height, width = (max(1, round(side * scale)) for side in bgr_HWC.shape[:2])
        bgr_HWC = cv2.resize(bgr_HWC, (width, height), interpolation=cv2.INTER_AREA)
    rgb_HWC = np.asarray(cv2.cvtColor(bgr_HWC, cv2.COLOR_BGR2RGB), np.uint8)
    vector: NDArray[np.float32] = _network().features([scene_picture(rgb_HWC)])[0]
    if not vector.any():
        raise UsageError(f"{path!r} is of one colour; expected a picture that shows something")
    return vector


def video_spans(place: str | os.PathLike[str], config: AnalyzeConfig) -> dict[float, ClipFootage]:
    """Analyzes a video in this process, and divides it into spans of at most `SPAN_S`.

    Args:
        place: A file, or an address such as `s3://bucket/key`.
        config: Settings of the run that is searched.

    Returns:
        The footage of each span, by the second of the video at which it begins.

    Raises:
        UsageError: It cannot be decoded.
    """
    uri = os.fspath(place)
    uri = uri if has_scheme(uri) else os.path.abspath(uri)
    config = config.model_copy(update={"device": "cpu", "flow": "dis", **_DENSE})
    try:
        n_bytes, version = stat_source(uri)
        models = AnalysisModels(scenes=_network())
        with open_source(uri, expected_version=version) as reader:
            track = analyze_source(
                reader,
                uri,
                source_id="query",
                n_bytes=n_bytes,
                analysis_models=models,
                config=config,
                decoder_threads=min(_THREADS, os.cpu_count() or 1),
                families=FAMILIES,
            )
    except SourceError as error:
        raise UsageError(
            f"--video {uri!r} cannot be read as a video ({error.code}): {error.message}"
        ) from error
    return dict(_spans(track))


def text_vector(text: str, recipe: Recipe) -> NDArray[np.float32]:
    """Returns the vector of a text by the CLIP model of a recipe, float32 [D].

    Raises:
        UsageError: The text is empty, or the model's weights or package are not here.
    """
    if not text.strip():
        raise UsageError("--text is empty; expected what clips are to show, such as 'a red car'")
    assert recipe.analyze.clip is not None, "the caller knows that there are embeddings"
    try:
        models = ModelStore.at(recipe.models)
        entry = models.catalogue.find(recipe.analyze.clip, "clip")
        vectors_PD, _ = text_embedder(entry, models.find(entry))([text])
    except ModelError as error:
        raise UsageError(f"--text: {error}") from error
    vector: NDArray[np.float32] = vectors_PD[0]
    return vector


@cache
def _network() -> SceneNetwork:
    try:
        return SceneNetwork()
    except ModelError as error:
        raise UsageError(str(error)) from error


def _spans(track: Track) -> Iterator[tuple[float, ClipFootage]]:
    """Yields equal spans and where they begin."""
    frame_s = (track.frame_pts - track.frame_pts[0]) * float(track.time_base)
    n_spans = max(1, math.ceil(track.duration_s / SPAN_S))
    bounds_s = np.arange(n_spans + 1) * (track.duration_s / n_spans)
    starts = np.searchsorted(frame_s, bounds_s[:-1] - 1e-6).tolist()
    for start, end in zip(starts, [*starts[1:], track.n_frames], strict=True):
        if start < end:
            view = ClipView(track, Span(start_frame=start, end_frame=end, shot=0))
            begin_s = float(frame_s[start])
            pictures = pictures_row(view) | {"clip_id": f"the query from {begin_s:.1f} s on"}
            yield begin_s, as_footage(pictures, footage_row(view))
