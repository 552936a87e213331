"""Generations: commits that come early, tars of one generation, and growth that adds."""

import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import made_corpus
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from place import SMALL, write_films

from curator.cli import main
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.pipeline import graph_of
from curator.recipe import Recipe, load_recipe
from curator.run_config import RunConfig
from curator.runs.curation import Run
from curator.runs.generations import Generations, decided_with, numbered
from curator.runs.measuring import Ahead
from curator.runs.run_context import RunLog
from curator.storage import open_store
from curator.tables.checksums import read_parquet
from curator.tables.snapshot_store import archived, read_snapshot, snapshot_numbers
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.review.bound_tuning import tune
from curator.tools.review.clip_explanation import explain
from curator.tools.review.finished_run import open_finished

N = 4000
N_SOURCES = N // made_corpus.PER_SOURCE
HOURS = 250 / 3600
"""Length of each source."""
RULES = [*made_corpus.SETTINGS, "shard.max_bytes=65536"]


def recipe(mode: str, *settings: str, n_per_generation: int = 20) -> Recipe:
    hours = n_per_generation * HOURS
    own = [f"run.mode={mode}", f"run.generation_hours={hours}"]
    return made_corpus.recipe_of([*RULES, *own, *settings])


def run(out: Path, made: Recipe, n_sources: int = N_SOURCES) -> dict[str, Any]:
    return made_corpus.execute(out, made, n_sources)


def table(out: Path, name: str, summary: Mapping[str, Any]) -> pa.Table:
    store = open_store(str(out))
    return pa.concat_tables([read_parquet(store, part) for part in summary["tables"][name]])


def snapshots(out: Path) -> list[dict[str, Any]]:
    store = open_store(str(out))
    return [read_snapshot(store, number) for number in snapshot_numbers(store)]


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def decisions(clips: pa.Table) -> dict[str, Any]:
    names = ("clip_id", "decision", "reason", "reason_threshold", "duplicate_of")
    rows = zip(*(clips[name].to_pylist() for name in names), strict=True)
    return {row[0]: row[1:] for row in rows}


def generations(out: Path, summary: Mapping[str, Any]) -> dict[str, int]:
    sources = table(out, "sources", summary)
    return dict(
        zip(sources["source_id"].to_pylist(), sources["generation"].to_pylist(), strict=True)
    )


