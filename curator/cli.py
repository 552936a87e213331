"""The command `curate`."""

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from curator import __version__
from curator.commands.export import add_export
from curator.commands.recaption import add_recaption
from curator.commands.verify import add_verify
from curator.errors import CuratorError, RecipeError, UsageError
from curator.executor.termination import Terminated, end_process, ends_in_peace, ends_when_asked

EXIT_OK, EXIT_BROKEN_OFF, EXIT_USAGE, EXIT_FAILED = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_NOT_READ = 130, 143, 141


def command() -> NoReturn:
    """The installed command `curate`: does what its arguments say, and ends the process."""
    end_process(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="curate: %(levelname)s %(message)s")
    try:
        code: int = options.action(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has enough; what is buffered must go somewhere.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NOT_READ
    except (UsageError, RecipeError) as error:
        print(f"curate: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt as stop:
        print("curate: stopped; the same command goes on from what was done", file=sys.stderr)
        return EXIT_TERMINATED if isinstance(stop, Terminated) else EXIT_INTERRUPTED
    except CuratorError as error:
        print(f"curate: {error}; the same command goes on from what was done", file=sys.stderr)
        return EXIT_BROKEN_OFF
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="curate",
        description="Turns raw video into clean, captioned, de-duplicated clips in WebDataset "
        "tars.",
        epilog="Exit codes: 0 finished; 2 usage, recipe or preflight error, nothing was done; "
        "3 finished, but more sources failed than --max-failed allows; 1 broken off by the "
        "storage or an internal error; 130 interrupted, 143 terminated; 141 nobody reads what it "
        "prints. After 1, 130 and 143 the same command goes on from what was done.",
    )
    parser.add_argument("--version", action="version", version=f"curate {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_recipes(commands)
    _add_models(commands)
    _add_scores(commands)
    _add_explain(commands)
    _add_tune(commands)
    add_recaption(commands)
    commands.choices["recaption"].set_defaults(action=_recaption)
    add_verify(commands)
    add_export(commands)
    _add_doctor(commands)
    _add_demo(commands)
    return parser


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="curate sources into OUT",
        description="Curates sources into OUT. What an earlier run into OUT stored and is still "
        "valid is not done again.",
    )
    run.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="file, folder (with all below it but names that begin with a dot), glob, "
        "s3://bucket/prefix, or a manifest: .txt with a URI per line, .csv or .parquet with a "
        "column `uri`",
    )
    run.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix for all results")
    run.add_argument(
        "--recipe",
        default="quickstart",
        help="name from `curate recipes`, or a YAML file (default: %(default)s, which needs no "
        "GPU and no download)",
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="change one key of the recipe, such as filters.motion.min=0.3; may be repeated",
    )
    run.add_argument(
        "--ray-address",
        default=os.environ.get("RAY_ADDRESS") or None,
        metavar="ADDR",
        help="Ray cluster to run on, such as ray-head:6379 or auto (default: $RAY_ADDRESS, else "
        "a cluster of this run's own on this machine)",
    )
    run.add_argument(
        "--shared-out",
        action="store_true",
        help="all nodes of the cluster see OUT and the sources under the same paths (a network "
        "file system); without, a cluster needs s3:// for both",
    )
    run.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="decoding processes (default: one per core, and no more than there is work)",
    )
    run.add_argument(
        "--limit",
        type=_positive,
        metavar="N",
        help="only the first N sources, to try a recipe (default: all)",
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and say what would be done; writes nothing",
    )
    run.add_argument(
        "--max-failed",
        type=_fraction,
        default=1.0,
        metavar="FRACTION",
        help="exit with 3 if a larger share of the sources fails, 0 to 1 (default: %(default)s, "
        "all may)",
    )
    run.set_defaults(action=_run)


def _add_recipes(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    recipes = commands.add_parser(
        "recipes", help="list the recipes, or print one with the meaning of each key"
    )
    recipes.add_argument("name", nargs="?", metavar="NAME", help="recipe to print, resolved")
    recipes.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE",
        help="as for `curate run`",
    )  # fmt: skip
    recipes.set_defaults(action=_recipes)


