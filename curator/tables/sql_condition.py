"""Clips for which a SQL condition holds, by DuckDB, which is an optional package."""

import importlib
from typing import Any

import pyarrow as pa

from curator.errors import UsageError, install_extra, one_line

_SETTINGS = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
"""No condition may open a file, load an extension, or read a variable of this program."""


def matching_clips(clips: pa.Table, condition: str, *, example: str, instead: str) -> list[str]:
    """Returns the ids of the clips for which a condition over columns holds, sorted.

    Args:
        clips: Rows of `clips`.
        condition: SQL, as behind WHERE.
        example: A condition, for messages.
        instead: What works without DuckDB, for messages.

    Raises:
        UsageError: DuckDB is not installed, or the condition is wrong.
    """
    try:
        # Loaded by name: it is an optional package.
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise UsageError(
            f"--where needs the package duckdb: {install_extra('sql')}; or {instead}"
        ) from error
    try:
        with duckdb.connect(":memory:", config=_SETTINGS) as database:
            database.register("clips", clips)
            statement = f"SELECT DISTINCT clip_id FROM clips WHERE ({condition}\n)"
            if len(database.extract_statements(statement)) != 1:
                raise UsageError(f"--where {condition!r}; expected one condition, without `;`")
            rows = database.execute(statement).fetchall()
    except duckdb.Error as error:
        raise UsageError(
            f"--where {condition!r} fails: {one_line(error)}; expected a condition over columns of "
            f"`clips`, such as {example}"
        ) from error
    return sorted(row[0] for row in rows)
