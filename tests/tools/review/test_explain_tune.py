"""`curate explain` and `curate tune` on runs made of tables, and the page that tune writes."""

import re
import shlex
import shutil
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import Curate
from made_out import candidates_table, made_out, unlike_vectors

from curator.number_text import moment
from curator.recipe import Recipe, with_changes
from curator.records.clips import OF_FORM, Reason
from curator.tables.out_layout import TABLES
from curator.tools.commands.arguments import EXIT_USAGE
from curator.tools.report.funnel import format_funnel, funnel_steps
from curator.tools.review.bound_tuning import tune
from curator.tools.review.finished_run import open_finished
from curator.tools.view.live_funnel import LiveFunnel
from tests.tools.report.test_report import Page
from tests.tools.review.test_remedies import remedies

N = 40
RULES: dict[str, Any] = {
    "motion": {"min": 5.5},
    "sharpness": {"drop_lowest": 0.1},
    "noise": {"max": 38.5, "severity": "flag"},
}


@dataclass(frozen=True)
class Made:
    """A run whose clips have motion, sharpness and noise rising by 1, sharpness from the end."""

    out: Path
    ids: list[str]
    summary: dict[str, Any]

    def clip(self, number: int) -> dict[str, Any]:
        (row,) = (r for r in self.rows() if r["clip_id"] == self.ids[number])
        return row

    def rows(self) -> list[dict[str, Any]]:
        return [r for t in self.summary["tables"]["clips"] for r in pq.read_table(
            self.out / t).to_pylist()]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Clips 0 to 5 move too little, 36 to 39 are not sharp, 20 is 30's copy, 39 is noisy too."""
    out = tmp_path_factory.mktemp("made") / "out"
    rising = [float(number) for number in range(N)]
    clips = candidates_table(
        N,
        motion=rising,
        sharpness=[10.0 - value / 10 for value in rising],
        noise=rising,
        seconds=[5.0] * (N - 1) + [1.0],
        bits_per_pixel=[1.0] * 30 + [2.0] * 10,
    )
    vectors = unlike_vectors(N)
    vectors[20] = vectors[30]
    recipe = Recipe.model_validate({"filters": RULES})
    summary = made_out(out, clips, recipe, vectors)
    return Made(out, clips["clip_id"].to_pylist(), summary)


def test_the_made_run_is_what_the_tests_below_think(made: Made) -> None:
    """Pins the run itself: reasons, bounds by quantile, tags, and what of candidates stays."""
    counts = made.summary["counts"]
    assert counts["by_reason"] == {
        "motion_too_low": 6, "sharpness_too_low": 3, "duplicate": 1, "too_short": 1,
    }  # fmt: skip
    assert counts["by_only_reason"]["sharpness_too_low"] == 3
    assert (counts["by_tag"], counts["by_tag_kept"]) == ({"noise_too_high": 1}, {})
    (sharp,) = (rule for rule in made.summary["rules"] if rule["rule"] == "sharpness")
    assert sharp["min"] == pytest.approx(10 - 3.5)
    assert (sharp["n_measured"], sharp["drop_lowest"]) == (39, 0.1)
    kinds = sorted(p.name for p in (made.out / "candidates").iterdir())
    assert kinds == ["clips", "footage", "pictures", "shots", "sources", "vectors"]
    assert all(len(list((made.out / "candidates" / kind).iterdir())) == 1 for kind in kinds)
    assert TABLES == (
        "sources", "shots", "clips", "embeddings", "clip_embeddings", "annotations", "sidecars",
        "members",
    )  # fmt: skip


def test_clips_are_explained(made: Made, curate: Curate) -> None:
    """Pins scores beside bounds, the rule that rejects, and a bound that the clip would pass."""
    text = curate("explain", made.out, made.ids[3])
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "rejected: motion_too_low (3, bound 5.5)" in text
    assert lines["motion"].split() == ["motion", "3", "min", "5.5", "rejects:", "motion_too_low"]
    assert "(the lowest 10% of 39)" in lines["sharpness"]
    assert lines["sharpness"].endswith("ok")
    assert "--set filters.motion.min=3" in text
    assert "luma 1" in lines["scores"]
    assert "It would be kept by:" in text
    # A duplicate names the clip that is kept.
    text = curate("explain", made.out, made.ids[20])
    assert f"duplicate of {made.ids[30]}, which shows 100% of it" in text
    assert "5.0 s from its second 0.0 on; similarity 0.950" in text
    assert "which is /films/00000.mp4 at 0:02:30, kept" in text
    assert "--set dedup.enabled=false" in text
    # A clip that is too short, not sharp and flagged as noisy has all reasons and tags.
    text = curate("explain", made.out, made.ids[39])
    assert "tags: noise_too_high" in text
    assert "too_short, sharpness_too_low" in text
    assert "flags: noise_too_high" in text
    assert "--set propose.min_s=" in text
    # A kept clip says so and needs nothing.
    text = curate("explain", made.out, made.ids[10])
    assert "\nkept, " in text
    assert "--set" not in text


