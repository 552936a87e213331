"""The command `curate`."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import NoReturn

from curator import __version__
from curator.errors import (
    CuratorError,
    DamagedError,
    NothingReadableError,
    RecipeError,
    UsageError,
    without_run,
)
from curator.executor.json_log import JsonFormatter
from curator.executor.termination import (
    arrived_signal,
    begin_ending,
    end_process,
    ends_when_asked,
)
from curator.tools.commands.arguments import (
    EXIT_BROKEN_OFF,
    EXIT_FAILED,
    EXIT_NOT_READ,
    EXIT_SIGNALLED,
    EXIT_USAGE,
    CommandParser,
    ExamplesHelp,
    Result,
    as_json,
    check_buckets,
    check_shorthands,
    wrapped,
)
from curator.tools.commands.catalogues import doctor, graph, models, recipes, scores
from curator.tools.commands.exit_codes import exit_codes_help
from curator.tools.commands.fitting import fit
from curator.tools.commands.inspection import explain, learn, mark, report, search, tune, view
from curator.tools.commands.plan_and_status import plan, status
from curator.tools.commands.proving import prove
from curator.tools.commands.run import demo, recaption, run
from curator.tools.commands.shards import export, verify, views
from curator.tools.commands.snapshots import clean, remove, snapshots
from curator.tools.commands.standard_streams import (
    Output,
    OutputLostError,
    guarded_streams,
    reserve_descriptors,
)

GROUPS = {
    "curate": (run, plan, status, recaption, demo),
    "review": (explain, tune, prove, view, mark, learn, search, report),
    "use": (fit, export, views, verify),
    "keep": (snapshots, clean, remove),
    "check and look up": (doctor, recipes, scores, models, graph),
}
"""The commands, in the groups and the order of the help."""
COMMANDS = tuple(verb for verbs in GROUPS.values() for verb in verbs)
EXAMPLES = """\
  curate demo                                       make footage, curate it
  curate run videos/ out/ --size 720p --audio keep  of one size, with sound
  curate tune out/ motion.min=0.1                   what another bound keeps\
"""


def command() -> NoReturn:
    """Runs the installed command `curate`, and ends the process."""
    with ends_when_asked():
        reserve_descriptors()
        end_process(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit code."""
    with ends_when_asked(), guarded_streams() as output:
        return _run(arguments, output)


def _run(arguments: Sequence[str] | None, output: Output) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_parser(arguments).parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="curate: %(levelname)s %(message)s")
    is_json = getattr(options, "log_format", "text") == "json"
    if is_json:
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
        logging.getLogger("curator.executor.progress").setLevel(logging.INFO)

    def say(text: object) -> None:
        if is_json:
            logging.getLogger("curate").error("%s", text)
        else:
            print(f"curate: {text}", file=sys.stderr)

    def failed(text: object, code: int) -> int:
        say(text)
        if getattr(options, "json", False):
            with suppress(OutputLostError):
                print(as_json({"error": str(text), "code": code}))
        return code

    output.raises = options.only_prints(options)
    try:
        check_buckets(options)
        check_shorthands(options)
        code = _act(options)
        output.flush()
        # The work is done, so no signal changes the exit code any more.
        begin_ending()
    except OutputLostError as error:
        if error.has_no_reader:
            return EXIT_NOT_READ
        say(f"standard output cannot be written: {error}; free space, or write it elsewhere")
        return EXIT_BROKEN_OFF
    except NothingReadableError as error:
        return failed(error, EXIT_FAILED)
    except (UsageError, RecipeError) as error:
        return failed(error, EXIT_USAGE)
    except ModuleNotFoundError as error:
        # A missing module of this package is a defect, so its traceback is shown.
        if (error.name or "curator").partition(".")[0] == "curator":
            raise
        return failed(without_run(error), EXIT_USAGE)
    except KeyboardInterrupt:
        begin_ending()
        code = EXIT_SIGNALLED + (arrived_signal() or signal.SIGINT)
        return failed("stopped; the same command resumes from the stored results", code)
    except DamagedError as error:
        return failed(error, EXIT_BROKEN_OFF)
    except CuratorError as error:
        text = f"{error}; the same command resumes from the stored results"
        return failed(text, EXIT_BROKEN_OFF)
    if output.lost is not None:
        say(
            f"the output above is not whole, because standard output cannot be written "
            f"({output.lost}); the command ended with {code}, as its work did"
        )
    return code


def _act(options: argparse.Namespace) -> int:
    """Runs the command; with `--json`, prints its result in place of its text."""
    if not getattr(options, "json", False):
        outcome: Result | int = options.action(options)
        return outcome.code if isinstance(outcome, Result) else outcome
    options.stream = sys.stdout
    with open(os.devnull, "w", errors="replace") as nothing, redirect_stdout(nothing):
        result = options.action(options)
    print(as_json(result.facts, is_line=result.is_line))
    return int(result.code)


def make_parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the whole command line, or of the commands that `arguments` name."""
    width = max(len(verb.name) for verb in COMMANDS)
    groups = [
        "\n".join([f"{title}:", *(f"  {verb.name:{width}}  {verb.summary}" for verb in verbs)])
        for title, verbs in GROUPS.items()
    ]
    about = "Turns raw video into clean, captioned, de-duplicated clips in WebDataset tars."
    parser = CommandParser(
        prog="curate",
        formatter_class=ExamplesHelp,
        description="\n\n".join([wrapped(about), f"examples:\n{EXAMPLES}", *groups]),
        usage="curate [-h] [--version] COMMAND ...",
        epilog="`curate COMMAND --help` has the options of a command. " + exit_codes_help(),
    )
    parser.add_argument("--version", action="version", version=f"curate {__version__}")
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        prog="curate",
        help=argparse.SUPPRESS,
        parser_class=CommandParser,
    )
    for verb in COMMANDS:
        # Without `help`: the description lists the commands.
        own = commands.add_parser(verb.name)
        if arguments is None or verb.name in arguments:
            verb.add_to(own)
    return parser


if __name__ == "__main__":
    command()
