"""Runs all checks in threads; memory holds facts of tars, and at most one clip per thread.

The checks read one state. If a commit, a cleaning or a removal changes the output meanwhile, they
start again on the newer state; bytes that were sound are not read again.
"""

import os
import random
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from curator.dataset.reader_indexes import CAPTIONS
from curator.dataset.tar_reader import (
    DATASET,
    FOLDER,
    MANIFEST,
    SPLITS,
    Shard,
    ShardSet,
    tar_of,
)
from curator.errors import CuratorError, UsageError
from curator.number_text import amount
from curator.storage import Store, open_store
from curator.storage.file_walk import is_hidden
from curator.tables.out_layout import (
    CUTS,
    NEXT_MANIFEST,
    SHARDS,
    SIDES,
    SUMMARY,
    TABLES,
    VALUES,
    FolderLifetime,
    folders_of,
    has_fixed_path,
    is_own,
    listed,
)
from curator.tables.snapshot_store import own_part, with_fixed_paths
from curator.tools.verify.commit_state import open_root
from curator.tools.verify.findings import (
    FINISH,
    RERUN,
    RESTORE,
    WEBSHART,
    Finding,
    FindingCode,
    Findings,
    Outcome,
)
from curator.tools.verify.index_check import (
    COUNTS_FILE,
    ENERGON,
    ENERGON_FILES,
    check_clips,
    check_dataset,
    check_energon,
    check_idx,
    check_wids,
    wids_entries,
    wids_name,
)
from curator.tools.verify.object_check import CheckedObjects, Expected, check_chain, check_sources
from curator.tools.verify.root_state import Root, head_of_root, is_gone, parts_of
from curator.tools.verify.source_presence import remedies_of_tars, remedy_of_results
from curator.tools.verify.tar_check import SuffixRules, TarCheck, TarFacts
from curator.tools.verify.view_check import check_views

