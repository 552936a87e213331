"""Runs all checks in threads; memory holds facts of tars, and at most one clip per thread."""

import os
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from curator.errors import CuratorError, UsageError
from curator.stages.shard.tar_reader import (
    DATASET,
    FOLDER,
    MANIFEST,
    NEXT_MANIFEST,
    SPLITS,
    Shard,
    ShardSet,
    open_shards,
)
from curator.tables.checksums import opened_json
from curator.tables.parts import SUMMARY
from curator.tables.snapshot_store import EARLIER, read_snapshot
from curator.verify.findings import RERUN, FindingCode, Findings, Outcome
from curator.verify.index_check import (
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
from curator.verify.object_check import Expected, check_chain, check_objects, check_sources
from curator.verify.removed_check import check_records
from curator.verify.tar_check import SuffixRules, TarCheck, TarFacts

FramesToDecode = int | Literal["all", "none"]
MAX_WORKERS = 16
"""Most threads by default; more threads would wait for the disk or the network."""
ENERGON_OWN = ("index.sqlite", "index.uuid")
"""Files that Megatron-Energon may add to `.nv-meta`."""
MANIFESTS = 2
"""Most sets with a manifest, which come first; during a commit, the summary's set follows."""
View = tuple[ShardSet, Sequence[TarFacts]]
"""A set of shards, and the facts of its existing tars."""


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
    findings = Findings()
    shards = open_shards(out, snapshot)
    summary = _summary(shards, findings)
    if shards.prefix:
        check_records(shards.store, findings)
    if sources and summary is None:
        raise UsageError(
            f"{shards.store.uri} has no summary.json, which names the table `sources`: give OUT of "
            "a finished run, or leave --sources out"
        )
    sets = [shards]
    if shards.following is not None:
        words = "the manifest of a commit that was broken off"
        findings.add(FindingCode.INTERRUPTED, shards.uri(NEXT_MANIFEST), words, "none")
        sets += [shards.following, _of_summary(shards, summary)]
    n_chained = n_sources = 0
    with ThreadPoolExecutor(workers or min(MAX_WORKERS, os.cpu_count() or 1)) as pool:
        present = _check_named(sets, summary, pool, findings)
        tars = _check_tars(sets, present, frames, seed, pool, findings, progress)
        if shards.prefix:
            of_set = {shards.key(n) for s in present for n in (s.name, s.idx_name, s.meta_name)}
            n_chained = check_chain(
                shards.store, summary, frozenset(of_set), pool, findings, only=snapshot
            )
        if sources and summary is not None:
            n_sources = check_sources(shards, summary, pool, findings, hashed)
    facts = {tar.shard.name: tar for tar in tars}
    views = [(item, [facts[s.name] for s in item.shards if s.name in facts]) for item in sets]
    for tar in tars:
        check_idx(shards, tar, findings)
        _check_facts(shards, tar, findings)
    for view in views[:MANIFESTS]:
        for check in (_check_sums, _check_keys, _check_splits):
            check(*view, findings)
    if snapshot is None:
        _check_indexes(views, tars, findings)
    else:
        check_dataset(*views[0], findings)
    if summary is not None:
        _of_one_set(partial(check_clips, summary), views, findings)
    if snapshot is None and shards.following is None:
        _check_unnamed(shards, summary, findings)
    return Verified(
        **findings.outcome(shards.store.uri, sum(tar.bytes for tar in tars) + n_chained),
        n_shards=len(tars),
        n_samples=sum(len(tar.keys) for tar in tars),
        n_decoded=sum(tar.n_decoded for tar in tars),
        n_sources=n_sources,
    )


def _summary(shards: ShardSet, findings: Findings) -> dict[str, Any] | None:
    """Reads the run's summary; None if it is missing or unreadable."""
    if shards.snapshot is not None:
        return read_snapshot(shards.store, shards.snapshot)
    if not shards.prefix:
        return None
    actual = "missing"
    try:
        if shards.store.exists(SUMMARY):
            return opened_json(shards.store.read(SUMMARY), SUMMARY)
        if shards.following is not None:
            return None
    except (CuratorError, ValueError) as error:
        actual = f"it cannot be read ({error})"
    where, expected = f"{shards.store.uri}/{SUMMARY}", "the summary of a finished run"
    findings.add(FindingCode.MISSING, where, actual, expected, RERUN)
    return None


def _of_summary(shards: ShardSet, summary: Mapping[str, Any] | None) -> ShardSet:
    """Returns the set of the summary's tars; during a commit, these may be the earlier run's."""
    entries = (summary or {}).get("shards") or ()
    names = {str(e["name"]).removeprefix(FOLDER) for e in entries if isinstance(e, dict)}
    listed = tuple(Shard(name=name, facts={}) for name in sorted(names))
    return replace(shards, manifest=None, shards=listed, following=None)


def _check_named(
    sets: Sequence[ShardSet], summary: Mapping[str, Any] | None, pool: Executor, findings: Findings
) -> list[Shard]:
    """Checks sizes and hashes of the objects that manifests and summary name.

    Tars are hashed later, when they are read. Returns the existing tars.
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
            named[shard.name] = [Expected(n_bytes=shard.facts.get("bytes"))]
            if shard_set.manifest is not None:
                named[shard.idx_name] = [Expected(sha256=shard.facts.get("idx_sha256"))]
                named[shard.meta_name] = [Expected(sha256=shard.facts.get("meta_sha256"))]
    if shards.manifest is None:
        for entry in (summary or {}).get("shards") or ():
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                form = Expected(n_bytes=entry.get("bytes"))
                named[entry["name"].removeprefix(FOLDER)] = [form]
    if shards.snapshot is None:
        forms = [_expected_indexes(shard_set) for shard_set in sets[:MANIFESTS]]
        for name in {name for of_set in forms for name in of_set}:
            # During a commit, this file has the counts of both sets; `check_energon` compares them.
            if len(sets) == 1 or not name.endswith(f"{ENERGON}/{COUNTS_FILE}"):
                named[name] = [of_set.get(name, Expected(exists=False)) for of_set in forms]
    sizes = {shards.key(name): n_bytes for name, n_bytes in shards.sizes.items()}
    expected_objects = {shards.key(name): named[name] for name in sorted(named)}
    check_objects(shards.store, sizes, expected_objects, pool, findings)
    tars = {shard.name: shard for shard_set in reversed(sets) for shard in shard_set.shards}
    return [tars[name] for name in sorted(tars) if name in shards.sizes]


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


def _check_indexes(views: Sequence[View], tars: Sequence[TarFacts], findings: Findings) -> None:
    """Compares the files that describe all tars with `tars`, the tars of all sets."""
    buckets = {tar.shard.bucket for tar in tars if tar.shard.bucket}
    for folder in ("", *(f"{bucket}/" for bucket in sorted(buckets))):
        for file in ENERGON_FILES:
            # During a commit, the counts cover the tars of all sets.
            both = [(views[0][0], tars)] if file == COUNTS_FILE else []
            _of_one_set(partial(check_energon, folder, file), [*views, *both], findings)
    for split in SPLITS:
        entries = wids_entries(views[0][0], split, findings)
        _of_one_set(partial(check_wids, split, entries), views[:MANIFESTS], findings)
    _of_one_set(check_dataset, views[:MANIFESTS], findings)


def _check_tars(
    sets: Sequence[ShardSet],
    present: Sequence[Shard],
    frames: FramesToDecode,
    seed: int,
    pool: Executor,
    findings: Findings,
    progress: Callable[[int, int, int], None],
) -> list[TarFacts]:
    """Reads and checks all tars in the pool's threads."""
    shards = sets[0]
    decoded = _chosen(shards, present, frames, seed)
    # An interrupted commit may leave tars of both sets.
    rules = SuffixRules(sets[:MANIFESTS])
    n_cpus = os.cpu_count() or 1
    threads = max(1, n_cpus // max(1, min(len(present), n_cpus)))
    # Threads count without a lock, since the numbers are for display only.
    seen = [0, 0, 0]

    def note(n_bytes: int) -> None:
        seen[1] += 1
        seen[2] += n_bytes
        progress(*seen)

    def check(shard: Shard) -> TarFacts:
        own = None if decoded is None else decoded.get(shard.name, frozenset())
        facts = TarCheck(shards, shard, rules, findings, own, threads, note).run()
        seen[0] += 1
        return facts

    return list(pool.map(check, present))


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
    facts, uri = tar.shard.facts, shards.uri(tar.shard.name)
    if facts.get("sha256") is not None and tar.sha256 not in ("", facts["sha256"]):
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


def _check_unnamed(shards: ShardSet, summary: Mapping[str, Any] | None, findings: Findings) -> None:
    """Adds a finding for each object that no manifest and no earlier snapshot names."""
    if shards.manifest is None:
        return
    named = {MANIFEST, DATASET, *map(wids_name, SPLITS), *_files(shards)}
    named |= {name.removeprefix(FOLDER) for name in (summary or {}).get(EARLIER, ())}
    for folder in {"", *(f"{shard.bucket}/" for shard in shards.shards)}:
        named |= {f"{folder}{ENERGON}/{file}" for file in (*ENERGON_FILES, *ENERGON_OWN)}
    for shard in shards.shards:
        named |= {shard.name, shard.idx_name, shard.meta_name}
    for name in sorted(shards.sizes.keys() - named):
        words, expected = f"{shards.sizes[name]} bytes", "only what the manifest names"
        findings.add(FindingCode.UNNAMED, shards.uri(name), words, expected)
