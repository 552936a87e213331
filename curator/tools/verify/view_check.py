"""Checks views: their files, and that their samples are those of the snapshot that they name."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import DamagedError, StorageError
from curator.tables.checksums import read_parquet
from curator.tables.fenced_store import Digest
from curator.tables.out_layout import VIEWS
from curator.tables.snapshot_store import INDEXES
from curator.tables.view_store import ROWS, VIEW, View, read_view, view_key, view_objects
from curator.tools.verify.findings import FindingCode, Findings, refuses
from curator.tools.verify.root_state import Root

_OF_SAMPLE = ("clip_id", "shard", "offset", "bytes", "sha256")
"""Columns of `dataset.parquet` by which readers find a sample."""


def check_views(root: Root, findings: Findings) -> None:
    """Adds a finding for each fault of a view; not while a removal makes the views again."""
    if root.is_removing:
        return
    for name, keys in view_objects(root.store).items():
        where = f"{root.store.uri}/{view_key(name, VIEW)}"
        if view_key(name, VIEW) not in keys:
            # A view that was not written to its end has no such object, and no reader uses it.
            if not root.is_busy:
                findings.add(FindingCode.VIEW, where, "missing", "the facts of the view")
            continue
        try:
            view = read_view(root.store, name)
            snapshot = root.chain.readable.get(view.snapshot)
            if snapshot is None:
                actual, expected = f"snapshot {view.snapshot}", "a snapshot that can be read"
                findings.add(FindingCode.VIEW, where, actual, expected)
                continue
            if _has_all_files(root, view, findings):
                _check_rows(root, view, str(snapshot[INDEXES]["dataset"]), findings)
        except StorageError as error:
            # No run writes a view again, so the remedy of a `DamagedError` is none.
            why = error.why if isinstance(error, DamagedError) else str(error)
            is_refused = refuses(error)
            code = FindingCode.UNREADABLE if is_refused else FindingCode.VIEW
            findings.add(code, where, why, "a readable view")


def _has_all_files(root: Root, view: View, findings: Findings) -> bool:
    """Compares the files of a view with its facts; returns whether all are whole."""
    is_whole = True
    for file, facts in view.files.items():
        key, actual = view_key(view.name, file), "missing"
        with suppress(DamagedError):
            if root.store.exists(key):
                actual = f"sha256 {Digest.of_object(root.store, key).sha256}"
        if actual != (expected := f"sha256 {facts['sha256']}"):
            is_whole = False
            findings.add(FindingCode.VIEW, f"{root.store.uri}/{key}", actual, expected)
    links = Path(root.store.uri, VIEWS, view.name) if root.store.is_local else None
    for link in links.rglob("*.tar") if links is not None else ():
        if not link.exists():
            findings.add(FindingCode.VIEW, str(link), "a link to no tar", "a link to a tar")
    return is_whole


def _check_rows(root: Root, view: View, dataset: str, findings: Findings) -> None:
    """Compares the rows of a view with the rows of its snapshot."""
    key = view_key(view.name, ROWS)
    own, all_rows = (
        pc.binary_join_element_wise(
            *(rows[column].cast(pa.string()) for column in _OF_SAMPLE), "\t"
        )
        for rows in (read_parquet(root.store, name, _OF_SAMPLE) for name in (key, dataset))
    )
    others = own.filter(pc.invert(pc.is_in(own, value_set=all_rows.combine_chunks())))
    if len(others):
        where = f"{root.store.uri}/{key}#{others[0].as_py().partition(chr(9))[0]}"
        words = f"{len(others)} rows that snapshot {view.snapshot} does not have"
        findings.add(FindingCode.VIEW, where, words, "only rows of that snapshot")
