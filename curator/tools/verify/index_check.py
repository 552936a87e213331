"""Compares the indexes of shards, `dataset.parquet` and the table `clips` with the tars."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curator.dataset.reader_indexes import sample_span
from curator.dataset.shard_index import DATASET_SCHEMA, sample_row
from curator.dataset.tar_reader import (
    DATASET,
    FOLDER,
    MAX_TEXT_BYTES,
    ShardSet,
    TarReader,
    declared_families,
)
from curator.errors import CuratorError, raised_as
from curator.family import FamilyVersion
from curator.records.clips import CLIP_FORMATS
from curator.strict_yaml import load_yaml
from curator.tables.out_layout import SUMMARY
from curator.tables.schemas import declared_columns, declared_fields
from curator.tools.verify.findings import FindingCode, Findings, refuses
from curator.tools.verify.root_state import is_gone
from curator.tools.verify.tar_check import TarFacts, row_digest

ENERGON = ".nv-meta"
SPLITS_FILE, COUNTS_FILE = "split.yaml", ".info.json"
ENERGON_FILES = ("dataset.yaml", SPLITS_FILE, COUNTS_FILE)
_MAX_YAML_CHARACTERS = 64 << 20
"""Characters of the largest YAML index, which names every tar."""


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
        actual = f"{shards.sizes[name]} bytes, not a multiple of 8"
    elif len(offsets) != len(expected):
        actual = f"{len(offsets)} offsets"
    elif (offsets != expected).any():
        at = int((offsets != expected).argmax())
        actual, wanted = f"offset {offsets[at]} at position {at}", str(expected[at])
    if actual:
        findings.add(FindingCode.INDEX, shards.uri(name), actual, wanted)


def wids_entries(shards: ShardSet, split: str, findings: Findings) -> dict[str, dict[str, Any]]:
    """Returns the entries of a wids index by tar; none for a missing or unreadable index."""
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
        elif tar is None and url not in shards.missing:
            findings.add(FindingCode.WIDS, where, "listed", f"no tar of {split}")
        elif tar is not None and tar.is_sound:
            values = {"nsamples": len(tar.keys), "filesize": tar.bytes, "md5sum": tar.md5}
            findings.compare(FindingCode.WIDS, where, entry, values)


def check_energon(
    folder: str, file: str, shards: ShardSet, tars: Sequence[TarFacts], findings: Findings
) -> None:
    """Compares a file of `ENERGON_FILES` with the tars of a set.

    `folder` is empty for the `.nv-meta` of all shards, and `BUCKET/` for that of a bucket.
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
        is_unknown = f"{folder}{tar}" in shards.missing or (
            file == COUNTS_FILE and tar in own and not own[tar].is_sound
        )
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
    """Loads a JSON or YAML object; None for a missing or unreadable one, which adds a finding."""
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
        is_refused = refuses(error) and not is_gone(shards.store, shards.key(name))
        code = FindingCode.UNREADABLE if is_refused else code
        findings.add(code, shards.uri(name), words, "JSON" if is_json else "YAML")
        return None


BATCH_ROWS = 4096


