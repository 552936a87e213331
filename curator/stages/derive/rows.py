"""The annotator `rows`: a user's rows with timestamps, such as a robot's states, for each frame.

    stages:
      - use: rows
        config: {table: "{stem}.csv", time: t, unit: s, columns: [x, y, gripper]}

`curator/storage/timed_rows.py` reads the tables.
"""

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator, model_validator

from curator.errors import RecipeError, UsageError, raised_as
from curator.family import FRAMES, Array, Family, Place, Scalar, Scope
from curator.fingerprints import fingerprint
from curator.installation import install_extra
from curator.stage import Annotator, ClipFacts, SampledClip, StageConfig, setting
from curator.storage.timed_rows import RowsError, RowsReader, TimedRows, TimeUnit

logger = logging.getLogger(__name__)

_URI, _START_S, _END_S = "source_uri", "start_s", "end_s"

_ROUNDING_S = 1e-4
"""Part of a distance that rounding may cause: of times in a table, and of signals as float32."""


class FrameRowsConfig(StageConfig):
    """The table with the rows, and what is read of it."""

    table: str = setting(unit="path or pattern")
    """address of a .csv, .tsv, .parquet or .mcap: with {stem} or {name} (of the source, without and
    with its suffix) or {folder}, a table for each source or folder, relative to the source's
    folder; else one table of all sources, with `source`"""
    time: str = setting(unit="column")
    """column with the time of each row; of an MCAP, log_time, publish_time, or a field such as
    header.stamp, all in ns"""
    columns: tuple[str, ...] = setting(unit="columns", min_length=1)
    """columns with numbers, or fields of messages such as pose.position.x; a column of lists of
    equal length gives a value for each element"""
    topic: str | None = setting(None, unit="topic")
    """of an MCAP, the topic whose messages are the rows"""
    unit: TimeUnit = setting("s", unit="s, ms, us or ns")
    """unit of the times"""
    first_frame: str | None = setting(None, unit="column of clips")
    """column of metadata, such as meta.started, with the time of the source's first frame in the
    unit of the rows; null: the first frame is at 0"""
    source: str | None = setting(None, unit="column")
    """column of a table of all sources that says whose a row is: an address, or a path relative to
    the table's folder; or what `source_value` has"""
    source_value: str | None = setting(None, unit="column of clips")
    """column of metadata, such as meta.episode, that has the value of `source`"""
    dtype: Literal["f32", "f64"] = setting("f32", unit="f32 or f64")
    """type of the stored numbers"""
    place: Place = setting(Place.SAMPLE, unit="sample or side")
    """in the samples, or in tars of their own"""

    @model_validator(mode="after")
    def _values_are_of_a_column(self) -> Self:
        if self.source_value is not None and self.source is None:
            raise ValueError(
                f"source_value without source: expected the column of the table that has what "
                f"{self.source_value!r} has"
            )
        return self

    @field_validator("columns")
    @classmethod
    def _each_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns {list(columns)}; expected each column once")
        return columns


class FrameRows(Annotator[FrameRowsConfig]):
    """Gives each frame the row whose time is nearest to it, [frames, n]; NaN without one.

    A row is within half the time to the next or last frame of the source, whichever is nearer. A
    frame that the cut repeats has the row of its source's frame. A clip without rows has no value.
    """

    name = "rows"
    version = 1
    config_type = FrameRowsConfig
    signals = ("source_s", "source_interval_s")
    results_ignore = frozenset({"table", "topic", "place"})
    batch = 256

    def __init__(self, config: FrameRowsConfig) -> None:
        super().__init__(config)
        with raised_as(RecipeError, RowsError, of="stages: 'rows': "):
            self._reader = RowsReader(
                config.table, time=config.time, columns=config.columns, unit=config.unit,
                topic=config.topic, source=config.source,
                has_addresses=config.source_value is None,
            )  # fmt: skip
        self._has_warned = False
        given = (config.first_frame, config.source_value)
        self.columns = (_URI, _START_S, _END_S, *(name for name in given if name is not None))
        facts: dict[str, Scalar] = {
            "columns": ", ".join(config.columns), "time": config.time, "unit": config.unit,
        }  # fmt: skip
        self.families = (
            Family(
                "rows",
                Scope.CLIP,
                Array(config.dtype, (FRAMES, "d")),
                member="rows.safetensors",
                facts=facts,
                place=config.place,
            ),
        )

    def preflight(self) -> None:
        """Raises `UsageError` if an MCAP is to be read, and its packages are missing."""
        if self.config.topic is not None and find_spec("mcap_ros2") is None:
            raise UsageError(f"rows: {self.config.table!r} needs mcap: {install_extra('mcap')}")

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns a digest of the clip and of its source's rows; None for a clip without rows.

        A table that is not as declared fails its clips in `process`.
        """
        key = super().key(facts, mp4_sha256)
        try:
            found = self._found(facts)
        except RowsError as error:
            return fingerprint(key, str(error))
        if found is None:
            if not self._has_warned:
                logger.warning(
                    "rows: clips of %r get none: there is no table %r, or it has no row of the "
                    "source; this is said once",
                    facts.columns[_URI], self._reader.table_of(facts.columns[_URI]),
                )  # fmt: skip
                self._has_warned = True
            return None
        rows, times_s = found
        half_s = float(0.5 / facts.fps)
        start_s, end_s = (facts.columns[name] for name in (_START_S, _END_S))
        first, end = np.searchsorted(times_s, [start_s - half_s, end_s + half_s])
        return fingerprint(key, rows.digest) if end > first else None

    def _found(self, facts: ClipFacts) -> tuple[TimedRows, NDArray[np.float64]] | None:
        """Returns the rows of the clip's source, and their seconds from its first frame."""
        config, columns = self.config, facts.columns
        value = None if config.source_value is None else columns[config.source_value]
        rows = self._reader.rows(columns[_URI], value)
        if rows is None:
            return None
        first_frame = 0 if config.first_frame is None else columns[config.first_frame]
        if isinstance(first_frame, bool) or not isinstance(first_frame, int | float):
            raise RowsError(
                f"column {config.first_frame!r} of {columns[_URI]!r} has {first_frame!r}; expected "
                f"the time of the first frame in {config.unit}, a number"
            )
        return rows, rows.seconds(first_frame, config.unit)

    def process(self, unit: Sequence[SampledClip]) -> list[NDArray[np.floating]]:
        """Returns the rows of each clip, [frames, n].

        Raises:
            RowsError: A table is not as declared.
        """
        return [self._rows_of(clip) for clip in unit]

    def _rows_of(self, clip: SampledClip) -> NDArray[np.floating]:
        found = self._found(clip.facts)
        if found is None:
            raise RowsError(
                f"table {self._reader.table_of(clip.facts.columns[_URI])!r} vanished during the "
                "run; run again"
            )
        rows, times_s = found
        frame_s = clip.facts.columns[_START_S] + clip.signals["source_s"].astype(np.float64)
        values = rows.nearest(times_s, frame_s, clip.signals["source_interval_s"] / 2 + _ROUNDING_S)
        return values.astype(np.float32 if self.config.dtype == "f32" else np.float64)
