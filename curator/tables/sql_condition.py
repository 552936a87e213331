"""Selects clips by a SQL condition, with the optional package DuckDB."""

import importlib
from threading import Timer
from typing import Any

import pyarrow as pa

from curator.errors import UsageError
from curator.installation import install_extra

_FORBIDDEN = (
    "enable_external_access", "autoload_known_extensions", "autoinstall_known_extensions",
    "python_enable_replacements",
)  # fmt: skip
_SETTINGS = dict.fromkeys(_FORBIDDEN, "false") | {"lock_configuration": "true"}
"""With these settings, a condition cannot open files, load extensions, or read variables of Python.
"""
LIMIT_S = 60.0
"""Time limit of a condition, which takes less than a second over 10^6 clips."""


def matching_clips(
    clips: pa.Table, condition: str, *, example: str, instead: str, option: str = "--where"
) -> list[str]:
    """Returns the ids of clips that meet a condition, sorted; the condition is SQL after WHERE.

    A condition may call `source_uri` by its name in the table `sources`, `uri`. Messages name
    the `option` with the condition, `example`, a condition, and `instead`, an option that works
    without DuckDB. Raises `UsageError` if DuckDB is not installed, or if the condition is wrong or
    takes too long.
    """
    columns = clips.column_names
    try:
        # Loaded by name, because the package is optional.
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise UsageError(
            f"{option} needs the package duckdb: {install_extra('sql')}; or {instead}"
        ) from error
    try:
        with duckdb.connect(":memory:", config=_SETTINGS) as database:
            if "source_uri" in columns and "uri" not in columns:
                clips = clips.append_column("uri", clips["source_uri"])
            database.register("clips", clips)
            statement = f"SELECT DISTINCT clip_id FROM clips WHERE ({condition}\n)"
            if len(database.extract_statements(statement)) != 1:
                raise UsageError(f"{option} {condition!r}; expected one condition, without `;`")
            timer = Timer(LIMIT_S, database.interrupt)
            timer.start()
            try:
                rows = database.execute(statement).fetchall()
            finally:
                timer.cancel()
    except duckdb.Error as error:
        is_late = isinstance(error, duckdb.InterruptException)
        why = f"takes more than {LIMIT_S:g} s" if is_late else f"fails: {_fault(str(error))}"
        raise UsageError(
            f"{option} {condition!r} {why}; expected a condition over columns of `clips`, such as "
            f"{example}"
        ) from error
    return sorted(row[0] for row in rows if isinstance(row[0], str))


def _fault(message: str) -> str:
    """Returns what DuckDB says, without the statement around the condition."""
    if "LINE 2: )" in message:
        return "it ends too early"
    if 'Referenced table "meta"' in message:
        return 'it names no column `meta`: a column of metadata needs quotes, such as "meta.camera"'
    said, _, near = message.partition("\n\nLINE")[0].partition("\nCandidate bindings: ")
    if not near:
        return " ".join((said.partition(": ")[2] or said).split())[:200]
    name, names = said.split('"')[1], near.replace('"', "")
    return f"no column {name!r}; near: {names}"