class _TableCheck:
    """Compares a table's rows with the samples of all tars, and records which samples have rows."""

    def __init__(
        self, shards: ShardSet, tars: Sequence[TarFacts], code: FindingCode, findings: Findings
    ) -> None:
        self._shards, self._code, self._findings = shards, code, findings
        self._tars = {tar.shard.name: tar for tar in tars}
        self._order = {name: np.argsort(tar.keys) for name, tar in self._tars.items()}
        self._seen = {name: np.zeros(len(tar.keys), np.bool_) for name, tar in self._tars.items()}

    def differs(self, path: str, actual: str, expected: str) -> None:
        """Adds a finding."""
        self._findings.add(self._code, path, actual, expected)

    def compare(
        self, path: str, actual: Mapping[str, object], expected: Mapping[str, object]
    ) -> None:
        """Adds a finding for each field whose value differs."""
        self._findings.compare(self._code, path, actual, expected)

    def find(self, path: str, row: Mapping[str, Any], key_column: str) -> tuple[TarFacts, int]:
        """Returns the tar of a row, and the position of the row's sample in the tar.

        Raises:
            LookupError: The row has no sample. This adds a finding, unless the tar is not sound or
                is missing, which is a finding itself.
        """
        shard, key = str(row.get("shard")).removeprefix(FOLDER), str(row.get(key_column))
        tar = self._tars.get(shard)
        if tar is None or not tar.is_sound:
            if tar is None and shard not in self._shards.missing:
                self.differs(path, f"shard {shard!r}", "an existing shard")
            raise LookupError(shard)
        order, wanted = self._order[shard], np.bytes_(key.encode("utf-8", "replace"))
        at = int(np.searchsorted(tar.keys, wanted, sorter=order)) if len(order) else 0
        if at == len(order) or tar.keys[order[at]] != wanted:
            self.differs(path, f"key {key!r}", f"a key of {shard}")
            raise LookupError(key)
        position = int(order[at])
        if self._seen[shard][position]:
            self.differs(path, "a second row", "one row")
        self._seen[shard][position] = True
        return tar, position

    def rows(
        self,
        name: str,
        columns: Sequence[str],
        check: Callable[[str, Mapping[str, Any]], None],
        declared: pa.Schema | None = None,
    ) -> bool:
        """Calls `check` with the path and contents of each row; returns whether all are readable.

        The table's columns of families must equal those of `declared`, unless that is None.
        """
        path = f"{self._shards.store.uri}/{name}"
        try:
            with self._shards.store.open(name) as stream:
                file = pq.ParquetFile(stream)
                actual = _families(file.schema_arrow)
                if declared is not None and actual != (expected := _families(declared)):
                    words = f"columns of families: {actual or 'none'}"
                    self.differs(path, words, expected or "none, as in the manifest")
                there = [column for column in columns if column in file.schema_arrow.names]
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=there):
                    for row in batch.to_pylist():
                        try:
                            check(f"{path}#{row.get('clip_id')}", row)
                        except LookupError:
                            continue
        except (CuratorError, pa.ArrowException, OSError, ValueError, TypeError) as error:
            words = f"it cannot be read ({str(error).splitlines()[0]})"
            is_refused = refuses(error) and not is_gone(self._shards.store, name)
            code = FindingCode.UNREADABLE if is_refused else self._code
            self._findings.add(code, path, words, "a Parquet object")
            return False
        return True

    def finish(self, table: str) -> None:
        """Adds a finding for each sample that no row of the table names."""
        for name, tar in self._tars.items():
            for key in tar.keys[~self._seen[name]] if tar.is_sound else ():
                path = f"{table}#{key.decode('utf-8', 'replace')}"
                self.differs(path, "no row", f"a row for this sample of {name}")


def _families(schema: pa.Schema) -> str:
    """Describes the columns of a table that families declare."""
    return ", ".join(
        f"{name} ({schema.field(name).type}, {family['name']} {family['fingerprint']})"
        for name, family in sorted(declared_columns(schema).items())
    )


