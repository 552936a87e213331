"""The type of commands, and the options, exit codes and terminal line that commands share."""

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn

from curator.errors import UsageError, unknown_key
from curator.frame_size import parsed_size
from curator.tools.commands.exit_codes import ExitCode

if TYPE_CHECKING:
    from curator.executor.engine import Engine

EXIT_OK, EXIT_BROKEN_OFF = ExitCode.FINISHED, ExitCode.BROKEN_OFF
EXIT_USAGE, EXIT_FAILED = ExitCode.USAGE, ExitCode.FAILED
EXIT_NOT_READ = ExitCode.NOT_READ
EXIT_SIGNALLED = 128
"""Exit code without the number of the signal that ended the command."""
EXIT_INTERRUPTED, EXIT_TERMINATED = ExitCode.INTERRUPTED, ExitCode.TERMINATED

Option = Callable[["argparse._ActionsContainer"], object]
"""Adds one or more arguments to a parser or a group."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command made.

    Attributes:
        facts: The document that `--json` prints; its keys are public (docs/commands.md).
        code: The exit code.
        is_line: Whether the document is a single line, for commands that print it repeatedly.
    """

    facts: object
    code: int = EXIT_OK
    is_line: bool = False


Main = Callable[[argparse.Namespace], Result | int]
"""Runs a command with parsed arguments; returns the result, or the exit code if it has none."""
_UNENCODED = re.compile("[\ud800-\udfff]")


def as_json(facts: object, *, is_line: bool = False) -> str:
    """Formats a document for programs: numbers that JSON lacks are null.

    Names that are not UTF-8 contain escapes of single bytes, so that every name is printed.
    """
    text = json.dumps(_plain(facts), indent=None if is_line else 1, ensure_ascii=False)
    return _UNENCODED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: object) -> object:
    if hasattr(value, "item"):
        # A number of numpy.
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def option(
    usage: str,
    help: str,
    type: Callable[[str], Any] | None = None,
    **settings: Any,  # noqa: ANN401 - of `add_argument`
) -> Option:
    """Declares an argument in the notation of usage lines.

    Args:
        usage: `OUT`, `[CLIP]`, `SOURCE...`, `[PLACE...]`, a switch such as `--json`, or `--keep N`.
        help: Meaning, unit and default of the argument.
        type: Parses the text.
        settings: Further arguments of `add_argument`.
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


def group(title: str, *options: Option) -> Option:
    """Declares options that the help shows under a title of their own."""

    def add(parser: "argparse._ActionsContainer") -> None:
        titled = parser.add_argument_group(title)
        for add_option in options:
            add_option(titled)

    return add


def one_of(*options: Option, required: bool = False) -> Option:
    """Declares options that exclude each other."""

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
    """The line of the command in `curate --help`."""
    options: tuple[Option, ...]
    description: str | None
    epilog: str | None
    examples: str
    """Command lines and their purpose, for the end of the help."""
    has_json: bool
    """Whether the command itself takes `--json`; else its tasks do, or it has no result."""
    only_prints: Callable[[argparse.Namespace], bool]
    """Whether the output is all that the command makes, so that the command fails without it."""

    @property
    def name(self) -> str:
        """The verb: the name of its function."""
        return self.main.__name__

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options and the help to a parser, and sets `action` to the function."""
        parser.description, parser.epilog = self.description, self.epilog
        if self.examples:
            texts = filter(None, [f"examples:\n{self.examples}", wrapped(self.epilog or "")])
            parser.epilog = "\n\n".join(texts)
            parser.formatter_class = ExamplesHelp
        for add_option in (*self.options, *((JSON,) if self.has_json else ())):
            add_option(parser)
        parser.set_defaults(action=self.main, only_prints=self.only_prints)


def command(
    summary: str,
    *options: Option,
    description: str | None = None,
    epilog: str | None = None,
    examples: str = "",
    has_json: bool = True,
    only_prints: Callable[[argparse.Namespace], bool] = lambda options: False,
) -> Callable[[Main], Command]:
    """Makes a command from a function; the name of the function is the verb."""
    return lambda main: Command(
        main=main,
        summary=summary,
        options=options,
        description=description,
        epilog=epilog,
        examples=examples,
        has_json=has_json,
        only_prints=only_prints,
    )


