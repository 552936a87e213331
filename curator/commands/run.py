"""`curate run`: curates sources into OUT."""

import argparse
import json
import os
from functools import partial
from typing import TYPE_CHECKING

from curator.commands.arguments import (
    EXIT_OK,
    add_cluster,
    add_memory,
    add_overrides,
    engine_of,
    listening_address,
    positive,
)
from curator.commands.failure_limit import add_max_failed, failures_exit_code
from curator.executor.termination import ends_in_peace, ends_when_asked

if TYPE_CHECKING:
    from curator.recipe import Recipe
    from curator.storage import Store

HELP = "curate sources into OUT"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Curates sources into OUT. What an earlier run into OUT stored and is still valid is not "
        "done again."
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="file, folder (with all below it but names that begin with a dot), glob, "
        "s3://bucket/prefix, or a manifest: .txt with a URI per line, .csv or .parquet with a "
        "column `uri`",
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix for all results")
    parser.add_argument(
        "--recipe",
        help="name from `curate recipes`, or a YAML file (default: the recipe that made OUT; for a "
        "new OUT quickstart, which needs no GPU and no download)",
    )
    add_overrides(
        parser, "change one key of that recipe, such as filters.motion.min=0.3; may be repeated"
    )
    add_cluster(
        parser,
        address="Ray cluster to run on, such as ray-head:6379 or auto (default: $RAY_ADDRESS, else "
        "a cluster of this run's own on this machine)",
        shared="all nodes of the cluster see OUT and the sources under the same paths (a network "
        "file system); without, a cluster needs s3:// for both",
    )
    add_memory(parser)
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="only the first N sources, to try a recipe (default: all)",
    )
    parser.add_argument(
        "--against",
        action="append",
        metavar="OTHER_OUT",
        help="reject clips whose footage another output keeps; may be repeated; replaces those of "
        "the recipe (default: dedup.against, as earlier runs set it)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="let OUT hold the sources of this run alone (default: they are added to those of "
        "earlier runs; exit with 2 if clips would be lost because a source cannot be read or cut "
        "again, or because more than 10%% of them have other content now)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and say what would be done; writes nothing",
    )
    parser.add_argument(
        "--metrics",
        type=listening_address,
        metavar="[HOST:]PORT",
        help="serve the run's numbers for Prometheus while it runs; on a Ray cluster Ray's agent "
        "serves them too (default: no; HOST 127.0.0.1)",
    )
    parser.add_argument(
        "--core-hour-price",
        type=float,
        metavar="PRICE",
        help="price of an hour of a CPU core, for the number `curate_cost` (default: not given)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="form of progress and warnings on standard error: json is an object per line "
        "(default: text)",
    )
    add_max_failed(parser, "sources, of the clips to keep, or of the windows to caption")


def main(options: argparse.Namespace) -> int:
    """Checks, then runs; with `--dry-run`, describes the run."""
    from curator.errors import UsageError
    from curator.runs.dry_run import dry_run
    from curator.runs.start import check_run
    from curator.storage.base import has_scheme
    from curator.tables.parts import leave_pandas_out

    leave_pandas_out()
    if options.against:
        # The recipe of OUT keeps them, and the next run may be in another folder.
        others = [out if has_scheme(out) else os.path.abspath(out) for out in options.against]
        options.overrides = [*options.overrides, f"dedup.against={json.dumps(others)}"]
    if options.replace and options.limit is not None:
        raise UsageError(
            f"--replace with --limit {options.limit} would remove the clips of all other sources: "
            "leave one of them out, or name another OUT to try a recipe"
        )
    store, recipe = check_run(
        options.sources,
        options.out,
        recipe=options.recipe,
        overrides=options.overrides,
        ray_address=options.ray_address,
        shared_out=options.shared_out,
        writes=not options.dry_run,
    )
    if options.dry_run:
        text, problem = dry_run(
            options.sources, store, recipe, limit=options.limit, replace=options.replace
        )
        print(text)
        if problem is not None:
            raise UsageError(problem)
        return EXIT_OK
    return _execute(options, store, recipe)


def _execute(options: argparse.Namespace, store: "Store", recipe: "Recipe") -> int:
    from curator.executor.progress import Progress
    from curator.report.funnel import format_funnel
    from curator.runs.generations import CARRIED
    from curator.runs.lease import held
    from curator.runs.start import start_run
    from curator.telemetry.run_metrics import served

    with (
        ends_when_asked(),
        served(options.metrics, store, options.core_hour_price) as watch,
        held(store, "run") as lease,
        Progress(is_logged=options.log_format == "json") as progress,
        engine_of(options) as engine,
        ends_in_peace(),
    ):
        summary = start_run(
            store,
            recipe,
            options.sources,
            engine,
            progress,
            lease,
            limit=options.limit,
            replace=options.replace,
            memory_bytes=options.memory,
            watch=partial(watch, engine),
        )
    print(format_funnel(summary))
    for name, what in (
        ("shards", "WebDataset tars"),
        ("clips", "decisions and scores of every clip"),
        ("report/index.html", "what was kept and dropped, to look at"),
        ("summary.json", "counts, times, list of tables"),
    ):
        print(f"{store.uri}/{name}  {what}")
    if n_carried := summary["work"].get(CARRIED):
        print(
            f"sources of earlier runs that are not named now and stay: {n_carried} (--replace "
            "would leave them out)"
        )
    return failures_exit_code(store, summary, options.max_failed)