def by_tar(out: Path, summary: Mapping[str, Any]) -> dict[str, set[int]]:
    """Generations of the clips of each tar."""
    number, clips = generations(out, summary), table(out, "clips", summary)
    found: dict[str, set[int]] = {}
    for tar, source in zip(clips["shard"].to_pylist(), clips["source_id"].to_pylist(), strict=True):
        if tar is not None:
            found.setdefault(tar, set()).add(number[source])
    return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Candidates without decisions; not to be changed."""
    out = tmp_path_factory.mktemp("stored") / "out"
    made_corpus.make(out, N, recipe("exact"), per_part=1000)
    return out


@pytest.fixture(scope="module")
def exact(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = made_corpus.copied(stored, tmp_path_factory.mktemp("exact") / "out")
    run(out, recipe("exact"))
    return out


@pytest.fixture(scope="module")
def growing(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grown by two runs, so that the sources of later generations come between earlier ones."""
    out = made_corpus.copied(stored, tmp_path_factory.mktemp("growing") / "out")
    run(out, recipe("growing"), n_sources=N_SOURCES // 2)
    run(out, recipe("growing"))
    return out


def test_exact_generations_decide_as_one_run_over_everything(
    stored: Path, exact: Path, tmp_path: Path
) -> None:
    """Pins decisions, bounds by quantile and counts of several generations against those of one."""
    out = made_corpus.copied(stored, tmp_path / "out")
    whole = run(out, recipe("exact", n_per_generation=1000))
    first, *_, last = snapshots(exact)
    assert len(snapshots(out)) == 1
    assert first["counts"]["sources"] == 20
    assert 0 < first["counts"]["kept"] < last["counts"]["kept"]
    assert decisions(table(exact, "clips", last)) == decisions(table(out, "clips", whole))
    assert (last["counts"], last["rules"], last["kept_s"]) == (
        whole["counts"], whole["rules"], whole["kept_s"],
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["exact", pytest.param("growing", marks=pytest.mark.long)])
def test_tars_hold_clips_of_one_generation(mode: str, request: pytest.FixtureRequest) -> None:
    out = request.getfixturevalue(mode)
    found = by_tar(out, snapshots(out)[-1])
    assert {len(numbers) for numbers in found.values()} == {1}
    assert len({number for numbers in found.values() for number in numbers}) >= 3


@pytest.mark.long
def test_growing_generations_leave_earlier_clips_as_they_are(growing: Path) -> None:
    """Pins that each commit adds, and that bounds and kept clips of the first one stay."""
    found = snapshots(growing)
    assert set(summary_of(growing)["decided_with"]) == {
        "fingerprint",
        "bounds",
        "taken",
        "generation",
    }
    assert [one["counts"]["sources"] for one in found] == [20, 40, 60, 80]
    for before, after in itertools.pairwise(found):
        for name in ("clips", "shots", "embeddings"):
            n_parts = len(before["tables"][name])
            assert after["tables"][name][:n_parts] == before["tables"][name]
        assert {s["name"] for s in before["shards"]} < {s["name"] for s in after["shards"]}
        assert after["decided_with"]["bounds"] == before["decided_with"]["bounds"] != {}
    clips, number = table(growing, "clips", found[-1]), generations(growing, found[-1])
    source_of = dict(zip(clips["clip_id"].to_pylist(), clips["source_id"].to_pylist(), strict=True))
    copies = clips.filter(pc.is_valid(clips["duplicate_of"]))
    kept = set(clips.filter(pc.equal(clips["decision"], "kept"))["clip_id"].to_pylist())
    pairs = [
        (number[source], number[source_of[other]])
        for source, other in zip(
            copies["source_id"].to_pylist(), copies["duplicate_of"].to_pylist(), strict=True
        )
    ]
    # A clip may turn out later to be one that cannot be cut.
    uncut = clips.filter(pc.equal(clips["reason"], "cut_failed"))["clip_id"].to_pylist()
    assert set(copies["duplicate_of"].to_pylist()) <= kept.union(uncut)
    assert all(later >= earlier for later, earlier in pairs)
    assert any(later > earlier for later, earlier in pairs)
    counts = found[-1]["counts"]
    assert counts["clips"] == len(clips) == N
    assert counts["kept"] == len(kept)
    assert found[-1]["kept_s"] > found[0]["kept_s"]
    assert len(table(growing, "embeddings", found[-1])) == N
    sources = table(growing, "sources", found[-1])
    assert pc.sum(sources["n_kept"]).as_py() == len(kept)
    assert pc.sum(sources["n_clips"]).as_py() == N


@pytest.mark.long
def test_clips_of_all_generations_are_explained_by_the_bounds_that_they_were_held_to(
    growing: Path,
) -> None:
    """Pins that generations are put in one order, and that each table has the frozen number."""
    finished = open_finished(str(growing))
    low, _ = finished.summary["decided_with"]["bounds"]["sharpness"]
    low_clips = finished.clips.filter(pc.equal(finished.clips["reason"], "sharpness_too_low"))
    assert len(low_clips)
    for clip_id in (low_clips["clip_id"][0].as_py(), low_clips["clip_id"][-1].as_py()):
        words = explain(finished, clip_id)
        assert re.search(rf"sharpness +\S+ +min {low:.4g} .*rejects: sharpness_too_low", words)
    tuned = tune(finished, ["motion.min=0.05"], rules_only=True)
    assert len(tuned.then) == N


@pytest.mark.long
def test_new_sources_read_no_clips_of_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins what a run that adds sources reads: no candidates, shots or tars of others."""
    out, made = tmp_path / "out", recipe("growing")
    made_corpus.make(out, N, made, per_part=4 * made_corpus.PER_SOURCE)
    before = run(out, made, n_sources=N_SOURCES - 4)
    read: set[str] = set()
    kind = type(open_store(str(out)))
    for name in ("read", "open", "read_range"):
        whole = getattr(kind, name)

        def noted(self: Any, key: str, *rest: Any, _whole: Any = whole) -> Any:  # noqa: ANN401
            read.add(key)
            return _whole(self, key, *rest)

        monkeypatch.setattr(kind, name, noted)
    after = run(out, made)
    assert after["counts"]["sources"] == before["counts"]["sources"] + 4
    assert {s["name"] for s in before["shards"]} < {s["name"] for s in after["shards"]}
    # Which sources a part of candidates has must be looked at.
    clips = {name for name in read if re.match("candidates/(?!sources/)", name)}
    assert set(Counter(name.split("/")[1] for name in clips).values()) == {1}
    past = {s["name"] for s in before["shards"]} | set(before["tables"]["shots"])
    assert not read & past


def test_progress_counts_the_generations_that_have_sources() -> None:
    """Numbers have gaps where sources are gone; a pass without new sources has no generation."""
    found = Generations(earlier=(1, 3), new=(4,))
    assert [found.place(number) for number in (1, 3, 4)] == [(1, 3), (2, 3), (3, 3)]
    assert Generations(earlier=(1, 2), new=()).place(3) == (1, 1)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ("caption.embedding=all-minilm-l6-v2", True),
        ("caption.enabled=false", True),
        ("dedup.min_share=0.5", False),
        ("shard.lengths=[17]", False),
    ],
)
def test_settings_that_recaption_changes_are_no_reason_to_decide_again(
    change: str, is_same: bool
) -> None:
    """Pins it also for the annotators of captions, which such a setting adds to the graph."""

    def decided_by(*changes: str) -> str:
        recipe = load_recipe("quickstart", changes)
        graph = graph_of(recipe)
        fingerprints = {stage.name: str(stage.config) for stage in graph}
        value: str = decided_with(recipe, graph, fingerprints, (), pa.schema([]))["fingerprint"]
        return value

    assert (decided_by(change) == decided_by()) == is_same


def test_a_run_that_adds_nothing_leaves_snapshot_and_report(
    growing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(_: Progress, number: int, last: int) -> None:
        assert number <= last

    monkeypatch.setattr(Progress, "generation", counted)
    before, page = snapshots(growing), growing / "report/index.html"
    shown = page.read_bytes()
    assert b"scores are from the last generation" in shown
    run(growing, recipe("growing"))
    assert snapshots(growing) == before
    assert page.read_bytes() == shown
    page.unlink()
    run(growing, recipe("growing"))
    assert b"No clip was added" in page.read_bytes()


@pytest.mark.long
def test_another_bound_decides_about_all_generations_and_commits_once(
    growing: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that no snapshot is smaller while a changed recipe is applied to all generations."""
    n_before, before = len(snapshots(growing)), summary_of(growing)
    named = sorted(before["tables"]["clips"])
    listed: list[list[str]] = []

    def stage(_: str) -> None:
        listed.append(sorted(f"clips/{path.name}" for path in (growing / "clips").iterdir()))

    made = recipe("growing", "filters.motion.min=0.05")
    summary = made_corpus.execute(growing, made, N_SOURCES, stage=stage)
    assert all(names == named for names in listed), "readers of the folder see no clip twice"
    assert any("decided about again: the recipe" in message for message in caplog.messages)
    assert summary["tables"] == summary_of(growing)["tables"]
    assert set(summary["tables"]["clips"]) == {f"clips/{p.name}" for p in growing.glob("clips/*")}
    # Vectors of all clips do not depend on bounds.
    assert summary["tables"]["embeddings"] == before["tables"]["embeddings"]
    found = snapshots(growing)
    assert len(found) == n_before + 1
    assert summary["counts"]["clips"] == N
    assert 0 < summary["counts"]["kept"] < found[-2]["counts"]["kept"]
    old, new = ({s["name"] for s in one["shards"]} for one in found[-2:])
    there = {info.key for info in open_store(str(growing)).list("shards/")}
    assert old | new <= there
    assert {len(numbers) for numbers in by_tar(growing, found[-1]).values()} == {1}


@pytest.mark.long
def test_other_metadata_of_an_earlier_source_decides_again(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no clip keeps a value that its source has no more."""
    out, made = made_corpus.copied(stored, tmp_path / "out"), recipe("growing")
    made_corpus.execute(out, made, 20, meta=True)
    monkeypatch.setattr(made_corpus, "CAMERAS", ("a", "b", "mended", None))
    made_corpus.execute(out, made, 40, meta=True)
    cameras = table(out, "clips", summary_of(out))["meta.camera"]
    assert set(cameras.to_pylist()) == {"a", "b", "mended", None}
    n_before = len(snapshots(out))
    made_corpus.execute(out, made, 40, meta=True)
    assert len(snapshots(out)) == n_before


def test_exact_and_growing_can_follow_each_other(exact: Path) -> None:
    """Pins that what `exact` decided is current in `growing` mode, and the other way round."""
    before = snapshots(exact)[-1]
    summary = run(exact, recipe("growing"))
    assert summary["shards"] == before["shards"]
    assert archived(summary)["tables"] == before["tables"]
    again = run(exact, recipe("exact"))
    assert (again["counts"], again["shards"]) == (before["counts"], before["shards"])


def contents(*seconds: float, first: int = 0) -> pa.Table:
    ids = [f"{number:04}" for number in range(first, first + len(seconds))]
    return pa.table({"source_id": ids, "seconds": pa.array(seconds, pa.float64())})


def numbers(found: pa.Table) -> list[int]:
    listed: list[int] = found["generation"].to_pylist()
    return listed


NONE = pa.table({"source_id": pa.array([], pa.string()), "generation": pa.array([], pa.int32())})
HOUR = 3600.0


def test_contents_get_numbers_by_length_and_keep_those_that_they_had() -> None:
    growing = RunConfig(generation_hours=2, mode="growing")
    assert numbers(numbered(contents(HOUR, HOUR / 2), NONE, growing)) == [1, 1]
    assert numbers(numbered(contents(*[HOUR] * 7), NONE, growing)) == [1, 1, 2, 2, 3, 3, 4]
    # A short rest joins the last one.
    assert numbers(numbered(contents(*[HOUR] * 5, HOUR / 2), NONE, growing)) == [1, 1, 2, 2, 3, 3]
    assert numbers(numbered(contents(HOUR).slice(1), NONE, growing)) == []
    # A group is in one generation, at the place of its first content.
    groups = pa.array([None, "a", None, "b", "a", None, "b"])
    found = numbered(contents(*[HOUR] * 7).append_column("group", groups), NONE, growing)
    assert numbers(found) == [1, 1, 2, 2, 1, 3, 2]
    # Exact generations are at least as long as all before.
    found = numbers(numbered(contents(*[HOUR] * 16), NONE, RunConfig(generation_hours=1)))
    assert [found.count(number) for number in sorted(set(found))] == [1, 1, 2, 4, 8]
    # New sources fill the last exact generation, and begin a growing one.
    known = numbered(contents(HOUR, HOUR), NONE, RunConfig(generation_hours=10))
    more = contents(*[HOUR] * 3)
    assert numbers(numbered(more, known, RunConfig(generation_hours=10))) == [1, 1, 1]
    growing = RunConfig(generation_hours=10, mode="growing")
    assert numbers(numbered(more, known, growing)) == [1, 1, 2]
    # A run that broke off makes the same ones again.
    made = RunConfig(generation_hours=2)
    whole = numbered(contents(*[HOUR] * 12), NONE, made)
    first = whole.filter(pc.equal(whole["generation"], 1))
    assert numbered(contents(*[HOUR] * 12), first, made) == whole


@pytest.mark.long
def test_the_next_generation_is_analyzed_while_this_one_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that work ahead is found by the next pass, counted once, and cleaned up in the end."""
    write_films(tmp_path / "in", (75, 75, 75))
    settings = ["run.mode=growing", "run.generation_hours=0.0008", "dedup.enabled=false", *SMALL]
    found: list[tuple[str, int]] = []
    join = Ahead.join

    def joined(self: Ahead, log: RunLog) -> None:
        before = log.counts["sources_analyzed"]
        # The commit before it has removed what was cut.
        assert not list((tmp_path / "out").glob("cuts/*"))
        join(self, log)
        found.append(("ahead", log.counts["sources_analyzed"] - before))

    monkeypatch.setattr(Ahead, "join", joined)
    out = tmp_path / "out"
    with Progress(io.StringIO(), live=False) as progress, Engine(address=None, workers=1) as engine:
        made = Run(open_store(str(out)), load_recipe("quickstart", settings), engine, progress)
        summary = made.execute([str(tmp_path / "in")], limit=None)
    assert found == [("ahead", 1), ("ahead", 1)]
    assert summary["work"]["sources_analyzed"] == summary["counts"]["done"] == 3
    assert summary["counts"]["kept"] == 3
    assert [one["counts"]["sources"] for one in snapshots(out)] == [1, 2, 3]
    assert not list(out.glob("cuts/*"))
    assert main(["verify", str(out)]) == EXIT_OK
