"""Every stage on a fixed input: where its result changes, its version must."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from numpy.typing import NDArray
from overlays import lettering, subtitled
from stage_digests import check_digest, digest_of

from curator.executor.unit_worker import UnitWorker
from curator.records import SourceRef, Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import BUILT_IN, families_of
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.stage import ProposeStage
from curator.storage.source_reader import stat_source
from curator.tables.track_parts import SourceItem, TrackItem
from curator.tables.track_table import tracks_to_table

CONFIG = AnalyzeConfig(shot_precision="float32", device="cpu")
VERSIONS = {family.name: family.version for family in BUILT_IN}


def pictures() -> Iterator[NDArray[np.uint8]]:
    """Two shots, with a word over them now and then."""
    word = lettering("Where?", size_px=18)
    for seed in range(2):
        frames = moving_texture(75, seed=seed, width_px=192, height_px=128)
        yield from subtitled(frames, [word, None], n_frames=50)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SourceRef:
    """A film without loss, so that its pixels are those of no encoder."""
    path = tmp_path_factory.mktemp("fixed") / "film.mkv"
    write_video(path, pictures(), fps=Fraction(25), codec="ffv1", audio_tone_s=6.0)
    n_bytes, version = stat_source(str(path))
    return SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id="film")


@pytest.fixture(scope="module")
def track(source: SourceRef) -> Track:
    families = frozenset(family.name for family in families_of(CONFIG))
    worker = UnitWorker(stage=AnalyzeStage(CONFIG, families=families))
    (measured,) = worker([SourceItem(source=source, families=families)]).results
    assert isinstance(measured, Track)
    return measured


@pytest.mark.parametrize("family", families_of(CONFIG), ids=lambda family: family.name)
def test_a_family_that_gives_other_values_has_another_version(family, track) -> None:  # noqa: ANN001
    # Container and encoder decide about these.
    of_file = {"sha256", "frame_bytes", "thumbnails"}
    table = tracks_to_table([("film", track)], [c for c in family.columns if c not in of_file])
    (row,) = table.drop_columns(["source_id"]).to_pylist()
    check_digest(f"analyze.{family.name}", VERSIONS[family.name], row)


def test_candidates_that_are_others_have_another_version(track: Track, source: SourceRef) -> None:
    stage = ProposeStage(ProposeConfig())
    (made,) = UnitWorker(stage=stage)(
        [TrackItem(source=source, track=track, frames_part="p")]
    ).results
    columns = {
        f"{kind}.{name}": [row[name] for row in getattr(made, kind)]
        for kind in ("shots", "clips")
        for name in getattr(made, kind)[0]
        if name != "source_uri" and "bit" not in name
    }
    columns["vectors"] = [vector for _, vector in made.vectors]
    check_digest("propose", stage.version, columns)


def test_a_small_change_of_a_value_changes_its_digest() -> None:
    """Pins that the tolerance lets last digits through, and no other threshold."""
    values = np.linspace(0.2, 0.8, 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stage_digests.json.loads", lambda _: {"x 1": digest_of({"a": values})})
        check_digest("x", 1, {"a": values + 1e-4})
        for other in (values * 1.01, values[::-1], values[:-1], np.where(values > 0.7, 0, values)):
            with pytest.raises(AssertionError, match="the result of x changed"):
                check_digest("x", 1, {"a": other})