def always(options: argparse.Namespace) -> bool:
    """Returns True: for commands that only print."""
    return True


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
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
"""Blocks of rows, which are always in memory, would exceed a smaller amount."""


def memory_size(text: str) -> int:
    """Parses an amount of memory, such as `4GiB`; returns bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}; expected an amount such as 4GiB or 500MiB")
    number, unit = match.groups()
    n_bytes = int(float(number) * (1 << _SHIFTS[unit]))
    if n_bytes < LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r}; expected at least {LEAST_MEMORY >> 20}MiB")
    return n_bytes


def _placed(text: str) -> tuple[str, str]:
    stage, _, resource = text.partition("=")
    if not stage or not resource:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected STAGE=RESOURCE, where STAGE is a name of `curate graph`"
        )
    return stage, resource


class ExamplesHelp(argparse.HelpFormatter):
    """Help that keeps the lines of texts with indented lines, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n  " in text else super()._fill_text(text, width, indent)


def wrapped(text: str) -> str:
    """Returns a text in lines of the terminal's width, as argparse breaks them."""
    return textwrap.fill(text, max(24, shutil.get_terminal_size().columns - 2))


JSON = option("--json", "print one JSON document instead of text, also for an error")
OUT = option("OUT", "folder or s3://bucket/prefix of a run")
SHARDS = option(
    "OUT", "folder or s3://bucket/prefix of a run, or a folder with the contents of OUT/shards"
)
SHARDS_AT_ONCE = option(
    "--workers N", "shards read at once (default: one per core, at most 16)", positive
)
MEMORY = option(
    "--memory SIZE",
    "memory for columns of clips, such as 4GiB; further rows go to temporary files in the folder "
    "TMPDIR (default: a quarter of the machine's memory)",
    memory_size,
)
SNAPSHOT = option(
    "--snapshot N",
    "number of a snapshot, listed by `curate snapshots` (default: the newest)",
    positive,
)
WOULD_REMOVE = option("--dry-run", "list the objects to remove; remove nothing")


def overrides(help: str = "as for `curate run`") -> Option:
    """Declares `--set`."""
    return option("--set KEY=VALUE", help, action="append", default=[], dest="overrides")


class Shorthand(str):
    """A change of the recipe, `key=value`, from an option of its own such as `--size`."""

    __slots__ = ("option",)
    option: str


def _shorthand(name: str, key: str, value: Callable[[str], str]) -> Callable[[str], Shorthand]:
    def parsed(text: str) -> Shorthand:
        try:
            change = Shorthand(f"{key}={value(text)}")
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        change.option = f"{name} {text}"
        return change

    return parsed


def _size(text: str) -> str:
    return text if text == "bucket" else json.dumps(parsed_size(text))


def _rate(text: str) -> str:
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?|[0-9]+/[0-9]+", text) is None:
        raise ValueError(f"{text!r}; expected frames per second, such as 24 or 30000/1001")
    return text


_AUDIO = {"keep": "copy", "drop": "drop"}


def _audio(text: str) -> str:
    if text not in _AUDIO:
        raise ValueError(unknown_key(text, _AUDIO, "value"))
    return _AUDIO[text]


_SHORT: dict[str, Any] = {"action": "append", "default": [], "dest": "overrides"}
SHORTHANDS = (
    option(
        "--size SIZE",
        "width and height of all clips, such as 1280x720 or 720p, or 256 for a square; short for "
        "--set cut.size (default: the sizes of the sources)",
        _shorthand("--size", "cut.size", _size),
        **_SHORT,
    ),
    option(
        "--fps RATE",
        "frame rate of all clips, such as 24; short for --set cut.fps (default: the rates of the "
        "sources)",
        _shorthand("--fps", "cut.fps", _rate),
        **_SHORT,
    ),
    option(
        "--audio keep|drop",
        "whether clips have the sound of their sources; short for --set cut.audio (default: the "
        "recipe's, drop)",
        _shorthand("--audio", "cut.audio", _audio),
        **_SHORT,
    ),
)
"""Options for what most people set. Each becomes a change of the recipe, as by `--set`."""


