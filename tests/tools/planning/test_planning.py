"""Plans: which sources are sampled, what is made of them, and on which machines."""

from pathlib import Path

import numpy as np
import pytest

from curator.cli import main
from curator.errors import UsageError
from curator.executor.engine import Engine
from curator.executor.progress import Expected, ProgressStep
from curator.recipe import load_recipe
from curator.records.sources import SourceRef
from curator.runs.progress_report import expected_of, read_plan, write_plan
from curator.storage import open_store
from curator.tools.planning import extrapolation
from curator.tools.planning.extrapolation import Extrapolation, choose_sample
from curator.tools.planning.planner import MachineKind, Planner, SampleRun, cost, read_machines
from curator.tools.report.funnel import course_words

ENGINE = Engine(address=None, workers=None)


def source(number: int, seconds: float = 20.0, codec: str = "h264") -> SourceRef:
    return SourceRef(
        uri=f"/films/{number:04}.mp4", n_bytes=int(1e5 * seconds), version="1",
        source_id=f"{number:032x}", header_duration_s=seconds, header_n_frames=int(30 * seconds),
        n_pixels=640 * 360, codec=codec, width=640, height=360,
    )  # fmt: skip


def test_sample_has_its_share_of_each_stratum_and_is_repeatable() -> None:
    sources = [source(n, codec="hevc" if n % 4 == 0 else "h264") for n in range(200)]
    sample = choose_sample(sources, 800.0, 0)
    assert sample.share == pytest.approx(0.2, abs=0.01)
    assert sum(sample.sources[n].codec == "hevc" for n in sample.chosen) == 10
    assert sample.uris == choose_sample(sources[::-1], 800.0, 0).uris
    assert sample.uris != choose_sample(sources, 800.0, 1).uris
    assert choose_sample(sources, None, 0).share == pytest.approx(0.15, abs=0.01)
    assert choose_sample(sources[:3], None, 0).share == pytest.approx(1 / 3)
    many = choose_sample([source(n) for n in range(1000)], None, 0)
    assert many.share == pytest.approx(1200 / 20_000, abs=0.01)


