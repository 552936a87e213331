"""The errors of this package, and the public codes under which a source can fail."""

import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from typing import ClassVar

MAX_NAMED = 5
"""Clips that a message names of many."""
MAX_ERROR = 1000
"""Characters of a user's error that are kept."""
_PACKAGE = os.path.dirname(__file__)


class ErrorCode(StrEnum):
    """Why a source has no clips. Public: written to `sources.error_code`."""

    EMPTY_FILE = "empty_file"
    """The object has no bytes."""
    NOT_A_VIDEO = "not_a_video"
    """No accepted demuxer recognises the bytes: text, an image, noise, a header without index."""
    NO_VIDEO_STREAM = "no_video_stream"
    """A media file without video, such as audio alone."""
    UNSUPPORTED_CODEC = "unsupported_codec"
    """The video stream's codec has no decoder here, or its colours cannot be converted."""
    NO_FRAMES = "no_frames"
    """The container is readable and no frame of it decodes."""
    TOO_MANY_PIXELS = "too_many_pixels"
    """A frame is larger than `analyze.max_pixels`."""
    TOO_LONG = "too_long"
    """There are more frames than `analyze.max_frames` allows, or timestamps beyond 2^63."""
    TOO_LARGE_TO_PROBE = "too_large_to_probe"
    """Its header, index or cover pictures ask for more memory than reading them may take."""
    OUT_OF_MEMORY = "out_of_memory"
    """Decoding asked for more memory than one source may take."""
    TOO_SLOW = "too_slow"
    """Decoding took longer than its bytes, frames and pixels allow."""
    UNSAFE_KEY = "unsafe_key"
    """A segment of an object's key is `.` or `..`, which programs resolve to another object."""
    VANISHED = "vanished"
    """Listed, and gone when it was read."""
    CHANGED = "changed"
    """Its bytes changed between listing and reading."""
    UNREADABLE = "unreadable"
    """Permission, I/O or network error."""
    GPU_FAILED = "gpu_failed"
    """A GPU failed under it twice, and its stage cannot work on a CPU."""
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    """A GPU has too little memory for it, and its stage cannot work on a CPU."""
    WORKER_DIED = "worker_died"
    """Its worker process died twice: a crash in a decoder, memory, or the time limit."""
    REMOVED = "removed"
    """`curate remove` took it out of OUT."""
    INTERNAL = "internal"
    """A defect of this package; the traceback is in the log."""


RETRIED = frozenset(
    {
        ErrorCode.VANISHED,
        ErrorCode.CHANGED,
        ErrorCode.UNREADABLE,
        ErrorCode.GPU_FAILED,
        ErrorCode.GPU_OUT_OF_MEMORY,
        ErrorCode.WORKER_DIED,
        ErrorCode.INTERNAL,
    }
)
"""Failures that another run may not see again: they are not stored as done."""


class CuratorError(Exception):
    """Base of all errors that this package raises on purpose."""

    _made_from: ClassVar[tuple[str, ...]] = ()
    """Attributes that are the arguments, where the message alone is not the only one."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles with its arguments, so that the error crosses processes."""
        arguments = tuple(getattr(self, name) for name in self._made_from) or self.args
        return type(self), arguments, vars(self)


class RecipeError(CuratorError):
    """A recipe or an override is wrong; the message names the file, the key and the remedy."""


class UsageError(CuratorError):
    """Arguments or environment do not allow the run to start."""


class StorageError(CuratorError):
    """An object under the output root, or a listing, cannot be read or written."""


class UnconditionalStoreError(StorageError):
    """The store does not support conditional writes."""


class FullDiskError(StorageError):
    """Temporary files cannot be written in a folder, by no fault of a source: ends the run."""

    _made_from = ("folder",)

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"cannot write temporary files in {folder!r}: no space left on its disk; free some, or "
            "set TMPDIR to a folder on a larger disk"
        )
        self.folder = folder


class LeaseLostError(CuratorError):
    """Another run may write to the output root now, so that this one changes nothing more there."""

    _made_from = ("root", "why")

    def __init__(self, root: str, why: str) -> None:
        super().__init__(
            f"this run does not hold {root} any more: {why}; a run that is paused, or cannot reach "
            "its output, for too long loses it, and changes nothing more there"
        )
        self.root, self.why = root, why


class DamagedError(StorageError):
    """An object of the output root is missing, cut off or changed; `curate run` makes it again."""

    _made_from = ("root", "name", "why")

    def __init__(self, root: str, name: str, why: str) -> None:
        super().__init__(
            f"{root}/{name} is damaged ({why[:200]}); `curate run SOURCE... OUT` with the sources "
            "of the last run makes it again"
        )
        self.root, self.name, self.why = root, name, why


class SourceError(CuratorError):
    """A source cannot be used: a public code, and what was found, what was expected, what to do."""

    _made_from = ("code", "message")

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DecodeError(SourceError):
    """Frames of a source cannot be decoded."""


class DeviceError(CuratorError):
    """A GPU fails under a unit of work, by no fault of its source.

    The process that met it must end: its CUDA context may be unusable. The unit is tried again in
    a new process, then on a CPU where its stage can work on one.
    """

    code = ErrorCode.GPU_FAILED


class DeviceLostError(DeviceError):
    """The GPU, its driver or its context does not answer any more, or gives errors that stay."""


class DeviceMemoryError(DeviceError):
    """The GPU's memory does not hold even the smallest batch."""

    code = ErrorCode.GPU_OUT_OF_MEMORY


class ModelError(CuratorError):
    """A model's weights are missing or differ from what the catalogue names."""


class ServerError(CuratorError):
    """A model server cannot be used as it is configured; the message has no key."""


class UnreachableError(ServerError):
    """A server does not answer, which may pass."""


class CutError(CuratorError):
    """A clip cannot be written as it was meant."""


class ShardError(CuratorError):
    """A shard cannot be assembled."""


@contextmanager
def raised_as(kind: type[Exception], *causes: type[Exception], of: str = "") -> Iterator[None]:
    """Raises errors of the kinds `causes` as one of another kind; its message begins with `of`."""
    try:
        yield
    except causes as error:
        raise kind(f"{of}{error}") from error


def unknown_key(name: str, valid: Iterable[str], kind: str) -> str:
    """Words for a key that does not exist, with the nearest that does."""
    near = get_close_matches(name, valid, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(valid)}"
    return f"unknown {kind} {name!r}; {remedy}"


def ambiguous_id(beginning: str, clip_ids: Sequence[str]) -> str:
    """Words for the beginning of an id that several clips share, with the first of them."""
    more = ", ..." if len(clip_ids) > MAX_NAMED else ""
    return (
        f"{len(clip_ids):,} clips begin with {beginning!r}: "
        f"{', '.join(clip_ids[:MAX_NAMED])}{more}; give more of the id"
    )


def one_line(error: BaseException) -> str:
    """An error's message on one line, up to 200 characters."""
    return " ".join(str(error).split())[:200]


def install_extra(extra: str) -> str:
    """Returns the command that installs an extra.

    Never the name of the distribution alone: it is on no package index, where anybody could
    register it.
    """
    return f"uv pip install '.[{extra}]' in the checkout of this package"


def without_run(error: ModuleNotFoundError) -> str:
    """Words for a package that is missing where only what the loader needs is installed."""
    return f"the package {error.name} is not installed: {install_extra('run')}"


def in_one_line(error: Exception) -> str:
    """Returns an error of a user's code in one short line, with the file and line at fault."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    place = f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    text = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return (text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} ...") + place