def test_the_recipe_of_an_output_is_shown(made: Made, curate: Curate) -> None:
    """Pins that `scores`, `recipes` and `graph` take OUT, and say which recipe they show."""
    shown = curate("scores", "motion", "--recipe", made.out).splitlines()
    assert shown[0].startswith(f"as measured by the recipe of {made.out}, snapshot 1 of 20")
    assert shown[1].startswith("motion  [")
    shown = curate("recipes", made.out, "--set", "filters.noise.max=9").splitlines()
    assert shown[0].startswith(f"# recipe of {made.out}, snapshot 1 of 20")
    for line in ("filters.motion.min = 5.5  [", "filters.noise.max = 9.0  ["):
        assert any(said.startswith(line) for said in shown)
    assert curate("graph", made.out).startswith("stage ")
    error = curate("scores", "--recipe", made.out.parent, code=EXIT_USAGE)
    assert f"{made.out.parent} has no finished run" in error


@pytest.mark.parametrize(
    ("command", "right"),
    [
        ("explain {id} {out}", "explain {out} {id}"),
        ("tune motion.min=1 {out}", "tune {out} motion.min=1"),
        ("mark {id} {out} --keep", "mark {out} {id} ..."),
        ("search {id} --clip {out}", "search {out} --clip {id}"),
    ],
)
def test_arguments_in_the_wrong_order_are_named(
    made: Made, curate: Curate, command: str, right: str
) -> None:
    """Pins that no missing run is blamed, and that the right order is given."""
    names = {"out": str(made.out), "id": made.ids[3][:6]}
    error = curate(*command.format(**names).split(), code=EXIT_USAGE)
    first = "motion.min=1" if command.startswith("tune") else names["id"]
    assert f"{first!r} is no folder, and {names['out']!r} is one: OUT comes first" in error
    assert f"`curate {right.format(**names)}`" in error
    # A folder without a run is another mistake.
    error = curate("explain", made.out.parent, names["id"], code=EXIT_USAGE)
    assert "has no finished run" in error


@pytest.mark.long
def test_the_remedies_keep_the_clip(made: Made, curate: Curate) -> None:
    """Pins that what explain advises is enough, for each clip that its rules reject."""
    finished = open_finished(str(made.out))
    for number in (*range(6), *range(36, 39)):
        text = curate("explain", made.out, made.ids[number])
        words = text.split()
        changes = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
        assert changes
        index = finished.clips["clip_id"].to_pylist().index(made.ids[number])
        assert tune(finished, changes).then[index] is None


