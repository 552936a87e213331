"""Checks sizes and hashes of the objects that snapshots name, and of sources."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.tar_reader import Shard, ShardSet
from curator.errors import CuratorError, DamagedError, ErrorCode, SourceError, StorageError
from curator.storage import HashingReader, Store, open_source
from curator.tables.checksums import read_parquet
from curator.tables.fenced_store import Digest
from curator.tables.json_objects import read_json
from curator.tables.out_layout import CONFIG, SETTINGS, SHARDS, SUMMARY, listed_objects
from curator.tables.snapshot_store import (
    INDEXES,
    NUMBER,
    archived,
    copies_of,
    follows,
    named_objects,
    objects_of,
    own_objects,
)
from curator.tools.verify.findings import ACCESS, COPIED, LOST, RERUN, FindingCode, Findings
from curator.tools.verify.root_state import Root, is_gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected size and hash of an object; None is unknown."""

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
        if self.n_bytes is not None and n_bytes != self.n_bytes:
            return [(FindingCode.SIZE, f"{n_bytes} bytes", f"{self.n_bytes} bytes")]
        if self.sha256 and isinstance(sha256, Exception):
            return [(FindingCode.UNREADABLE, str(sha256), "a readable object")]
        if self.sha256 and sha256 != self.sha256:
            return [(FindingCode.HASH, f"sha256 {sha256}", str(self.sha256))]
        return []


@dataclass(frozen=True, slots=True)
class CheckedObjects:
    """Hashes the objects of one store, and does not read a sound object again.

    Attributes:
        store: Output root.
        sound: Size and SHA-256 of each object that had the expected bytes.
    """

    store: Store
    sound: dict[str, tuple[int, str]] = field(default_factory=dict)

    def check(
        self,
        sizes: Mapping[str, int],
        expected: Mapping[str, Sequence[Expected]],
        pool: Executor,
        findings: Findings,
        copies: Mapping[str, str] | None = None,
    ) -> tuple[int, set[str]]:
        """Compares objects with their expected sizes and hashes.

        Args:
            sizes: Bytes of each existing object.
            expected: Allowed forms of each object; several during a commit.
            pool: Threads that hash objects.
            findings: Collects the differences.
            copies: Name of an object with the same bytes, from which a run can restore the object.

        Returns:
            The number of hashed bytes, and the names of objects with findings.
        """
        hashed = [n for n in expected if n in sizes and self._needs_hash(sizes[n], expected[n])]
        read = pool.map(lambda name: self._sha256(name, sizes[name], expected[name]), hashed)
        digests = dict(zip(hashed, read, strict=True))
        wrong = {}
        for name, forms in expected.items():
            n_bytes, digest = sizes.get(name), digests.get(name)
            if isinstance(digest, Exception) and is_gone(self.store, name):
                n_bytes = None
            by_form = [form.differences(n_bytes, digest) for form in forms]
            if all(by_form):
                # During a commit, the form with the same size is the nearest.
                wrong[name] = min(by_form, key=lambda wrong: wrong[0][0] is FindingCode.SIZE)
            elif isinstance(digest, str):
                self.sound[name] = sizes[name], digest
        for name, differences in wrong.items():
            form, copy = expected[name][0], (copies or {}).get(name)
            is_copied = copy and copy not in wrong and self._sha256(copy) == form.sha256
            remedy = COPIED.format(copy) if is_copied else form.remedy
            for code, actual, wanted in differences:
                advice = ACCESS if code is FindingCode.UNREADABLE else remedy
                findings.add(code, f"{self.store.uri}/{name}", actual, wanted, advice)
        return sum(sizes[name] for name in digests), {*wrong}

    @staticmethod
    def _needs_hash(n_bytes: int, forms: Sequence[Expected]) -> bool:
        return any(form.sha256 and form.n_bytes in (None, n_bytes) for form in forms)

    def _sha256(
        self, name: str, n_bytes: int | None = None, forms: Sequence[Expected] = ()
    ) -> str | Exception:
        known = self.sound.get(name)
        if known is not None and known[0] == n_bytes and known[1] in {f.sha256 for f in forms}:
            return known[1]
        try:
            return Digest.of_object(self.store, name).sha256
        except (CuratorError, OSError) as error:
            return error


