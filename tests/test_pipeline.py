"""The graph of a recipe: its stages, where own ones may stand, fingerprints, and waits."""

import sys
from pathlib import Path

import pytest

from curator.cli import main
from curator.errors import RecipeError
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.stage import Scope, Wait
from curator.stages import OPTIONAL

EXAMPLES = Path(__file__).parents[1] / "examples"
BUILT_IN = [
    "scan", "analyze", "propose", "filter", "dedup", *OPTIONAL, "select", "cameras", "cut",
    "caption", "shard", "commit",
]  # fmt: skip
BLUR = "blur_regions:BlurRegions"
REGIONS = "config: {regions: [[0, 0, 1, 0.5]]}"


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def names(*overrides: str) -> list[str]:
    return [stage.name for stage in graph_of(load_recipe("quickstart", overrides))]


def fingerprints(*overrides: str) -> dict[str, str]:
    return graph_of(load_recipe("quickstart", overrides)).fingerprints()


def test_built_in_and_own_stages_come_in_their_order() -> None:
    assert names() == BUILT_IN
    # Own stages come where the recipe says.
    first = names("stages=[blocklist:Blocklist]")
    assert first[first.index("blocklist") :][:2] == ["blocklist", "select"]
    after = names("stages=[{use: blocklist:Blocklist, after: select}]")
    assert after[after.index("select") :][:3] == ["select", "blocklist", "cameras"]
    blurred = names(f"stages=[{{use: {BLUR}, {REGIONS}}}]")
    assert blurred[blurred.index("select") :][:5] == ["select", "cameras", "blur", "cut", "caption"]
    assert names("stages=[{use: select, before: dedup}]")[3:6] == ["filter", "select", "dedup"]
    moved = names("stages=[blocklist:Blocklist, {use: select, before: dedup}]")
    assert moved[3:7] == ["filter", "blocklist", "select", "dedup"]


def test_a_pass_over_a_snapshot_has_the_stages_from_one_on() -> None:
    """Pins that the pass still knows what changed the pixels of the written clips."""
    own = f"stages=[blocklist:Blocklist, {{use: {BLUR}, {REGIONS}}}]"
    whole = graph_of(load_recipe("quickstart", [own, "shard.embedding=none"]))
    since = whole.from_stage("caption")
    assert [stage.name for stage in since] == ["caption", "shard", "commit"]
    assert since.pixels == whole.pixels != ""
    assert not since.deciding()


def test_steps_and_workers_of_a_run_are_those_of_its_stages() -> None:
    """Pins that stages of one step are one, and that own stages are steps and have workers."""
    plain = graph_of(load_recipe("quickstart"))
    assert [step.name for step in plain.steps()] == [n for n in BUILT_IN if n != "propose"]
    nouns = {step.name: step.noun for step in plain.steps()}
    assert [nouns[name] for name in ("analyze", "caption", "cut")] == ["source", "window", "clip"]
    stages = f"stages=[{{use: {BLUR}, {REGIONS}}}, mean_latents:MeanLatents]"
    own = graph_of(load_recipe("quickstart", [stages]))
    assert [step.name for step in own.steps()][-3:] == ["annotate", "shard", "commit"]
    assert "blur" not in [step.name for step in own.steps()], "it runs within the cut"
    assert {"plan", "sample_frames", "mean_latents"} <= set(own.worker_names())
    assert not {"filter", "commit"} & set(own.worker_names())
    assert own.writer("candidates").name == "propose"
    reasons = {row["name"]: row for row in own.reasons()}
    assert reasons["mean_latents_failed"]["is_failure"]
    assert "80%" in reasons["duplicate"]["words"]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("[nowhere.at_all:Stage]", "cannot be imported"),
        ("[blocklist:Blocklst]", "did you mean 'Blocklist'"),
        ("[blocklist]", "entry point of curate.stages"),
        ("[pathlib:Path]", "neither a PixelStage, a ClipFilter nor an Annotator"),
        ("[{use: blocklist:Blocklist, before: selekt}]", "did you mean 'select'"),
        ("[{use: blocklist:Blocklist, after: cut}]", "expected from filter to cut"),
        (f"[{{use: {BLUR}, {REGIONS}, before: filter}}]", "expected just before cut"),
        (f"[{BLUR}]", "config of 'blur_regions:BlurRegions': regions"),
        ("[{use: dedup, config: {similarity: 0.5}}]", "settings are the section dedup"),
        ("[blocklist:Blocklist, blocklist:Blocklist]", "there is a stage 'blocklist' already"),
        ("[{use: blocklist:Blocklist, before: dedup, after: dedup}]", "set only one"),
    ],
)
def test_a_stage_that_cannot_stand_there_is_refused(stages: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        graph_of(load_recipe("quickstart", [f"stages={stages}"]))


ODD = """
from curator.stage import ClipFilter, StageConfig, StageReason

class Odd(ClipFilter[StageConfig]):
    name, version = "odd", 1

    def process(self, unit):
        return ()

    def reasons(self):
        return {reasons}
"""


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ("1 / 0", r"reasons of 'odd_\d:Odd' fail: ZeroDivisionError"),
        ("['a_text']", "declares the reason 'a_text'; expected a StageReason"),
        ("[StageReason(name='UPPER')]", "declares the reason 'UPPER'; expected each name once"),
        ("[StageReason(name='kept')]", "and not 'kept'"),
        ("[StageReason(name='same')] * 2", "declares the reason 'same'; expected each name once"),
        ("[StageReason(name='long', words='w' * 1001)]", "a text of at most 1000 characters"),
    ],
)
def test_reasons_that_no_table_could_hold_are_refused_before_the_work(
    reasons: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"odd_{len(reasons) % 10}"
    (tmp_path / f"{module}.py").write_text(ODD.replace("{reasons}", reasons))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(RecipeError, match=said):
        graph_of(load_recipe("quickstart", [f"stages=[{module}:Odd]"]))


INCOMPLETE = """
from curator.stage import ClipFilter, CorpusStage, StageConfig

class NoDecide(CorpusStage[StageConfig]):
    name, version = "no_decide", 1

class NoVersion(ClipFilter[StageConfig]):
    name = "no_version"

    def process(self, unit):
        return ()

class TextVersion(NoVersion):
    version = "1"
"""


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("NoDecide", "has no decide; a stage of its kind must"),
        ("NoVersion", "has the version None; expected int, such as version = 1"),
        ("TextVersion", "has the version '1'; expected int"),
    ],
)
def test_an_incomplete_stage_is_refused_with_what_it_lacks(
    stage: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "incomplete.py").write_text(INCOMPLETE)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = load_recipe("quickstart", [f"stages=[incomplete:{stage}]"])
    with pytest.raises(RecipeError, match=said):
        graph_of(recipe)


