"""What each stage waits for, by recipe, and whether its results depend on that."""

import pytest

from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.stage import Scope, Wait

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
    words = "on a cluster or a machine with a GPU, clips are cut as they are decided about"
    assert found["cut"].why.endswith(words)
    asks = waits_of("dedup.enabled=false", "select.keep_fraction=null", recipe="cosmos")
    assert words not in asks["cut"].why


def test_answers_that_reject_clips_come_before_the_cut() -> None:
    asked = waits_of(recipe="cosmos")
    assert asked["caption"].on == ""
    assert asked["cut"].on == "the decisions about all clips"
    asked = waits_of("caption.failed=reject", recipe="cosmos")
    assert asked["caption"].on == "the decisions about all clips"
    assert str(asked["cut"]) == "every kept clip to be annotated: answers may reject it"
    assert waits_of()["caption"].on == "every kept clip to be cut"


def test_own_stages_that_reject_clips_get_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("examples")
    found = waits_of(*OFF, "stages=[blocklist:Blocklist]")
    assert found["blocklist"].why == "it gets all kept clips in one table"
    assert found["cut"].why == "blocklist may reject any of them"
