"""Converts queries: a picture or a text into a vector, a video into the footage of its shots."""
# ruff: noqa: N806 - shape letters

import math
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, SourceError, UsageError, raised_as
from curator.executor.unit_worker import process_alone
from curator.matching.clip_footage import ClipFootage
from curator.measures.clip_view import ClipView
from curator.models.clip_model import text_embedder
from curator.models.weight_store import ModelStore
from curator.recipe import Recipe
from curator.records.clips import Span
from curator.records.sources import Failure
from curator.records.tracks import Track
from curator.runs.query_stage import QueryFile, QueryStage
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.propose.candidate_row import footage_row, pictures_row
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.shot_boundaries import find_shots
from curator.storage import stat_source
from curator.storage.base import has_scheme
from curator.tables.footage_store import as_footage

SPAN_S = 60.0
"""Maximum length of a part of a video; each part is compared with clips by itself."""
_DENSE = {"samples_per_s": 4.0, "thumbnail_every": 1, "scene_every_s": 0.5}
"""Settings that sample a query video more densely than clips, so that each picture of a clip has a
counterpart at nearly the same moment."""


def picture_vector(file: str | os.PathLike[str]) -> NDArray[np.float32]:
    """Returns the vector of an image file or address, float32 [D].

    Raises:
        UsageError: The image cannot be read, has no structure, or models cannot be loaded.
    """
    vector = _decoded(file, AnalyzeConfig(), is_picture=True)
    assert isinstance(vector, np.ndarray)
    if not vector.any():
        raise UsageError(
            f"{os.fspath(file)!r} is of one colour; expected a picture that shows something"
        )
    return vector


def video_spans(place: str | os.PathLike[str], config: AnalyzeConfig) -> dict[float, ClipFootage]:
    """Analyzes a video, given as a file or address, and divides its shots into spans.

    Returns:
        Begin of a span, in seconds of the video -> its footage. A span has at most `SPAN_S`.

    Raises:
        UsageError: The video cannot be decoded, or models cannot be loaded.
    """
    config = config.model_copy(update={"device": "cpu", "flow": "dis", **_DENSE})
    track = _decoded(place, config, is_picture=False)
    assert isinstance(track, Track)
    return dict(_spans(track))


def text_vector(text: str, recipe: Recipe) -> NDArray[np.float32]:
    """Returns the vector of a text by the CLIP model of a recipe, float32 [D].

    Raises:
        UsageError: The model's weights or package are missing.
    """
    with raised_as(UsageError, ModelError, of="--text: "):
        models = ModelStore.at(recipe.models)
        entry = models.catalogue.find(str(recipe.analyze.clip), "clip")
        vectors_PD, _ = text_embedder(entry, models.find(entry))([text])
    vector: NDArray[np.float32] = vectors_PD[0]
    return vector


def _decoded(
    place: str | os.PathLike[str], config: AnalyzeConfig, *, is_picture: bool
) -> Track | NDArray[np.float32]:
    """Decodes a file in a sandbox; later queries of this process use the same sandbox."""
    uri = os.fspath(place)
    uri = uri if has_scheme(uri) else os.path.abspath(uri)
    try:
        n_bytes, version = stat_source(uri)
        query = QueryFile(uri=uri, n_bytes=n_bytes, version=version, is_picture=is_picture)
        result = process_alone(QueryStage, config, query)
    except SourceError as error:
        result = Failure(uri=uri, stage="query", code=error.code, message=error.message)
    except ModelError as error:
        raise UsageError(str(error)) from error
    if isinstance(result, Failure):
        kind = "picture" if is_picture else "video"
        raise UsageError(
            f"--{kind} {uri!r} cannot be read as a {kind} ({result.code}): {result.message}"
        )
    decoded: Track | NDArray[np.float32] = result
    return decoded


def _spans(track: Track) -> Iterator[tuple[float, ClipFootage]]:
    """Yields begin, in seconds, and footage of each span; a long shot has several equal spans."""
    frame_s = (track.frame_pts - track.frame_pts[0]) * float(track.time_base)
    for shot in find_shots(track, ProposeConfig()):
        first_s = float(frame_s[shot.start_frame])
        length_s = float(frame_s[shot.end_frame - 1]) - first_s
        n_spans = max(1, math.ceil(length_s / SPAN_S))
        bounds_s = first_s + np.arange(n_spans) * (length_s / n_spans)
        starts = np.searchsorted(frame_s, bounds_s - 1e-6).tolist()
        for start, end in zip(starts, [*starts[1:], shot.end_frame], strict=True):
            view = ClipView(track, Span(start_frame=start, end_frame=end, shot=0))
            begin_s = float(frame_s[start])
            pictures = pictures_row(view) | {"clip_id": f"the query from {begin_s:.1f} s on"}
            yield begin_s, as_footage(pictures, footage_row(view))