def check_dataset(shards: ShardSet, tars: Sequence[TarFacts], findings: Findings) -> None:
    """Compares `dataset.parquet` with the tars."""
    if shards.own_dataset is None and DATASET not in shards.sizes:
        return
    table = _TableCheck(shards, tars, FindingCode.DATASET, findings)
    stored = {
        (tar.shard.name, suffix): frozenset(places.values())
        for tar in tars
        for suffix, places in tar.side_members.items()
    }

    def check(path: str, row: Mapping[str, Any]) -> None:
        tar, at = table.find(path, row, "clip_id")
        digest = int(tar.digests[at])
        if digest and digest != row_digest(row):
            for name, expected in _of_sample(shards, tar, at).items():
                if name in row and not _is_same(row[name], expected):
                    table.differs(path, f"{name} {row[name]!r}", repr(expected))
        if row.get("members") is not None:
            end = tar.offsets[at + 1] if at + 1 < len(tar.offsets) else tar.end
            if (span := sample_span(row)) != (sample := (int(tar.offsets[at]), int(end))):
                table.differs(path, f"members from {span[0]} to {span[1]}", f"{sample}")
        places = {p["member"]: (p["offset"], p["bytes"]) for p in row.get("side_members") or ()}
        for suffix in tar.shard.sides:
            own, found = tar.side_members.get(suffix, {}), places.get(suffix)
            # A value that samples share is with the first of them.
            other = found if found in stored.get((tar.shard.name, suffix), ()) else None
            if found != (wanted := own.get(row["clip_id"], other)):
                table.differs(path, f"{suffix} at {found}", f"{wanted}")

    columns = [name for name in DATASET_SCHEMA.names if name != "path"]
    if table.rows(shards.dataset, columns, check):
        table.finish(f"{shards.store.uri}/{shards.dataset}")


def _is_same(actual: object, expected: object) -> bool:
    # Tables may hold floats in single precision.
    if isinstance(actual, float) and isinstance(expected, int | float):
        return math.isclose(actual, expected, rel_tol=1e-4)
    return actual == expected


def _of_sample(shards: ShardSet, tar: TarFacts, at: int) -> dict[str, Any]:
    """Reads a sample again, and returns its row for `dataset.parquet`.

    Raises:
        ValueError: The sample can no longer be read, or lacks a field.
    """
    fields: dict[str, Any] = {}
    text: str | None = None
    with raised_as(ValueError, CuratorError, OSError, KeyError):
        with shards.store.open(shards.key(tar.shard.name)) as stream:
            stream.seek(int(tar.offsets[at]))
            reader = TarReader(stream.read, tar.bytes)
            for member in reader:
                if member.bytes > MAX_TEXT_BYTES and member.suffix not in CLIP_FORMATS:
                    break
                if member.suffix == "json":
                    fields = orjson.loads(reader.read(member))
                elif member.suffix == "txt":
                    text = reader.read(member).decode("utf-8", "replace")
                if fields and text is not None:
                    break
        key = tar.keys[at].decode("utf-8", "replace")
        places = {"offset": int(tar.mp4_offsets[at]), "bytes": int(tar.mp4_bytes[at])}
        return sample_row(tar.shard.name, key, fields, text or "") | places


def check_clips(
    summary: Mapping[str, Any], shards: ShardSet, tars: Sequence[TarFacts], findings: Findings
) -> None:
    """Compares the kept rows of the summary's table `clips` with the tars."""
    table = _TableCheck(shards, tars, FindingCode.CLIPS, findings)
    tables = summary.get("tables")
    parts = tables.get("clips") if isinstance(tables, dict) else None
    if not isinstance(parts, list):
        table.differs(f"{shards.store.uri}/{SUMMARY}", "no list of the table `clips`", "one")
        return
    declared = None
    if shards.manifest is not None:
        families = map(FamilyVersion.from_json, declared_families(shards.manifest).values())
        declared = pa.schema(declared_fields(families))
    columns = ["clip_id", "decision", "shard", "key", "mp4_offset", "mp4_bytes"]

    def check(path: str, row: Mapping[str, Any]) -> None:
        if row.get("decision") == "kept":
            tar, at = table.find(path, row, "key")
            places = {"mp4_offset": int(tar.mp4_offsets[at]), "mp4_bytes": int(tar.mp4_bytes[at])}
            table.compare(path, {**dict.fromkeys(columns), **row}, places)

    if all([table.rows(str(part), columns, check, declared) for part in parts]):
        table.finish(f"{shards.store.uri}/clips")
