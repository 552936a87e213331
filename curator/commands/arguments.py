"""Arguments and exit codes that several commands share."""

import argparse
import os

EXIT_OK, EXIT_BROKEN_OFF, EXIT_USAGE, EXIT_FAILED = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_NOT_READ = 130, 143, 141


def positive(text: str) -> int:
    """Parses a whole number from 1."""
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1")
    return number


def fraction(text: str) -> float:
    """Parses a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number from 0 to 1")
    return number


def add_overrides(parser: argparse.ArgumentParser, text: str = "as for `curate run`") -> None:
    """Adds `--set`."""
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=text
    )


def add_cluster(parser: argparse.ArgumentParser, *, address: str, shared: str) -> None:
    """Adds `--ray-address` and `--shared-out`, with their help."""
    parser.add_argument(
        "--ray-address", default=os.environ.get("RAY_ADDRESS") or None, metavar="ADDR", help=address
    )
    parser.add_argument("--shared-out", action="store_true", help=shared)
