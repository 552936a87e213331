"""`curate run`, `recaption` and `demo`, and the exit code of runs with failures."""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curator.errors import REFUSED, ErrorCode, UsageError, raised_as
from curator.executor.cpu_accounting import no_collection
from curator.executor.termination import ends_when_asked, ignore_further_interrupts
from curator.number_text import amount, plain
from curator.tools.commands.arguments import (
    EXIT_FAILED,
    EXIT_OK,
    MEMORY,
    OUT,
    SHORTHANDS,
    Option,
    Result,
    cluster,
    command,
    engine_of,
    fraction,
    group,
    option,
    overrides,
    positive,
)

if TYPE_CHECKING:
    from curator.runs.output_recipe import ChosenRecipe
    from curator.storage import Store

# Our choice, not measured: above the share of incomplete uploads in a bucket, below the
# share that a failing stage, disk or server loses. One failure is allowed for the demo's bad file.
MAX_FAILED = 0.1
"""Largest share of failures without `--max-failed`; one failure is allowed if n > 1."""


def _max_failed(what: str) -> Option:
    """Declares `--max-failed`; `what` names the items that may fail."""
    return option(
        "--max-failed FRACTION",
        f"exit with 3 if a larger share of the {what} fails, 0 to 1 (default: {MAX_FAILED:g}; "
        "one failure is allowed unless it is the only item). If all windows fail, nothing is "
        "committed",
        fraction,
    )


def _listening_address(text: str) -> tuple[str, int]:
    """Parses `PORT` or `HOST:PORT`; the default host is 127.0.0.1."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r}; expected PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@command(
    "curate sources into OUT",
    option(
        "SOURCE...",
        "file, folder (with its subfolders, without names that begin with a dot), glob, tar, "
        "s3://bucket/prefix, or a manifest: .txt or .lst with a URI per line; .csv, .tsv, .jsonl "
        "or .parquet with a column or key `uri`",
        dest="sources",
    ),
    option("OUT", "folder or s3://bucket/prefix for all results"),
    option(
        "--recipe RECIPE",
        "name from `curate recipes`, or a YAML file (default: the recipe of OUT; for a new OUT "
        "quickstart, which needs no GPU and no download)",
    ),
    *SHORTHANDS,
    overrides("change one key of the recipe, such as filters.motion.min=0.3; may be repeated"),
    option("--limit N", "read only the first N sources, to try a recipe (default: all)", positive),
    option("--dry-run", "check everything and print the work of the run; write nothing"),
    option(
        "--replace",
        "drop the sources of earlier runs that this run does not name, and accept lost clips "
        "(default: keep these sources; exit with 2 if clips would be lost because a source cannot "
        "be read or cut again, or more than 10%% of the clips because sources have new content)",
    ),
    option(
        "--against OTHER_OUT",
        "reject clips with footage that another output keeps; may be repeated; replaces "
        "dedup.against of the recipe (default: dedup.against)",
        action="append",
    ),
    _max_failed("sources, of the clips to keep, or of the windows to caption"),
    group(
        "workers and clusters",
        *cluster(
            address="Ray cluster to run on, such as ray-head:6379 or auto (default: $RAY_ADDRESS, "
            "else only this machine)",
            shared="all nodes of the cluster see OUT and the sources under the same paths (a "
            "network file system). Without this option, a cluster needs s3:// for both",
        ),
        MEMORY,
    ),
    group(
        "monitoring",
        option(
            "--metrics [HOST:]PORT",
            "serve metrics of the run for Prometheus while it runs; on a Ray cluster, Ray's agent "
            "serves them too (default: no metrics; HOST 127.0.0.1)",
            _listening_address,
        ),
        option(
            "--core-hour-price PRICE",
            "price of a core-hour, for the metric `curate_cost_total` (default: no such metric)",
            float,
        ),
        option(
            "--log-format",
            "format of progress and warnings on standard error; json writes an object per line "
            "(default: text)",
            choices=("text", "json"),
            default="text",
        ),
    ),
    examples="""\
  curate run videos/ out/                                    the default recipe
  curate run videos/ out/ --size 720p --fps 24 --audio keep  with sound
  curate run s3://bucket/raw s3://bucket/out --dry-run       what it would do\
