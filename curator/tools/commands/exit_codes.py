"""The exit codes of all commands, with their meanings.

`curate --help` prints them, and a test compares them with the table in `docs/commands.md`.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code; `meaning` is its row in the table of `docs/commands.md`, to the first stop."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "ExitCode":
        """Makes a member from the code and its meaning."""
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    FINISHED = 0, "finished"
    BROKEN_OFF = (
        1,
        "broken off: the storage failed, a captioner answered for no window at all, or an internal "
        "error occurred; nothing was committed",
    )
    USAGE = (
        2,
        "refused: the usage, recipe or environment is wrong, or clips would be lost without "
        "--replace; the shards did not change",
    )
    FAILED = (
        3,
        "more sources, clips or windows failed than --max-failed allows, no source can be read, or "
        "a check found a fault",
    )
    HUNG_UP = 129, "the terminal hung up (SIGHUP)"
    INTERRUPTED = 130, "interrupted (Ctrl-C, SIGINT)"
    NOT_READ = (
        141,
        "the command only prints, and the reader of its output, such as head, closed it",
    )
    TERMINATED = 143, "terminated (SIGTERM)"


RESUMED = (
    ExitCode.BROKEN_OFF,
    ExitCode.HUNG_UP,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
)
"""After these codes, the same command resumes from the stored results."""


def exit_codes_help() -> str:
    """Returns all exit codes with their meanings, for the help."""
    codes = "; ".join(f"{code:d} {code.meaning}" for code in ExitCode)
    *first, last = (f"{code:d}" for code in RESUMED)
    resumed = f"{', '.join(first)} and {last}"
    return (
        f"Exit codes: {codes}. After {resumed}, the same command resumes from the stored results."
    )
