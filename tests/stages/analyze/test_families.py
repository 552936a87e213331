"""Families: each is the same whatever is measured beside it, and is stored by itself."""

from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from film_makers import variable_pts, write_video
from film_shots import moving_texture
from numpy.typing import NDArray
from overlays import lettering, subtitled
from segmented import FirstPixels, planned

from curator.errors import ErrorCode
from curator.executor.unit_worker import UnitWorker
from curator.measures.measure_contract import Measure, SamplePictures, Signal
from curator.media import source_segments
from curator.media.source_segments import WholeReason
from curator.models.distortion_network import DistortionNetwork
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.stages.analyze import stage as stage_module
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import families_of, measure_family
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.stage import AnalyzeStage, JoinStage
from curator.storage import open_store
from curator.storage.content_id import NO_HASHES
from curator.storage.source_reader import stat_source
from curator.tables.parts import Parts
from curator.tables.track_items import FRAMES, HashItem, JoinItem, SegmentItem, SourceItem
from curator.tables.track_parts import AnalyzedUnit, StoredTrack, TrackParts

FPS = 25
CONFIG = AnalyzeConfig(clip="looker", clip_every_s=1.5)
IN_SEGMENTS = "words.mp4"
OF_ALL = "words and sound at a variable rate.mkv"


class Redness(Measure):
    """A user's measure."""

    name, version, scores = "redness", 1, {}
    signals = {"redness": Signal(unit="levels", range="0 to 255", meaning="mean of red")}  # noqa: RUF012

    def measure(self, sample: SamplePictures) -> dict[str, float]:
        return {"redness": float(sample.small_HWC[..., 0].mean())}


