"""Names and limits of source metadata, from columns of manifests and keys of sidecars."""

import logging
import re
from collections.abc import Iterable

from curator.errors import UsageError

PREFIX = "meta."
"""Prefix of metadata columns in `sources` and `clips`."""
GROUP = PREFIX + "group"
"""Column with the group of a source, or of a span: its cameras, or whatever belongs together."""
MAX_COLUMNS = 64
MAX_VALUE_BYTES = 4096

logger = logging.getLogger(__name__)


class CsvText(str):
    """A field of a CSV file; only its text shows its type."""

    __slots__ = ()


def is_metadata(name: str) -> bool:
    """Returns whether a name is that of a metadata column."""
    return name.startswith(PREFIX) and column_name(name) == name


def column_name(name: str) -> str | None:
    """Returns `meta.` and the name reduced to a-z, 0-9 and _; None if the result is empty."""
    clean = re.sub(r"[^a-z0-9_]+", "_", name.strip().lower().removeprefix(PREFIX)).strip("_")
    return PREFIX + clean if clean else None


def column_names(names: Iterable[str], manifest: str) -> dict[str, str]:
    """Returns metadata columns by their names in a manifest.

    Raises:
        UsageError: Two names give one column, or there are more than `MAX_COLUMNS`.
    """
    columns: dict[str, str] = {}
    nameless = []
    for name in names:
        column = column_name(name)
        if column is None:
            # pandas writes its index as a column without a name.
            nameless += [name] if name.strip() else []
        elif name in columns or column in columns.values():
            raise UsageError(
                f"manifest {manifest!r}: more than one column would be {column!r}, such as "
                f"{name!r}; names keep a-z, 0-9 and _: rename one, or leave it out"
            )
        else:
            columns[name] = column
    if nameless:
        logger.warning(
            "manifest %r: columns without a name of a-z and 0-9 are left out: %r",
            manifest, nameless[:5],
        )  # fmt: skip
    if len(columns) > MAX_COLUMNS:
        raise UsageError(
            f"manifest {manifest!r} has {len(columns)} columns of metadata; expected at most "
            f"{MAX_COLUMNS}: leave some out"
        )
    return columns
