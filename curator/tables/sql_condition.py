"""Clips for which a SQL condition holds, by DuckDB, which is an optional package."""

import importlib
from threading import Timer
from typing import Any

import pyarrow as pa

from curator.errors import UsageError, install_extra, one_line

_FORBIDDEN = (
    "enable_external_access", "autoload_known_extensions", "autoinstall_known_extensions",
    "python_enable_replacements",
)  # fmt: skip
_SETTINGS = dict.fromkeys(_FORBIDDEN, "false") | {"lock_configuration": "true"}
"""No condition may open a file, load an extension, or read a variable of this program."""
LIMIT_S = 60.0
"""Longest time that a condition may take; over 10^6 clips one takes less than a second."""


def matching_clips(clips: pa.Table, condition: str, *, example: str, instead: str) -> list[str]:
    """Returns the ids of the clips for which a condition, SQL as behind WHERE, holds, sorted.

    `example` is a condition, and `instead` what works without DuckDB, for messages. Raises
    `UsageError` where DuckDB is not installed, or the condition is wrong or takes too long.
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
            timer = Timer(LIMIT_S, database.interrupt)
            timer.start()
            try:
                rows = database.execute(statement).fetchall()
            finally:
                timer.cancel()
    except duckdb.Error as error:
        raise UsageError(
            f"--where {condition!r} fails: {one_line(error)}; expected a condition over columns of "
            f"`clips`, such as {example}"
        ) from error
    return sorted(row[0] for row in rows if isinstance(row[0], str))
