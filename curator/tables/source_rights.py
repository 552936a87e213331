"""Licence and origin of sources and clips, and the gate before the first decode.

docs/design/trust.md says why sources are refused, and not clips.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import ErrorCode
from curator.records.licenses import spdx_id
from curator.records.sources import Failure
from curator.records.time_spans import spans_from_json
from curator.rights_config import RightsConfig
from curator.tables.parts import with_column
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable

STAGE = "rights"
"""`error_stage` of a refused source."""
_NEEDED = ("uri", "spans", "c2pa_generated")
_BATCH_ROWS = 4096
_NOT_RESERVED = frozenset({"", "0", "false", "no", "none"})


def with_rights(table: pa.Table, config: RightsConfig) -> pa.Table:
    """Sets `license` and `origin` of sources or clips, from their columns of metadata."""
    for name, column, read in (
        ("license", config.license, spdx_id), ("origin", config.origin, _as_origin),
    ):  # fmt: skip
        if column is not None and column in table.column_names:
            coded = pc.dictionary_encode(table[column].cast(pa.string()).combine_chunks())
            coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
            values = [read(text) for text in coded.dictionary.to_pylist()]
            texts = pa.array(values, pa.string()).take(coded.indices)
            table = with_column(table, name, texts)
    return table


def refuse_by_rights(sources: SourceTable, metadata: SourceMetadata, config: RightsConfig) -> None:
    """Marks sources as failed whose licence, reservation or manifest the recipe refuses.

    A source with spans is refused if one of them is.
    """
    if not config.refuses:
        return
    rows = metadata.joined(sources.usable(_NEEDED), "uri")
    # Other metadata may be much.
    names = [*_NEEDED, *(name for name in config.columns if name in rows.column_names)]
    batches = rows.select(names).to_batches(max_chunksize=_BATCH_ROWS)
    failures = refusals((row for batch in batches for row in batch.to_pylist()), config)
    sources.revise([{"uri": f.uri, "outcome": "failed"} | f.columns() for f in failures])


def refusals(rows: Iterable[Mapping[str, Any]], config: RightsConfig) -> Iterator[Failure]:
    """Yields the failure of each source that the recipe refuses.

    `rows` have the columns `uri`, `spans`, `c2pa_generated` and those of metadata.
    """
    for row in rows:
        spans = [{**row, **own} for own in spans_from_json(row["spans"]).values()]
        for described in spans or [dict(row)]:
            refused = _refused(described, config)
            if refused is not None:
                code, why = refused
                message = f"{row['uri']}: {why}, or leave the source out"
                yield Failure(uri=row["uri"], stage=STAGE, code=code, message=message)
                break


def _refused(row: Mapping[str, Any], config: RightsConfig) -> tuple[ErrorCode, str] | None:
    if config.allow is not None and config.license is not None:
        text = row.get(config.license)
        found = None if text is None else spdx_id(str(text))
        if found not in config.allow:
            words = "is missing" if found is None else f"is {found!r}"
            return ErrorCode.LICENSE_NOT_ALLOWED, (
                f"its licence, {config.license}, {words}, and rights.allow has "
                f"{', '.join(config.allow)}: correct the manifest, allow the licence"
            )
    if config.reserved is not None:
        value = row.get(config.reserved)
        if value is not None and str(value).strip().lower() not in _NOT_RESERVED:
            return ErrorCode.RIGHTS_RESERVED, (
                f"{config.reserved} is {value!r}, which reserves rights: correct the manifest, set "
                "rights.reserved to null"
            )
    if config.generated == "refuse" and row["c2pa_generated"]:
        return ErrorCode.GENERATED, (
            "its C2PA manifest says that a model generated it or a part of it: set "
            "rights.generated to keep"
        )
    return None


def _as_origin(text: str) -> str | None:
    return text.strip() or None
