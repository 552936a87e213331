"""Compares indexes with the tars."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from curator.errors import CuratorError
from curator.stages.shard.tar_reader import ShardSet
from curator.strict_yaml import load_yaml
from curator.verify.findings import EXPORT, FindingCode, Findings
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
    path = shards.uri(name)
    try:
        data = shards.store.read(shards.key(name))
    except CuratorError as error:
        findings.add(FindingCode.UNREADABLE, path, str(error), "a readable object")
        return
    expected = np.append(facts.offsets, facts.end)
    offsets = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    words = ""
    if len(data) % 8:
        words = f"{shards.sizes[name]} bytes, which is no multiple of 8"
    elif len(offsets) != len(expected):
        words = f"{len(offsets)} offsets"
    elif (offsets != expected).any():
        at = int((offsets != expected).argmax())
        words = f"offset {offsets[at]} at position {at}"
        expected = expected[at : at + 1]
    if words:
        wanted = f"{expected[0]}" if len(expected) == 1 else f"{len(expected)} offsets"
        findings.add(FindingCode.INDEX, path, words, wanted, EXPORT.format("energon"))


def wids_entries(shards: ShardSet, split: str, findings: Findings) -> dict[str, dict[str, Any]]:
    """Reads the entries of a wids index by tar; empty if it is missing or unreadable."""
    name = wids_name(split)
    if name not in shards.sizes:
        return {}
    index = _load(shards, name, FindingCode.WIDS, findings)
    entries = index.get("shardlist") if isinstance(index, dict) else None
    if index is not None and (
        not isinstance(entries, list) or index.get("__kind__") != "wids-shard-index-v1"
    ):
        findings.add(
            FindingCode.WIDS,
            shards.uri(name),
            "no wids index",
            "`__kind__` wids-shard-index-v1 and a `shardlist`",
            EXPORT.format("wids"),
        )
        return {}
    base = index.get("base_path") if isinstance(index, dict) else None
    named: dict[str, dict[str, Any]] = {}
    for entry in entries or ():
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
    name = wids_name(split)
    if name not in shards.sizes:
        return
    facts = {tar.shard.name: tar for tar in tars if tar.shard.split == split}
    for url in sorted({*entries, *facts}):
        tar, entry = facts.get(url), entries.get(url)
        if tar is None or entry is None:
            actual, expected = ("not listed", "listed") if tar else ("listed", f"no tar of {split}")
            _differs(findings, FindingCode.WIDS, shards.uri(name), url, actual, expected)
            continue
        if not tar.is_whole:
            continue
        values = {"nsamples": len(tar.keys), "filesize": tar.bytes, "md5sum": tar.md5}
        for field, value in values.items():
            if field in entry and entry[field] != value:
                actual, expected = f"{field} {entry[field]!r}", repr(value)
                _differs(findings, FindingCode.WIDS, shards.uri(name), url, actual, expected)


def check_energon(
    folder: str, file: str, shards: ShardSet, tars: Sequence[TarFacts], findings: Findings
) -> None:
    """Compares a file of `ENERGON_FILES` with the tars of a set.

    `folder` is empty for the `.nv-meta` of all shards, or a bucket with a slash.
    """
    own = {tar.shard.name[len(folder) :]: tar for tar in tars if tar.shard.name.startswith(folder)}
    name = f"{folder}{ENERGON}/{file}"
    if name not in shards.sizes:
        others = (f"{folder}{ENERGON}/{other}" for other in ENERGON_FILES)
        if own and (shards.manifest is not None or any(o in shards.sizes for o in others)):
            words = "an index for Megatron-Energon"
            findings.add(
                FindingCode.ENERGON, shards.uri(name), "missing", words, EXPORT.format("energon")
            )
        return
    loaded = _load(shards, name, FindingCode.ENERGON, findings)
    if loaded is None:
        return
    path = shards.uri(name)
    if file == SPLITS_FILE:
        parts = loaded.get("split_parts") if isinstance(loaded, dict) else None
        listed = {
            tar: part
            for part, listing in _mapping(parts).items()
            for tar in _expanded(listing if isinstance(listing, list) else ())
        }
        wanted = {tar: facts.shard.split for tar, facts in own.items()}
        _compare(findings, path, listed, wanted, set())
    elif file == COUNTS_FILE:
        counts = loaded.get("shard_counts") if isinstance(loaded, dict) else None
        expected = {tar: len(facts.keys) for tar, facts in own.items()}
        damaged = {tar for tar, facts in own.items() if not facts.is_whole}
        _compare(findings, path, _mapping(counts), expected, damaged)
    elif not isinstance(loaded, dict):
        _differs(findings, FindingCode.ENERGON, path, "", "no mapping", "a mapping")


def _compare(
    findings: Findings,
    path: str,
    actual: Mapping[str, object],
    expected: Mapping[str, object],
    passed_over: set[str],
) -> None:
    for name in sorted({*actual, *expected} - passed_over):
        if actual.get(name) != expected.get(name):
            a = repr(actual[name]) if name in actual else "not listed"
            b = repr(expected[name]) if name in expected else "no such tar"
            _differs(findings, FindingCode.ENERGON, path, name, a, b)


def _mapping(value: object) -> dict[str, Any]:
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
    """Loads a JSON or YAML object; None, and a finding, if it cannot be read."""
    try:
        data = shards.store.read(shards.key(name))
        if name.endswith(".json"):
            return orjson.loads(data)
        return load_yaml(data.decode(), max_characters=_MAX_YAML_CHARACTERS)
    except (CuratorError, ValueError) as error:
        words = f"it cannot be read ({str(error).splitlines()[0]})"
        findings.add(
            code,
            shards.uri(name),
            words,
            "JSON" if name.endswith(".json") else "YAML",
            EXPORT.format(code),
        )
        return None


def _differs(
    findings: Findings, code: FindingCode, path: str, name: str, actual: str, expected: str
) -> None:
    findings.add(code, f"{path}#{name}" if name else path, actual, expected, EXPORT.format(code))