def check_shorthands(options: argparse.Namespace) -> None:
    """Raises `UsageError` if a short option and another option set the same key."""
    changes: list[str] = getattr(options, "overrides", [])
    for number, change in enumerate(changes):
        if isinstance(change, Shorthand):
            key = change.partition("=")[0]
            for other in (*changes[:number], *changes[number + 1 :]):
                set_key = other.partition("=")[0].strip()
                if key == set_key or f"{key}.".startswith(f"{set_key}."):
                    said = other.option if isinstance(other, Shorthand) else f"--set {other}"
                    raise UsageError(f"{change.option} and {said} both set {key}; omit one of them")


def ray_address(help: str) -> Option:
    """Declares `--ray-address`; reads the variable when the parser is made, not at the import."""
    return lambda parser: option(
        "--ray-address ADDR", help, default=os.environ.get("RAY_ADDRESS") or None
    )(parser)


def cluster(*, address: str, shared: str) -> tuple[Option, ...]:
    """Declares `--ray-address`, `--shared-out`, `--workers` and `--place`."""
    return (
        ray_address(address),
        option("--shared-out", shared),
        option(
            "--workers --max-workers N",
            "most processes of a stage (default: one per core; on a cluster as many as the work "
            "can use, so that an autoscaler adds nodes)",
            positive,
        ),
        option(
            "--place STAGE=RESOURCE",
            "on a cluster: run a stage only on nodes with this custom Ray resource, such as "
            "cut=cpu_nodes; may be repeated",
            _placed,
            action="append",
            default=[],
        ),
    )


def check_buckets(options: argparse.Namespace) -> None:
    """Raises `UsageError` if a bucket of OUT or DEST does not exist or may not be listed.

    Without this check, a missing bucket would look like a broken run, whose results may be resumed.
    """
    from curator.storage import check_listable
    from curator.storage.object_service import scheme_of

    for place in (getattr(options, name, None) for name in ("out", "destination")):
        if place is not None and scheme_of(str(place)) is not None:
            check_listable(str(place))


def check_out_first(out: str, others: Iterable[str], usage: str) -> None:
    """Raises `UsageError` if OUT is not a folder but one of `others` is: OUT must be first.

    `usage` is the correct command without `curate`, with `{out}` and `{other}` for the two names.
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
    """Makes the engine for the options of `cluster`."""
    from curator.executor.engine import Engine

    place = dict(options.place)
    return Engine(address=options.ray_address, workers=options.workers, place=place)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command; its error for unknown arguments shows the command's own usage."""

    _is_json = False
    add_late: Callable[[argparse.ArgumentParser, Sequence[str]], None] | None = None
    """Adds arguments that are slow to find or depend on other arguments. The parser calls it once,
    with itself and the command's arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Adds the late arguments, then parses."""
        args = sys.argv[1:] if args is None else args
        self._is_json = "--json" in args
        add_late, self.add_late = self.add_late, None
        if add_late is not None:
            add_late(self, args)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            names = " ".join(str(own.metavar) for own in self._get_positional_actions())
            # In `mark OUT --keep CLIP_ID`, the option ends the positional arguments.
            is_late = not unknown[0].startswith("-") and any(a.startswith("-") for a in args)
            hint = f"; expected {names} before all options" if is_late else ""
            if unknown[0].startswith("--"):
                name = unknown[0].partition("=")[0]
                near = get_close_matches(name, self._option_string_actions, cutoff=0.7)
                hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)
            noun = str(action.metavar).lower() if is_command else "value"
            message = unknown_key(str(value), [str(choice) for choice in action.choices], noun)
            raise argparse.ArgumentError(None if is_command else action, message)

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the error, with `--json` also a document, and exits."""
        if self._is_json:
            print(as_json({"error": message, "code": EXIT_USAGE}))
        super().error(message)


@contextmanager
def terminal_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function that replaces the terminal's last line by a text, at most twice a second.

    The function does nothing if `quiet`, or if standard error is not a terminal.
    """
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
