"""Standard output and error that never change the outcome of a command.

Standard output may be closed, full, or a pipe whose reader has gone. A command that has committed a
run must not fail then, and a removal must not stop halfway.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class OutputLostError(Exception):
    """Standard output cannot be written, and the output is all that the command makes.

    Attributes:
        has_no_reader: Whether the output was closed, as by `head`; else the disk is full, or so.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(getattr(error, "strerror", None) or str(error))
        closed = (errno.EPIPE, errno.EBADF)
        self.has_no_reader = not isinstance(error, OSError) or error.errno in closed


class Output:
    """A text stream that keeps its first error; with `raises`, it raises `OutputLostError`."""

    def __init__(self, stream: TextIO | None, *, raises: bool = False) -> None:
        self._stream = stream
        self.raises = raises
        self.lost: OutputLostError | None = None
        """Why text was lost; None if none was."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the stream
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text. Characters that the encoding lacks become escapes."""
        self._attempt(lambda stream: stream.write(_encodable(text, stream)))
        return len(text)

    def flush(self) -> None:
        """Writes the buffer."""
        self._attempt(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """Returns whether this is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def _attempt(self, action: Any) -> None:  # noqa: ANN401 - of a stream
        if self.lost is not None:
            return
        try:
            if self._stream is None:
                raise OSError(errno.EBADF, "it is closed")
            action(self._stream)
        # `ValueError` if a stream is closed in this process.
        except (OSError, ValueError) as error:
            self.lost = OutputLostError(error)
            if self.raises:
                raise self.lost from error


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


@contextmanager
def guarded_streams() -> Iterator[Output]:
    """Replaces standard output and error during the block; yields the output."""
    before = sys.stdout, sys.stderr
    output = Output(sys.stdout)
    sys.stdout, sys.stderr = output, Output(sys.stderr)
    try:
        yield output
    finally:
        sys.stdout, sys.stderr = before


def reserve_descriptors() -> None:
    """Opens descriptors 0 to 2 where they are closed: no file of a run may get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken.
            os.open(os.devnull, os.O_RDWR)
