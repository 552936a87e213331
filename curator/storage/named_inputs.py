"""Looks up the paths that a user names as sources, before what lists them is imported."""

import os
from collections.abc import Iterable

from curator.errors import UsageError, raised_as
from curator.storage.file_walk import is_pattern
from curator.storage.object_service import ADDRESSES, scheme_of
from curator.storage.place_names import local_path
from curator.storage.source_manifests import absolute_path
from curator.storage.source_reader import local_failure
from curator.storage.tar_members import split_member


def refuse_missing(arguments: Iterable[str]) -> None:
    """Raises `UsageError` for a path that does not exist; looks up no address of a bucket."""
    for argument in arguments:
        if scheme_of(argument) is None:
            named_file(argument)


def named_file(argument: str) -> tuple[str, os.stat_result | None]:
    """Returns the absolute path of an argument, and the facts of this file or folder.

    The facts are None for a pattern and for a member of a tar, which have no such path.

    Raises:
        UsageError: Nothing is at the path, it cannot be read, or it is no path of this machine.
    """
    with raised_as(UsageError, UsageError, of="input "):
        local_path(argument, f"a path, a pattern, {ADDRESSES}, or a manifest")
    path = absolute_path(argument)
    try:
        return path, os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_pattern(argument) or split_member(path) is not None:
            return path, None
        what = "is a broken link" if os.path.islink(path) else "does not exist"
        raise UsageError(f"input {argument!r} {what} (looked for {path!r})") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"input {local_failure(path, error).message}") from error