FORMS = {
    "wide": (1920, 1080, 25, 25), "even": (1280, 720, 24, 24), "small": (640, 360, 24, 24),
    "tall": (2160, 3840, 25, 25), "low": (540, 960, 25, 25), "square": (1080, 1080, 24, 24),
    "slow": (1280, 720, 12.5, 12.5), "film": (1280, 720, 23.976, 23.976),
    "screen": (1280, 720, 60, 8), "both": (640, 360, 12.5, 12.5),
}  # fmt: skip
"""Width, height, nominal and mean rate of clips of 10 s."""
TO_FORM = {
    "small": ["smaller_than_size"], "tall": ["cropped_too_much"],
    "low": ["smaller_than_size", "cropped_too_much"], "square": ["smaller_than_size"],
    "slow": ["slower_than_fps"], "screen": ["slower_than_fps"],
    "both": ["smaller_than_size", "slower_than_fps"],
}  # fmt: skip
"""Reasons against them, as 1280x720 at 24 frames/s."""


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run into one size and rate over clips of other sizes and rates."""
    widths, heights, rates, means = zip(*FORMS.values(), strict=True)
    n = len(FORMS)
    clips = candidates_table(
        n, width=widths, height=heights, fps=rates, time_base=["1/90000"] * n,
        fps_fraction=[str(Fraction(rate).limit_denominator(1001)) for rate in rates],
        n_frames=[round(10 * rate) for rate in rates], is_vfr=[rate == 60 for rate in rates],
        start_frame=[0] * n, end_frame=[round(10 * mean) for mean in means],
        start_pts=[900_000 * k for k in range(n)],
        end_pts=[900_000 * k + 900_000 for k in range(n)], seconds=[10.0] * n,
    )  # fmt: skip
    out = tmp_path_factory.mktemp("forms") / "out"
    recipe = Recipe.model_validate({"cut": {"size": "720p", "fps": 24}})
    return Made(out, clips["clip_id"].to_pylist(), made_out(out, clips, recipe))


def test_clips_that_a_form_would_change_too_much_are_rejected(forms: Made) -> None:
    """Pins reasons, scores with their bounds, counts of rules, and what is done to kept clips."""
    clips = {name: forms.clip(number) for number, name in enumerate(FORMS)}
    assert {name: clip["reasons"] for name, clip in clips.items() if clip["reasons"]} == TO_FORM
    scored = {
        name: (clips[name]["reason_score"], clips[name]["reason_threshold"])
        for name in ("small", "tall", "slow")
    }
    assert scored == {
        "small": (2.0, 1.01),
        "tall": (pytest.approx(1 - 81 / 256), 0.5),
        "slow": (pytest.approx((240 - 125) / 240), 0.015),
    }
    rules = {rule["rule"]: (rule["first"], rule["any"]) for rule in forms.summary["rules"]}
    assert rules["cut.enlarge"] == (4, 4)
    assert rules["cut.most_cropped"] == (1, 2)
    assert rules["cut.most_repeated"] == (2, 3)
    assert forms.summary["counts"]["by_form"] == {"retimed": 2, "shrunk": 1}
    lines = format_funnel(forms.summary).splitlines()
    assert f"{'  smaller_than_size':<24}{-4:>11,}  6 left" in lines
    assert f"{'  retimed':<24}{2:>11,}  from another frame rate" in lines


def test_what_explain_advises_keeps_clips_of_any_form(forms: Made, curate: Curate) -> None:
    """Pins remedies, and that `tune` tries another size on the stored form of the sources."""
    finished = open_finished(str(forms.out))
    ids = finished.clips["clip_id"].to_pylist()
    for name, reasons in TO_FORM.items():
        clip_id = forms.ids[list(FORMS).index(name)]
        text = curate("explain", forms.out, clip_id)
        changes = re.findall(r"--set (\S+)", text)
        assert [change.partition("=")[0] for change in changes] == [
            OF_FORM[Reason(reason)][0] for reason in reasons
        ]
        assert "in the form of the recipe: scaled by" in text
        assert tune(finished, changes).then[ids.index(clip_id)] is None
        # Less is not enough.
        changes[-1] = changes[-1].replace("always", "never")
        if "=0." in changes[-1]:
            key, _, least = changes[-1].partition("=")
            changes[-1] = f"{key}={float(least) - 0.002}"
        assert tune(finished, changes).then[ids.index(clip_id)] == reasons[-1]
    changes = ["cut.size=360p", "cut.fps=null"]
    then = dict(zip(ids, tune(finished, changes).then, strict=True))
    names = {name: then[forms.ids[number]] for number, name in enumerate(FORMS)}
    assert {name: reason for name, reason in names.items() if reason} == {
        "tall": "cropped_too_much", "low": "smaller_than_size",
    }  # fmt: skip
    # What `view` shows at once is the same.
    live = LiveFunnel(finished)
    codes = live.decide(changes).codes.tolist()
    assert [live.reasons[code] for code in codes] == [then[clip_id] for clip_id in ids]


def test_a_beginning_of_the_id_is_enough_if_it_is_the_only_one(made: Made, curate: Curate) -> None:
    """Pins prefixes: unique, ambiguous, unknown, empty; without any, clips are listed."""
    assert curate("explain", made.out, made.ids[10][:8]).startswith(f"clip {made.ids[10]}")
    first = made.ids[0][0]
    n_alike = sum(name.startswith(first) for name in made.ids)
    error = curate("explain", made.out, first, code=EXIT_USAGE)
    assert f"{n_alike} clips begin with" in error
    error = curate("explain", made.out, "zz", code=EXIT_USAGE)
    assert "no clip of the 40" in error
    assert curate("explain", made.out, "", code=EXIT_USAGE).startswith("curate: no clip")
    lines = curate("explain", made.out).splitlines()
    assert lines[0].split() == ["clip", "outcome", "span", "source"]
    listed = {line.split()[0]: line for line in lines[1:]}
    assert set(listed) == set(made.ids)
    assert listed[made.ids[3]].split(maxsplit=2)[1:] == [
        "motion_too_low", "15 s to 20 s        /films/00000.mp4",
    ]  # fmt: skip
    assert "0:02:30 to 0:02:35" in listed[made.ids[30]]


def test_what_cannot_be_tried_is_refused_in_one_line(
    made: Made, tmp_path: Path, curate: Curate
) -> None:
    """Pins folders without a run, and changes."""
    for command in (["explain", str(tmp_path), "ab"], ["tune", str(tmp_path), "motion.min=1"]):
        assert "has no finished run" in curate(*command, code=EXIT_USAGE)
    for change, message in (
        ("motoin.min=1", "did you mean 'motion'"),
        ("motion.minimum=1", "minimum"),
        ("motion=1", "expected score.bound=value"),
        ("motion.min", "expected score.bound=value"),
        ("cut.crf=3", "use `curate run --set`"),
        ("sharpness.drop_lowest=1.5", "less than 1"),
    ):
        error = curate("tune", made.out, change, code=EXIT_USAGE)
        assert message in error
        assert error.count("\n") == 1


def test_another_bound_says_what_it_would_keep_and_drop(made: Made, curate: Curate) -> None:
    """Pins the counts by reason, for a looser bound and a stricter quantile together."""
    before = {p: p.read_bytes() for p in made.out.rglob("*") if p.is_file()}
    text = curate("tune", made.out, "motion.min=3", "sharpness.drop_lowest=0.2")
    assert "motion: min 5.5 -> min 3" in text
    assert "kept -> rejected  4  as 4 sharpness_too_low" in text
    assert "rejected -> kept  3  were 3 motion_too_low" in text
    kept = next(line for line in text.splitlines() if line.startswith("kept "))
    assert kept.split() == ["kept", "29", "28", "-1"]
    assert f"{made.out}/report/tune.html" in text
    assert "--set filters.motion.min=3 --set filters.sharpness.drop_lowest=0.2" in text
    (made.out / "report" / "tune.html").unlink()
    assert {p: p.read_bytes() for p in made.out.rglob("*") if p.is_file()} == before


def test_tune_decides_as_a_run_would(made: Made, tmp_path: Path) -> None:
    """Pins tune against a run with the same changes: duplicates freed, selection anew."""
    changes = ["filters.motion.max=25", "select.max_per_group=12", "propose.min_s=1"]
    finished = open_finished(str(made.out))
    tuned = tune(finished, ["motion.max=25", *changes[1:]])
    recipe = with_changes(finished.recipe, changes)
    vectors = unlike_vectors(N)
    vectors[20] = vectors[30]
    again = made_out(tmp_path / "out", finished.candidates(), recipe, vectors)
    run = Made(tmp_path / "out", made.ids, again)
    expected = {r["clip_id"]: r["reason"] for r in run.rows()}
    ids = finished.clips["clip_id"].to_pylist()
    assert dict(zip(ids, tuned.then, strict=True)) == expected
    assert expected[made.ids[20]] in (None, "not_selected")
    assert list(expected.values()).count(None) == 12
    # With rules only, the original goes, and its duplicate is not freed.
    copy = ids.index(made.ids[20])
    assert tune(finished, ["motion.max=25"]).then[copy] is None
    assert tune(finished, ["motion.max=25"], rules_only=True).then[copy] == "duplicate"


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Clips 0 to 9 are crowds, less and less likely; 10 to 19 aerial, and the rest have no type.

    Graphics are unwanted from a probability of 0.5; at most five clips of a type are taken.
    """
    out = tmp_path_factory.mktemp("typed") / "out"
    clips = candidates_table(
        N,
        content_type=["crowd"] * 10 + ["aerial"] * 10 + [None] * (N - 20),
        content_probability=[1 - n / 10 for n in range(10)] + [0.9] * 10 + [None] * (N - 20),
    )
    recipe = Recipe.model_validate(
        {
            "analyze": {"clip": "openai-vit-b-32"},
            "semantic": {"reject": ["crowd"]},
            "select": {"by": ["content_type"], "max_per_group": 5},
        }
    )
    return Made(out, clips["clip_id"].to_pylist(), made_out(out, clips, recipe))