def test_fingerprints_follow_what_a_stage_depends_on() -> None:
    """Pins that a bound invalidates no track and no clip, and a setting of the cut no track."""
    base, bound = fingerprints(), fingerprints("filters.motion.min=0.5")
    assert {name for name in base if base[name] != bound[name]} == {
        "filter", "dedup", *OPTIONAL, "select", "cameras",
    }  # fmt: skip
    crf = fingerprints("cut.crf=30")
    assert {name for name in base if base[name] != crf[name]} == {"cut"}
    shots = fingerprints("propose.max_s=9")
    assert {name for name in base if base[name] == shots[name]} >= {"scan", "analyze", "cut"}
    assert base["propose"] != shots["propose"]
    assert base["cut"] != fingerprints(f"stages=[{{use: {BLUR}, {REGIONS}}}]")["cut"]


def test_the_graph_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(BUILT_IN) + 1]] == BUILT_IN
    assert [line.split()[0] for line in lines[-len(BUILT_IN) - 4 : -4]] == BUILT_IN
    assert main(["graph", "cosmos", "--format", "mermaid"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("flowchart LR\n")
    assert "analyze -- tracks --> propose" in drawn
    assert 'propose["propose<br/>source, 0.5 CPU, 2 GiB"]' in drawn
    assert '<br/>bounds by quantile (distortion) are of all clips"]]' in drawn


OFF = ("dedup.enabled=false", "caption.enabled=false")


def waits_of(*overrides: str, recipe: str = "quickstart") -> dict[str, Wait]:
    graph = graph_of(load_recipe(recipe, overrides))
    return {wait.stage: wait for wait in graph.waits()}


def needed(found: dict[str, Wait]) -> set[str]:
    return {name for name, wait in found.items() if wait.is_needed}


@pytest.mark.parametrize("recipe", ["quickstart", "cosmos", "driving"])
def test_a_stage_over_the_corpus_waits_or_is_off(recipe: str) -> None:
    found = waits_of(recipe=recipe)
    for stage in graph_of(load_recipe(recipe)).stages:
        if stage.scope is Scope.CORPUS:
            assert found[stage.name].on or found[stage.name].granularity == "off"
    assert found["propose"] == Wait(stage="propose", granularity="source by source")


def test_without_quantiles_and_duplicates_only_the_order_of_a_run_holds_clips_back() -> None:
    found = waits_of(*OFF)
    assert needed(found) == {"analyze", "shard", "commit"}
    assert [found[name].granularity for name in ("dedup", "select", "caption")] == ["off"] * 3
    assert found["filter"].on == "every source to be analyzed"
    for name in ("filter", "cut"):
        assert found[name].why.startswith("only because a run takes stages in turn")
    assert found["shard"].on == "every kept clip to be cut"
    words = "on a cluster or a machine with a GPU, cutting begins before all are decided"
    assert found["cut"].why.endswith(words)
    asks = waits_of("dedup.enabled=false", "select.keep_fraction=null", recipe="cosmos")
    assert words not in asks["cut"].why


def test_stages_that_reject_clips_come_before_the_cut_and_answers_after_it() -> None:
    asked = waits_of(recipe="cosmos")
    assert asked["caption"].on == ""
    assert asked["cut"].on == "the decisions about all clips"
    asked = waits_of("caption.failed=reject", recipe="cosmos")
    assert asked["caption"].on == ""
    assert asked["cut"].on == "the decisions about all clips"
    assert waits_of()["caption"].on == "every kept clip to be cut"
    # Own stages that reject clips get all of them.
    found = waits_of(*OFF, "stages=[blocklist:Blocklist]")
    assert found["blocklist"].why == "it gets all kept clips in one table"
    assert found["cut"].why == "blocklist may reject any of them"
