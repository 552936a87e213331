"""`curate plan`: says what a run would take and leave, from a sample."""

import argparse
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from curator.commands.arguments import EXIT_OK, add_overrides, engine_of, positive
from curator.executor.termination import ends_in_peace, ends_when_asked

logger = logging.getLogger(__name__)

HELP = "say what a run would take, cost and keep, from a sample of its sources"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Probes all sources, runs a sample of them into a temporary folder, and says with 90% "
        "intervals what the whole run would take, cost and keep. `curate run` into the same OUT "
        "compares its progress with the plan."
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="as for `curate run`")
    parser.add_argument("out", metavar="OUT", help="as for `curate run`")
    parser.add_argument("--recipe", help="as for `curate run`")
    add_overrides(parser)
    parser.add_argument(
        "--machines",
        metavar="FILE",
        help="YAML or JSON list of kinds of machines: name, cpus, gpus, memory_gb, count, "
        "price_per_hour, speed, gpu_speed, price_per_1000_requests, price_per_gb",
    )
    parser.add_argument(
        "--sample",
        type=float,
        metavar="MINUTES",
        help="video to run (default: the larger of 20 minutes and 1%% of all)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another one samples other sources (default: 0)"
    )
    parser.add_argument(
        "--without-captions",
        action="store_true",
        help="ask no model about the sample's clips, which may cost money: the plan leaves "
        "captions out",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="as for `curate run`")
    parser.add_argument("--workers", type=positive, metavar="N", help="as for `curate run`")
    parser.set_defaults(ray_address=None, place=[])
    parser.add_argument("--json", action="store_true", help="print the contents of plan.json")


def main(options: argparse.Namespace) -> int:
    """Plans, and prints the plan."""
    from curator.errors import UsageError
    from curator.executor.host_resources import available_cpus
    from curator.executor.progress import Progress
    from curator.planning.extrapolation import choose_sample
    from curator.planning.planner import Planner, read_machines, run_sample
    from curator.runs.curation import Run
    from curator.runs.lease import held
    from curator.runs.output_recipe import recipe_for
    from curator.runs.progress_report import write_plan
    from curator.runs.start import check_run
    from curator.tables.parts import leave_pandas_out

    leave_pandas_out()
    if options.sample is not None and not options.sample > 0:
        raise UsageError(f"--sample {options.sample:g}: expected more than 0 minutes")
    kinds = read_machines(options.machines) if options.machines else []
    sampled = ["caption.enabled=false"] if options.without_captions else []
    store, recipe = check_run(
        options.sources,
        options.out,
        recipe=options.recipe,
        overrides=[*options.overrides, *sampled],
        ray_address=None,
        shared_out=False,
    )
    if recipe.caption.asks:
        logger.warning(
            "models are asked about the sample's clips, which may cost money; --without-captions "
            "leaves captions out of sample and plan"
        )
    with (
        ends_when_asked(),
        held(store, "plan") as lease,
        Progress() as progress,
        engine_of(options) as engine,
        ends_in_peace(),
    ):
        run, workers = Run(store, recipe, engine, progress, check=lease.check), options.workers
        table = run.scanned(options.sources, limit=options.limit)
        sources = list(table.to_analyze())
        if not sources:
            raise UsageError(f"no source can be read: {table.first_error() or 'none is named'}")
        sample_s = None if options.sample is None else 60.0 * options.sample
        sample = choose_sample(sources, sample_s, options.seed)
        is_small = engine.is_small(len(sources), sum(source.work for source in sources))
        if workers is None and not is_small:
            # A small sample would run without Ray, unlike the run itself.
            workers = available_cpus()
        planner = Planner(sample, run_sample(run, sample, workers))
        plan = planner.plan(recipe, kinds, engine, is_small=is_small)
        plan["sources_failed"] = len(table) - len(sources)
        lease.check()
        write_plan(store, plan, recipe_for(store, options.recipe, options.overrides))
    print(json.dumps(plan, indent=1) if options.json else "\n".join(_lines(plan)))
    return EXIT_OK


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    from curator.number_text import amount, length, share, size

    failed = f", {plan['sources_failed']} cannot be read" if plan["sources_failed"] else ""
    yield (
        f"{amount(plan['sources'], 'source')}{failed}, {length(plan['video_s'])} of video, "
        f"{size(plan['source_bytes'])}; sample: {amount(plan['sample']['sources'], 'source')}, "
        f"{share(plan['sample']['share'], 1)} of the video"
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
    yield from (f"assumed: {line}" for line in plan["assumptions"])


def _cost(row: Mapping[str, Any]) -> str:
    from curator.number_text import size

    if "problem" in row:
        return str(row["problem"])
    hours, money = row["hours"], row.get("money")
    cost = "{value:,.2f} ({low:,.2f} to {high:,.2f})".format(**money) if money else "no price"
    return (
        "{value:.3g} h ({low:.3g} to {high:.3g})".format(**hours)
        + f", {row['workers']} workers with {size(row['memory_bytes'])} each; {cost}"
    )
