"""Rules on columns of annotators: which clips they reject, and what later runs compute again."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captioned import work_here
from place import QVGA, SHORT, Place, write_films

from curator.cli import main
from curator.errors import RecipeError
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.report.funnel import funnel_steps
from curator.tools.review.finished_run import open_finished
from curator.tools.view.live_funnel import KEPT, LiveFunnel

EXAMPLES = Path(__file__).parents[2] / "examples"
LIGHT = "stages=[light_columns:LightColumns]"


class Annotated(Place):
    """Three films of a clip each."""

    settings = (*SHORT, "shard.lengths=[17]", "shard.val_share=0")

    def by_brightness(self) -> list[dict[str, Any]]:
        """The rows of `clips`, the darkest first."""
        return sorted(self.table("clips"), key=lambda row: row["brightness"])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Annotators work in this process, from a folder of their own."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("light_columns.py", "mean_latents.py"):
        shutil.copy(EXAMPLES / name, folder / name)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    work_here(monkeypatch)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Annotated:
    """A run without annotators; not to be changed."""
    folder = tmp_path_factory.mktemp("ruled")
    place = Annotated(write_films(folder / "in", (60, 60, 60), fps=30, **QVGA), folder / "out")
    place.run()
    return place


@pytest.fixture
def place(finished: Annotated, tmp_path: Path) -> Annotated:
    """A copy of the finished run: analyzed and cut."""
    return finished.copy(tmp_path)


def test_a_rule_on_a_column_rejects_and_other_bounds_compute_nothing(
    place: Annotated, capsys: pytest.CaptureFixture[str]
) -> None:
    place.run(LIGHT)
    values = [row["brightness"] for row in place.by_brightness()]
    between = (values[0] + values[1]) / 2
    place.run(LIGHT, f"filters.brightness.min={between}")
    rows = place.by_brightness()
    assert [row["reason"] for row in rows] == ["brightness_too_low", None, None]
    for _ in range(2):
        again = place.run(LIGHT, f"filters.brightness.min={between}")
        assert again["work"]["clips_cut"] == again["work"].get("light_made", 0) == 0
    looser = place.run(LIGHT, f"filters.brightness.min={values[0] / 2}")
    assert looser["work"]["clips_cut"] == looser["work"].get("light_made", 0) == 0
    assert looser["counts"]["kept"] == 3
    assert main(["verify", str(place.out)]) == EXIT_OK, capsys.readouterr().out


@pytest.mark.long
def test_explain_tune_and_recaption_see_the_columns_of_written_clips(
    place: Annotated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins also that the setting which `explain` names keeps the clip."""
    place.run(LIGHT)
    first, second, third = (row["brightness"] for row in place.by_brightness())
    between = f"filters.brightness.min={(first + second) / 2}"
    place.run(LIGHT, between)
    dark, light, _ = place.by_brightness()
    capsys.readouterr()
    assert main(["explain", str(place.out), light["clip_id"]]) == EXIT_OK
    assert re.search(r"^brightness +0\.\d+ +min 0\.\d+ +ok$", capsys.readouterr().out, re.M)
    assert main(["explain", str(place.out), dark["clip_id"]]) == EXIT_OK
    told = capsys.readouterr().out
    assert "rejected: brightness_too_low (" in told
    assert re.search(r"^brightness .* rejects: brightness_too_low$", told, re.M)
    (remedy,) = re.findall(r"^  --set (filters.brightness.min=\S+)$", told, re.M)
    assert "Not tried" not in told

    for rules in ([], ["--rules-only"]):
        assert main(["tune", str(place.out), f"brightness.min={third}", *rules]) == EXIT_OK
        told = capsys.readouterr().out
        assert "kept -> rejected  1  as 1 brightness_too_low" in told
        assert main(["tune", str(place.out), "brightness.min=0", *rules]) == EXIT_OK
        told = capsys.readouterr().out
        assert "rejected -> kept  1  were 1 brightness_too_low" in told
        assert "newly be kept" not in told, "the clip is written and annotated"

    funnel = LiveFunnel(open_finished(str(place.out)))
    for bound, kept in ((0, 3), (third, 1), (1, 0)):
        codes = funnel.decide([f"brightness.min={bound}"]).codes
        assert (codes == KEPT).sum() == kept

    assert main(["recaption", str(place.out), "--set", "caption.enabled=false"]) == EXIT_OK
    assert place.by_brightness()[0]["brightness"] == first
    (rule,) = (rule for rule in place.summary()["rules"] if rule["rule"] == "brightness")
    assert (rule["first"], rule["any"]) == (1, 1)
    assert place.run(LIGHT, remedy)["counts"]["kept"] == 3
    assert place.summary()["work"]["clips_cut"] == 0