def check_chain(
    root: Root,
    objects: CheckedObjects,
    checked: frozenset[str],
    pool: Executor,
    findings: Findings,
    *,
    only: int | None = None,
) -> tuple[int, set[str]]:
    """Checks that the objects that the snapshots name are whole.

    Objects in `checked` are skipped. `only` limits the check to the objects of one snapshot.
    Returns the number of hashed bytes, and the names of objects with findings.
    """
    store, snapshots = root.store, root.chain.snapshots
    expected: dict[str, Expected] = {}
    copies: dict[str, str] = {}
    if only is None and root.summary is not None and snapshots:
        _check_fixed(root, findings)
        expected |= {n: Expected.of(d, RERUN) for n, d in objects_of(root.summary).items()}
    for number, snapshot in sorted(snapshots.items()):
        if only not in (None, number):
            continue
        remedy = RERUN if number == root.chain.newest else LOST
        expected |= dict.fromkeys(named_objects(archived(snapshot)), Expected(remedy=remedy))
        expected |= {n: Expected.of(d, remedy) for n, d in own_objects(snapshot).items()}
        expected |= _of_tars(store, snapshot, remedy)
        copies |= copies_of(snapshot)
    copies |= {fixed: own for own, fixed in copies.items()}
    listed = listed_objects(store, {name.split("/")[0] for name in expected})
    return objects.check(
        {name: info.bytes for name, info in listed.items()},
        {name: [form] for name, form in expected.items() if name not in checked},
        pool,
        findings,
        copies,
    )


def _check_fixed(root: Root, findings: Findings) -> None:
    """Compares `summary.json` and `config.json` with the snapshots they belong to."""
    store, snapshots, summary = root.store, root.chain.snapshots, root.summary or {}
    snapshot = snapshots.get(summary.get(NUMBER, 0))
    if snapshot is not None and not follows(summary, snapshot):
        where = f"{store.uri}/{SUMMARY}"
        findings.add(FindingCode.HASH, where, "other contents", "those of its snapshot", RERUN)
    # An interrupted commit may have written the settings of its own, newer snapshot.
    settings = [
        {name: source[name] for name in SETTINGS if name in source}
        for source in (summary, snapshots[root.chain.newest])
    ]
    code, actual, remedy = FindingCode.HASH, "other settings", RERUN
    try:
        if read_json(store, CONFIG) in settings:
            return
    except DamagedError as error:
        code, actual = code if store.exists(CONFIG) else FindingCode.MISSING, error.why
    except StorageError as error:
        code, actual, remedy = FindingCode.UNREADABLE, str(error), ACCESS
    findings.add(code, f"{store.uri}/{CONFIG}", actual, "those of the newest snapshot", remedy)


def _of_tars(store: Store, snapshot: Mapping[str, Any], remedy: str) -> dict[str, Expected]:
    """Returns the expected objects of the shards by the manifest of a snapshot."""
    objects: dict[str, Expected] = {}
    try:
        for facts in read_json(store, snapshot[INDEXES]["manifest"])["shards"]:
            own = Shard(name=facts["name"], facts=facts).objects
            objects |= {
                f"{SHARDS}/{n}": Expected(sha256=sha256, remedy=remedy) for n, sha256 in own.items()
            }
            name = f"{SHARDS}/{facts['name']}"
            objects[name] = replace(objects[name], n_bytes=facts["bytes"])
    except (StorageError, KeyError, TypeError):
        # The check of the manifest as an object shows its damage.
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
    tables = []
    for name in names:
        # Each unreadable part has a finding.
        with suppress(StorageError):
            tables.append(read_parquet(shards.store, name, columns))
    if not tables:
        return 0
    rows = pa.concat_tables(tables)
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
            findings.add(FindingCode.UNREADABLE, uri, str(error), wanted)
        return False
    if actual != expected:
        words = f"sha256 {actual}"
        findings.add(FindingCode.SOURCE_CHANGED, uri, words, f"sha256 {expected}")
    return True
