"""Compares the sources that still exist with the table that names their hashes."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import CuratorError, ErrorCode, SourceError
from curator.stages.shard.tar_reader import ShardSet
from curator.storage import HashingReader, open_source
from curator.tables.checksums import read_parquet
from curator.verify.findings import FindingCode, Findings

_RESTORE = (
    "restore it from a copy, or run `curate run` again, which analyzes it again if its size or "
    "times changed too (`touch` it if not)"
)


def check_sources(
    shards: ShardSet,
    summary: Mapping[str, Any],
    pool: Executor,
    findings: Findings,
    hashed: Callable[[int, int], None],
) -> int:
    """Hashes every source that was analyzed and still exists; returns how many those are.

    A source that is gone is a warning. `hashed` is called with the number of sources that were
    looked at, and of all.
    """
    names = summary.get("tables", {}).get("sources", ())
    columns = ("uri", "sha256", "outcome")
    rows = pa.concat_tables([read_parquet(shards.store, name, columns) for name in names])
    rows = rows.filter(pc.fill_null(pc.equal(rows["outcome"], "done"), False))
    total, n_hashed = rows.num_rows, 0
    checked = pool.map(
        lambda uri, sha256: _check(uri, sha256, findings),
        rows["uri"].to_pylist(),
        rows["sha256"].to_pylist(),
    )
    for number, was_there in enumerate(checked, 1):
        n_hashed += was_there
        hashed(number, total)
    return n_hashed


def _check(uri: str, expected: str, findings: Findings) -> bool:
    """Compares one source; returns whether it could be read."""
    try:
        with open_source(uri) as reader:
            actual = HashingReader(reader, closes=False).finish().sha256
    except SourceError as error:
        if error.code is ErrorCode.VANISHED:
            findings.add(
                FindingCode.SOURCE_GONE, uri, "no such source", f"sha256 {expected}", _RESTORE
            )
        else:
            findings.add(FindingCode.UNREADABLE, uri, error.message, "a readable source", _RESTORE)
        return False
    except (CuratorError, OSError) as error:
        findings.add(FindingCode.UNREADABLE, uri, str(error), "a readable source", _RESTORE)
        return False
    if actual != expected:
        findings.add(
            FindingCode.SOURCE_CHANGED, uri, f"sha256 {actual}", f"sha256 {expected}", _RESTORE
        )
    return True
