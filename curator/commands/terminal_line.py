"""One terminal line with the progress of a command."""

import sys
import time


class TerminalLine:
    """Writes texts over each other, at most twice a second; none if `quiet` or without terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._next = 0.0 if sys.stderr.isatty() and not quiet else float("inf")

    def __call__(self, words: str) -> None:
        """Shows a text."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.5
            print(f"\r{words}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "TerminalLine":
        return self

    def __exit__(self, *error: object) -> None:
        if self._next < float("inf"):
            print("\r\033[K", end="", file=sys.stderr)
