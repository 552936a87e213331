"""Each clip that the report may show has a picture, however short it is."""

from fractions import Fraction
from pathlib import Path

from film_makers import write_video
from film_shots import moving_texture

from curator.executor.unit_worker import UnitWorker
from curator.records.sources import SourceRef
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import families_of
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.stage import ProposeStage
from curator.storage.source_reader import stat_source
from curator.tables.track_items import SourceItem, TrackItem


def test_shots_that_are_too_short_have_pictures(tmp_path: Path) -> None:
    """Pins that each clip of half a second has one, by the default grid of thumbnails."""
    path = tmp_path / "film.mkv"
    shots = (moving_texture(18, seed=seed, width_px=192, height_px=128) for seed in range(4))
    frames = (frame for shot in shots for frame in shot)
    write_video(path, frames, fps=Fraction(25), codec="ffv1")
    n_bytes, version = stat_source(str(path))
    source = SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id="film")
    config = AnalyzeConfig(device="cpu", text=False)
    families = frozenset(family.name for family in families_of(config))
    worker = UnitWorker(stage=AnalyzeStage(config, families=families))
    (track,) = worker([SourceItem(source=source, families=families)]).results
    item = TrackItem(source=source, track=track, frames_part="part")
    (made,) = UnitWorker(stage=ProposeStage(ProposeConfig()))([item]).results
    assert len(made.clips) == 4
    assert max(clip.end_s - clip.start_s for clip in made.clips) < 1
    assert [row["clip_id"] for row in made.pictures] == [clip.clip_id for clip in made.clips]