def test_unwanted_content_types_are_counted_and_balanced(typed: Made) -> None:
    """Pins the funnel, the rule's counts, groups by type, and where the embeddings are stored."""
    steps = {step.reason: step for step in funnel_steps(typed.summary)}
    assert list(steps) == ["too_short", "content_type_unwanted", "duplicate", "not_selected"]
    step = steps["content_type_unwanted"]
    assert (step.n_first, step.n_alone, step.n_left) == (6, 6, N - 6)
    rules = {rule["rule"]: rule for rule in typed.summary["rules"]}
    assert rules["semantic.reject"] == {"rule": "semantic.reject", "first": 6, "alone": 6, "any": 6}
    kept = Counter(row["content_type"] for row in typed.rows() if row["decision"] == "kept")
    assert kept == {"crowd": 4, "aerial": 5, None: 5}
    page = Page((typed.out / "report" / "index.html").read_text())
    assert "crowd, from a probability of 0.5" in page.text
    assert list((typed.out / "candidates" / "clip_vectors").iterdir())


def test_a_clip_of_an_unwanted_type_is_explained(typed: Made, curate: Curate) -> None:
    """Pins the type, and that each of both remedies is enough; a sure one has only one."""
    finished = open_finished(str(typed.out))
    for number, n_remedies in ((0, 1), (2, 2)):
        text = curate("explain", typed.out, typed.ids[number])
        assert f"content type: crowd ({1 - number / 10:.3g})" in text
        assert "rejected: content_type_unwanted" in text
        found = remedies(text)
        assert len(found) == n_remedies
        index = finished.clips["clip_id"].to_pylist().index(typed.ids[number])
        for lines in found:
            changes = [shlex.split(line)[1] for line in lines]
            assert tune(finished, changes).then[index] is None