""",
    description="Curates sources into OUT, and reuses results of earlier runs into OUT that are "
    "still valid.",
    only_prints=lambda options: options.dry_run,
)
def run(options: argparse.Namespace) -> Result:
    """Checks the arguments, then runs; with `--dry-run`, describes the run."""
    from curator.runs.output_recipe import choose_recipe
    from curator.storage.named_inputs import refuse_missing
    from curator.storage.object_service import scheme_of
    from curator.storage.place_names import local_path

    if options.against:
        # The recipe of OUT stores these paths, and the next run may start in another folder.
        others = [out if scheme_of(out) else local_path(out) for out in options.against]
        options.overrides = [*options.overrides, f"dedup.against={json.dumps(others)}"]
    if options.replace and options.limit is not None:
        raise UsageError(
            f"--replace with --limit {options.limit} would remove the clips of all other sources: "
            "omit one of the two options, or name another OUT to try a recipe"
        )
    with ends_when_asked():
        chosen = choose_recipe(options.out, options.recipe, options.overrides)
        refuse_missing(options.sources)
    return _run(options, chosen)


def _run(options: argparse.Namespace, chosen: "ChosenRecipe") -> Result:
    """Imports what a run needs, checks the places, and runs."""
    with no_collection():
        from curator.executor.progress import Progress
        from curator.runs.dry_run import dry_run
        from curator.runs.generations import CARRIED
        from curator.runs.lease import acquire_lease
        from curator.runs.start import check_run, start_run
        from curator.tables.parts import leave_pandas_out
        from curator.tables.snapshot_store import older_tars_line
        from curator.tools.report.default_words import default_words
        from curator.tools.report.funnel import format_funnel
        from curator.tools.telemetry.run_metrics import served
        from curator.trainers.fit_words import fit_lines

    leave_pandas_out()
    recipe = chosen.recipe
    with ends_when_asked():
        store = check_run(
            options.sources,
            options.out,
            chosen,
            ray_address=options.ray_address,
            shared_out=options.shared_out,
            writes=not options.dry_run,
        )
    extent = {"limit": options.limit, "replace": options.replace}
    if options.dry_run:
        text, problem = dry_run(options.sources, store, recipe, **extent)
        print(text)
        if problem is not None:
            raise UsageError(problem)
        first, *lines = text.split("\n  ")
        return Result({"dry_run": True, "work": first, "lines": lines})
    with (
        ends_when_asked(),
        served(options.metrics, store, options.core_hour_price) as watch,
        acquire_lease(store, "run") as lease,
        Progress(is_logged=options.log_format == "json") as progress,
        engine_of(options) as engine,
        ignore_further_interrupts(),
    ):
        more = {**extent, "memory_bytes": options.memory, "watch": partial(watch, engine)}
        summary = start_run(store, recipe, options.sources, engine, progress, lease, **more)
    print(format_funnel(summary))
    for line in (*default_words(summary), *fit_lines(summary, shlex.quote(options.out))):
        print(line)
    is_empty = not summary["counts"]["kept"]
    if is_empty and not summary["counts"]["clips"]:
        print(
            f"curate: no clip was found; the table {store.uri}/sources has the outcome of each "
            "source, with its error",
            file=sys.stderr,
        )
    elif is_empty:
        print(
            f"curate: no clip was kept, so there are no tars; `curate explain {options.out}` says "
            f"why, and `curate tune {options.out} SCORE.min=VALUE` tries other bounds",
            file=sys.stderr,
        )
    for name, what in (
        ("shards", "WebDataset tars"),
        ("clips", "decisions and scores of every clip"),
        ("report/index.html", "what was kept and dropped, to look at"),
        ("summary.json", "counts, times, list of tables"),
    ):
        if not (is_empty and name == "shards"):
            print(f"{store.uri}/{name}  {what}")
    if not is_empty:
        place = shlex.quote(options.out)
        print(
            f"`curate view {place}` plays and marks clips in a browser; `curate report {place}` "
            "makes kept clips play in the report"
        )
    if line := older_tars_line(store, summary):
        print(line)
    if n_carried := summary["work"].get(CARRIED):
        print(
            f"sources of earlier runs that stay in OUT, although this command does not name them: "
            f"{n_carried} (--replace drops them)"
        )
    return Result(summary, failures_exit_code(store, summary, options.max_failed))


@command(
    "write new captions for a finished run, without encoding",
    OUT,
    overrides(
        "change one key of the section caption in the run's recipe, such as caption.seed=1; may "
        "be repeated"
    ),
    *cluster(
        address="as for `curate run`",
        shared="all nodes of the cluster see OUT under the same path. Without this option, a "
        "cluster needs s3://",
    ),
    MEMORY,
    _max_failed("windows, or of the clips (as not_annotated),"),
    description="Captions the kept clips of a finished run by the changed recipe, and writes the "
    "new captions into shards and tables. The clips stay as they are: the command reads no source, "
    "and analyzes, cuts and encodes nothing. It reuses stored answers.",
    epilog="Clips that the new answers reject leave the shards. `curate run` restores clips that "
    "the old answers rejected and the new answers keep. Exit codes as for `curate run`.",
)
def recaption(options: argparse.Namespace) -> Result:
    from curator.executor.progress import Progress
    from curator.pipeline import graph_of
    from curator.runs.lease import acquire_lease
    from curator.runs.progress_report import reported
    from curator.runs.recaptioning import Recaption
    from curator.runs.repair import CACHES, with_repair
    from curator.runs.start import check_captions, check_cluster, check_writable
    from curator.stage import Annotator
    from curator.storage import open_store
    from curator.tables.output_format import read_current_summary
    from curator.tables.snapshot_store import older_tars_line

    address = options.ray_address
    with ends_when_asked():
        check_cluster((options.out,), ray_address=address, shared_out=options.shared_out)
    store = open_store(options.out)
    before = read_current_summary(store)
    check_writable(store)
    with (
        ends_when_asked(),
        acquire_lease(store, "recaption") as lease,
        Progress() as progress,
        engine_of(options) as engine,
        ignore_further_interrupts(),
    ):
        lease.follow(engine.heartbeat)
        limits = {"check": lease.check, "memory_bytes": options.memory}
        anew = Recaption(store, options.overrides, engine, progress, **limits)
        check_captions(anew.recipe, asks_server=False)
        with reported(store, progress, partial(lease.check, beats=False)):
            summary = with_repair(store, anew.execute, CACHES, check=lease.check)
    print(*_recaptioned(before, summary, store.uri), sep="\n")
    if line := older_tars_line(store, summary):
        print(line)
    print(f"{store.uri}/report/index.html  captions to look at")
    # Clips that an earlier run could not cut, and its sources, are no failures of this command.
    made = [s.name for s in graph_of(anew.recipe) if s.is_remade or isinstance(s, Annotator)]
    code = failures_exit_code(store, summary, options.max_failed, stages=made)
    return Result(summary, code)


def _recaptioned(before: Mapping[str, Any], summary: Mapping[str, Any], out: str) -> Iterator[str]:
    from curator.records.clips import Reason

    work, counts = summary["work"], summary["counts"]
    yield (
        f"{amount(counts['kept'], 'clip')} in {amount(len(summary['shards']), 'shard')}; "
        f"shards written by this command: {work['shards_written']}"
    )
    by_answers = (Reason.ANSWER_UNWANTED, Reason.NOT_ANNOTATED, Reason.JUDGED_TOO_LOW)
    earlier = before["counts"]["by_reason"]
    if n_earlier := sum(earlier.get(name, 0) for name in by_answers):
        reasons = [name for name in by_answers if earlier.get(name)]
        yield (
            f"{amount(n_earlier, 'clip')} rejected by answers before ({', '.join(reasons)}): this "
            "command captions kept clips only; `curate run SOURCE... "
            f"{out}` with the sources decides about them by the recipe that OUT has now, and cuts "
            "those that it keeps"
        )
    if n_rejected := work["clips_rejected"]:
        reasons = [name for name in by_answers if counts["by_reason"].get(name)]
        yield f"{amount(n_rejected, 'clip')} newly rejected by answers ({', '.join(reasons)})"
    n_windows = work.get("caption_windows", 0)
    if n_windows and summary["recipe"]["caption"]["captioner"] not in ("measured", "metadata"):
        n_asked, n_failed = work["caption_windows_asked"], _n_unanswered(work)
        yield (
            f"{amount(n_windows, 'window')}: {n_asked} sent to the captioner, "
            f"{n_windows - n_asked} with stored answers; {n_failed} without an answer"
        )


@command(
    "generate footage, curate it, and show where the results are",
    option("[DIR]", "folder (default: %(default)s)", default="demo"),
)
def demo(options: argparse.Namespace) -> Result:
    from curator.runs.start import check_writable
    from curator.storage import open_store
    from curator.storage.place_names import local_path
    from curator.tools.footage.demo_films import make_demo

    folder = Path(local_path(options.dir, "a folder of this machine"))
    check_writable(open_store(str(folder / "footage")))
    print(f"generating footage in {folder / 'footage'} ...", flush=True)
    with raised_as(UsageError, OSError, of=f"cannot write the footage to {str(folder)!r}: "):
        films = make_demo(folder / "footage")
    for path, what in films:
        print(f"  {path.name}: {what}")
    parser = argparse.ArgumentParser()
    run.add_to(parser)
    result = run.main(parser.parse_args([str(folder / "footage"), str(folder / "out")]))
    assert isinstance(result, Result)
    if result.code == EXIT_OK:
        print("\n".join(["", "try next:", *_next_commands(options.dir)]))
    return result


def _next_commands(folder: str) -> Iterator[str]:
    """Yields commands that the user can copy, in the current folder."""
    from curator.tools.review.finished_run import open_finished

    out = Path(folder, "out")
    clips = open_finished(str(out)).clips
    rejected = clips["clip_id"][max(0, clips["decision"].index("rejected").as_py())].as_py()
    footage = shlex.quote(str(Path(folder, "footage")))
    place, curate = shlex.quote(str(out)), shlex.quote(_called())
    yield f"  {curate} explain {place} {rejected}"
    yield f"  {curate} tune {place} motion.min=0.1"
    yield f"  {curate} run {footage} {place} --set filters.motion.min=0.1"


def _called() -> str:
    """Returns the command that starts this program in a shell: `curate` or a path.

    The path of the script next to Python is used if the shell finds another `curate`, or none.
    """
    script = Path(sys.executable).with_name("curate")
    executable = shutil.which("curate")
    if executable is not None and Path(executable).resolve() == script.resolve():
        return "curate"
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


def is_too_many(n_failed: int, n: int, max_failed: float | None) -> bool:
    """Returns whether too many of `n` items failed; `max_failed` is None for the default."""
    if max_failed is not None:
        return n_failed > max_failed * n
    return n_failed == n > 0 or n_failed > max(1, MAX_FAILED * n)


def failures_exit_code(
    store: "Store",
    summary: Mapping[str, Any],
    max_failed: float | None,
    *,
    stages: Collection[str] | None = None,
) -> int:
    """Returns `EXIT_FAILED`, and prints failures with remedies, if too many items failed.

    Items are windows, clips (failed if rejected for a reason that a stage declares as a failure),
    and sources. With `stages`, only reasons of these stages count, and no sources.
    """
    limit = f"{MAX_FAILED:g}, the default of --max-failed,"
    if max_failed is not None:
        limit = f"--max-failed {max_failed:g}"
    counts, work = summary["counts"], summary["work"]
    by_code = dict(counts.get("by_error") or {})
    # Removed and refused sources did not fail.
    n_left_out = sum(by_code.pop(str(code), 0) for code in REFUSED | {ErrorCode.REMOVED})
    of_failures = {
        row["name"]
        for row in summary["reasons"]
        if row["is_failure"] and (stages is None or row["stage"] in stages)
    }
    by_reason = {name: n for name, n in counts["by_reason"].items() if name in of_failures}
    n_lost = sum(by_reason.values())
    failures = [
        (
            n_lost,
            n_lost + counts["kept"],
            "clip",
            f"that the recipe keeps could not be cut or annotated ({_counted(by_reason)})",
            _first(store, summary, "clips", ("reason", "reason_detail"), by_reason)
            + "see reason_detail in the table `clips`",
        ),
        (
            _n_unanswered(work),
            work.get("caption_windows", 0),
            "window",
            "without an annotation",
            "see `failure` in the table `annotations`; the same command tries again where another "
            "try may succeed",
        ),
    ]
    if stages is None:
        first = _first(store, summary, "sources", ("error_code", "error_message"), by_code)
        n_failed, n_sources = counts["failed"] - n_left_out, counts["sources"] - n_left_out
        remedy = f"{first}see the table `sources`"
        failures.insert(0, (n_failed, n_sources, "source", f"failed ({_counted(by_code)})", remedy))
    code = EXIT_OK
    for n_failed, n, noun, message, remedy in failures:
        if is_too_many(n_failed, n, max_failed):
            text = f"{n_failed} of {amount(n, noun)} {message}, more than {limit} allows; {remedy}"
            print(f"curate: {text}", file=sys.stderr)
            code = EXIT_FAILED
    return code


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def _n_unanswered(work: Mapping[str, int]) -> int:
    return sum(n for name, n in work.items() if name.startswith("caption_failed_"))


def _first(
    store: "Store",
    summary: Mapping[str, Any],
    table: str,
    columns: tuple[str, str],
    counts: Mapping[str, int],
) -> str:
    """Returns the message of the first row with the most frequent reason."""
    import pyarrow.compute as pc

    from curator.tables.checksums import read_parquet

    if not counts:
        return ""
    commonest = max(counts, key=lambda name: counts[name])
    for part in summary["tables"].get(table, ()):
        rows = read_parquet(store, part, list(columns))
        details = rows.filter(pc.equal(rows[columns[0]], commonest))[columns[1]].drop_null()
        if len(details):
            return f"the first: {plain(details[0].as_py())}; "
    return ""
