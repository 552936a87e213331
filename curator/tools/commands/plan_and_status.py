"""`curate plan` and `curate status`: the plan of a run, and its progress."""

import argparse
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from curator.executor.termination import ends_when_asked, ignore_further_interrupts
from curator.number_text import amount, clock, length, share, size
from curator.tools.commands.arguments import (
    OUT,
    SHORTHANDS,
    Result,
    always,
    as_json,
    command,
    engine_of,
    option,
    overrides,
    positive,
)

if TYPE_CHECKING:
    from curator.recipe import Recipe
    from curator.runs.output_recipe import ChosenRecipe

logger = logging.getLogger(__name__)

_WATCH_S = 10.0


@command(
    "predict clips, time, memory and cost of a run, from a sample",
    option("SOURCE...", "as for `curate run`", dest="sources"),
    option("OUT", "as for `curate run`"),
    option("--recipe RECIPE", "as for `curate run`"),
    *SHORTHANDS,
    overrides(),
    option(
        "--machines FILE",
        "YAML or JSON list of machine types: name, cpus, gpus, memory_gb, count, "
        "price_per_hour, speed, gpu_speed, price_per_1000_requests, price_per_gb",
    ),
    option(
        "--sample MINUTES",
        "video in the sample (default: the larger of 20 minutes and 1%% of all, and at most 15%%)",
        float,
    ),
    option("--seed SEED", "seed of the sample (default: 0)", int, default=0),
    option(
        "--without-captions",
        "caption no clip of the sample, because models may cost money; the plan omits captions",
    ),
    option("--limit N", "as for `curate run`", positive),
    option("--workers N", "as for `curate run`", positive),
    lambda parser: parser.set_defaults(ray_address=None, place=[]),
    description="Probes all sources, runs a sample of them into a temporary folder, and predicts "
    "clips, time, memory and cost of the whole run with 90% intervals. `curate run` into the same "
    "OUT compares its progress with the plan.",
)
def plan(options: argparse.Namespace) -> Result:
    from curator.errors import UsageError
    from curator.runs.output_recipe import choose_recipe
    from curator.storage.named_inputs import refuse_missing

    if options.sample is not None and not options.sample > 0:
        raise UsageError(f"--sample {options.sample:g}: expected more than 0 minutes")
    sampled = ["caption.enabled=false"] if options.without_captions else []
    whole = choose_recipe(options.out, options.recipe, options.overrides)
    chosen = choose_recipe(options.out, options.recipe, [*options.overrides, *sampled])
    refuse_missing(options.sources)
    return _plan(options, chosen, whole.recipe)


def _plan(options: argparse.Namespace, chosen: "ChosenRecipe", whole: "Recipe") -> Result:
    """Plans a run of the recipe `whole`; `chosen` is that of the sample."""
    from curator.errors import NothingReadableError
    from curator.executor.host_resources import available_cpus
    from curator.executor.progress import Progress
    from curator.runs.curation import Run
    from curator.runs.lease import acquire_lease
    from curator.runs.progress_report import write_plan
    from curator.runs.start import check_run
    from curator.tables.parts import leave_pandas_out
    from curator.tools.planning.extrapolation import choose_sample
    from curator.tools.planning.planner import Planner, read_machines, run_sample

    leave_pandas_out()
    kinds = read_machines(options.machines) if options.machines else []
    recipe = chosen.recipe
    store = check_run(options.sources, options.out, chosen, ray_address=None, shared_out=False)
    if recipe.caption.asks:
        logger.warning(
            "models caption the sample's clips, which may cost money; --without-captions omits "
            "captions from sample and plan"
        )
    with (
        ends_when_asked(),
        acquire_lease(store, "plan") as lease,
        Progress() as progress,
        engine_of(options) as engine,
        ignore_further_interrupts(),
    ):
        run, workers = Run(store, recipe, engine, progress, check=lease.check), options.workers
        table = run.scanned(options.sources, limit=options.limit)
        sources = list(table.to_analyze())
        if not sources:
            raise NothingReadableError(
                f"no source can be read: {table.first_error() or 'the arguments name no source'}"
            )
        sample_s = None if options.sample is None else 60.0 * options.sample
        sample = choose_sample(sources, sample_s, options.seed)
        is_small = engine.is_small(len(sources), sum(source.work for source in sources))
        if workers is None and not is_small:
            # Without a number of workers, a small sample would not use Ray, unlike the run.
            workers = available_cpus()
        planner = Planner(sample, run_sample(run, sample, workers))
        facts = planner.plan(recipe, kinds, engine, is_small=is_small)
        facts["sources_failed"] = len(table) - len(sources)
        lease.check()
        write_plan(store, facts, whole)
    print(*_planned(facts), sep="\n")
    return Result(facts)


