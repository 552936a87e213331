"""Checks sizes and hashes of the objects that snapshots name, and of sources."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import CuratorError, DamagedError, ErrorCode, SourceError
from curator.stages.shard.tar_reader import ShardSet, index_name, meta_name
from curator.storage import HashingReader, Store, open_source
from curator.tables.checksums import opened_json, read_json, read_parquet
from curator.tables.fenced_store import Digest
from curator.tables.out_layout import CONFIG, SHARDS, listed_objects
from curator.tables.parts import SUMMARY
from curator.tables.snapshot_store import (
    BEFORE,
    HEAD,
    INDEXES,
    NUMBER,
    OBJECTS,
    archived,
    copies_of,
    follows,
    named_objects,
    objects_of,
    own_objects,
    snapshot_name,
    snapshot_numbers,
)
from curator.verify.findings import COPIED, LOST, RERUN, RESTORE_SOURCE, FindingCode, Findings

_Snapshots = dict[int, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected size and hash of an object; None is unknown, as for objects of older versions."""

    n_bytes: object = None
    """Unchecked value of a manifest, as is the hash."""
    sha256: object = None
    exists: bool = True
    remedy: str | None = None

    @classmethod
    def of(cls, digest: Digest, remedy: str) -> "Expected":
        """Returns the expectation of a known size and hash."""
        return cls(n_bytes=digest.n_bytes, sha256=digest.sha256, remedy=remedy)

    def differences(
        self, n_bytes: int | None, sha256: str | Exception | None
    ) -> list[tuple[FindingCode, str, str]]:
        """Returns code, found and expected of each difference; `n_bytes` is None if missing."""
        if n_bytes is None:
            return [(FindingCode.MISSING, "missing", "an object")] if self.exists else []
        if not self.exists:
            return [(FindingCode.UNNAMED, "an object", "none")]
        wrong = []
        if self.n_bytes is not None and n_bytes != self.n_bytes:
            wrong.append((FindingCode.SIZE, f"{n_bytes} bytes", f"{self.n_bytes} bytes"))
        if self.sha256 and isinstance(sha256, Exception):
            wrong.append((FindingCode.UNREADABLE, str(sha256), "a readable object"))
        elif self.sha256 and sha256 != self.sha256:
            wrong.append((FindingCode.HASH, f"sha256 {sha256}", str(self.sha256)))
        return wrong


def check_objects(
    store: Store,
    sizes: Mapping[str, int],
    expected: Mapping[str, Sequence[Expected]],
    pool: Executor,
    findings: Findings,
    copies: Mapping[str, str] | None = None,
) -> int:
    """Compares objects with their expected sizes and hashes; returns the number of bytes read.

    Args:
        store: Output root.
        sizes: Bytes of each existing object.
        expected: Allowed forms of each object; several during a commit.
        pool: Threads that hash objects.
        findings: Collects the differences.
        copies: Name of an object with the same bytes, from which a run can restore the object.
    """
    hashed = [n for n, forms in expected.items() if n in sizes and any(f.sha256 for f in forms)]
    digests = dict(zip(hashed, pool.map(partial(_sha256, store), hashed), strict=True))
    wrong = {}
    for name, forms in expected.items():
        by_form = [form.differences(sizes.get(name), digests.get(name)) for form in forms]
        if all(by_form):
            wrong[name] = by_form[0]
    for name, differences in wrong.items():
        form, copy = expected[name][0], (copies or {}).get(name)
        is_copied = copy and copy not in wrong and _sha256(store, copy) == form.sha256
        remedy = COPIED.format(copy) if is_copied else form.remedy
        for code, actual, wanted in differences:
            findings.add(code, f"{store.uri}/{name}", actual, wanted, remedy)
    return sum(sizes[name] for name in digests)


def _sha256(store: Store, name: str) -> str | Exception:
    try:
        return Digest.of_object(store, name).sha256
    except (CuratorError, OSError) as error:
        return error


def check_chain(
    store: Store,
    summary: Mapping[str, Any] | None,
    checked: frozenset[str],
    pool: Executor,
    findings: Findings,
    *,
    only: int | None = None,
) -> int:
    """Checks that snapshots are as committed, and that the objects that they name are whole.

    `summary` is None if `summary.json` is unreadable. Objects in `checked` are skipped. `only`
    limits the check to the objects of one snapshot. Returns the number of bytes read.
    """
    snapshots = _snapshots(store, summary or {}, findings)
    expected: dict[str, Expected] = {}
    copies: dict[str, str] = {}
    if only is None and summary is not None and snapshots:
        _check_fixed(store, summary, snapshots, findings)
        expected |= {n: Expected.of(d, RERUN) for n, d in objects_of(summary).items()}
    for number, snapshot in sorted(snapshots.items()):
        if only not in (None, number):
            continue
        remedy = RERUN if number == max(snapshots) else LOST
        if OBJECTS not in snapshot:
            where, words = f"{store.uri}/{snapshot_name(number)}", "a snapshot of an older version"
            findings.add(FindingCode.UNHASHED, where, words, "hashes of what it names")
        expected |= dict.fromkeys(named_objects(archived(snapshot)), Expected(remedy=remedy))
        expected |= {n: Expected.of(d, remedy) for n, d in own_objects(snapshot).items()}
        expected |= _of_tars(store, snapshot, remedy)
        copies |= copies_of(snapshot)
    copies |= {fixed: own for own, fixed in copies.items()}
    listed = listed_objects(store, {name.split("/")[0] for name in expected})
    return check_objects(
        store,
        {name: info.bytes for name, info in listed.items()},
        {name: [form] for name, form in expected.items() if name not in checked},
        pool,
        findings,
        copies,
    )


