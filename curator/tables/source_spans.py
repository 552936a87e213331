"""Spans of sources, as rows of manifests name them, with metadata of their own."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from curator.errors import UsageError
from curator.records.time_spans import WHOLE, TimeSpan, overlapping, spans_as_json
from curator.tables.source_metadata import SourceMetadata, span_name
from curator.tables.source_table import SourceTable

_BATCH_ROWS = 4096


class SourceSpans:
    """Collects the spans of a listing, in any order.

    Metadata of a span goes to `metadata` under a name of its own, so that a clip gets the metadata
    of its span. Values that all spans of a source share are the source's too.
    """

    def __init__(self, metadata: SourceMetadata) -> None:
        self.metadata = metadata
        self._spans: dict[str, list[TimeSpan]] = {}
        self._common: dict[str, dict[str, Any]] = {}
        self._of_source: dict[str, Mapping[str, Any]] = {}

    def add(
        self,
        uri: str,
        span: TimeSpan,
        values: Mapping[str, Any],
        of_source: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a span of a source, with its metadata, and metadata of the whole source."""
        own = self._spans.setdefault(uri, [])
        own.append(span)
        before = self._common.get(uri, values)
        self._common[uri] = {n: v for n, v in before.items() if n in values and values[n] == v}
        if of_source:
            self._of_source[uri] = of_source
        self.metadata.add(span_name(uri, span), values)

    def check(self) -> None:
        """Raises `UsageError` if two spans of a source have common time."""
        for uri, spans in self._spans.items():
            if (pair := overlapping(spans)) is not None:
                raise UsageError(
                    f"{uri}: its spans from {pair[0]} and from {pair[1]} overlap; expected spans "
                    "that have no time in common, each named once: correct one, or leave it out"
                )

    def finish(self, sources: SourceTable) -> None:
        """Stores the spans in the column `spans` of the listed sources; raises as `check`."""
        self.check()
        for uri in self._spans:
            self.metadata.add(uri, {**self._of_source.get(uri, {}), **self._common[uri]})
        # A single row without times is the whole source.
        named = {uri: spans for uri, spans in self._spans.items() if spans != [WHOLE]}
        names = [span_name(uri, span) for uri, spans in named.items() for span in spans]
        # All at once, because each join looks through the metadata of all sources.
        rows = self.metadata.joined(pa.table({"uri": pa.array(names, pa.large_string())}), "uri")
        values = (
            {n: v for n, v in row.items() if n != "uri" and v is not None}
            for batch in rows.to_batches(max_chunksize=_BATCH_ROWS)
            for row in batch.to_pylist()
        )
        sources.revise(
            [
                {"uri": uri, "spans": spans_as_json({span: next(values) for span in spans})}
                for uri, spans in named.items()
            ]
        )