def _planned(plan: Mapping[str, Any]) -> Iterator[str]:
    from curator.trainers.fit_words import fit_lines

    failed = f" and {plan['sources_failed']} that failed" if plan["sources_failed"] else ""
    yield (
        f"{amount(plan['sources'], 'readable source')}{failed}, "
        f"{length(plan['video_s'])} of video, {size(plan['source_bytes'])}; "
        f"sample: {amount(plan['sample']['sources'], 'source')}, "
        f"{share(plan['sample']['share'], 1)} of the video"
        + (
            f"; its measurements stay in OUT, which saves {length(reused_s)} of CPU time"
            if (reused_s := plan["sample"]["reused_cpu_s"])
            else ""
        )
    )
    for name, key, form in (
        ("candidates", "candidates", "{:,.0f}".format),
        ("clips kept", "clips", "{:,.0f}".format),
        ("video kept", "kept_s", length),
        ("bytes kept", "kept_bytes", lambda n: size(round(n))),
        ("CPU-hours", "cpu_s", lambda s: f"{s / 3600:.3g}"),
    ):
        low, value, high = (form(plan[key][end]) for end in ("low", "value", "high"))
        yield f"{name:<12}{value:>12}   90%: {low} to {high}"
    cpu_s, s3 = plan["cpu_s_by_part"], plan["s3"]
    parts = sorted(cpu_s.items(), key=lambda item: -item[1])
    yield f"{'':<27}" + ", ".join(f"{n} {share(s, sum(cpu_s.values()))}" for n, s in parts if s)
    if plan["gpu_s"] is not None:
        yield f"{'GPU-hours':<12}{plan['gpu_s'] / 3600:>12.3g}"
    wall_s = sum(plan["stage_s"].values())
    n_bytes = plan["driver_bytes"] + plan["workers"] * plan["worker_bytes"]
    yield f"{'time here':<12}{length(wall_s):>12}   memory: up to {size(n_bytes)}"
    yield (
        f"{'S3':<12}{'':>12}   {s3['requests_from']:,.0f} requests for "
        f"{size(round(s3['bytes_from']))}, {s3['requests_to']:,.0f} to write "
        f"{size(round(s3['bytes_to']))}"
    )
    for row in plan["machines"]:
        yield f"{row['machines']} x {row['name']}: {_cost(row)}"
    yield from (f"of the sample, {line}" for line in fit_lines(plan, "OUT"))
    yield from (f"assumed: {line}" for line in plan["assumptions"])


def _cost(row: Mapping[str, Any]) -> str:
    if "problem" in row:
        return str(row["problem"])
    hours, money = row["hours"], row.get("money")
    cost = "{value:,.2f} ({low:,.2f} to {high:,.2f})".format(**money) if money else "no price"
    return (
        "{value:.3g} h ({low:.3g} to {high:.3g})".format(**hours)
        + f", {amount(row['workers'], 'worker')} with {size(row['memory_bytes'])} each; {cost}"
    )


@command(
    "show the progress of a run, and estimate when it ends",
    OUT,
    option(
        "--watch",
        "print again every 10 s, until the run ends; with --json, a document per line",
    ),
    description="Shows the progress of a run into OUT by stage, and estimates when the run ends. "
    "Works on any machine that can read OUT.",
    only_prints=always,
)
def status(options: argparse.Namespace) -> Result:
    from curator.errors import UsageError
    from curator.runs.progress_report import run_status
    from curator.storage import open_store

    store = open_store(options.out)
    while True:
        facts = run_status(store)
        if facts["state"] == "none":
            raise UsageError(f"no run into {store.uri} has begun")
        print(*_progress(facts), sep="\n", flush=True)
        if not options.watch or facts["state"] != "running":
            return Result(facts, is_line=True)
        if options.json:
            print(as_json(facts, is_line=True), file=options.stream, flush=True)
        time.sleep(_WATCH_S)


def _progress(status: Mapping[str, Any]) -> Iterator[str]:
    from datetime import datetime, timedelta

    from curator.tools.report.funnel import format_funnel

    state = status["state"]
    yield f"{state}: {status.get('holder') or status['out']}"
    if state == "finished":
        yield format_funnel(status["summary"])
        if status["unfinished_removals"]:
            yield f"a removal is not finished: run `curate remove {status['out']} --finish`"
    elif state == "failed":
        yield f"broken off: {status['error']}; the same command resumes the run"
    elif state == "silent":
        when = f" for {status['silent_s']:.0f} s" if "silent_s" in status else ""
        yield (f"no sign of life{when}: the run was likely killed; the same command resumes it")
    if "stage" not in status:
        if state == "running":
            resumed = "resumed what an earlier attempt began; " if "resumes" in status else ""
            yield f"{resumed}no report yet: the first comes within seconds"
        return
    yield from _stages(status)
    reported = datetime.fromisoformat(status["reported"])
    ends = ""
    if state == "running" and status["left_s"] is not None:
        left_s = sum(status["left_s"].values())
        ends = f"; {clock(left_s)} left, ends {reported + timedelta(seconds=left_s):%d %b %H:%M}"
    yield f"reported {reported:%d %b %H:%M:%S} UTC, {clock(status['elapsed_s'])} after start{ends}"


def _stages(status: Mapping[str, Any]) -> Iterator[str]:
    ended, left, stage = status["ended_s"], status["left_s"] or {}, status["stage"]
    for name in dict.fromkeys([*ended, *([stage] if stage else []), *left]):
        facts = [f"took {length(ended[name])}"] if name in ended else []
        if name == stage:
            # A report of an older version has no `stages`.
            names = " and ".join(status.get("stages", ()))
            facts = [*filter(None, [names]), f"works for {length(status['stage_s'])}"]
            if status["items"]:
                facts.append(f"{status['done']:,} of {amount(status['items'], status['noun'])}")
            if status["share_done"] is not None:
                facts.append(share(status["share_done"], 1))
            if status["video_s_per_s"] is not None:
                facts.append(f"{status['video_s_per_s']:.3g}x real time")
        if left.get(name, 0.0) >= 1:
            facts.append(f"{length(left[name])} left")
        if facts:
            yield f"  {name + ' ':<10}{', '.join(facts)}"
