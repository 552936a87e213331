"""`curate demo`: makes footage and curates it."""

import argparse
from pathlib import Path

from curator.commands import run
from curator.commands.arguments import Commands


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    demo = commands.add_parser(
        "demo", help="make footage, curate it, and say where to look at the result"
    )
    demo.add_argument(
        "dir", nargs="?", default="demo", metavar="DIR", help="folder (default: %(default)s)"
    )
    demo.set_defaults(action=run_demo)


def run_demo(options: argparse.Namespace) -> int:
    """Runs the command."""
    from curator.footage.demo_films import make_demo

    folder = Path(options.dir).absolute()
    print(f"making footage in {folder / 'footage'} ...", flush=True)
    for path, what in make_demo(folder / "footage"):
        print(f"  {path.name}: {what}")
    parser = argparse.ArgumentParser()
    run.add_parser(parser.add_subparsers())
    return run.run_run(parser.parse_args(["run", str(folder / "footage"), str(folder / "out")]))
