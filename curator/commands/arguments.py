"""Commands, and the options, exit codes and terminal line that several of them share."""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from curator.errors import UsageError

if TYPE_CHECKING:
    from curator.executor.engine import Engine

EXIT_OK, EXIT_BROKEN_OFF, EXIT_USAGE, EXIT_FAILED = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_NOT_READ = 130, 143, 141

PLACED = ("scan", "plan", "analyze", "join", "propose", "look", "cut", "caption", "shard")
"""Stages that have workers."""

Option = Callable[["argparse._ActionsContainer"], object]
"""Adds an argument, or several, to a parser or a group."""
Main = Callable[[argparse.Namespace], int]
"""Does what the arguments say; returns the exit code."""


def option(
    usage: str,
    help: str,
    type: Callable[[str], Any] | None = None,
    **settings: Any,  # noqa: ANN401 - of `add_argument`
) -> Option:
    """Declares an argument as a usage line shows it.

    Args:
        usage: `OUT`, `[CLIP]`, `SOURCE...`, `[PLACE...]`, a switch such as `--json`, or `--keep N`.
        help: What it means, its unit and default.
        type: Parses the text.
        settings: Further ones of `add_argument`.
    """
    *flags, last = usage.split()
    if last.startswith("-"):
        flags.append(last)
        if not settings.keys() & {"action", "choices"}:
            settings["action"] = "store_true"
    elif flags:
        settings["metavar"] = last
    else:
        settings["metavar"] = name = last.strip("[].")
        flags = [settings.pop("dest", name.lower())]
        if last.endswith("..."):
            settings["nargs"] = "+"
        elif last.startswith("["):
            settings["nargs"] = "*" if last.endswith("...]") else "?"
    if type is not None:
        settings["type"] = type

    def add(parser: "argparse._ActionsContainer") -> None:
        parser.add_argument(*flags, help=help, **settings)

    return add


def one_of(*options: Option, required: bool = False) -> Option:
    """Declares options of which a command takes one alone."""

    def add(parser: "argparse._ActionsContainer") -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for add_option in options:
            add_option(group)

    return add


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A verb of the command line."""

    main: Main
    summary: str
    """Its line of `curate --help`."""
    options: tuple[Option, ...]
    description: str | None
    epilog: str | None

    @property
    def name(self) -> str:
        """The verb: the name of its function."""
        return self.main.__name__

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Gives a parser the options, the help, and `action`."""
        parser.description, parser.epilog = self.description, self.epilog
        for add_option in self.options:
            add_option(parser)
        parser.set_defaults(action=self.main)


def command(
    summary: str, *options: Option, description: str | None = None, epilog: str | None = None
) -> Callable[[Main], Command]:
    """Makes a command of the function that does it, which has the name of the verb."""
    return lambda main: Command(
        main=main, summary=summary, options=options, description=description, epilog=epilog
    )


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


def _placed(text: str) -> tuple[str, str]:
    stage, equals, resource = text.partition("=")
    if not equals or not resource or stage not in PLACED:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected STAGE=RESOURCE, where STAGE is one of {', '.join(PLACED)}"
        )
    return stage, resource


OUT = option("OUT", "folder or s3://bucket/prefix of a run")
SHARDS = option(
    "OUT", "folder or s3://bucket/prefix of a run, or a folder with the contents of OUT/shards"
)
SHARDS_AT_ONCE = option(
    "--workers N", "shards read at once (default: one per core, at most 16)", positive
)
MEMORY = option(
    "--memory SIZE",
    "memory for columns of clips, such as 4GiB; what exceeds it waits in temporary files, "
    "whose folder TMPDIR names (default: a quarter of the machine's)",
    memory_size,
)
SNAPSHOT = option(
    "--snapshot N", "number of a snapshot, from `curate snapshots` (default: the newest)", positive
)
WOULD_REMOVE = option("--dry-run", "say what would be removed; removes nothing")


def overrides(help: str = "as for `curate run`") -> Option:
    """Declares `--set`."""
    return option("--set KEY=VALUE", help, action="append", default=[], dest="overrides")


def cluster(*, address: str, shared: str) -> tuple[Option, ...]:
    """Declares `--ray-address`, `--shared-out`, `--workers` and `--place`."""
    return (
        # The variable is read when the parser is made, and not when this module is imported.
        lambda parser: option(
            "--ray-address ADDR", address, default=os.environ.get("RAY_ADDRESS") or None
        )(parser),
        option("--shared-out", shared),
        option(
            "--workers --max-workers N",
            "most processes of a stage (default: one per core; on a cluster as many as there is "
            "work for, which lets an autoscaler add nodes)",
            positive,
        ),
        option(
            "--place STAGE=RESOURCE",
            "on a cluster: run a stage only on nodes with this custom resource of Ray, such as "
            "cut=cpu_nodes; may be repeated",
            _placed,
            action="append",
            default=[],
        ),
    )


def check_out_first(out: str, others: Iterable[str], usage: str) -> None:
    """Raises `UsageError` where OUT is no folder and one of `others` is one: OUT comes first.

    `usage` is the rest of the command, with the places of both as `{out}` and `{other}`.
    """
    from curator.storage.base import has_scheme

    if has_scheme(out) or os.path.isdir(out):
        return
    for place in others:
        if has_scheme(place) or os.path.isdir(place):
            words = usage.format(out=shlex.quote(place), other=shlex.quote(out))
            raise UsageError(
                f"{out!r} is no folder, and {place!r} is one: OUT comes first: `curate {words}`"
            )


def engine_of(options: argparse.Namespace) -> "Engine":
    """Makes the engine that the options of `cluster` ask for."""
    from curator.executor.engine import Engine

    place = dict(options.place)
    return Engine(address=options.ray_address, workers=options.workers, place=place)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, which refuses unknown arguments with the command's own usage."""

    add_late: Callable[[argparse.ArgumentParser, Sequence[str]], None] | None = None
    """Adds arguments that take long to find, or depend on others; called once, with the parser and
    the command's arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Parses, with all arguments."""
        add_late, self.add_late = self.add_late, None
        if add_late is not None:
            add_late(self, args or ())
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            names = " ".join(str(own.metavar) for own in self._get_positional_actions())
            # In `mark OUT --keep CLIP_ID` the option ends the names.
            is_late = not unknown[0].startswith("-") and any(a.startswith("-") for a in args or ())
            hint = f"; expected {names} before all options" if is_late else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


@contextmanager
def terminal_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields what shows a text over the last one; shows none if `quiet` or without terminal."""
    is_shown, next_s = sys.stderr.isatty() and not quiet, 0.0

    def show(words: str) -> None:
        nonlocal next_s
        if is_shown and time.monotonic() >= next_s:
            next_s = time.monotonic() + 0.5
            print(f"\r{words}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr)
