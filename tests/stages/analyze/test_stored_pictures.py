"""Which pictures of a source are stored, and which have a scene vector."""

from fractions import Fraction
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pytest
from film_makers import write_video
from film_shots import photograph
from PIL import Image

from curator.models.scene_network import SceneNetwork, scene_picture
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels

FPS, CUT = 25, 70
FAMILIES = frozenset({"frames", "pictures", "scenes"})


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two still shots of 640x360: 8 s with a cut between samples of the grid."""
    path = tmp_path_factory.mktemp("stored") / "film.mkv"
    first, second = (cv2.resize(photograph(name), (640, 360)) for name in ("cat", "coffee"))
    frames = [first if n < CUT else second for n in range(8 * FPS)]
    write_video(path, iter(frames), fps=Fraction(FPS), codec="ffv1")
    return path


def tracked(film: Path, spent: dict[str, float] | None = None, **settings: object) -> Track:
    with film.open("rb") as reader:
        return analyze_source(
            reader, "film", source_id="s", n_bytes=film.stat().st_size,
            analysis_models=AnalysisModels(scenes=SceneNetwork()),
            config=AnalyzeConfig.model_validate(settings), decoder_threads=1, families=FAMILIES,
            spent=spent,
        )  # fmt: skip


@pytest.mark.long
def test_pictures_are_stored_each_second_with_vectors_each_two(film: Path) -> None:
    # Pins that a sample after a cut has both, and that each vector's picture is stored.
    spent: dict[str, float] = {}
    track = tracked(film, spent)
    after_cut = 3 * FPS
    seconds = [n * FPS for n in range(8)]
    assert track.thumbnail_frame.tolist() == seconds
    assert track.scene_frame.tolist() == [0, 2 * FPS, after_cut, 4 * FPS, 6 * FPS]
    assert track.scene_vector.dtype == np.float16
    assert spent["scenes"] > 0
    sparse = tracked(film, scene_every_s=60, thumbnail_every=100)
    assert sparse.scene_frame.tolist() == sparse.thumbnail_frame.tolist() == [0, after_cut]
    # Pins 320 px, few bytes, and that the network knows the frame again by its JPEG.
    track = tracked(film)
    pictures = [np.asarray(Image.open(BytesIO(jpeg))) for jpeg in track.thumbnails]
    assert {picture.shape for picture in pictures} == {(180, 320, 3)}
    assert max(map(len, track.thumbnails)) < 20_000
    at = np.searchsorted(track.thumbnail_frame, track.scene_frame)
    again = SceneNetwork().embed([scene_picture(pictures[n]) for n in at])
    assert (again * track.scene_vector).sum(axis=1).min() > 0.9
