"""Signals of the analysis in samples: each drawn frame has the value of the frame that it shows."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from captioned import work_here
from film_makers import write_video
from made_cuts import Film
from numbered_films import number_of, numbered
from numpy.typing import NDArray
from place import Place
from samples import made_track

from curator import pipeline
from curator.cli import main
from curator.errors import RecipeError
from curator.frame_axes import TimeAxis
from curator.loading import ClipDataset, ClipLoader
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.records.tracks import FRAME_SIGNALS
from curator.stage import Annotator, FrameRequest, StageConfig
from curator.stages.analyze import segment_join
from curator.stages.analyze.families import BUILT_IN
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.frame_signals import FrameSignals
from curator.tools.commands.arguments import EXIT_OK

N_FRAMES = 130
RATE_HZ = 25
OWN = '''"""What a user's files add: a signal, and an annotator that reads signals."""

from numbered_films import number_of

import numpy as np

from curator.family import Columns, Family, Scope
from curator.measures.measure_contract import Measure, ScoreSpec, Signal
from curator.stage import Annotator, FrameRequest, StageConfig


class Shown(Measure):
    """The number that a sampled picture shows."""

    name, version, full = "shown", 1, "rgb"
    signals = {"shown": Signal(unit="frames", range="from 0", meaning="number in the picture")}
    scores = {
        "shown": ScoreSpec(
            unit="frames", range="from 0", meaning="mean number", of="shown", aggregate="mean"
        )
    }

    def measure(self, sample):
        return {"shown": float(number_of(sample.full))}


class Distance(Annotator[StageConfig]):
    """How far each frame is from the last sample."""

    name, version = "distance", 1
    frames = (FrameRequest(),)
    signals = ("shown",)
    families = (Family("distances", Scope.CLIP, Columns({"distance": "i32"})),)

    def process(self, unit):
        numbers = [[number_of(frame) for frame in clip.frames] for clip in unit]
        return [
            {"distance": int(np.nanmax(np.array(own) - clip.signals["shown"]))}
            for own, clip in zip(numbers, unit, strict=True)
        ]
