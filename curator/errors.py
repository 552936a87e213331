"""The errors of this package, and the public error codes of failed sources."""

import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from typing import ClassVar

from curator.installation import install_extra

MAX_NAMED = 5
"""Most clips that a message names."""
MAX_ERROR = 1000
"""Most characters of an error of a user's code."""
_PACKAGE = os.path.dirname(__file__)
_CONTEXTLIB = contextmanager.__code__.co_filename


class ErrorCode(StrEnum):
    """Why a source has no clips. Public: written to `sources.error_code`."""

    EMPTY_FILE = "empty_file"
    """The object has no bytes."""
    NOT_A_VIDEO = "not_a_video"
    """No accepted demuxer recognises the bytes: text, noise, a header without index."""
    NO_VIDEO_STREAM = "no_video_stream"
    """A media file without video or sound, such as subtitles alone."""
    UNUSED_MEDIUM = "unused_medium"
    """A still image or sound: a medium that no stage of the recipe accepts."""
    UNSUPPORTED_CODEC = "unsupported_codec"
    """The video stream's codec has no decoder here, or its colours cannot be converted."""
    ENCRYPTED = "encrypted"
    """The video is encrypted: DRM, Common Encryption, CSS, or a scrambled stream."""
    FRAGMENT_WITHOUT_INIT = "fragment_without_init"
    """A fragment of a stream (DASH, HLS, CMAF) without its initialization segment."""
    NO_FRAMES = "no_frames"
    """The container is readable, but no frame decodes."""
    TOO_MANY_PIXELS = "too_many_pixels"
    """A frame is larger than `analyze.max_pixels`."""
    TOO_LONG = "too_long"
    """The source has more frames than `analyze.max_frames`, or timestamps beyond 2^63."""
    TOO_LARGE_TO_PROBE = "too_large_to_probe"
    """The header, index or cover pictures need more memory than probing may use."""
    OUT_OF_MEMORY = "out_of_memory"
    """Decoding needs more memory than one source may use."""
    TOO_SLOW = "too_slow"
    """Decoding took longer than the source's bytes, frames and pixels allow."""
    UNSAFE_KEY = "unsafe_key"
    """A segment of an object's key is `.` or `..`, which programs resolve to another object."""
    BAD_TAR = "bad_tar"
    """A tar cannot be read (compressed, cut off, damaged), or has no media; or its member cannot: a
    link, a sparse file, an unsafe name, a name twice."""
    VANISHED = "vanished"
    """The source was listed, but no longer existed when it was read."""
    CHANGED = "changed"
    """The bytes of the source changed between listing and reading."""
    UNREADABLE = "unreadable"
    """Permission, I/O or network error."""
    GPU_FAILED = "gpu_failed"
    """A GPU failed twice while it processed the source, and the stage cannot use a CPU."""
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    """A GPU has too little memory for the source, and the stage cannot use a CPU."""
    WORKER_DIED = "worker_died"
    """The worker process died twice: a decoder crashed, or memory or time ran out."""
    LICENSE_NOT_ALLOWED = "license_not_allowed"
    """`rights.allow` lacks the licence of the source, or it has none."""
    RIGHTS_RESERVED = "rights_reserved"
    """The metadata of the source reserves rights, by the column that `rights.reserved` names."""
    GENERATED = "generated"
    """Its C2PA manifest says that a model generated it, and `rights.generated` is refuse."""
    REMOVED = "removed"
    """`curate remove` removed the source from OUT."""
    INTERNAL = "internal"
    """This package has a defect; the traceback is in the log."""


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
"""Failures that may not occur again. They are not stored as done, so the next run tries again."""

REFUSED = frozenset({ErrorCode.LICENSE_NOT_ALLOWED, ErrorCode.RIGHTS_RESERVED, ErrorCode.GENERATED})
"""Codes of sources that the section `rights` of the recipe refuses. They can be read, and another
recipe may use them."""


class CuratorError(Exception):
    """Base of all errors that this package raises on purpose."""

    _made_from: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes with the arguments of `__init__`; empty if it takes the message."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the error with the arguments of `__init__`, to send it to another process."""
        arguments = tuple(getattr(self, name) for name in self._made_from) or self.args
        return type(self), arguments, vars(self)


class RecipeError(CuratorError):
    """A recipe or an override is wrong; the message names the file, the key and the remedy."""


class UsageError(CuratorError):
    """The run cannot start with these arguments or in this environment."""