def test_explain_says_that_the_cut_was_not_tried_only_of_clips_that_no_snapshot_wrote(
    place: Annotated, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, *_) = place.table("clips")
    place.run("filters.motion.min=4")
    assert place.summary()["counts"]["kept"] == 0

    def told() -> str:
        capsys.readouterr()
        assert main(["explain", str(place.out), first["clip_id"]]) == EXIT_OK
        return capsys.readouterr().out

    assert "It would be kept by:\n  --set filters.motion.min=" in told()
    assert "Not tried" not in told()
    assert main(["clean", str(place.out), "--keep", "1"]) == EXIT_OK
    assert told().endswith("Not tried: the cut. A run rejects a clip that cannot be written.\n")


def dry_run(place: Annotated, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """The lines of a dry run about rules on columns, empty without any, and about annotators."""
    capsys.readouterr()
    assert place.code(*more, "--dry-run") == EXIT_OK
    told = capsys.readouterr().out
    (line,) = re.findall(r"annotators to compute: (.*)$", told, re.MULTILINE)
    rules = re.findall(r"the rules on columns of annotators, by stored values, (.*)$", told, re.M)
    return "".join(rules), line


BOTH = "stages=[light_columns:LightColumns, mean_latents:MeanLatents]"


def test_a_dry_run_counts_the_values_of_each_annotator(
    place: Annotated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(place, capsys, LIGHT) == (
        "",
        "light_columns of 3 clips; before duplicates and selection",
    )
    bound = "filters.brightness.min=0"
    assert dry_run(place, capsys, LIGHT, bound) == (
        "keep 0; 3 clips without such a value yet",
        "light_columns of 3 clips; before duplicates and selection, and before rules on the "
        "columns to compute",
    )
    place.run(LIGHT)
    assert dry_run(place, capsys, BOTH, bound) == (
        "keep 3; 0 clips without such a value yet",
        "light_columns of 0 clips, mean_latents of 3 clips; before duplicates and selection",
    )
    place.run(BOTH)
    assert dry_run(place, capsys, BOTH, "cut.crf=30", "cut.mode=encode") == (
        "",
        "light_columns of 3 clips, mean_latents of 3 clips; before duplicates and selection",
    )
    empty = replace(place, out=tmp_path / "empty")
    assert dry_run(empty, capsys, BOTH) == (
        "",
        "light_columns, mean_latents, of each clip that is written",
    )


def test_a_dry_run_decides_by_stored_values_as_the_run_does(
    place: Annotated, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins null values, a mark, a rule that flags, and that rejected clips need no later value."""
    place.run("stages=[more:Facts]")
    both = "stages=[more:Facts, more:Latents]"
    for rules, rejected, n_kept in (
        (["filters.n.max=7"], " and reject 2 (1 not_measured, 1 n_too_high)", 1),
        (["filters.n={max: 7, unmeasured: keep}"], " and reject 1 (1 n_too_high)", 2),
        (["filters.n={max: 7, severity: flag}"], "", 3),
        (["filters.n={max: 7, unmeasured: keep}", "filters.kind={one_of: [day]}"],
         " and reject 3 (1 n_too_high, 1 not_measured, 1 kind_unwanted)", 0),
    ):  # fmt: skip
        told, values = dry_run(place, capsys, both, *rules)
        assert told == f"keep {n_kept}{rejected}; 0 clips without such a value yet"
        assert values.startswith(f"facts of 0 clips, mean_latents of {n_kept} clip")
    assert main(["mark", str(place.out), more[1], "--keep"]) == EXIT_OK
    told, _ = dry_run(place, capsys, both, "filters.n.max=7")
    assert told.startswith("keep 2 and reject 1 (1 not_measured); 0 clips")
    summary = place.run(both, "filters.n.max=7")
    assert (summary["counts"]["kept"], summary["work"]["latents_made"]) == (2, 2)


MORE = """
from light_columns import LightColumns
from mean_latents import MeanLatents
from curator.family import Columns, Family, Scope

seen = []

class Facts(LightColumns):
    name, frames, batch = "facts", (), 4
    families = (Family("facts", Scope.CLIP, Columns({"n": "i64", "kind": "text", "ok": "bool"})),)

    def process(self, unit):
        rows = {0: (None, None, None), 1: (2**60, "day", True), 2: (7, "night", False)}
        return [
            dict(zip(("n", "kind", "ok"), rows[ROW[clip.facts.clip_id]])) for clip in unit
        ]

class Latents(MeanLatents):
    def process(self, unit):
        seen.extend(clip.facts.clip_id for clip in unit)
        return super().process(unit)
"""


@pytest.fixture
def more(place: Annotated, here: Path) -> list[str]:
    """Annotators `more:Facts`, with other values for each clip, and `more:Latents`; the ids."""
    ids = [row["clip_id"] for row in place.table("clips")]
    rows = {clip_id: number for number, clip_id in enumerate(ids)}
    (here / "more.py").write_text(MORE.replace("ROW", repr(rows)))
    sys.modules.pop("more", None)
    return ids


def outcomes(place: Annotated, ids: list[str]) -> list[str | None]:
    """The reason against each clip; None for a kept clip."""
    by_id = {row["clip_id"]: row["reason"] for row in place.table("clips")}
    return [by_id[clip_id] for clip_id in ids]


def test_bounds_values_flags_and_marks_act_as_for_scores(
    place: Annotated, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that a null is not measured, and that clips of no value can be kept."""
    facts = "stages=[more:Facts]"
    summary = place.run(facts, "filters.n.max=7")
    assert outcomes(place, more) == ["not_measured", "n_too_high", None]
    rows = {row["clip_id"]: row for row in place.table("clips")}
    high = rows[more[1]]
    assert (high["reason_score"], high["reason_threshold"]) == (2.0**60, 7)
    assert (high["reasons"], high["n"], high["shard"]) == (["n_too_high"], 2**60, None)
    assert summary["counts"]["by_reason"] == {"n_too_high": 1, "not_measured": 1}
    report = (place.out / "report" / "index.html").read_text()
    assert "n above 7" in report
    assert main(["status", str(place.out)]) == EXIT_OK
    assert re.search(r"^  n_too_high +-1  1 left$", capsys.readouterr().out, re.MULTILINE)

    rules = ("filters.wide={score: n, max: 7, unmeasured: keep, severity: flag}",)
    place.run(facts, *rules, "filters.kind={one_of: [day], unmeasured: keep}")
    assert outcomes(place, more) == [None, None, "kind_unwanted"]
    tags = {row["clip_id"]: row["tags"] for row in place.table("clips")}
    assert ["wide" in tags[clip_id] for clip_id in more] == [False, True, False]
    place.run(facts, "filters.ok={none_of: [true]}")
    assert outcomes(place, more) == ["not_measured", "ok_unwanted", None]
    assert main(["mark", str(place.out), more[1], "--keep"]) == EXIT_OK
    place.run(facts, "filters.ok={none_of: [true]}")
    assert outcomes(place, more) == ["not_measured", None, None]
    assert place.summary()["work"]["clips_cut"] == 0
    assert main(["verify", str(place.out)]) == EXIT_OK


@pytest.mark.parametrize(
    ("stages", "rule", "said"),
    [
        ("[]", "brightness.min=1", "filters: unknown score 'brightness'"),
        ("[light_columns:LightColumns]", "brightnes.min=1", "did you mean 'brightness'"),
        ("[light_columns:LightColumns]", "motoin.min=1", "did you mean 'motion'"),
        ("[mean_latents:MeanLatents]", "latents.min=1", "unknown score or column 'latents'"),
        ("[light_columns:LightColumns]", "light.min=1", "'light' is text: set one_of or none_of"),
        ("[light_columns:LightColumns]", "brightness.drop_lowest=0.1", "set min or max"),
        ("[light_columns:LightColumns]", "n_dark={score: light, one_of: [a]}", "rename the rule"),
        ("[]", "caption_clip_score.min=0.2", "unknown score or column 'caption_clip_score'"),
    ],
)
def test_a_rule_that_no_column_fits_is_refused(stages: str, rule: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        graph_of(load_recipe("quickstart", [f"stages={stages}", f"filters.{rule}"]))


class Shown:
    """What the commands of review say about a finished run with a rule on `brightness`."""

    def __init__(self, place: Annotated, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.capsys = place, capsys
        (rule,) = (one for one in place.summary()["rules"] if one["rule"] == "brightness")
        self.rule = rule["min"], rule["first"], rule["alone"], rule["any"]
        self.funnel = [
            (step.reason, step.n_first, step.n_any, step.n_left)
            for step in funnel_steps(place.summary())
            if step.n_first or step.n_any
        ]

    def explained(self, clip_id: str) -> str:
        """The outcome of a clip with its remedy."""
        said = self._said("explain", str(self.place.out), clip_id)
        found = re.findall(r"^(kept|rejected: \w+|  --set .*min=)", said, re.M)
        return ", ".join(line.strip() for line in found)

    def tuned(self, bound: float) -> tuple[int, int]:
        """The numbers of clips that a bound would keep, by `tune` and by the funnel of `view`."""
        told = self._said("tune", str(self.place.out), f"brightness.min={bound}")
        (kept,) = re.findall(r"^kept +\d+ +(\d+)", told, re.M)
        funnel = LiveFunnel(open_finished(str(self.place.out)))
        return int(kept), int((funnel.decide([f"brightness.min={bound}"]).codes == KEPT).sum())

    def _said(self, *command: str) -> str:
        self.capsys.readouterr()
        assert main(list(command)) == EXIT_OK
        return self.capsys.readouterr().out


@pytest.mark.long
def test_clips_that_several_runs_reject_are_shown_and_kept_as_of_one(
    place: Annotated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run rejects another clip, so the parts of rejected clips are of several runs."""
    place.run(LIGHT)
    first, second, third = (row["brightness"] for row in place.by_brightness())
    ids = [row["clip_id"] for row in place.by_brightness()]
    bounds = [(first + second) / 2, (second + third) / 2, third + 1]
    low = "rejected: brightness_too_low, --set filters.brightness.min="
    # Stricter in each run, then looser, and stricter again.
    for n_rejected in (1, 2, 3, 1, 2, 0, 2):
        bound = bounds[n_rejected - 1] if n_rejected else 0.0
        summary = place.run(LIGHT, f"filters.brightness.min={bound}")
        assert summary["work"]["clips_cut"] == summary["work"].get("light_made", 0) == 0
        shown = Shown(place, capsys)
        assert shown.rule == (bound, n_rejected, n_rejected, n_rejected)
        assert shown.funnel == [("brightness_too_low", *[n_rejected] * 2, 3 - n_rejected)] * bool(
            n_rejected
        )
        said = [shown.explained(clip_id) for clip_id in ids]
        assert said == [low] * n_rejected + ["kept"] * (3 - n_rejected)
        for n, other in enumerate([0.0, *bounds]):
            assert shown.tuned(other) == (3 - n, 3 - n)
        assert main(["verify", str(place.out)]) == EXIT_OK, capsys.readouterr().out


@pytest.mark.long
def test_clips_of_sources_that_came_later_are_rejected_beside_earlier_ones(
    place: Annotated, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place.run(LIGHT)
    rows = place.by_brightness()
    between = f"filters.brightness.min={rows[2]['brightness']}"
    listed = tmp_path / "films.txt"
    grown = replace(place, sources=listed, out=place.out.with_name("grown"))
    for n_sources in (1, 2, 3):
        listed.write_text("".join(f"{row['source_uri']}\n" for row in rows[:n_sources]))
        summary = grown.run(LIGHT, between)
        assert summary["counts"]["kept"] == (n_sources == 3)
        assert summary["work"]["clips_cut"] == summary["work"]["light_made"] == 1
    shown = Shown(grown, capsys)
    assert shown.rule[1:] == (2, 2, 2)
    assert [shown.explained(row["clip_id"]).split(",")[0] for row in rows] == [
        *["rejected: brightness_too_low"] * 2, "kept",
    ]  # fmt: skip
    assert shown.tuned(0.0) == (3, 3)
    looser = grown.run(LIGHT)
    assert looser["counts"]["kept"] == 3
    assert looser["work"]["clips_cut"] == looser["work"].get("light_made", 0) == 0
    assert main(["verify", str(grown.out)]) == EXIT_OK, capsys.readouterr().out


@pytest.mark.long
def test_bytes_of_a_rejected_clip_may_be_of_several_runs(
    place: Annotated, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its MP4 is in a part of one run, and its values are in parts of others."""
    both, seen = "stages=[more:Latents, more:Facts]", []
    for stages, rules, reasons in (
        ("stages=[more:Facts]", "filters.n={max: 7, unmeasured: keep}", [None, "n_too_high", None]),
        (both, "filters.n={max: 7, unmeasured: keep}", [None, "n_too_high", None]),
        (both, "filters.kind={one_of: [night]}", ["not_measured", "kind_unwanted", None]),
        (both, "filters.ok={none_of: [false], unmeasured: keep}", [None, None, "ok_unwanted"]),
        (both, "filters.n.max=6", ["not_measured", "n_too_high", "n_too_high"]),
        (both, "filters.n={max: 6, severity: flag}", [None, None, None]),
    ):
        summary = place.run(stages, rules)
        assert outcomes(place, more) == reasons
        assert summary["work"]["clips_cut"] == 0
        seen.append(summary["work"].get("latents_made", 0))
        for clip_id, reason in zip(more, reasons, strict=True):
            capsys.readouterr()
            assert main(["explain", str(place.out), clip_id]) == EXIT_OK
            assert (f"rejected: {reason}" if reason else "kept, in") in capsys.readouterr().out
        assert main(["verify", str(place.out)]) == EXIT_OK, capsys.readouterr().out
    assert seen == [0, 3, 0, 0, 0, 0]


@pytest.mark.long
def test_a_stage_after_the_rule_gets_kept_clips_and_one_before_keeps_its_values(
    place: Annotated, more: list[str]
) -> None:
    after = "stages=[more:Facts, more:Latents]"
    rule = "filters.n={max: 7, unmeasured: keep}"
    place.run(after, rule)
    seen = sys.modules["more"].seen
    assert sorted(seen) == sorted([more[0], more[2]])
    place.run(after)
    assert sorted(seen) == sorted(more), "the clip comes back, and is annotated for the first time"

    before = "stages=[more:Latents, more:Facts]"
    place.run(before, rule)
    ruled = place.run(before, "filters.n.max=7")
    assert ruled["counts"]["kept"] == 1
    kept = {name.split("/")[0] for name in ruled["candidates"]}
    assert {"cuts", "values"} <= kept
    assert main(["verify", str(place.out)]) == EXIT_OK
    sizes = [path.stat().st_size for path in (place.out / "cuts").glob("*.parquet")]
    place.run(before, "filters.n.max=7")
    assert [path.stat().st_size for path in (place.out / "cuts").glob("*.parquet")] == sizes
    looser = place.run(before)
    assert looser["counts"]["kept"] == 3
    assert (looser["work"]["clips_cut"], looser["work"].get("latents_made", 0)) == (0, 0)
    assert sorted(seen) == sorted(more)
    assert main(["clean", str(place.out), "--keep", "1"]) == EXIT_OK
    assert not list((place.out / "cuts").glob("*.parquet"))
    assert main(["verify", str(place.out)]) == EXIT_OK


@pytest.mark.long
def test_remove_takes_out_the_footage_of_clips_that_a_rule_rejected(
    place: Annotated, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins also that the next run cuts the other clip again, whose MP4 was in the same part."""
    stages = "stages=[more:Latents, more:Facts]"
    place.run(stages, "filters.n.max=7")
    assert outcomes(place, more) == ["not_measured", "n_too_high", None]
    named = place.out.parent / "gone.txt"
    named.write_text(more[1])
    assert main(["remove", str(place.out), "--clips", str(named)]) == EXIT_OK
    assert main(["verify", str(place.out), "--removed"]) == EXIT_OK, capsys.readouterr().out
    looser = place.run(stages, "filters.n={max: 7, unmeasured: keep}")
    assert (looser["counts"]["kept"], looser["work"]["clips_cut"]) == (2, 1)
    assert main(["verify", str(place.out), "--removed"]) == EXIT_OK, capsys.readouterr().out


@pytest.mark.parametrize("mode", [pytest.param("growing", marks=pytest.mark.long), "exact"])
def test_generations_keep_what_their_rules_reject(
    place: Annotated, more: list[str], mode: str
) -> None:
    settings = (f"run.mode={mode}", "run.generation_hours=0.0001", "stages=[more:Facts]")
    place = replace(place, out=place.out.with_name(mode))
    place.run(*settings, "filters.n.max=7")
    assert len({row["generation"] for row in place.table("sources")}) == 3
    assert outcomes(place, more) == ["not_measured", "n_too_high", None]
    (rule,) = (rule for rule in place.summary()["rules"] if rule["rule"] == "n")
    assert (rule["first"], rule["any"]) == (2, 2)
    for rules, kept in (
        (["filters.n.max=7"], 1),
        (["filters.n={max: 7, unmeasured: keep}"], 2),
        (["filters.n.max=6"], 0),
        ([], 3),
    ):
        summary = place.run(*settings, *rules)
        assert summary["counts"]["kept"] == kept
        assert summary["work"]["clips_cut"] == summary["work"].get("facts_made", 0) == 0
        assert main(["verify", str(place.out)]) == EXIT_OK