'''
RECIPE = {
    "measures": ["own_signals:Shown"],
    "stages": ["own_signals:Distance"],
    "propose": {"min_s": 0.5, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "shard": {
        "resolutions": [64], "lengths": [9], "val_share": 0, "aspects_tolerance": 0.99,
        "signals": ["luma_mean", "shown", "motion"],
    },
}  # fmt: skip


def brighter(n_frames: int) -> Iterator[Film]:
    """Yields numbered frames, each brighter than the frame before."""
    for number, film in enumerate(numbered(n_frames)):
        below = np.full_like(film, 20 + number)
        yield np.concatenate([film, below])


def test_an_annotator_of_signals_alone_requests_no_frames() -> None:
    """Pins that nothing is decoded for it, unless it says so."""

    class OfSignals(Annotator[StageConfig]):
        signals = ("motion",)

    class OfBoth(Annotator[StageConfig]):
        frames, signals = (FrameRequest(at=1.0),), ("motion",)

    class OfFrames(Annotator[StageConfig]):
        pass

    assert (OfSignals.frames, len(OfBoth.frames), len(OfFrames.frames)) == ((), 1, 1)


def write_films(folder: Path) -> None:
    """Writes a film with few key frames, one with many, and one of a variable rate."""
    folder.mkdir()
    options = {"x264-params": "scenecut=0"}
    for name, gop in (("long", 250), ("short", 12)):
        write_video(
            folder / f"{name}.mp4", brighter(N_FRAMES), fps=Fraction(RATE_HZ), gop=gop, bframes=0,
            options=options,
        )  # fmt: skip
    steps = np.random.default_rng(2).integers(20, 60, N_FRAMES)
    write_video(
        folder / "vfr.mkv", brighter(N_FRAMES), pts=np.cumsum(steps).tolist(),
        time_base=Fraction(1, 1000),
    )  # fmt: skip


@dataclass(frozen=True)
class Signalled(Place):
    """Numbered films, and an output whose samples have signals."""

    settings = ()

    def column(self, family: str, name: str) -> dict[str, NDArray[np.float32]]:
        """Returns a stored column of tracks by source id."""
        tables = map(pq.read_table, (self.out / "tracks" / family).glob("*.parquet"))
        return {
            source_id: np.array(values)
            for table in tables
            for source_id, values in zip(
                table["source_id"].to_pylist(), table[name].to_pylist(), strict=True
            )
        }


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's file."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_signals.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[1]}")
        work_here(patch)
        yield folder


@pytest.fixture(scope="module")
def finished(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Signalled:
    """A run at the sources' own rates; not to be changed."""
    folder = tmp_path_factory.mktemp("signals")
    write_films(folder / "in")

    @dataclass(frozen=True)
    class WithRecipe(Signalled):
        recipe = str(own / "recipe.yaml")

    place = WithRecipe(folder / "in", folder / "out")
    place.run()
    return place


def check_drawn(place: Signalled, *, fps: float | None = None, stride: int = 1) -> set[str]:
    """Compares values of drawn frames with what the frames show; returns the clips."""
    luma = place.column("frames", "luma_mean")
    samples = place.column("pictures", "sample_frame")
    pairs = place.column("pictures", "sample_pair_frame")
    motion = place.column("motion", "motion")
    clips = {clip["clip_id"]: clip for clip in place.clips()}
    assert all(len(np.unique(of_frames)) == N_FRAMES for of_frames in luma.values())
    dataset = ClipDataset(
        str(place.out), frames=5, stride=stride, fps=fps, batch_size=1, seed=3,
        members=["luma_mean", "shown", "motion"],
    )  # fmt: skip
    seen = set()
    for batch in ClipLoader(dataset, num_workers=0):
        clip = clips[batch["key"][0]]
        source_id = clip["source_id"]
        drawn = [
            number_of(frame.permute(1, 2, 0).numpy()) for frame in batch["video"][0].movedim(1, 0)
        ]
        numbers = np.array(drawn)
        np.testing.assert_array_equal(batch["luma_mean"][0].numpy(), luma[source_id][numbers])
        whole = (samples[source_id] >= clip["start_frame"]) & (pairs[source_id] < clip["end_frame"])
        inside = samples[source_id][whole]
        last = np.searchsorted(inside, numbers, side="right") - 1
        for name, values in (("shown", samples[source_id]), ("motion", motion[source_id])):
            expected = np.where(last < 0, np.nan, values[whole][np.maximum(last, 0)])
            np.testing.assert_array_equal(batch[name][0].numpy(), expected.astype(np.float32))
        seen.add(clip["clip_id"])
    return seen


def forms(place: Place) -> set[tuple[str, str, bool]]:
    """Returns film, mode and whether frames are repeated or left out, of each kept clip."""
    return {
        (
            Path(clip["source_uri"]).stem,
            clip["cut_mode"],
            clip["n_frames"] != clip["end_frame"] - clip["start_frame"],
        )
        for clip in place.clips()
    }


@pytest.mark.long
def test_copied_clips_and_those_of_a_variable_rate(finished: Signalled) -> None:
    kept = finished.clips()
    assert {("short", "copy", False), ("long", "encode", False), ("vfr", "encode", True)} <= forms(
        finished
    )
    assert any(clip["cut_mode"] == "copy" and clip["start_frame"] % 43 for clip in kept), "trimmed"
    assert check_drawn(finished) == {clip["clip_id"] for clip in kept}
    check_drawn(finished, stride=2)
    check_drawn(finished, fps=11)
    # A sample is half a second, and a clip's first sample may be as late.
    assert {12, 13} & {clip["distance"] for clip in kept}


@pytest.mark.parametrize(
    "settings",
    [
        ("cut.fps=30", "cut.most_repeated=1", "cut.length_frames=20"),
        ("propose.windows=[17@16]",),
        ("propose.windows=[{frames: 17, remainder: overlap}]", "cut.mode=encode"),
        *(
            pytest.param(settings, marks=pytest.mark.long)
            for settings in (
                ("cut.fps=10", "cut.most_repeated=1"),
                ("cut.length_frames=20",),
                ("propose.windows=[17]",),
            )
        ),
    ],
)
def test_resampled_shortened_and_windowed_clips(
    finished: Signalled, settings: Sequence[str], tmp_path: Path
) -> None:
    place = finished.copy(tmp_path)
    summary = place.run(*settings, "cut.most_repeated=1")
    assert summary["work"]["sources_analyzed"] == 0
    assert len({form[0] for form in forms(place)}) == 3
    if "17@16" in settings[0] or "cut.fps" in settings[0]:
        assert all(is_resampled for _, _, is_resampled in forms(place))
    assert check_drawn(place) == {clip["clip_id"] for clip in place.clips()}


def test_stored_values_need_no_tracks_and_new_values_measure_what_is_missing(
    finished: Signalled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = finished.copy(tmp_path)
    before = place.tars()
    shutil.rmtree(place.out / "tracks" / "motion")
    work = place.run()["work"]
    assert (work["sources_analyzed"], work.get("motion_made", 0)) == (0, 0)
    assert main(["recaption", str(place.out)]) == EXIT_OK
    assert place.tars() == before

    more = "shard.signals=[luma_mean, shown, motion, pan_rate]"
    # The command that reads no sources names the one that does.
    (tmp_path / "other").mkdir()
    shutil.copy(place.sources / "short.mp4", tmp_path / "other" / "short.mp4")
    capsys.readouterr()
    kept_away = place.sources.rename(tmp_path / "away")
    assert replace(place, sources=tmp_path / "other").code(more) != EXIT_OK
    error = capsys.readouterr().err.splitlines()[-1]
    assert "has no stored track of the family 'motion'" in error
    assert "it could not be measured again: " in error
    assert place.tars() == before
    kept_away.rename(place.sources)
    work = place.run(more)["work"]  # One of them was measured before the error.
    assert (work["sources_analyzed"], work["pan_rate_made"], work["clips_cut"]) == (2, 9, 0)
    shutil.rmtree(place.out / "tracks")
    work = place.run(more)["work"]
    assert (work["sources_analyzed"], work.get("pan_rate_made", 0)) == (3, 0)
    check_drawn(place)


@pytest.mark.long
def test_other_settings_of_the_analysis_make_values_again(
    finished: Signalled, tmp_path: Path
) -> None:
    place = finished.copy(tmp_path)
    # `column` reads all parts.
    shutil.rmtree(place.out / "tracks")
    work = place.run("analyze.samples_per_s=4")["work"]
    assert (work["motion_made"], work["clips_cut"]) == (9, 0)
    check_drawn(place)


def test_every_reader_goes_by_the_declaration(finished: Signalled, tmp_path: Path) -> None:
    assert main(["verify", str(finished.out), "--json"]) == EXIT_OK
    card = yaml.safe_load((finished.out / "shards" / "README.md").read_text().split("---")[1])
    features = {feature["name"]: feature for feature in card["dataset_info"]["features"]}
    assert features["shown.npy"] == {"name": "shown.npy", "sequence": "float32"}
    graph = {
        stage["name"]: stage for stage in graph_of(load_recipe(finished.recipe)).facts()["stages"]
    }
    assert graph["frame_signals"]["writes"] == ["luma_mean", "shown", "motion"]
    assert (
        graph["frame_signals"]["reads"] == graph["distance"]["reads"] == ["clips", "cuts", "tracks"]
    )
    exported = tmp_path / "exported"
    assert main(["export", str(finished.out), str(exported), "--format", "parquet"]) == EXIT_OK
    (clip, *_) = finished.clips()
    (table,) = map(pq.read_table, exported.rglob("*.parquet"))
    row = next(row for row in table.to_pylist() if row["clip_id"] == clip["clip_id"])
    tar = (finished.out / "shards" / row["shard"]).read_bytes()
    value = tar[row["shown_offset"] :][: row["shown_bytes"]]
    assert value == finished.sample(clip, "shown.npy")


def test_signals_with_unusable_names_are_refused_with_the_key(
    finished: Signalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins a name that no family may have, and a member that samples have already."""
    named = SimpleNamespace(shard=ShardConfig.model_construct(signals=("MySignal",)))
    with pytest.raises(RecipeError, match="signals: family 'MySignal'; expected a name"):
        pipeline._frame_signals(named)  # type: ignore[arg-type]
    recipe = load_recipe(finished.recipe, ["shard.signals=[luma_mean]"])
    again = FrameSignals(recipe.shard)
    monkeypatch.setattr(pipeline, "_caption_annotators", lambda *_: [again])
    with pytest.raises(RecipeError, match="captions make the family 'luma_mean' already"):
        graph_of(recipe)


@pytest.mark.parametrize("name", FRAME_SIGNALS)
def test_the_declaration_of_a_track_of_frames_is_enough(name: str) -> None:
    """A field declared per frame is checked, joined from segments, and offered to recipes."""
    with pytest.raises(ValueError, match=f"{name} has 3 entries, not 300"):
        made_track(**{name: np.zeros(3, np.float32)})
    assert name in segment_join._FRAMES
    assert sum(name in family.columns for family in BUILT_IN) == 1
    settings = [f"shard.signals=[{name}]", "analyze.activity=true"]
    graph = graph_of(load_recipe("quickstart", settings))
    assert graph["frame_signals"].families[0].time_axis == TimeAxis(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shard.signals=[luma_meen]", "unknown signal 'luma_meen'; did you mean 'luma_mean'"),
        ("shard.signals=[descriptor]", "shard.signals: unknown signal 'descriptor'"),
        ("shard.signals=[motion, motion]", "expected each signal once"),
        ("measures=[]", "shard.signals: unknown signal 'shown'"),
    ],
)  # fmt: skip
def test_unknown_signals_are_refused(finished: Signalled, change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message.replace("[", r"\[")):
        graph_of(load_recipe(finished.recipe, [change]))