def test_content_types_can_be_tuned(typed: Made, made: Made, curate: Curate) -> None:
    """Pins another bound and other types, a wrong name, and a run that has no types."""
    text = curate("tune", typed.out, "semantic.reject_from=0.95")
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["content_type_unwanted"][1:3] == ["6", "1"]
    text = curate("tune", typed.out, "semantic.reject=[aerial]")
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["content_type_unwanted"][1:3] == ["6", "10"]
    for out, change, message in (
        (typed.out, "semantic.reject=[aerail]", "did you mean 'aerial'"),
        (typed.out, "semantic.content=false", "can be tried"),
        (made.out, "semantic.reject=[aerial]", "set analyze.clip"),
        (made.out, "select.by=[content_type]", "set analyze.clip"),
    ):
        assert message in curate("tune", out, change, code=EXIT_USAGE)


def test_the_page_shows_clips_on_either_side_with_pictures(
    made: Made, tmp_path: Path, curate: Curate
) -> None:
    """Pins order along the score, the pictures, and that nothing outside is referred to."""
    html = tmp_path / "page.html"
    text = curate("tune", made.out, "motion.min=3", "--html", html)
    assert str(html) in text
    page = html.read_text()
    seen = Page(page)
    assert len(seen.attributes("src")) >= 14
    assert "http://" not in page
    assert "<script" not in page
    assert seen.text.index("below 3") < seen.text.index("1 < 3") < seen.text.index("2 < 3")
    assert seen.text.index("2 < 3") < seen.text.index("from 3") < seen.text.index("3 = bound")
    assert "motion_too_low → kept" in seen.text
    assert curate(
        "tune", made.out, "motion.min=3", "--html", tmp_path / "no" / "p", code=EXIT_USAGE
    )


def test_a_run_whose_candidates_are_gone_names_the_remedy(tmp_path: Path, curate: Curate) -> None:
    out = tmp_path / "out"
    made_out(out, candidates_table(N, motion=[float(n) for n in range(N)]), Recipe())
    shutil.rmtree(out / "candidates")
    text = curate("tune", out, "motion.min=3.5", code=EXIT_USAGE)
    assert "candidates lacks clips of the snapshot; `curate run` makes" in text


@pytest.mark.long
def test_an_output_on_s3_is_read_the_same_way(
    s3_bucket: str, tmp_path: Path, curate: Curate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Pins both commands on s3://, where the page goes into the current folder."""
    monkeypatch.chdir(tmp_path)
    uri = f"s3://{s3_bucket}/out"
    clips = candidates_table(N, motion=[float(n) for n in range(N)])
    made_out(uri, clips, Recipe.model_validate({"filters": {"motion": {"min": 5.5}}}))
    assert "motion_too_low" in curate("explain", uri, clips["clip_id"][0].as_py())
    assert "kept -> rejected  2" in curate("tune", uri, "motion.min=7.5")
    assert Page((tmp_path / "tune.html").read_text()).attributes("src")


def test_times_have_fractions_of_a_second() -> None:
    times = {0: "0 s", 3.2: "3.2 s", 7.958: "7.96 s", 59.996: "0:01:00", 3750.5: "1:02:30.5"}
    assert {seconds: moment(seconds) for seconds in times} == times