class NothingReadableError(UsageError):
    """All sources failed, so nothing was done: the command ends as if too many had failed."""


class StorageError(CuratorError):
    """An object under the output root, or a listing, cannot be read or written."""


class UnconditionalStoreError(StorageError):
    """The store does not support conditional writes."""


class FullDiskError(StorageError):
    """The disk of temporary files is full. The run ends, because no source is at fault."""

    _made_from = ("folder",)

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"cannot write temporary files in {folder!r}: no space left on its disk; free some "
            "space, or set TMPDIR to a folder on a larger disk"
        )
        self.folder = folder


class LeaseLostError(CuratorError):
    """This run lost the lease of the output root. Another run may write there, so this run ends."""

    _made_from = ("root", "why")

    def __init__(self, root: str, why: str) -> None:
        super().__init__(
            f"this run does not hold {root} any more: {why}; a run loses its output if it is "
            "paused, or cannot reach the output, for too long; it then writes nothing more there"
        )
        self.root, self.why = root, why


class DamagedError(StorageError):
    """An object of the output root is missing, truncated or changed; `curate run` repairs it."""

    _made_from = ("root", "name", "why")

    def __init__(self, root: str, name: str, why: str) -> None:
        super().__init__(
            f"{root}/{name} is damaged ({why[:200]}); `curate run SOURCE... OUT` with the sources "
            "of the last run writes it again"
        )
        self.root, self.name, self.why = root, name, why


class SourceError(CuratorError):
    """A source cannot be used.

    The error has a public code. The message gives the value, the expected value and the remedy.
    """

    _made_from = ("code", "message")

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DecodeError(SourceError):
    """Frames of a source cannot be decoded."""


class DeviceError(CuratorError):
    """A GPU failed while it processed a unit; the unit's source is not at fault.

    The process must end, because its CUDA context may be unusable. A new process repeats the unit.
    If the GPU fails again, a CPU repeats the unit if the stage can use one.
    """

    code = ErrorCode.GPU_FAILED


class DeviceLostError(DeviceError):
    """The GPU, its driver or its context no longer answers, or every further call fails."""


class DeviceMemoryError(DeviceError):
    """The GPU has too little memory for even the smallest batch."""

    code = ErrorCode.GPU_OUT_OF_MEMORY


class ModelError(CuratorError):
    """A model's weights are missing, or differ from the weights in the catalogue."""


class ServerError(CuratorError):
    """A model server cannot be used as it is configured; the message contains no API key."""


class UnreachableError(ServerError):
    """A server does not answer; it may answer later."""


class CutError(CuratorError):
    """A clip cannot be written as planned."""


class ShardError(CuratorError):
    """A shard cannot be assembled."""


@contextmanager
def raised_as(kind: type[Exception], *causes: type[Exception], of: str = "") -> Iterator[None]:
    """Converts errors of the types `causes` to type `kind`, with `of` before the message."""
    try:
        yield
    except causes as error:
        raise kind(f"{of}{error}") from error


def unknown_key(name: str, valid: Iterable[str], kind: str) -> str:
    """Returns the message for a key that does not exist, with the nearest valid key."""
    near = get_close_matches(name, valid, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(valid)}"
    return f"unknown {kind} {name!r}; {remedy}"


def ambiguous_id(beginning: str, clip_ids: Sequence[str]) -> str:
    """Returns the message for a prefix that several clip ids share, with the first of these ids."""
    more = ", ..." if len(clip_ids) > MAX_NAMED else ""
    return (
        f"{len(clip_ids):,} clips begin with {beginning!r}: "
        f"{', '.join(clip_ids[:MAX_NAMED])}{more}; give more of the id"
    )


def one_line(error: BaseException) -> str:
    """Returns the message of an error as one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]


def without_run(error: ModuleNotFoundError) -> str:
    """Returns the message for a package that the loader's installation lacks."""
    return f"the package {error.name} is not installed: {install_extra('run')}"


def in_one_line(error: Exception) -> str:
    """Formats an error of a user's code as one short line, with the file and line at fault."""
    place = place_of(error)
    text = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return (text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} ...") + place


def place_of(error: Exception) -> str:
    """Returns the file and line of code outside of this package that raised an error, as ` (…)`.

    Empty if only this package's code raised it, such as a check of a value.
    """
    frames = traceback.extract_tb(error.__traceback__)
    outside = [
        frame
        for frame in frames
        if not frame.filename.startswith((_PACKAGE, "<")) and frame.filename != _CONTEXTLIB
    ]
    return f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
