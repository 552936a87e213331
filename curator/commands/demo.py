"""`curate demo`: makes footage and curates it."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from curator.commands import run
from curator.commands.arguments import EXIT_OK

HELP = "make footage, curate it, and say where to look at the result"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", nargs="?", default="demo", metavar="DIR", help="folder (default: %(default)s)"
    )


def main(options: argparse.Namespace) -> int:
    from curator.footage.demo_films import make_demo

    folder = Path(options.dir).absolute()
    print(f"making footage in {folder / 'footage'} ...", flush=True)
    for path, what in make_demo(folder / "footage"):
        print(f"  {path.name}: {what}")
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    code = run.main(parser.parse_args([str(folder / "footage"), str(folder / "out")]))
    if code == EXIT_OK:
        print("\n".join(["", "try next:", *_next_commands(options.dir)]))
    return code


def _next_commands(folder: str) -> Iterator[str]:
    """Commands that work as they are, in the folder in which the demo was started."""
    from curator.review.finished_run import open_finished

    out = Path(folder, "out")
    clips = open_finished(str(out)).clips
    rejected = clips["clip_id"][max(0, clips["decision"].index("rejected").as_py())].as_py()
    footage = shlex.quote(str(Path(folder, "footage")))
    place, curate = shlex.quote(str(out)), shlex.quote(_called())
    yield f"  {curate} explain {place} {rejected}"
    yield f"  {curate} tune {place} motion.min=0.1"
    yield f"  {curate} run {footage} {place} --set filters.motion.min=0.1"


def _called() -> str:
    """What the shell finds this program by: its name, or a path where that finds another or none.

    Modules that were started by `python -m` have a path too, to the script next to Python.
    """
    script = Path(sys.executable).with_name("curate")
    executable = shutil.which("curate")
    if executable is not None and Path(executable).resolve() == script.resolve():
        return "curate"
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)
