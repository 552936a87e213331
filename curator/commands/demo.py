"""`curate demo`: makes footage and curates it."""

import argparse
from pathlib import Path

from curator.commands import run

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
    return run.main(parser.parse_args([str(folder / "footage"), str(folder / "out")]))
