"""Arguments, parsers and exit codes that several commands share."""

import argparse
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curator.executor.engine import Engine

EXIT_OK, EXIT_BROKEN_OFF, EXIT_USAGE, EXIT_FAILED = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_NOT_READ = 130, 143, 141

PLACED = ("scan", "plan", "analyze", "join", "propose", "look", "cut", "caption", "shard")
"""Stages that have workers."""


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


def listening_address(text: str) -> tuple[str, int]:
    """Parses `PORT` or `HOST:PORT`; without a host it is 127.0.0.1."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r}; expected PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
LEAST_MEMORY = 64 << 20
"""Below, what is held by the block would exceed it."""


def memory_size(text: str) -> int:
    """Parses an amount of memory, such as `4GiB`; returns bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}; expected an amount such as 4GiB or 500MiB")
    number, unit = match.groups()
    n_bytes = int(float(number) * (1 << _SHIFTS[unit]))
    if n_bytes < LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r}; expected at least {LEAST_MEMORY >> 20}MiB")
    return n_bytes


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Adds `--memory`."""
    parser.add_argument(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="memory for columns of clips, such as 4GiB; what exceeds it waits in temporary files, "
        "whose folder TMPDIR names (default: a quarter of the machine's)",
    )


def add_overrides(parser: argparse.ArgumentParser, text: str = "as for `curate run`") -> None:
    """Adds `--set`."""
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=text
    )


def add_snapshot(parser: argparse.ArgumentParser) -> None:
    """Adds `--snapshot`."""
    parser.add_argument(
        "--snapshot",
        type=positive,
        metavar="N",
        help="number of a snapshot, from `curate snapshots` (default: the newest)",
    )


def add_cluster(parser: argparse.ArgumentParser, *, address: str, shared: str) -> None:
    """Adds `--ray-address`, `--shared-out`, `--workers` and `--place`, with their help."""
    parser.add_argument(
        "--ray-address", default=os.environ.get("RAY_ADDRESS") or None, metavar="ADDR", help=address
    )
    parser.add_argument("--shared-out", action="store_true", help=shared)
    parser.add_argument(
        "--workers",
        "--max-workers",
        type=positive,
        metavar="N",
        help="most processes of a stage (default: one per core; on a cluster as many as there is "
        "work for, which lets an autoscaler add nodes)",
    )
    parser.add_argument(
        "--place",
        action="append",
        type=_placed,
        default=[],
        metavar="STAGE=RESOURCE",
        help="on a cluster: run a stage only on nodes with this custom resource of Ray, such as "
        "cut=cpu_nodes; may be repeated",
    )


def engine_of(options: argparse.Namespace) -> "Engine":
    """Makes the engine that the options of `add_cluster` ask for."""
    from curator.executor.engine import Engine

    place = dict(options.place)
    return Engine(address=options.ray_address, workers=options.workers, place=place)


def _placed(text: str) -> tuple[str, str]:
    """Reads `STAGE=RESOURCE`."""
    stage, equals, resource = text.partition("=")
    if not equals or not resource or stage not in PLACED:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected STAGE=RESOURCE, where STAGE is one of {', '.join(PLACED)}"
        )
    return stage, resource


class LateParser(argparse.ArgumentParser):
    """Adds arguments that take long to find, or depend on others, when it parses."""

    add_late: Callable[[argparse.ArgumentParser, Sequence[str]], None] | None = None
    """Adds them; called once, with the parser and the command's arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Parses, with all arguments."""
        add_late, self.add_late = self.add_late, None
        if add_late is not None:
            add_late(self, args or ())
        return super().parse_known_args(args, namespace)
