"""Compares indexes with the tars."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from curator.errors import CuratorError
from curator.stages.shard.tar_reader import ShardSet
from curator.strict_yaml import load_yaml
from curator.verify.findings import FindingCode, Findings
from curator.verify.tar_check import TarFacts

ENERGON = ".nv-meta"
SPLITS_FILE, COUNTS_FILE = "split.yaml", ".info.json"
ENERGON_FILES = ("dataset.yaml", SPLITS_FILE, COUNTS_FILE)
_MAX_YAML_CHARACTERS = 64 << 20
"""It names every tar."""


def wids_name(split: str) -> str:
    """Returns the name of the wids index of a split."""
    return f"wids-{split}.json"


def check_idx(shards: ShardSet, facts: TarFacts, findings: Findings) -> None:
    """Compares a shard's `.tar.idx` with its real headers."""
    name = facts.shard.idx_name
    if name not in shards.sizes or not facts.is_whole:
        return
    try:
        data = shards.store.read(shards.key(name))
    except CuratorError as error:
        findings.add(FindingCode.UNREADABLE, shards.uri(name), str(error), "a readable object")
        return
    expected = np.append(facts.offsets, facts.end)
    offsets = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    actual, wanted = "", f"{len(expected)} offsets"
    if len(data) % 8:
        actual = f"{shards.sizes[name]} bytes, which is no multiple of 8"
    elif len(offsets) != len(expected):
        actual = f"{len(offsets)} offsets"
    elif (offsets != expected).any():
        at = int((offsets != expected).argmax())
        actual, wanted = f"offset {offsets[at]} at position {at}", str(expected[at])
    if actual:
        findings.add(FindingCode.INDEX, shards.uri(name), actual, wanted)


def wids_entries(shards: ShardSet, split: str, findings: Findings) -> dict[str, dict[str, Any]]:
    """Reads the entries of a wids index by tar; empty if it is missing or unreadable."""
    name = wids_name(split)
    index = _load(shards, name, FindingCode.WIDS, findings)
    if index is None:
        return {}
    entries = index.get("shardlist") if isinstance(index, dict) else None
    if not isinstance(entries, list) or index.get("__kind__") != "wids-shard-index-v1":
        wanted = "`__kind__` wids-shard-index-v1 and a `shardlist`"
        findings.add(FindingCode.WIDS, shards.uri(name), "no wids index", wanted)
        return {}
    base = index.get("base_path")
    named: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("url"), str):
            url = entry["url"] if base is None else f"{base}/{entry['url']}"
            named[url.removeprefix(shards.uri("")).removeprefix("./")] = entry
    return named


def check_wids(
    split: str,
    entries: Mapping[str, Mapping[str, Any]],
    shards: ShardSet,
    tars: Sequence[TarFacts],
    findings: Findings,
) -> None:
    """Compares a wids index with the tars of its split."""
    if wids_name(split) not in shards.sizes:
        return
    facts = {tar.shard.name: tar for tar in tars if tar.shard.split == split}
    for url in sorted({*entries, *facts}):
        where = f"{shards.uri(wids_name(split))}#{url}"
        tar, entry = facts.get(url), entries.get(url)
        if entry is None:
            findings.add(FindingCode.WIDS, where, "not listed", "listed")
        elif tar is None:
            findings.add(FindingCode.WIDS, where, "listed", f"no tar of {split}")
        elif tar.is_whole:
            values = {"nsamples": len(tar.keys), "filesize": tar.bytes, "md5sum": tar.md5}
            findings.compare(FindingCode.WIDS, where, entry, values)


def check_energon(
    folder: str, file: str, shards: ShardSet, tars: Sequence[TarFacts], findings: Findings
) -> None:
    """Compares a file of `ENERGON_FILES` with the tars of a set.

    `folder` is empty for the `.nv-meta` of all shards, or a bucket with a slash.
    """
    own = {tar.shard.name[len(folder) :]: tar for tar in tars if tar.shard.name.startswith(folder)}
    name = f"{folder}{ENERGON}/{file}"
    path = shards.uri(name)
    if name not in shards.sizes:
        others = (f"{folder}{ENERGON}/{other}" for other in ENERGON_FILES)
        if own and (shards.manifest is not None or any(o in shards.sizes for o in others)):
            findings.add(FindingCode.ENERGON, path, "missing", "an index for Megatron-Energon")
        return
    loaded = _load(shards, name, FindingCode.ENERGON, findings)
    if loaded is None:
        return
    listed: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    if file == SPLITS_FILE:
        wanted = {tar: facts.shard.split for tar, facts in own.items()}
        for part, names in _mapping(loaded, "split_parts").items():
            expanded = _expanded(names if isinstance(names, list) else ())
            listed |= dict.fromkeys(expanded, part)
    elif file == COUNTS_FILE:
        wanted = {tar: len(facts.keys) for tar, facts in own.items()}
        listed = _mapping(loaded, "shard_counts")
    elif not isinstance(loaded, dict):
        findings.add(FindingCode.ENERGON, path, "no mapping", "a mapping")
    for tar in sorted({*listed, *wanted}):
        is_unknown = file == COUNTS_FILE and tar in own and not own[tar].is_whole
        if listed.get(tar) != wanted.get(tar) and not is_unknown:
            actual = repr(listed[tar]) if tar in listed else "not listed"
            expected = repr(wanted[tar]) if tar in wanted else "no such tar"
            findings.add(FindingCode.ENERGON, f"{path}#{tar}", actual, expected)


def _mapping(loaded: object, field: str) -> dict[str, Any]:
    value = loaded.get(field) if isinstance(loaded, dict) else None
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _expanded(names: Iterable[object]) -> Iterator[str]:
    """Expands ranges such as `{000000..000003}` in names."""
    for name in names:
        head, brace, tail = str(name).partition("{")
        span, closing, rest = tail.partition("}")
        first, dots, last = span.partition("..")
        if not (brace and closing and dots and first.isdigit() and last.isdigit()):
            yield str(name)
            continue
        for number in range(int(first), min(int(last), int(first) + 1_000_000) + 1):
            yield from _expanded([f"{head}{number:0{len(first)}d}{rest}"])


def _load(shards: ShardSet, name: str, code: FindingCode, findings: Findings) -> Any:  # noqa: ANN401 - whatever the file holds
    """Loads a JSON or YAML object; None if it is missing, or cannot be read, which is a finding."""
    if name not in shards.sizes:
        return None
    is_json = name.endswith(".json")
    try:
        data = shards.store.read(shards.key(name))
        if is_json:
            return orjson.loads(data)
        return load_yaml(data.decode(), max_characters=_MAX_YAML_CHARACTERS)
    except (CuratorError, ValueError) as error:
        words = f"it cannot be read ({str(error).splitlines()[0]})"
        findings.add(code, shards.uri(name), words, "JSON" if is_json else "YAML")
        return None