FramesToDecode = int | Literal["all", "none"]
MAX_WORKERS = 16
"""Most threads by default; more threads would wait for the disk or the network."""
ENERGON_OWN = ("index.sqlite", "index.uuid")
"""Files that Megatron-Energon may add to `.nv-meta`."""
MANIFESTS = 2
"""Most sets with a manifest, which come first; during a commit, the summary's set follows."""
PAUSES_S = (0.1, 0.5, 2.0, 5.0, 0.0)
"""Pauses after an attempt during which the output changed; the last attempt counts."""
View = tuple[ShardSet, Sequence[TarFacts]]
"""A set of shards, and the facts of its existing tars."""
_OF_RUN = folders_of(FolderLifetime.RUN)
"""Folders that the end of a run empties."""
_EMPTIED = frozenset({CUTS, VALUES})
"""Folders that the end of a run empties of what no snapshot names."""
_OF_SNAPSHOTS = folders_of(FolderLifetime.NAMED, FolderLifetime.KEPT)
"""Folders with objects that a run writes before the snapshot that names them."""
_SUMS = frozenset({FindingCode.UNREADABLE, FindingCode.SIZE, FindingCode.HASH})
"""Findings on the bytes of an object, from which findings on its contents follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(Outcome):
    """The outcome of all checks; `n_sources` counts the hashed sources."""

    n_shards: int
    n_samples: int
    n_decoded: int
    n_sources: int


def verify(
    out: str,
    *,
    frames: FramesToDecode = 100,
    seed: int = 0,
    workers: int | None = None,
    sources: bool = False,
    snapshot: int | None = None,
    progress: Callable[[int, int, int], None] = lambda n_shards, n_samples, n_bytes: None,
    hashed: Callable[[int, int], None] = lambda n_sources, n_total: None,
) -> Verified:
    """Checks the shards under an output root, their indexes, tables and snapshots.

    Args:
        out: Folder or `s3://bucket/prefix` of a run, or a folder with the contents of `shards/`.
        frames: Number of clips to decode, or `all` or `none`. All clips are always read and hashed.
        seed: Seed of the choice of clips to decode.
        workers: Number of shards read at once; by default one per core, at most `MAX_WORKERS`.
        sources: Whether to hash all sources that still exist.
        snapshot: Number of a snapshot; None for the newest one and the files at fixed paths.
        progress: Called with the numbers of shards, clips and MP4 bytes read so far.
        hashed: Called with the number of sources checked so far and of all.

    Raises:
        UsageError: The root has no shards or no such snapshot, or `sources` is set and the root has
            no summary.
        StorageError: The root cannot be listed.
    """
    store = open_store(out)
    audit = _Audit(
        out=out, store=store, frames=frames, seed=seed, workers=workers, sources=sources,
        snapshot=snapshot, progress=progress, hashed=hashed, objects=CheckedObjects(store),
    )  # fmt: skip
    seen: set[tuple[Finding, str]] = set()
    for number, pause_s in enumerate(PAUSES_S, 1):
        is_last = number == len(PAUSES_S)
        head, findings = head_of_root(store), Findings()
        try:
            facts = audit.run(findings)
        except CuratorError:
            if is_last or head_of_root(store) == head:
                raise
            continue
        if head_of_root(store) == head:
            break
        if is_last:
            # A fault of an object that did not change, found twice, is no effect of the changes.
            findings.revise(partial(_if_seen, store, seen))
            words = f"it changed during each of {number} attempts"
            findings.add(FindingCode.CHANGED, store.uri, words, "one state for one attempt")
        seen = {_with_version(store, finding) for finding in findings.stored()}
        time.sleep(pause_s)
    n_bytes = facts.pop("n_bytes")
    return Verified(**findings.outcome(store.uri, n_bytes), **facts)


def _if_seen(store: Store, seen: Set[tuple[Finding, str]], finding: Finding) -> Finding | None:
    return finding if _with_version(store, finding) in seen else None


def _with_version(store: Store, finding: Finding) -> tuple[Finding, str]:
    """Returns a finding with the version of its object; empty for no object of the store."""
    name = finding.path.partition("#")[0].removeprefix(f"{store.uri}/")
    with suppress(CuratorError):
        if (info := store.find(name)) is not None:
            return finding, info.version
    return finding, ""


@dataclass(frozen=True, kw_only=True)
class _Audit:
    """All checks of one output root.

    Attributes:
        objects: Hashes of sound objects.
        tars: Facts of sound tars, by name, size and hash.
    """

    out: str
    store: Store
    frames: FramesToDecode
    seed: int
    workers: int | None
    sources: bool
    snapshot: int | None
    progress: Callable[[int, int, int], None]
    hashed: Callable[[int, int], None]
    objects: CheckedObjects
    tars: dict[tuple[str, int, str], TarFacts] = field(default_factory=dict)

    def run(self, findings: Findings) -> dict[str, Any]:
        """Checks once; returns the numbers of the outcome."""
        root, shards = open_root(self.store, self.out, self.snapshot, findings)
        summary, snapshot = root.summary, self.snapshot
        if self.sources and summary is None:
            raise UsageError(
                f"{self.store.uri} has no summary.json, which names the table `sources`: give OUT "
                "of a finished run, or leave --sources out"
            )
        sets = [shards]
        if shards.following is not None:
            sets += [shards.following, _of_summary(shards, summary)]
        n_chained = n_sources = 0
        wrong: set[str] = set()
        with ThreadPoolExecutor(self.workers or min(MAX_WORKERS, os.cpu_count() or 1)) as pool:
            present, of_shards = self._check_named(sets, summary, pool, findings)
            tars = self._check_tars(sets, present, of_shards, pool, findings)
            if shards.prefix:
                of_set = {shards.key(n) for s in present for n in s.objects}
                checked = frozenset(of_set) | of_shards
                n_chained, wrong = check_chain(
                    root, self.objects, checked, pool, findings, only=snapshot
                )
            if self.sources and summary is not None:
                n_sources = check_sources(shards, summary, pool, findings, self.hashed)
        wrong |= of_shards
        facts = {tar.shard.name: tar for tar in tars}
        views = [(item, [facts[s.name] for s in item.shards if s.name in facts]) for item in sets]
        for view in views[:MANIFESTS]:
            for check in (_check_sums, _check_keys, _check_splits):
                check(*view, findings)
        if snapshot is None:
            _check_indexes(views, tars, wrong, findings)
        elif shards.dataset not in wrong:
            check_dataset(*views[0], findings)
        if summary is not None and not wrong & parts_of(summary):
            _of_one_set(partial(check_clips, summary), views, findings)
        if snapshot is None:
            if shards.prefix:
                check_views(root, findings)
            _check_extra_parts(root, findings)
            _check_leftovers(root, findings)
            _check_unnamed(root, sets, findings)
        if shards.prefix:
            _advise(root, findings)
        return {
            "n_bytes": sum(tar.bytes for tar in tars) + n_chained,
            "n_shards": len(tars),
            "n_samples": sum(len(tar.keys) for tar in tars),
            "n_decoded": sum(tar.n_decoded for tar in tars),
            "n_sources": n_sources,
        }

    def _check_named(
        self,
        sets: Sequence[ShardSet],
        summary: Mapping[str, Any] | None,
        pool: Executor,
        findings: Findings,
    ) -> tuple[list[Shard], set[str]]:
        """Checks sizes and hashes of the objects that manifests and summary name.

        Existing tars are compared later, when they are read. Returns the existing tars, and the
        names of objects with findings.
        """
        shards = sets[0]
        if shards.problem is not None:
            missing = MANIFEST not in shards.sizes
            code = FindingCode.MANIFEST_MISSING if missing else FindingCode.MANIFEST_WRONG
            expected = "the manifest of a finished run; what is there is checked without it"
            findings.add(code, shards.uri(MANIFEST), shards.problem, expected)
        named: dict[str, list[Expected]] = {}
        for shard_set in reversed(sets):
            for shard in shard_set.shards:
                # Hashes of tars are compared when they are read.
                named |= {name: [Expected()] for name in (shard.name, *shard.side_tars)}
                if shard_set.manifest is not None:
                    named |= {n: [Expected(sha256=sha)] for n, sha in shard.indexes.items()}
        if shards.manifest is None:
            for entry in (summary or {}).get("shards") or ():
                if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                    form = Expected(n_bytes=entry.get("bytes"))
                    named[entry["name"].removeprefix(FOLDER)] = [form]
        if shards.snapshot is None:
            forms = [_expected_indexes(shard_set) for shard_set in sets[:MANIFESTS]]
            for name in {name for of_set in forms for name in of_set}:
                # During a commit, this file has the counts of both sets; `check_energon` compares
                # them.
                if len(sets) == 1 or not name.endswith(f"{ENERGON}/{COUNTS_FILE}"):
                    named[name] = [of_set.get(name, Expected(exists=False)) for of_set in forms]
        sizes = {shards.key(name): n_bytes for name, n_bytes in shards.sizes.items()}
        expected_objects = {shards.key(name): named[name] for name in sorted(named)}
        _, wrong = self.objects.check(sizes, expected_objects, pool, findings)
        tars = {shard.name: shard for shard_set in reversed(sets) for shard in shard_set.shards}
        return [tars[name] for name in sorted(tars) if name in shards.sizes], wrong

    def _check_tars(
        self,
        sets: Sequence[ShardSet],
        present: Sequence[Shard],
        wrong: Set[str],
        pool: Executor,
        findings: Findings,
    ) -> list[TarFacts]:
        """Reads and checks all tars in the pool's threads; `wrong` has objects with findings."""
        shards = sets[0]
        decoded = _chosen(shards, present, self.frames, self.seed)
        # An interrupted commit may leave tars of both sets.
        rules = SuffixRules(sets[:MANIFESTS])
        n_cpus = os.cpu_count() or 1
        threads = max(1, n_cpus // max(1, min(len(present), n_cpus)))
        # Threads count without a lock, since the numbers are for display only.
        seen = [0, 0, 0]

        def note(n_bytes: int) -> None:
            seen[1] += 1
            seen[2] += n_bytes
            self.progress(*seen)

        def check(shard: Shard) -> TarFacts:
            identity = shard.name, shards.sizes[shard.name], str(shard.facts.get("sha256"))
            if (known := self.tars.get(identity)) is not None:
                return known
            own, of_tar = (
                None if decoded is None else decoded.get(shard.name, frozenset()),
                Findings(),
            )
            facts = TarCheck(shards, shard, rules, of_tar, own, threads, note).run()
            if shards.key(shard.idx_name) not in wrong:
                check_idx(shards, facts, of_tar)
            _check_facts(shards, facts, of_tar)
            if not of_tar.counts and shard.facts.get("sha256") == facts.sha256:
                self.tars[identity] = facts
            _keep_causes(shards, shard, wrong, of_tar)
            findings.take(of_tar)
            seen[0] += 1
            return facts

        return list(pool.map(check, present))


def _of_summary(shards: ShardSet, summary: Mapping[str, Any] | None) -> ShardSet:
    """Returns the set of the summary's tars; during a commit, these may be the earlier run's."""
    entries = (summary or {}).get("shards") or ()
    names = {str(e["name"]).removeprefix(FOLDER) for e in entries if isinstance(e, dict)}
    listed = tuple(Shard(name=name, facts={}) for name in sorted(names))
    return replace(shards, manifest=None, shards=listed, following=None)


def _expected_indexes(shards: ShardSet) -> dict[str, Expected]:
    """Returns the expected files that describe all tars of a set."""
    indexes = {
        name: Expected(n_bytes=facts.get("bytes"), sha256=facts.get("sha256"))
        for name, facts in _files(shards).items()
    }
    if shards.manifest is None or not shards.shards:
        return indexes
    # Readers need these files even if the manifest does not name them.
    needed = {DATASET, *(wids_name(shard.split) for shard in shards.shards)}
    return dict.fromkeys(needed, Expected()) | indexes


def _files(shards: ShardSet) -> dict[str, dict[str, Any]]:
    files = (shards.manifest or {}).get("files", {})
    return {name: facts if isinstance(facts, dict) else {} for name, facts in files.items()}


def _of_one_set(
    check: Callable[[ShardSet, Sequence[TarFacts], Findings], None],
    views: Sequence[View],
    findings: Findings,
) -> None:
    """Adds the check's findings for the first set, unless the check passes for any set.

    During a commit, an index belongs to the old or to the new set.
    """
    shard_set = []
    for shards, tars in views:
        shard_set.append(Findings())
        check(shards, tars, shard_set[-1])
        if not shard_set[-1].counts:
            return
    findings.take(shard_set[0])


def _check_indexes(
    views: Sequence[View], tars: Sequence[TarFacts], wrong: Set[str], findings: Findings
) -> None:
    """Compares the files that describe all tars with `tars`, the tars of all sets.

    Files in `wrong` have findings already.
    """
    key = views[0][0].key
    buckets = {tar.shard.bucket for tar in tars if tar.shard.bucket}
    for folder in ("", *(f"{bucket}/" for bucket in sorted(buckets))):
        for file in ENERGON_FILES:
            # During a commit, the counts cover the tars of all sets.
            both = [(views[0][0], tars)] if file == COUNTS_FILE else []
            if key(f"{folder}{ENERGON}/{file}") not in wrong:
                _of_one_set(partial(check_energon, folder, file), [*views, *both], findings)
    for split in SPLITS:
        if key(wids_name(split)) not in wrong:
            entries = wids_entries(views[0][0], split, findings)
            _of_one_set(partial(check_wids, split, entries), views[:MANIFESTS], findings)
    if key(DATASET) not in wrong:
        _of_one_set(check_dataset, views[:MANIFESTS], findings)


def _chosen(
    shards: ShardSet, present: Sequence[Shard], frames: FramesToDecode, seed: int
) -> Mapping[str, Set[int]] | None:
    """Chooses the positions of the samples to decode, by shard; None for all."""
    if frames == "all":
        return None
    if frames == "none":
        return {}
    begins = [0, *accumulate(_n_samples(shards, shard) for shard in present)]
    total = begins.pop()
    chosen: defaultdict[str, set[int]] = defaultdict(set)
    # `random.Random` makes the same choice on every platform.
    for number in random.Random(seed).sample(range(total), min(frames, total)):
        at = bisect_right(begins, number) - 1
        chosen[present[at].name].add(number - begins[at])
    return chosen


def _n_samples(shards: ShardSet, shard: Shard) -> int:
    samples = shard.facts.get("samples")
    if isinstance(samples, int) and 0 <= samples <= shards.sizes[shard.name] // 512:
        return samples
    if shard.idx_name in shards.sizes:
        return max(0, shards.sizes[shard.idx_name] // 8 - 1)
    # Without both, the size gives an estimate, so that some of the first samples can be chosen.
    return 1 + shards.sizes[shard.name] // (64 << 20)


def _check_facts(shards: ShardSet, tar: TarFacts, findings: Findings) -> None:
    """Compares a tar with its entry in the manifest."""
    facts, uri, n_bytes = tar.shard.facts, shards.uri(tar.shard.name), shards.sizes[tar.shard.name]
    if facts.get("bytes") not in (None, n_bytes):
        findings.add(FindingCode.SIZE, uri, f"{n_bytes} bytes", f"{facts['bytes']} bytes")
    elif facts.get("sha256") is not None and tar.sha256 not in ("", facts["sha256"]):
        findings.add(FindingCode.HASH, uri, f"sha256 {tar.sha256}", str(facts["sha256"]))
    if not tar.is_whole:
        return
    if not len(tar.keys):
        findings.add(FindingCode.COUNT, uri, "no sample", "at least one")
    counts = {"samples": len(tar.keys), "frames": tar.n_frames}
    findings.compare(FindingCode.COUNT, uri, counts, {n: facts[n] for n in counts if n in facts})
    place = {"split": tar.shard.split, "bucket": tar.shard.bucket}
    where = f"{shards.uri(MANIFEST)}#{tar.shard.name}"
    findings.compare(FindingCode.MANIFEST_WRONG, where, facts, place)


def _check_sums(shards: ShardSet, tars: Sequence[TarFacts], findings: Findings) -> None:
    """Compares the manifest's sums with the tars, if all named tars are sound."""
    counts = (shards.manifest or {}).get("counts")
    is_complete = len(tars) >= len(shards.shards) and all(tar.is_sound for tar in tars)
    if isinstance(counts, dict) and is_complete:
        sums = {"samples": sum(len(t.keys) for t in tars), "frames": sum(t.n_frames for t in tars)}
        where = f"{shards.uri(MANIFEST)}#counts"
        findings.compare(FindingCode.MANIFEST_WRONG, where, counts, sums)


def _check_keys(shards: ShardSet, tars: Sequence[TarFacts], findings: Findings) -> None:
    """Adds a finding for each key that two samples share."""
    filled = [tar for tar in tars if len(tar.keys)]
    if not filled:
        return
    keys = np.concatenate([tar.keys for tar in filled])
    owner = np.repeat(np.arange(len(filled)), [len(tar.keys) for tar in filled])
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    for at in twice:
        first, second = (filled[owner[order[at + n]]].shard.name for n in (0, 1))
        key = keys[order[at]].decode("utf-8", "replace")
        where, expected = f"{shards.uri(second)}#{key}", "keys that are unique over all shards"
        findings.add(FindingCode.KEY_TWICE, where, f"the same key in {first}", expected)


def _check_splits(shards: ShardSet, tars: Sequence[TarFacts], findings: Findings) -> None:
    """Adds a finding for each source with clips in both splits."""
    train, val = (
        frozenset().union(*(tar.sources for tar in tars if tar.shard.split == split))
        for split in SPLITS
    )
    for source in sorted(train & val):
        where = f"{shards.uri('')}#source {source.decode('utf-8', 'replace')}"
        findings.add(FindingCode.SPLIT, where, "clips in train and in val", "one split")


def _keep_causes(shards: ShardSet, shard: Shard, wrong: Set[str], findings: Findings) -> None:
    """Drops findings on a tar that follow from another one, which then describes them."""
    uri, meta = shards.uri(shard.name), shards.uri(shard.meta_name)
    found = findings.stored()
    causes = [f for f in found if f.path == uri and f.code in _SUMS]
    if not causes:
        if shards.key(shard.meta_name) in wrong:
            findings.revise(lambda f: f if f.path != meta else None)
        return
    cause = min(causes, key=lambda f: f.code is not FindingCode.UNREADABLE)
    words = cause.found
    others = [f for f in found if f.path != meta and f.code not in _SUMS]
    if others and cause.code is not FindingCode.UNREADABLE:
        samples = sorted({f.path.partition("#")[2].partition(".")[0] for f in others} - {""})
        words += f"; in it: {', '.join(dict.fromkeys(str(f.code) for f in others))}"
        if samples:
            words += f" of {amount(len(samples), 'sample')}, such as {samples[0]}"
    findings.revise(lambda f: replace(f, found=words) if f is cause else None)


def _check_unnamed(root: Root, sets: Sequence[ShardSet], findings: Findings) -> None:
    """Adds a finding for each object of the shards that no manifest and no snapshot names."""
    shards = sets[0]
    if shards.manifest is None or root.is_busy:
        return
    named = {MANIFEST, NEXT_MANIFEST.removeprefix(FOLDER), DATASET, *map(wids_name, SPLITS)}
    for of_set in sets:
        named.update(_files(of_set))
        for folder in {"", *(f"{shard.bucket}/" for shard in of_set.shards)}:
            named |= {f"{folder}{ENERGON}/{file}" for file in (*ENERGON_FILES, *ENERGON_OWN)}
        for shard in of_set.shards:
            named.update(shard.objects)
    for name in sorted(shards.sizes.keys() - named):
        key = f"{FOLDER}{name}"
        if key not in root.named and not is_gone(shards.store, shards.key(name)):
            words, expected = f"{shards.sizes[name]} bytes", "only what a snapshot names"
            code, remedy = FindingCode.UNNAMED, root.remedy_of(key)
            if has_fixed_path(key) and root.chain.snapshots:
                # A commit overwrites or removes these files, and no snapshot names them.
                code, words, remedy = FindingCode.INTERRUPTED, "a file of an earlier commit", FINISH
            findings.add(code, shards.uri(name), words, expected, remedy)


def _check_extra_parts(root: Root, findings: Findings) -> None:
    """Adds a finding for each part in the folder of a table that readers of the folder see twice.

    An interrupted commit leaves parts of an earlier snapshot, and a later one removes them.
    """
    if root.summary is None:
        return
    store, snapshots = root.store, root.chain.readable
    named = parts_of(root.summary)
    newest = snapshots.get(root.chain.newest)
    if newest is not None:
        named |= parts_of(with_fixed_paths(newest))
    for table, keys in listed(store, TABLES).items():
        expected = f"only the parts that {SUMMARY} lists: readers of the folder see its rows too"
        for key in sorted({*keys} - named):
            if is_hidden(key.rpartition("/")[2]) or is_gone(store, key):
                continue
            code, words = FindingCode.EXTRA_PART, f"a part of no snapshot in the folder of {table}"
            remedy = None
            if not is_own(key):
                code, words, remedy = FindingCode.UNNAMED, "an object", root.remedy_of(key)
            elif own_part(key) in root.named or root.is_interrupted or root.activity is not None:
                code, remedy = FindingCode.INTERRUPTED, code.remedy
                words = "a part that an interrupted or unfinished commit did not remove"
                root.is_interrupted = True
            findings.add(code, f"{store.uri}/{key}", words, expected, remedy)


def _check_leftovers(root: Root, findings: Findings) -> None:
    """Adds a finding if a commit did not come to its end, which removes the objects of its run.

    If objects exist that wait for their snapshot, the run did not come to its commit.
    """
    if root.is_busy or not root.chain.snapshots:
        return
    store = root.store
    by_folder = listed(store, (*_OF_RUN, *_OF_SNAPSHOTS))
    unnamed = [
        (folder, key)
        for folder in (*_OF_RUN, *_OF_SNAPSHOTS)
        for key in by_folder[folder]
        if key not in root.named and is_own(key) and not has_fixed_path(key)
    ]
    emptied = _EMPTIED.union(_OF_RUN)
    of_run = [key for folder, key in unnamed if folder in emptied]
    waiting = {folder for folder, _ in unnamed if folder not in emptied}
    root.has_unfinished_run = bool(of_run or waiting - {SHARDS})
    if of_run and not waiting:
        words = f"{amount(len(of_run), 'object')} of a run, which its commit did not remove"
        where = f"{store.uri}/{of_run[0].partition('/')[0]}"
        if not root.is_interrupted:
            findings.add(FindingCode.INTERRUPTED, where, words, "none")
        root.is_interrupted = True


def _advise(root: Root, findings: Findings) -> None:
    """Says for each damaged object whether the sources exist that a rerun needs."""
    shards = f"{root.store.uri}/{SHARDS}/"
    entries = (root.summary or {}).get("shards") or ()
    # A side tar has values of the clips.
    tar_with: dict[str, str] = {
        name.removeprefix(FOLDER): entry["name"].removeprefix(FOLDER)
        for entry in entries
        for name in entry.get("versions", ())
    }

    def damaged_tar(finding: Finding) -> str | None:
        name = finding.path.partition("#")[0].removeprefix(shards)
        if finding.remedy != RESTORE or name == finding.path.partition("#")[0]:
            return None
        return tar_with.get(name, tar_of(name))

    def is_result(finding: Finding) -> bool:
        folder, _, name = finding.path.removeprefix(f"{root.store.uri}/").partition("/")
        return finding.remedy == RERUN and bool(name) and folder != SHARDS

    tables = (root.summary or {}).get("tables", {})
    tars = {tar for finding in findings.stored() if (tar := damaged_tar(finding)) is not None}
    remedies = remedies_of_tars(root.store, tables.get("clips", ()), tars) if tars else {}
    of_results = RERUN
    if any(map(is_result, findings.stored())):
        of_results = remedy_of_results(root.store, tables.get("sources", ()))

    refused = {f.path for f in findings.stored() if f.code is FindingCode.UNREADABLE}

    def revised(finding: Finding) -> Finding | None:
        if finding.path in refused and any(
            path in finding.found for path in refused - {finding.path}
        ):
            # The records of removals need another object, which has its own finding.
            return None
        if root.is_removing and finding.code in _SUMS and not finding.path.startswith(shards):
            # A removal writes these objects again before it names their new hashes.
            return None
        if is_result(finding):
            return replace(finding, remedy=of_results)
        tar = damaged_tar(finding)
        if tar is None:
            return finding
        path = finding.path.partition("#")[0]
        if path.startswith(f"{shards}{SIDES}/") and not path.endswith(".tar"):
            # No export makes the indexes of side tars. A run needs no source for it.
            return replace(finding, remedy=RERUN)
        if (remedy := _export_of(finding.path)) is not None:
            return replace(finding, remedy=remedy)
        return replace(finding, remedy=remedies[tar])

    findings.revise(revised)


def _export_of(path: str) -> str | None:
    """Returns the export that makes an index of the shards again; None for other objects."""
    folder, _, name = path.rpartition("/")
    if name.endswith(".tar.idx") or folder.endswith(f"/{ENERGON}"):
        return FindingCode.ENERGON.remedy
    if name in map(wids_name, SPLITS):
        return FindingCode.WIDS.remedy
    is_of_tar = name.endswith(".json") and tar_of(name) != name
    return WEBSHART if is_of_tar or name == CAPTIONS else None