def pictures(n_frames: int) -> Iterator[NDArray[np.uint8]]:
    """Moving textures with a cut, and a word over them now and then."""
    word = lettering("Where?", size_px=9)
    first = min(130, n_frames // 2)
    for seed, count in enumerate((first, n_frames - first)):
        frames = moving_texture(count, seed=seed, width_px=96, height_px=64)
        yield from subtitled(frames, [word, None], n_frames=50)


@pytest.fixture(scope="module", autouse=True)
def measures() -> Iterator[None]:
    """A user's measure, and segments of short films."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_segments, "LEAST_FRAMES", 240)
        network, detector = ShotNetwork(), TextDetector()
        scenes = SceneNetwork()
        distortion = DistortionNetwork(scenes)

        def analysis_models(_: object, families: frozenset[str], *__: object) -> AnalysisModels:
            return AnalysisModels(
                network=network if "shots" in families else None,
                detector=detector if "text" in families else None,
                clip=FirstPixels() if "clip" in families else None,  # type: ignore[arg-type]
                scenes=scenes if "scenes" in families else None,
                distortion=distortion if "distortion" in families else None,
                measures={measure_family(Redness()): Redness()},
            )

        patch.setattr(stage_module, "load_analysis_models", analysis_models)
        patch.setattr(stage_module.AnalyzeStage, "sandboxed", False)
        yield


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SourceRef]:
    folder = tmp_path_factory.mktemp("films")
    write_video(folder / IN_SEGMENTS, pictures(560), fps=Fraction(FPS), gop=90, bframes=2)
    write_video(
        folder / OF_ALL, pictures(110), fps=Fraction(FPS), pts=variable_pts(110),
        time_base=Fraction(1, 1000), audio_tone_s=2.0,
    )  # fmt: skip
    (folder / "no film.mp4").write_bytes((folder / IN_SEGMENTS).read_bytes()[:900])
    found = {}
    for path in folder.iterdir():
        n_bytes, version = stat_source(str(path))
        found[path.name] = SourceRef(
            uri=str(path), n_bytes=n_bytes, version=version, source_id=path.name,
            header_n_frames=560 if path.name == IN_SEGMENTS else None,
        )  # fmt: skip
    return found


class Place:
    """An output root."""

    def __init__(self, folder: Path) -> None:
        self.families = families_of(CONFIG, "weights", (Redness(),))
        self.names = frozenset(family.name for family in self.families)
        self.parts = TrackParts(open_store(str(folder)), self.families)
        self.keep = partial(self.parts.keep, stage="analyze")

    def measure(self, source: SourceRef, families: frozenset[str]) -> AnalyzedUnit:
        """Measures families of a source, as a run does that lacks them."""
        stored, _ = self.parts.stored([str(source.source_id)])
        item = SourceItem(
            source=source, families=families, parts=stored.get(str(source.source_id), {})
        )
        return self.run(item)

    def run(self, item: Any) -> AnalyzedUnit:  # noqa: ANN401
        stage = AnalyzeStage(CONFIG, families=getattr(item, "families", frozenset()))
        unit: AnalyzedUnit = UnitWorker(stage=stage, keep=self.keep)([item]).results
        return unit

    def in_segments(self, source: SourceRef, families: frozenset[str]) -> AnalyzedUnit:
        """Measures families of a source segment by segment."""
        plan = planned(Path(source.uri))
        assert len(plan) > 1
        items = [SegmentItem(source=source, segment=segment, families=families) for segment in plan]
        for one in items:
            self.run(one)
        hashes = NO_HASHES
        if FRAMES in families:
            hashes = self.run(HashItem(source=source)).segments[0].hashes or NO_HASHES
        stored, _ = self.parts.stored([str(source.source_id)])
        item = JoinItem(
            source=source,
            families=families,
            parts=stored.get(str(source.source_id), {}),
            segments=tuple(self.parts.segments(families).name_of([one.key]) for one in items),
            hashes=hashes,
        )
        worker = UnitWorker(stage=JoinStage(CONFIG), load=self.parts.load_segments, keep=self.keep)
        unit: AnalyzedUnit = worker([item]).results
        return unit

    def track(self, source: SourceRef) -> Track | Failure:
        """What is stored of a source."""
        stored, _ = self.parts.stored([str(source.source_id)])
        (item,) = self.parts.read([StoredTrack(source=source, parts=stored[str(source.source_id)])])
        return item.track


def assert_same(one: Track, other: Track, *, heads_atol: float = 0.0) -> None:
    for field in fields(Track):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name.endswith("_probability"):
            np.testing.assert_allclose(left, right, atol=heads_atol, rtol=0)
        elif isinstance(right, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        elif isinstance(right, dict):
            assert left.keys() == right.keys()
            for name in right:
                np.testing.assert_array_equal(left[name], right[name], err_msg=name)
        else:
            assert left == right, field.name


@pytest.mark.long
def test_one_family_at_a_time_gives_what_all_at_once_give(
    films: dict[str, SourceRef], tmp_path: Path
) -> None:
    """Pins every column to the bit, whatever else is measured in the same decode."""
    source, at_once, place = films[OF_ALL], Place(tmp_path / "at once"), Place(tmp_path / "each")
    at_once.measure(source, place.names)
    for family in (FRAMES, *sorted(place.names - {FRAMES})):
        place.measure(source, frozenset({family}))
    whole, track = at_once.track(source), place.track(source)
    assert isinstance(whole, Track)
    assert isinstance(track, Track)
    assert min(len(whole.text_frame), len(whole.clip_frame), len(whole.signals["redness"])) > 0
    assert np.isfinite(whole.audio_rms_db).any()
    assert whole.is_vfr
    assert_same(track, whole)


@pytest.mark.long
def test_families_of_segments_give_what_a_whole_decode_gives(
    films: dict[str, SourceRef], tmp_path: Path
) -> None:
    """Pins that what is missing of a long source can be measured in segments, twice here."""
    place, source = Place(tmp_path / "whole"), films[IN_SEGMENTS]
    place.measure(source, place.names)
    whole = place.track(source)
    place = Place(tmp_path / "segments")
    late = frozenset(
        {"clip", "scenes", "text", "motion", *(n for n in place.names if "measure" in n)}
    )
    place.in_segments(source, place.names - late)
    place.in_segments(source, late)
    track = place.track(source)
    assert isinstance(track, Track)
    assert_same(track, whole, heads_atol=5e-4)


@pytest.mark.usefixtures("unsandboxed")
def test_nothing_is_computed_that_no_missing_family_needs(
    films: dict[str, SourceRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins what adding CLIP costs: a decode and CLIP, no picture for the shot network, no flow."""
    place, source = Place(tmp_path), films[OF_ALL]
    place.measure(source, frozenset({FRAMES}))
    for name in ("tiny_luma", "fitted_flow"):
        monkeypatch.setattr(f"curator.stages.analyze.measurer.{name}", None)
    for view in ("tiny", "small", "descriptor", "native_signals", "picture_signals"):
        monkeypatch.setattr(f"curator.stages.analyze.frame_views.HostView.{view}", None)
    monkeypatch.setattr("curator.stages.analyze.decode_source.level_meter", None)
    unit = place.measure(source, frozenset({"clip"}))
    assert set(unit.tracks[0].parts) == {FRAMES, "clip"}


def test_a_source_that_decodes_otherwise_than_before_is_not_mixed(
    films: dict[str, SourceRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that timestamps of the stored frames are compared: whole, and in segments."""
    place, source = Place(tmp_path), films[IN_SEGMENTS]
    place.measure(source, frozenset({FRAMES}))
    read = Parts.read
    monkeypatch.setattr(Parts, "read", lambda *args: shifted(read(*args)))
    unit = place.measure(source, frozenset({"clip"}))
    ((_, failure),) = unit.failed
    assert (failure.code, unit.tracks) == (ErrorCode.CHANGED, ())
    unit = place.in_segments(source, frozenset({"clip"}))
    assert [segment.whole for segment in unit.segments] == [WholeReason.INDEX_LIES]


def shifted(table: pa.Table) -> pa.Table:
    """The rows of `frames` with other timestamps; all others as they are."""
    at = table.schema.get_field_index("frame_pts")
    if at < 0 or "clip_frame" in table.column_names:
        return table
    moved = [[pts + 1 for pts in row] for row in table["frame_pts"].to_pylist()]
    return table.set_column(at, table.schema.field(at), pa.array(moved, pa.list_(pa.int64())))


def test_a_failure_is_stored_once_and_not_sought_again(
    films: dict[str, SourceRef], tmp_path: Path
) -> None:
    place, source = Place(tmp_path), films["no film.mp4"]
    unit = place.measure(source, place.names)
    assert isinstance(place.track(source), Failure)
    assert (unit.failed, [set(track.parts) for track in unit.tracks]) == ((), [{FRAMES}])
    stored, failed = place.parts.stored(["no film.mp4", OF_ALL])
    assert failed == {"no film.mp4"} == set(stored)
    assert [path.parent.name for path in tmp_path.rglob("*.parquet")] == [FRAMES]


def test_every_setting_that_changes_a_result_is_in_a_fingerprint() -> None:
    """Pins which families are measured anew for which setting."""

    def changed(**settings: object) -> set[str]:
        config, users = AnalyzeConfig.model_validate(settings), (Redness(),)
        other = {f.name: f.fingerprint for f in families_of(config, users=users)}
        own = {f.name: f.fingerprint for f in families_of(AnalyzeConfig(), users=users)}
        return {name for name in own if own[name] != other.get(name, own[name])}

    of_user = measure_family(Redness())
    on_grid = {"pictures", "scenes", "distortion", "motion", "overlays", "text", of_user}
    assert changed(samples_per_s=3) == on_grid
    assert changed(motion_pair_s=0.05) == on_grid - {"overlays", "scenes"}
    assert changed(text_every_s=2) == {"overlays", "text"}
    assert changed(thumbnail_every=3) == {"pictures"}
    assert changed(scene_every_s=1) == {"scenes"}
    assert changed(distortion_every_s=1) == {"distortion"}
    assert changed(flow="hardware") == {"motion", "text"}
    assert changed(shot_precision="float32") == {"shots", "text"}
    assert changed(max_pixels=10**6) == changed(max_frames=10**6) == {FRAMES}
    changes_no_result = {"segment_s": 60, "device": "cpu", "workers_per_gpu": 2, "text": False,
                         "audio": False, "scenes": False, "distortion": False,
                         "max_decode_s": 60}  # fmt: skip
    assert changed(**changes_no_result) == set()
    clip = {f.name: f.fingerprint for f in families_of(CONFIG, "weights")}["clip"]
    assert clip != {f.name: f.fingerprint for f in families_of(CONFIG, "others")}["clip"]
