"""`curate fit --solve`: which footage counts, how takes are divided, and which recipe is found."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_output
from samples import made_track
from small_output import CLIPS, SmallOutput

from curator.cli import main
from curator.recipe import Recipe, load_recipe, with_changes
from curator.records.clips import Shot, Span, Window
from curator.records.tracks import Track
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig, WindowConfig
from curator.strict_yaml import load_yaml
from curator.tables.clip_rows import ClipRows
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.commands.fit_solving import based, recipe_text, where
from curator.tools.planning import usable_takes
from curator.tools.planning.divided_takes import Division, divided
from curator.tools.planning.recipe_search import evaluated, recipe_changes, solved
from curator.tools.planning.seen_footage import Watcher, seen
from curator.tools.planning.usable_takes import Clips, Takes
from curator.trainers.trainer_files import load_trainer

QUICKSTART = load_recipe("quickstart", ["cut.most_repeated=1", "shard.lengths=[1]"])
SIZE = (1280, 720, 1)


def takes_of(*lengths: tuple[float, float], kinds: tuple[tuple[int, ...], ...] = (SIZE,)) -> Takes:
    """Takes of some seconds at some rates, of the first kind."""
    seconds, fps = np.array(lengths, np.float64).T
    return Takes(
        n_frames=np.rint(seconds * fps).astype(np.int64),
        fps=fps,
        kind=np.zeros(len(fps), np.int64),
        kinds=np.array(kinds, np.int64),
        weight=np.ones(len(fps)),
    )


def track_of(rate: Fraction, n_frames: int) -> Track:
    times = [round(n / rate * 90_000) for n in range(n_frames + 1)]
    return made_track(
        n_frames, time_base=Fraction(1, 90_000), frame_pts=np.array(times[:-1]), end_pts=times[-1]
    )


def proposed(track: Track, config: ProposeConfig, rate: Fraction | None) -> list[tuple[int, ...]]:
    """Begin, end and written frames of the clips that the stages make, without those rejected."""
    shot = Shot(
        start_frame=0, end_frame=track.n_frames, transition_in="none", transition_out="none"
    )
    own = track.fps

    def clip(span: Span) -> tuple[int, int, int]:
        n = (
            span.n_written
            if isinstance(span, Window)
            else round(span.n_frames * (rate or own) / own)
        )
        return span.start_frame, span.end_frame, n

    def is_kept(span: Span) -> bool:
        is_long = span.n_frames / own >= config.min_s - 1e-6
        if not isinstance(span, Window):
            return is_long
        window = next(w for w in config.windows if w.form[0] == span.size[0])
        return span.n_written >= span.size[0] or (window.remainder == "keep" and is_long)

    return sorted(clip(span) for span in propose_clips(track, [shot], config) if is_kept(span))


@pytest.mark.parametrize("rate", ["12.5", "24000/1001", "24", "25", "30", "60"])
def test_takes_are_divided_as_the_stages_do(rate: str) -> None:
    """Pins the frames of each clip: a prediction is no better than its spans."""
    own = Fraction(rate)
    windows: list[dict[str, Any]] = [
        {"frames": 33, "fps": "16"},
        {"frames": 33, "fps": "16", "remainder": "overlap"},
        {"frames": 49, "remainder": "keep"},
        {"frames": 81, "fps": "16", "stride": 60, "remainder": "keep"},
        {"frames": 61, "fps": "24", "stride": 31, "remainder": "overlap"},
    ]
    settings = [({"windows": [window]}, None) for window in windows]
    settings += [({"min_s": 1.0, "max_s": 4.3}, None), ({"min_s": 1.0, "max_s": 7.1}, Fraction(16))]
    for n_frames in (20, 41, 52, 150, 263, 977):
        track = track_of(own, n_frames)
        for values, fps in settings:
            config = ProposeConfig.model_validate(values)
            takes = takes_of((n_frames / float(own), float(own)))
            division = Division(
                windows=config.windows, min_s=config.min_s, max_s=config.max_s, fps=fps
            )
            clips = divided(takes, division, QUICKSTART)
            spans = np.rint(np.stack([clips.start_s, clips.end_s]) * float(own)).astype(int)
            made = sorted(zip(*spans.tolist(), clips.n_frames.tolist(), strict=True))
            assert made == proposed(track, config, fps), (n_frames, values)


def test_clips_that_the_rules_on_form_reject_are_not_made() -> None:
    takes = takes_of((10, 12.5), (10, 25))
    division = Division(windows=(WindowConfig(frames=33, fps="16"),), min_s=2, max_s=60)
    assert set(divided(takes, division, load_recipe("quickstart")).place) == {1}
    too_large = load_recipe("quickstart", ["cut.size=1920x1080"])
    assert not len(divided(takes, division, too_large).place)
    enlarged = load_recipe("quickstart", ["cut.size=1920x1080", "cut.enlarge=always"])
    assert set(divided(takes, division, enlarged).place) == {1}
    narrow = load_recipe("quickstart", ["cut.size=400x720"])
    assert not len(divided(takes, division, narrow).place)


def clips_of(*spans: tuple[float, float], fps: float, window: tuple[int, ...] = ()) -> Clips:
    start, end = np.array(spans, np.float64).T
    n = len(spans)
    return Clips(
        place=np.zeros(n, np.int64), start_s=start, end_s=end,
        n_frames=np.rint((end - start) * fps).astype(np.int64), fps=np.full(n, fps),
        kind=np.zeros(n, np.int64), kinds=np.array([SIZE]),
        window=np.array(window or [0] * n, np.int64),
    )  # fmt: skip


def test_footage_in_two_clips_is_seen_once() -> None:
    wan = Watcher(load_trainer("wan-diffsynth", {"frames": 33}))
    of = seen(wan, clips_of((0, 33 / 16), (1, 1 + 33 / 16), (9, 9 + 33 / 16), fps=16), np.ones(1))
    assert of.well_s == pytest.approx(1 + 33 / 16 + 33 / 16)
    assert of.clip_s == pytest.approx(3 * 33 / 16)


def test_footage_at_a_wrong_speed_or_with_repeated_frames_is_not_seen_well() -> None:
    wan = Watcher(load_trainer("wan-diffsynth"))
    of = seen(wan, clips_of((0, 3.24), fps=25), np.ones(1))
    assert (of.well_s, of.seen_s) == (0, pytest.approx(3.24))
    # Shown at 24 frames/s, a clip of 16 has each second frame twice.
    ltx2 = Watcher(load_trainer("ltx2-diffsynth"))
    assert seen(ltx2, clips_of((0, 6), fps=16), np.ones(1)).well_s == 0
    assert seen(ltx2, clips_of((0, 6), fps=24), np.ones(1)).well_s == pytest.approx(121 / 24)


def test_a_trainer_reads_the_windows_made_for_it() -> None:
    wan = Watcher(load_trainer("wan-diffsynth", {"frames": 33}))
    both = clips_of((0, 33 / 16), fps=16, window=(1,))
    other = clips_of((0, 9), fps=30, window=(2,))
    of = seen(wan, _joined(both, other), np.ones(1))
    assert of.windows == (1,)
    assert of.seen_s == pytest.approx(33 / 16)
    windows = tuple(map(WindowConfig.model_validate, ["33@16", "33@24", "81@24"]))
    assert where(windows, (1,)) == "window_frames = 33 and window_fps = 16"
    assert where(windows, (3,)) == "window_frames = 81"
    assert where(windows, (1, 2, 3)) is None


def _joined(a: Clips, b: Clips) -> Clips:
    names = ("place", "start_s", "end_s", "n_frames", "fps", "kind", "window")
    columns = {name: np.r_[getattr(a, name), getattr(b, name)] for name in names}
    return Clips(kinds=a.kinds, **columns)


@pytest.mark.parametrize(
    ("trainer", "changes"),
    [
        ("wan-diffsynth", {"propose.windows": ["81@16"]}),
        ("ltx2", {"propose.windows": ["49"]}),
        ("diffusion-pipe", {"propose.windows": ["33@16"]}),
        ("energon", {}),
    ],
)
def test_the_windows_of_a_trainer_are_found(trainer: str, changes: dict[str, Any]) -> None:
    """Takes of a whole number of windows: nothing is lost, and the simplest recipe is best."""
    frames = {"wan-diffsynth": 81, "ltx2": 49 * 16 / 30, "diffusion-pipe": 33}.get(trainer, 60)
    takes = takes_of(*((k * frames / 16, 30.0) for k in (1, 2, 3, 5)))
    recipe = load_recipe("quickstart")
    outcome = solved(takes, [load_trainer(trainer)], recipe)
    assert outcome.well == [pytest.approx(1, abs=0.01)]
    found = recipe_changes(outcome.division, recipe)
    found.pop("shard.lengths", None)
    assert found == changes
    load_recipe({"base": "quickstart", **_nested(found)})


def _nested(changes: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return nested


def test_two_trainers_get_windows_of_their_own_rates() -> None:
    random = np.random.default_rng(4)
    takes = takes_of(*((float(s), 30.0) for s in random.lognormal(1.6, 0.7, 60)))
    trainers = [load_trainer("wan-diffsynth"), load_trainer("hunyuanvideo")]
    outcome = solved(takes, trainers, load_recipe("quickstart"))
    assert min(outcome.well) > 0.8
    assert {str(w.rate) for w in outcome.division.windows} == {"16", "24"}
    assert len({each.windows for each in outcome.seen}) == 2
    # The figures are those of the division.
    assert (
        evaluated(takes, outcome.division, trainers, load_recipe("quickstart")).well == outcome.well
    )


def test_a_sample_of_takes_has_the_seconds_of_all() -> None:
    random = np.random.default_rng(1)
    takes = takes_of(*((float(s), 25.0) for s in random.lognormal(1.6, 1.0, 5000)))
    sampled = takes.sample(100)
    assert len(sampled.weight) == 100
    assert sampled.total_s == pytest.approx(takes.total_s)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output with clips kept, rejected for their length, and rejected for their motion."""
    output = SmallOutput(tmp_path_factory.mktemp("solve") / "out", {1, 2, 3})
    with pytest.MonkeyPatch.context() as patch:
        plain = small_output._decided

        def decided(candidates: Any, recipe: int) -> ClipRows:  # noqa: ANN401
            rows = plain(candidates, recipe)
            for number, reasons in ((0, ["too_short"]), (1, ["too_short", "motion_too_low"])):
                rows[number].decision = "rejected"
                rows[number].reason, rows[number].reasons = reasons[0], reasons
            return rows

        patch.setattr(small_output, "_decided", decided)
        patch.setattr(
            small_output, "_RECIPE", load_recipe("quickstart", ["shard.resolutions=[16]"])
        )
        output.run({1, 2, 3})
    return str(output.out)


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = EXIT_OK) -> Any:  # noqa: ANN401
    capsys.readouterr()
    assert main(["fit", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_footage_rejected_for_its_length_counts(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = document(capsys, out, "--for", "wan-diffsynth", "--solve")
    assert facts["takes"] == 3 * CLIPS - 1
    (trainer,) = facts["trainers"]
    assert trainer["before"]["well_share"] == 0
    assert facts["samples_per_s"] is None
    assert 0.5 < trainer["after"]["well_share"] <= 1


@pytest.mark.parametrize("has_sound", [False, True])
def test_the_printed_recipe_is_a_recipe(
    has_sound: bool,
    out: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = {small_output.source_id(number) for number in (1, 2, 3)}
    if has_sound:
        monkeypatch.setattr(usable_takes, "_sources_with_sound", lambda store, summary: ids)
    assert main(["fit", out, "--for", "ltx2", "--for", "wan-diffsynth", "--solve"]) == EXIT_OK
    printed = capsys.readouterr().out
    assert "with the recipe below" in printed
    facts = document(capsys, out, "--for", "ltx2", "--for", "wan-diffsynth", "--solve")
    text = recipe_text(facts["base"], facts["changes"])
    assert text in printed
    (tmp_path / "solved.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "solved.yaml"))
    # LTX-2 trains on sound.
    assert recipe.cut.audio == ("copy" if has_sound else "drop")
    assert load_yaml(text) == {"base": facts["base"], **facts["changes"]}


def test_windows_between_two_samples_need_more_of_them(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows of 17 frames at 24 frames/s take 0.71 s, and those of 9 frames 0.38 s."""
    assert main(["fit", out, "--for", "ltx2", "--set", "frames=9", "--solve"]) == EXIT_OK
    assert "--set analyze.samples_per_s=" in capsys.readouterr().out


def test_a_size_that_loses_footage_names_a_smaller_one(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = document(capsys, out, "--for", "wan-diffsynth", "--solve", "--size", "3840x2160")
    assert facts["changes"]["cut"]["size"] == [3840, 2160]
    assert facts["trainers"][0]["after"]["seen_s"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--solve", "--size", "big"], "--size: size 'big'"),
        (["--size", "832x480"], "--size needs --solve"),
        (["--solve", "--where", "motion > 1"], "--where does not apply to --solve"),
    ],
)
def test_wrong_usage_is_refused(
    words: list[str], message: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = document(capsys, out, "--for", "ltx2", *words, code=EXIT_USAGE)
    assert message in error["error"]


def test_a_recipe_is_printed_as_what_differs_from_the_nearest_one() -> None:
    cosmos = load_recipe("cosmos", ["cut.crf=30"])
    for recipe in (cosmos, load_recipe({"cut": {"crf": 30}})):
        base, differences = based(recipe)
        made = load_recipe({"base": base, **differences})
        assert made.model_copy(update={"about": recipe.about}) == recipe
    assert based(cosmos) == ("cosmos", {"cut": {"crf": 30}})
    assert differences["filters"] is None


def test_recipes_keep_what_they_set() -> None:
    """A key that a recipe sets, and that the solution does not need to change, stays."""
    recipe = with_changes(load_recipe("quickstart"), ["cut.fps=24", "cut.length_frames=49"])
    windows = (WindowConfig(frames=81, fps="16"),)
    changes = recipe_changes(Division(windows=windows, min_s=2.0, max_s=60.0), recipe)
    assert changes == {
        "propose.windows": ["81@16"], "cut.fps": None, "cut.length_frames": None,
    }  # fmt: skip
    assert isinstance(with_changes(recipe, changes), Recipe)


def test_a_printed_recipe_may_remove_a_section() -> None:
    changes = {"filters": None, "models": "weights", "dedup": {"enabled": False}}
    text = recipe_text("quickstart", changes)
    assert load_yaml(text) == {"base": "quickstart"} | changes


@pytest.mark.parametrize("fps", [0.5, 500])
def test_a_rate_that_no_window_can_have_is_not_tried(fps: float) -> None:
    trainer = load_trainer("musubi", {"fps": fps})
    outcome = solved(takes_of((10.0, 24.0)), [trainer], load_recipe("quickstart"))
    assert outcome.well == [0.0]
