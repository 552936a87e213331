"""Selects clips by a SQL condition, with the optional package DuckDB."""

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
"""With these settings, a condition cannot open files, load extensions, or read variables of Python.
"""
LIMIT_S = 60.0
"""Time limit of a condition, which takes less than a second over 10^6 clips."""


def matching_clips(clips: pa.Table, condition: str, *, example: str, instead: str) -> list[str]:
    """Returns the ids of clips that meet a condition, sorted; the condition is SQL after WHERE.

    A condition may call `source_uri` by its name in the table `sources`, `uri`. Messages name
    `example`, a condition, and `instead`, an option that works without DuckDB. Raises `UsageError`
    if DuckDB is not installed, or if the condition is wrong or takes too long.
    """
    columns = clips.column_names
    try:
        # Loaded by name, because the package is optional.
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise UsageError(
            f"--where needs the package duckdb: {install_extra('sql')}; or {instead}"
        ) from error
    try:
        with duckdb.connect(":memory:", config=_SETTINGS) as database:
            if "source_uri" in columns and "uri" not in columns:
                clips = clips.append_column("uri", clips["source_uri"])
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
        is_unknown = isinstance(error, duckdb.BinderException)
        named = f"; the columns are {', '.join(columns)}" if is_unknown else ""
        raise UsageError(
            f"--where {condition!r} fails: {one_line(error)}; expected a condition over columns of "
            f"`clips`, such as {example}{named}"
        ) from error
    return sorted(row[0] for row in rows if isinstance(row[0], str))