def test_intervals_hold_for_costs_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that nine in ten hold: of sources that differ, sampled one in five."""
    monkeypatch.setattr(extrapolation, "DRAWS", 1)
    chance = np.random.default_rng(0)
    held = np.zeros(2)
    for _ in range(100):
        sources = [source(n, float(chance.uniform(10, 200))) for n in range(100)]
        sample = choose_sample(sources, 2000.0, int(chance.integers(1 << 30)))
        model = Extrapolation(sample)
        seconds = np.array([s.header_duration_s for s in sample.sources])
        costs = 0.2 * seconds * chance.lognormal(0, 0.3, 100)
        counts = chance.poisson(0.1 * seconds * chance.gamma(4, 0.25, 100)).astype(float)
        for at, (whole, is_count) in enumerate(((costs, False), (counts, True))):
            value, deviation = model.total(
                whole[sample.chosen], model.seconds, differs=0.3, is_count=is_count
            )
            held[at] += abs(value - whole.sum()) <= deviation
    assert (held / 100 > 0.82).all()
    assert (held / 100 < 0.98).all()


def made_planner(n_sampled: int = 5, n_sources: int = 10, reused_s: float = 0.0) -> Planner:
    """Each sampled source took 3 CPU-seconds, and has a clip that stays and one that does not."""
    sample = choose_sample([source(n) for n in range(n_sources)], 20.0 * n_sampled, 0)
    rows = [
        {
            "clip_id": f"{uri}{kept}", "source_uri": uri, "decision": kept, "reason": None,
            "duplicate_of": None, "start_s": 0.0, "end_s": 4.0, "n_frames": 120, "width": 640,
            "height": 360, "cut_mode": "encode", "mp4_bytes": 1000,
        }
        for uri in sample.uris
        for kept in ("kept", "rejected")
    ]  # fmt: skip
    summary = {
        "cpu_seconds": {
            "decode": 1.0 * n_sampled, "shot_network": 2.0 * n_sampled, "start_up": 2.0,
            "cut": 1.0 * n_sampled, "driver": 3.0, "engine": 0.0, "total": 4.0 * n_sampled + 5.0,
        },
        "recipe": {"cut": {"mode": "encode"}},
        "cut": {"encode_worker_s": 5.0, "copy_worker_s": 0.0},
        "stage_seconds": {"list": 0.1, "scan": 1.0, "analyze": 17.0, "filter": 1.0, "cut": 5.0},
    }  # fmt: skip
    units = [((uri,), {"decode": 1.0, "shot_network": 2.0, "start_up": 0.4}) for uri in sample.uris]
    run = SampleRun(
        summary=summary,
        wall_s=26.1,
        units=units,
        clips=rows,
        objects=[1000] * 40,
        reused_s=reused_s,
    )
    return Planner(sample, run)


def test_plan_is_the_sample_times_its_share_and_what_is_the_same_for_any_number() -> None:
    recipe = load_recipe("quickstart", ["dedup.enabled=false"])
    kind = MachineKind(name="eight", cpus=8, price_per_hour=2.0)
    plan = made_planner().plan(recipe, [kind], ENGINE, is_small=False)
    parts = plan["cpu_s_by_part"]
    names = ("decode", "shot_network", "cut", "start_up")
    assert [parts[name] for name in names] == [10, 20, 10, 2]
    assert plan["cpu_s"]["value"] == pytest.approx(10 + 20 + 10 + 2 + 3 + 0.02 * 10, abs=0.01)
    assert plan["clips"]["value"] == plan["candidates"]["value"] / 2 == 10
    assert plan["clips"]["low"] < 10 < plan["clips"]["high"]
    assert plan["kept_s"]["value"] == 40
    assert plan["stage_s"]["analyze"] == pytest.approx(17 * 32 / 17)
    assert plan["stage_s"]["cut"] == 10
    assert plan["s3"]["bytes_to"] == 80_000
    (row,) = plan["machines"]
    assert row["hours"]["value"] == pytest.approx((plan["cpu_s"]["value"] / (8 * 0.9) + 3.2) / 3600)
    assert row["money"]["value"] == pytest.approx(2 * row["hours"]["value"])
    assert plan["assumptions"] == plan["fit"] == []
    assert made_planner().plan(recipe, [], ENGINE, is_small=True)["cpu_s"] == plan["cpu_s"]
    whole = made_planner(10, 10).plan(recipe, [], ENGINE, is_small=False)
    assert whole["clips"] == {"value": 10, "low": 10, "high": 10}, "none of it is uncertain"
    many = made_planner(5, 500).plan(recipe, [], ENGINE, is_small=True)["cpu_s_by_part"]
    assert (many["start_up"], many["engine"]) == (5, 2)


def test_gpu_hours_are_the_time_for_which_workers_hold_gpus() -> None:
    planner = made_planner()
    planner._summary |= {  # type: ignore[operator]
        "cluster": {"workers": {"analyze on a GPU": {"gpus": 0.25}, "cut": {"gpus": 0.0}}},
        "unit_times": [{"stage": "analyze", "busy_s": 8.0}, {"stage": "cut", "busy_s": 9}],
    }
    plan = planner.plan(load_recipe("quickstart"), [], ENGINE, is_small=False)
    assert plan["gpu_s"] == pytest.approx(0.25 * 8 / 0.5)


def test_machines_without_enough_memory_or_a_gpu_are_told() -> None:
    plan = made_planner().plan(load_recipe("quickstart"), [], ENGINE, is_small=False) | {
        "driver_bytes": 10**9
    }
    plan["worker_bytes"] = 2 * 10**9
    assert "memory" in cost(MachineKind(name="tiny", cpus=4, memory_gb=2), plan)["problem"]
    assert cost(MachineKind(name="small", cpus=4, memory_gb=6), plan)["workers"] == 2
    assert "GPU" in cost(MachineKind(name="small", cpus=4), plan | {"gpu_s": 9.0})["problem"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {name: a, cpu: 8}", "machine 1: cpu: unknown key 'cpu'; did you mean 'cpus'?"),
        ("- {name: a}", "machine 1: cpus: missing; expected a number"),
        ("- {name: a, cpus: 8, price: 1}", "unknown key 'price'; did you mean 'price_per_"),
        ("- {name: a, cpus: 0}", "machine 1: cpus: expected a number greater than 0; got 0"),
        ("name: a", "expected a list of machines"),
        ("- [", "cannot be read"),
    ],
)
def test_machine_file_errors_name_machine_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"machines\.yaml") as error:
        read_machines(str(path))
    assert message in str(error.value)


def test_plan_refuses_no_source_and_an_unknown_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["plan", str(tmp_path / "none"), out]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["plan", str(tmp_path), out, "--recipe", "quickstrat"]) == 2
    assert "quickstart" in capsys.readouterr().err


def test_run_takes_the_plan_of_its_own_recipe_alone(tmp_path: Path) -> None:
    store, recipe = open_store(str(tmp_path)), load_recipe("quickstart")
    assert read_plan(store, recipe) == {}
    plan = made_planner().plan(recipe, [], ENGINE, is_small=False)
    write_plan(store, plan, recipe)
    assert read_plan(store, recipe).items() > plan.items()
    assert read_plan(store, load_recipe("quickstart", ["propose.max_s=5"])) == {}
    steps = [ProgressStep(name="analyze", time_share=5.0), ProgressStep(name="commit")]
    assert expected_of(plan, {}, steps).is_planned
    analyze_s = plan["stage_s"]["analyze"]
    assert expected_of(plan, {}, steps).seconds["analyze"] == analyze_s
    reusing = made_planner(reused_s=15.0).plan(recipe, [], ENGINE, is_small=False)
    assert expected_of(reusing, {}, steps).seconds["analyze"] == pytest.approx(analyze_s / 2)
    words = course_words({"plan": reusing, "cpu_seconds": {"total": 45.0}})
    assert "took 1.0 min" in words, "with what the plan did"
    assert expected_of({}, {}, steps) == Expected(seconds={"analyze": 5.0}, is_typical=True)
    previous = {"work": {"sources_analyzed": 3}, "stage_seconds": {"analyze": 7.0}}
    assert expected_of(plan, previous, steps) == Expected(seconds={"analyze": 7.0})
    (tmp_path / "plan.json").write_text("{")
    assert read_plan(store, recipe) == {}