def _add_models(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    models = commands.add_parser(
        "models",
        help="list, fetch and verify model weights",
        description="Lists, fetches and verifies the weights of the models that recipes can name. "
        "`verify` exits with 1 if a file is not the one that the catalogue names.",
    )
    tasks = models.add_subparsers(dest="task", required=True, metavar="TASK")
    for task, names, words in (
        ("list", "*", "the models, where they come from, and what is here"),
        ("pull", "+", "fetch models from a mirror or the hub, and verify them"),
        ("verify", "*", "hash what is here (default: all) and compare"),
    ):
        parser = tasks.add_parser(task, help=words)
        parser.add_argument("names", nargs=names, metavar="NAME", help="model of the catalogue")
        parser.add_argument(
            "--models", metavar="PLACE",
            help="models folder, or s3://bucket/prefix (default: $CURATE_MODELS, else a folder "
            "`curate/models` in the user's cache)",
        )  # fmt: skip
        if task == "pull":
            parser.add_argument(
                "--from", dest="source", metavar="PLACE",
                help="folder or s3://bucket/prefix to copy from, by NAME/FILE or FILE (default: "
                "where the catalogue says)",
            )  # fmt: skip
        parser.set_defaults(action=_models)


def _add_scores(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    scores = commands.add_parser("scores", help="say what each score of a clip is")
    scores.add_argument("name", nargs="?", metavar="SCORE", help="one of them (default: all)")
    scores.add_argument("--markdown", action="store_true", help="all, as a table")
    scores.set_defaults(action=_scores)


def _add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    explain = commands.add_parser(
        "explain", help="say why a clip was kept or rejected, and what would have kept it"
    )
    explain.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    explain.add_argument(
        "clip", metavar="CLIP_ID", help="its id, or a beginning that no other clip has"
    )
    explain.set_defaults(action=_explain)


def _add_tune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tune = commands.add_parser(
        "tune",
        help="say what other bounds would keep and drop",
        description="Decides anew about the clips of a finished run, from what is stored. Nothing "
        "is decoded and the run is not changed; writes a page with clips on either side.",
    )
    tune.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    tune.add_argument(
        "changes",
        nargs="+",
        metavar="CHANGE",
        help="score.bound=value, such as motion.min=0.02, sharpness.drop_lowest=0.2 or "
        "noise.max=null; keys of dedup and select in full, such as select.max_per_group=100, and "
        "semantic.reject and semantic.reject_from",
    )
    tune.add_argument(
        "--html",
        metavar="FILE",
        help="where the page goes (default: OUT/report/tune.html, or tune.html here if OUT is s3://)",
    )
    tune.add_argument(
        "--rules-only",
        action="store_true",
        help="leave duplicates and selection as they are: faster with many clips, and approximate",
    )
    tune.set_defaults(action=_tune)


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check what works on this machine, and say what to do about the rest",
        description="Checks the machine, packages, GPU, models, storage and the recipe, and says "
        "what to do about what does not work. Changes nothing: what is written to try OUT is "
        "removed again.",
        epilog="Exit codes: 0 the recipe can run here; 2 something that it needs is missing or "
        "broken.",
    )
    doctor.add_argument(
        "places",
        nargs="*",
        metavar="PLACE",
        help="SOURCE... OUT as for `curate run`; the last one is OUT, and may stand alone "
        "(default: no storage is looked at)",
    )
    doctor.add_argument(
        "--recipe", default="quickstart", help="the recipe that is to run (default: %(default)s)"
    )
    doctor.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE",
        help="as for `curate run`",
    )  # fmt: skip
    doctor.add_argument(
        "--models",
        metavar="PLACE",
        help="models folder, or s3://bucket/prefix (default: the recipe's)",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    doctor.set_defaults(action=_doctor)


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo", help="make footage, curate it, and say where to look at the result"
    )
    demo.add_argument(
        "dir", nargs="?", default="demo", metavar="DIR", help="folder (default: %(default)s)"
    )
    demo.set_defaults(action=_demo)


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1")
    return number


