"""The table of sidecars: the `.json` files next to the sources of a run.

Requests and their keys depend on sidecars, and captions by people may be in them. Sources of
earlier runs may be gone, so this table provides the sidecar of a missing source.
"""

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pyarrow as pa

from curator.errors import SourceError, UsageError
from curator.number_text import amount
from curator.storage import Store, stat_source
from curator.storage.sidecar_files import Sidecar, SidecarProblem, read_sidecars
from curator.tables.checksums import read_parquet
from curator.tables.parts import rows_to_table
from curator.tables.schemas import SIDECARS_SCHEMA

Sidecars = Mapping[str, Sidecar | SidecarProblem]

SIDECARS = "sidecars"
_THREADS = 16
_LOOKED_AT = 100
"""Most sources to look up if no run stored sidecars."""

logger = logging.getLogger(__name__)


def sidecars_table(sidecars: Sidecars) -> pa.Table:
    """Returns the rows of `sidecars`, sorted by source, without unreadable sidecars."""
    rows = [
        # ASCII, because JSON can name half a surrogate pair, which no column may hold.
        {"source_uri": uri, "uri": sidecar.uri, "json": json.dumps(sidecar.data)}
        for uri, sidecar in sorted(sidecars.items())
        if isinstance(sidecar, Sidecar)
    ]
    return rows_to_table(rows, SIDECARS_SCHEMA)


def count_problems(sidecars: Sidecars) -> dict[str, int]:
    """Counts the unusable sidecars by code, sorted."""
    counts = Counter(s.code.value for s in sidecars.values() if isinstance(s, SidecarProblem))
    return dict(sorted(counts.items()))


def stored_sidecars(
    store: Store, parts: Sequence[str] | None, uris: Collection[str]
) -> tuple[Sidecars, int]:
    """Reads the sidecars of sources; the table provides sidecars of unreachable sources.

    `parts` are the parts of the table `sidecars` of the last finished run, or None. Returns the
    sidecars as `read_sidecars` does, and how many of them come from the table.

    Raises `UsageError` if a part is lost with its copy, and some sources cannot be reached.
    """
    sidecars = dict(read_sidecars(uris))
    missed = sorted(uri for uri in uris if not isinstance(sidecars.get(uri), Sidecar))
    if parts is None:
        if _gone(missed[:_LOOKED_AT]):
            logger.warning(
                "some sources cannot be reached, and the last run stored no sidecars; captions are "
                "made without the missing sidecars and may change; `curate run` with these sources "
                "stores the sidecars"
            )
        return sidecars, 0
    lost = [part for part in parts if not store.exists(part)]
    if lost and (unreachable := _gone(missed)):
        raise UsageError(
            f"{store.uri}/{lost[0]} is lost with its copy: it has .json files next to sources, and "
            f"{amount(len(unreachable), 'source')} cannot be reached, such as {unreachable[0]}; "
            "restore the object from a backup of OUT, make these sources available again, or drop "
            "them by `curate run` with the other sources and --replace"
        )
    kept = {
        row["source_uri"]: Sidecar(uri=row["uri"], data=json.loads(row["json"]))
        for part in parts
        if part not in lost
        for row in read_parquet(store, part).to_pylist()
    }
    gone = _gone([uri for uri in missed if uri in kept])
    return sidecars | {uri: kept[uri] for uri in gone}, len(gone)


def _gone(uris: Sequence[str]) -> list[str]:
    """Returns the sources that cannot be reached."""

    def gone(uri: str) -> list[str]:
        try:
            stat_source(uri)
        except SourceError:
            return [uri]
        return []

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="source") as pool:
        return list(chain.from_iterable(pool.map(gone, uris)))