def _snapshots(store: Store, summary: Mapping[str, Any], findings: Findings) -> _Snapshots:
    """Reads the snapshots from the newest, and compares each with the hash in its successor."""
    numbers = snapshot_numbers(store)
    head = summary.get(HEAD)
    links = {summary[NUMBER]: head["sha256"]} if head is not None else {}
    first = head["first"] if head is not None else min(numbers, default=1)
    last = max(chain(numbers, links), default=0)
    snapshots: _Snapshots = {}
    for number in range(last, min(chain([first], numbers)) - 1, -1):
        name = snapshot_name(number)
        where, remedy = f"{store.uri}/{name}", LOST
        if number in links and number == summary.get(NUMBER):
            remedy = COPIED.format(SUMMARY)
        if number not in numbers:
            if number >= first:
                findings.add(FindingCode.MISSING, where, "missing", "a snapshot", remedy)
            continue
        data = store.read(name)
        sha256 = Digest.of(data).sha256
        try:
            snapshots[number] = opened_json(data, name)
        except ValueError as error:
            words = f"it cannot be read ({error})"
            findings.add(FindingCode.HASH, where, words, links.get(number, "a snapshot"), remedy)
            continue
        if links.get(number, sha256) != sha256:
            findings.add(FindingCode.HASH, where, f"sha256 {sha256}", links[number], remedy)
        if (link := snapshots[number].get(BEFORE)) is not None:
            links[link[NUMBER]] = link["sha256"]
    return snapshots


def _check_fixed(
    store: Store, summary: Mapping[str, Any], snapshots: _Snapshots, findings: Findings
) -> None:
    """Compares `summary.json` and `config.json` with the snapshots they belong to."""
    snapshot = snapshots.get(summary.get(NUMBER, 0))
    if snapshot is not None and not follows(summary, snapshot):
        where = f"{store.uri}/{SUMMARY}"
        findings.add(FindingCode.HASH, where, "other contents", "those of its snapshot", RERUN)
    # An interrupted commit may have written the settings of its own, newer snapshot.
    settings = [
        {name: source[name] for name in ("recipe", "fingerprints") if name in source}
        for source in (summary, snapshots[max(snapshots)])
    ]
    code, actual = FindingCode.HASH, "other settings"
    try:
        if read_json(store, CONFIG) in settings:
            return
    except DamagedError as error:
        code, actual = code if store.exists(CONFIG) else FindingCode.MISSING, error.why
    findings.add(code, f"{store.uri}/{CONFIG}", actual, "those of the newest snapshot", RERUN)


def _of_tars(store: Store, snapshot: Mapping[str, Any], remedy: str) -> dict[str, Expected]:
    """Returns the expected objects of the shards by the manifest of a snapshot."""
    objects: dict[str, Expected] = {}
    try:
        for facts in read_json(store, snapshot[INDEXES]["manifest"])["shards"]:
            name = f"{SHARDS}/{facts['name']}"
            objects[name] = Expected(n_bytes=facts["bytes"], sha256=facts["sha256"], remedy=remedy)
            objects[index_name(name)] = Expected(sha256=facts["idx_sha256"], remedy=remedy)
            objects[meta_name(name)] = Expected(sha256=facts["meta_sha256"], remedy=remedy)
    except (DamagedError, KeyError, TypeError):
        # The hash of the manifest shows its damage.
        return {}
    return objects


def check_sources(
    shards: ShardSet,
    summary: Mapping[str, Any],
    pool: Executor,
    findings: Findings,
    hashed: Callable[[int, int], None],
) -> int:
    """Hashes every analyzed source that still exists; returns the number of readable sources.

    A missing source is a warning. `hashed` gets the number of sources checked so far and of all.
    """
    names = summary.get("tables", {}).get("sources", ())
    columns = ("uri", "sha256", "outcome")
    rows = pa.concat_tables([read_parquet(shards.store, name, columns) for name in names])
    rows = rows.filter(pc.fill_null(pc.equal(rows["outcome"], "done"), False))
    n_hashed = 0
    check = partial(_check_source, findings)
    checked = pool.map(check, rows["uri"].to_pylist(), rows["sha256"].to_pylist())
    for number, was_there in enumerate(checked, 1):
        n_hashed += was_there
        hashed(number, rows.num_rows)
    return n_hashed


def _check_source(findings: Findings, uri: str, expected: str) -> bool:
    """Compares a source with its hash; returns whether the source could be read."""
    try:
        with open_source(uri) as reader:
            actual = HashingReader(reader, closes=False).finish().sha256
    except (CuratorError, OSError) as error:
        if isinstance(error, SourceError) and error.code is ErrorCode.VANISHED:
            findings.add(FindingCode.SOURCE_GONE, uri, "no such source", f"sha256 {expected}")
        else:
            wanted = "a readable source"
            findings.add(FindingCode.UNREADABLE, uri, str(error), wanted, RESTORE_SOURCE)
        return False
    if actual != expected:
        words = f"sha256 {actual}"
        findings.add(FindingCode.SOURCE_CHANGED, uri, words, f"sha256 {expected}")
    return True