def _fraction(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number from 0 to 1")
    return number


def _run(options: argparse.Namespace) -> int:
    from curator.runs.preflight import dry_run
    from curator.runs.start import check_run
    from curator.tables.parts import leave_pandas_out

    leave_pandas_out()
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
        print(dry_run(options.sources, store, recipe, limit=options.limit))
        return EXIT_OK
    summary = _execute(options, store, recipe)
    return _exit_code(summary, options.max_failed)


def _execute(options: argparse.Namespace, store: Any, recipe: Any) -> dict[str, Any]:  # noqa: ANN401
    from curator.executor.engine import Engine
    from curator.executor.progress import Progress, format_funnel
    from curator.runs.start import start_run

    with (
        ends_when_asked(),
        Progress() as progress,
        Engine(address=options.ray_address, workers=options.workers) as engine,
        ends_in_peace(),
    ):
        summary = start_run(store, recipe, options.sources, engine, progress, limit=options.limit)
    print(format_funnel(summary))
    for name, what in (
        ("shards", "WebDataset tars"),
        ("clips", "decisions and scores of every clip"),
        ("report/index.html", "what was kept and dropped, to look at"),
        ("summary.json", "counts, times, list of tables"),
    ):
        print(f"{store.uri}/{name}  {what}")
    return summary


def _recaption(options: argparse.Namespace) -> int:
    from curator.commands.recaption import run_recaption, told
    from curator.executor.engine import Engine
    from curator.executor.progress import Progress
    from curator.storage import open_store

    with (
        ends_when_asked(),
        Progress() as progress,
        Engine(address=options.ray_address, workers=options.workers) as engine,
        ends_in_peace(),
    ):
        summary = run_recaption(options, engine, progress)
    print(told(summary, open_store(options.out).uri))
    return EXIT_OK


def _exit_code(summary: dict[str, Any], max_failed: float) -> int:
    counts = summary["counts"]
    if counts["failed"] > max_failed * counts["sources"]:
        print(
            f"curate: {counts['failed']} of {counts['sources']} sources failed, more than "
            f"--max-failed {max_failed:g} allows; see error_code in the table `sources`",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return EXIT_OK


def _recipes(options: argparse.Namespace) -> int:
    from curator.recipe import describe, load_recipe, recipe_names

    if options.name is None:
        for name in recipe_names():
            print(f"{name}: {load_recipe(name).about.strip()}")
        return EXIT_OK
    for key, value, unit, why in describe(load_recipe(options.name, options.overrides)):
        print(f"{key} = {value}" + (f"  [{unit}]" if unit else ""))
        if why:
            print(f"    {why}")
    return EXIT_OK


def _models(options: argparse.Namespace) -> int:
    from curator.commands.models import run_models
    from curator.errors import ModelError

    try:
        return run_models(options)
    except ModelError as error:
        raise UsageError(str(error)) from error


def _scores(options: argparse.Namespace) -> int:
    from curator.measures.documentation import markdown, text

    if options.markdown:
        print(markdown(), end="")
    else:
        print(*text(options.name), sep="\n")
    return EXIT_OK


def _explain(options: argparse.Namespace) -> int:
    from curator.review.clip_explanation import explain
    from curator.review.finished_run import open_finished

    print(explain(open_finished(options.out), options.clip))
    return EXIT_OK


def _tune(options: argparse.Namespace) -> int:
    from curator.report.tune_page import render_tune
    from curator.review.bound_tuning import summary_lines, tune, view
    from curator.review.finished_run import open_finished

    finished = open_finished(options.out)
    tuned = tune(finished, options.changes, rules_only=options.rules_only)
    page = render_tune(view(tuned)).encode()
    if options.html is None and finished.store.is_local:
        finished.store.write("report/tune.html", page)
        where = Path(finished.store.uri) / "report" / "tune.html"
    else:
        where = Path(options.html or "tune.html").absolute()
        try:
            where.write_bytes(page)
        except OSError as error:
            raise UsageError(f"{str(where)!r} cannot be written: {error.strerror}") from error
    settings = " ".join(f"--set {shlex.quote(change)}" for change in tuned.changes)
    print(*summary_lines(tuned), sep="\n")
    print(f"{where}  clips on either side, to look at")
    print(f"to have it so: curate run SOURCE... {shlex.quote(options.out)} {settings}")
    return EXIT_OK


def _doctor(options: argparse.Namespace) -> int:
    from curator.commands.doctor import run_doctor

    return run_doctor(options)


def _demo(options: argparse.Namespace) -> int:
    from curator.footage.demo_films import make_demo

    folder = Path(options.dir).absolute()
    print(f"making footage in {folder / 'footage'} ...", flush=True)
    for file in make_demo(folder / "footage"):
        print(f"  {file.path.name}: {file.what}")
    return main(["run", str(folder / "footage"), str(folder / "out")])


if __name__ == "__main__":
    sys.exit(main())
