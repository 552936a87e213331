"""Reads one tar from front to end, and checks everything that its bytes show."""

import hashlib
from collections.abc import Callable, Set
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from curator.errors import CuratorError, ShardError
from curator.family import Family, FamilyError
from curator.json_bounds import load_bounded
from curator.stages.shard.tar_reader import (
    MAX_TEXT_BYTES,
    Member,
    Shard,
    ShardSet,
    TarReader,
    declared_families,
)
from curator.tables.sample_members import MEMBERS
from curator.verify.findings import FindingCode, Findings
from curator.verify.mp4_check import frame_differences, header_differences, rate_of

NEEDED = ("json", "mp4", "txt")
ALLOWED = frozenset({*NEEDED, "npy", "id"})
UNDECLARED = "text.npy"
"""Member that older versions wrote and did not declare."""
MAX_VALUE_BYTES = 2 << 30
MAX_MP4_BYTES = 2 << 30
FIELDS: dict[str, type | tuple[type, ...]] = {
    "key": str,
    "source_id": str,
    "n_frames": int,
    "fps": (int, float),
    "width": int,
    "height": int,
    "mp4_sha256": str,
}
"""Fields of a sample's JSON that readers and these checks need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarFacts:
    """Contents of a tar: arrays with an entry per sample, about 100 bytes a sample together."""

    shard: Shard
    is_whole: bool
    """Whether it could be read to its end."""
    offsets: NDArray[np.int64]
    """Of each sample's first header."""
    end: int
    """Offset behind the last sample."""
    keys: NDArray[np.bytes_]
    mp4_offsets: NDArray[np.int64]
    mp4_bytes: NDArray[np.int64]
    digests: NDArray[np.uint64]
    """Of the columns that `dataset.parquet` repeats."""
    sources: frozenset[bytes]
    n_frames: int
    bytes: int
    sha256: str
    md5: str
    n_decoded: int


class _ReadSample:
    """The members of one sample read so far."""

    def __init__(self, first: Member) -> None:
        self.key = first.key
        self.offset = first.offset
        self.sizes: dict[str, int] = {}
        self.repeated: list[str] = []
        self.mp4_offset = -1
        self.json: bytes | None = None
        self.text: bytes = b""
        self.mp4: bytes | None = None
        self.mp4_sha256 = ""


class _Hashing:
    """A stream that hashes the bytes that pass, in order."""

    def __init__(self, stream: BinaryIO, *, with_md5: bool) -> None:
        self._stream = stream
        self.sha256 = hashlib.sha256()
        self.md5 = hashlib.md5(usedforsecurity=False) if with_md5 else None
        self.n_bytes = 0

    def read(self, n_bytes: int = -1) -> bytes:
        data = self._stream.read(n_bytes)
        self.sha256.update(data)
        if self.md5 is not None:
            self.md5.update(data)
        self.n_bytes += len(data)
        return data


class TarCheck:
    """Checks tars, each in one pass; `seen` gets the bytes of each clip read. Thread-safe."""

    def __init__(
        self,
        shards: ShardSet,
        findings: Findings,
        *,
        threads: int = 1,
        seen: Callable[[int], None] = lambda n_bytes: None,
    ) -> None:
        self._shards = shards
        # Of a commit that was broken off, tars of both sets may be there.
        sets = [shards] if shards.following is None else [shards, shards.following]
        declared = [
            Family.from_json(item) for s in sets for item in declared_families(s.manifest).values()
        ]
        self._families = {family.member: family for family in declared if family.member}
        self._allowed = ALLOWED | self._families.keys()
        if shards.manifest is None or MEMBERS not in shards.manifest:
            self._allowed |= {UNDECLARED}
        self._findings = findings
        self._add = findings.add
        self._threads = threads
        self._seen = seen

    def check(self, shard: Shard, *, decoded: Set[int] | None, with_md5: bool) -> TarFacts:
        """Checks a tar and its `.meta.jsonl`; `decoded` are positions to decode, None for all."""
        path = self._shards.uri(shard.name)
        n_bytes = self._shards.sizes[shard.name]
        rows = _SampleFacts()
        with ExitStack() as stack:
            try:
                stream = _Hashing(
                    stack.enter_context(self._shards.store.open(self._shards.key(shard.name))),
                    with_md5=with_md5,
                )
                meta = _Meta(self._shards, shard, self._findings, stack)
                reader = TarReader(stream.read, n_bytes)
                is_whole = self._samples(reader, path, rows, meta, decoded)
                while stream.read(1 << 20):
                    pass
                if is_whole:
                    meta.finish()
            except (CuratorError, OSError) as error:
                self._add(FindingCode.UNREADABLE, path, str(error), "a readable object")
                return rows.facts(shard, False, 0, n_bytes, "", "")
        sha256, md5 = stream.sha256.hexdigest(), stream.md5.hexdigest() if stream.md5 else ""
        return rows.facts(shard, is_whole, reader.end, stream.n_bytes, sha256, md5)

    def _samples(
        self,
        reader: TarReader,
        path: str,
        rows: "_SampleFacts",
        meta: "_Meta",
        decoded: Set[int] | None,
    ) -> bool:
        """Reads all members; returns whether the tar is whole."""
        sample: _ReadSample | None = None
        closed: set[str] = set()
        try:
            for member in reader:
                if sample is None or member.key != sample.key:
                    if sample is not None:
                        closed.add(sample.key)
                        self._close(sample, path, rows, meta, decoded)
                    sample = _ReadSample(member)
                    self._check_key(path, member, closed)
                if "." in member.suffix and member.suffix not in self._allowed:
                    seen_as = f"to readers {member.suffix!r} of {member.key!r}"
                    actual = f"the member {member.name!r}, {seen_as}"
                    self._add(FindingCode.KEY, path, actual, "one dot in its name")
                self._read(reader, member, sample, path)
        except ShardError as error:
            self._add(FindingCode.TAR_DAMAGED, path, str(error), "a whole tar")
            return False
        if sample is not None:
            self._close(sample, path, rows, meta, decoded)
        return True

    def _check_key(self, path: str, member: Member, closed: set[str]) -> None:
        if not member.key.isalnum() or not member.key.isascii():
            actual = f"the member {member.name!r}"
            self._add(FindingCode.KEY, path, actual, "a key of ASCII letters and digits")
        if member.key in closed:
            expected = "all members of a sample adjacent"
            self._add(FindingCode.KEY, f"{path}#{member.key}", "its members are apart", expected)

    def _read(self, reader: TarReader, member: Member, sample: _ReadSample, path: str) -> None:
        if member.suffix in sample.sizes:
            sample.repeated.append(member.suffix)
            return
        sample.sizes[member.suffix] = member.bytes
        if member.suffix == "mp4":
            sample.mp4_offset = member.data_offset
            digest, parts = hashlib.sha256(), []
            for chunk in reader.chunks(member):
                digest.update(chunk)
                if member.bytes <= MAX_MP4_BYTES:
                    parts.append(chunk)
            sample.mp4 = b"".join(parts) if member.bytes <= MAX_MP4_BYTES else None
            sample.mp4_sha256 = digest.hexdigest()
        elif (family := self._families.get(member.suffix)) is not None:
            self._check_value(reader, member, family, path)
        elif member.bytes <= MAX_TEXT_BYTES:
            data = reader.read(member)
            if member.suffix == "json":
                sample.json = data
            elif member.suffix == "txt":
                sample.text = data

    def _check_value(self, reader: TarReader, member: Member, family: Family, path: str) -> None:
        """Checks that a member holds a value as its family declares it."""
        place = f"{path}#{member.name}"
        if member.bytes > MAX_VALUE_BYTES:
            self._add(
                FindingCode.MEMBERS, place, f"{member.bytes} bytes", f"at most {MAX_VALUE_BYTES}"
            )
            return
        try:
            family.decode(reader.read(member))
        except FamilyError as error:
            self._add(FindingCode.MEMBERS, place, str(error), "a value as the manifest declares it")

    def _close(
        self,
        sample: _ReadSample,
        tar: str,
        rows: "_SampleFacts",
        meta: "_Meta",
        decoded: Set[int] | None,
    ) -> None:
        """Checks a sample whose members have all been read."""
        path = f"{tar}#{sample.key}"
        missing = [name for name in NEEDED if name not in sample.sizes]
        others = sorted(sample.sizes.keys() - self._allowed) + sample.repeated
        if missing or others:
            actual = ", ".join([f"no {n}" for n in missing] + [f"another {n!r}" for n in others])
            perhaps = ", ".join(sorted(self._allowed - {*NEEDED}))
            expected = f"one each of json, mp4, txt, and perhaps {perhaps}"
            self._add(FindingCode.MEMBERS, path, actual, expected)
        fields = self._fields(sample, path)
        meta.compare(sample.key, sample.json)
        position = rows.add(sample, fields)
        self._seen(sample.sizes.get("mp4", 0))
        if fields is None or "mp4" not in sample.sizes:
            return
        if sample.mp4_sha256 != fields["mp4_sha256"]:
            self._add(
                FindingCode.MP4_HASH, path, f"sha256 {sample.mp4_sha256}", fields["mp4_sha256"]
            )
        if sample.mp4 is None:
            self._add(FindingCode.MP4_HEADER, path, f"{sample.sizes['mp4']} bytes", "at most 2 GiB")
            return
        for actual, expected in header_differences(sample.mp4, fields, path):
            self._add(FindingCode.MP4_HEADER, path, actual, expected)
        if decoded is None or position in decoded:
            rows.n_decoded += 1
            differences = frame_differences(sample.mp4, fields, path, threads=self._threads)
            for actual, expected in differences:
                self._add(FindingCode.FRAMES, path, actual, expected)

    def _fields(self, sample: _ReadSample, path: str) -> dict[str, Any] | None:
        """Returns the sample's JSON, if it has all needed fields."""
        if sample.json is None:
            return None
        try:
            fields = load_bounded(sample.json)
        except ValueError as error:
            self._add(FindingCode.JSON, path, f"no JSON ({error})", "a JSON object")
            return None
        if not isinstance(fields, dict):
            self._add(FindingCode.JSON, path, f"JSON of a {type(fields).__name__}", "a JSON object")
            return None
        wrong = [
            name
            for name, kind in FIELDS.items()
            if not isinstance(fields.get(name), kind) or isinstance(fields.get(name), bool)
        ]
        wrong += [
            n for n in ("n_frames", "fps", "width", "height") if n not in wrong and fields[n] <= 0
        ]
        try:
            wrong += [] if wrong or rate_of(fields) > 0 else ["fps_fraction"]
        except ValueError:
            wrong.append("fps_fraction")
        if wrong:
            self._add(
                FindingCode.JSON,
                path,
                f"no usable {', '.join(wrong)}",
                f"fields {', '.join(FIELDS)}",
            )
            return None
        if fields["key"] != sample.key:
            self._add(FindingCode.JSON, path, f"key {fields['key']!r}", f"key {sample.key!r}")
        caption = fields.get("caption")
        if isinstance(caption, str) and caption.encode() != sample.text:
            self._add(FindingCode.JSON, path, "another caption than in its txt", "the same")
        return fields


class _SampleFacts:
    """Collects facts of samples."""

    def __init__(self) -> None:
        self.n_decoded = 0
        self._n_frames = 0
        self._keys: list[bytes] = []
        self._numbers: list[tuple[int, int, int]] = []
        self._digests: list[int] = []
        self._sources: set[bytes] = set()

    def add(self, sample: _ReadSample, fields: dict[str, Any] | None) -> int:
        """Adds a sample; returns its position."""
        self._keys.append(sample.key.encode("utf-8", "replace")[:255])
        self._numbers.append((sample.offset, sample.mp4_offset, sample.sizes.get("mp4", -1)))
        digest = 0
        if fields is not None:
            self._n_frames += fields["n_frames"]
            self._sources.add(fields["source_id"].encode())
            digest = columns_digest(json_columns(fields, sample.text.decode("utf-8", "replace")))
        self._digests.append(digest)
        return len(self._keys) - 1

    def facts(
        self, shard: Shard, is_whole: bool, end: int, n_bytes: int, sha256: str, md5: str
    ) -> TarFacts:
        """Returns all facts, as arrays."""
        numbers = np.array(self._numbers, np.int64).reshape(-1, 3)
        return TarFacts(
            shard=shard,
            is_whole=is_whole,
            offsets=numbers[:, 0],
            end=end,
            keys=np.array(self._keys, np.bytes_),
            mp4_offsets=numbers[:, 1],
            mp4_bytes=numbers[:, 2],
            digests=np.array(self._digests, np.uint64),
            sources=frozenset(self._sources),
            n_frames=self._n_frames,
            bytes=n_bytes,
            sha256=sha256,
            md5=md5,
            n_decoded=self.n_decoded,
        )


REPEATED = ("text", "num_frames", "height", "width", "fps", "source_id", "source_uri", "sha256")
"""Columns of `dataset.parquet` that repeat a sample's JSON."""


def json_columns(fields: dict[str, Any], text: str) -> dict[str, Any]:
    """Returns the columns `REPEATED` of a sample's JSON and caption."""
    return {
        "text": text,
        "num_frames": fields["n_frames"],
        "height": fields["height"],
        "width": fields["width"],
        "fps": fields["fps"],
        "source_id": fields["source_id"],
        "source_uri": fields.get("source_uri"),
        "sha256": fields["mp4_sha256"],
    }


def columns_digest(columns: dict[str, Any]) -> int:
    """Returns 64 bits of a hash of `REPEATED`, never 0."""
    values = [columns.get(name) for name in REPEATED]
    # A table may hold it in single precision.
    values[4] = round(float(values[4] or 0.0), 3)
    data = orjson.dumps(values, default=str)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


class _Meta:
    """Reads a shard's `.meta.jsonl` along with the tar, line by line."""

    def __init__(
        self, shards: ShardSet, shard: Shard, findings: Findings, stack: ExitStack
    ) -> None:
        self._findings = findings
        self._path = shards.uri(shard.meta_name)
        self._line = 0
        self._stream: BinaryIO | None = None
        # The check of the manifest finds a missing file.
        if shard.meta_name in shards.sizes:
            self._stream = stack.enter_context(shards.store.open(shards.key(shard.meta_name)))

    def compare(self, key: str, json: bytes | None) -> None:
        """Compares the next line with a sample's JSON."""
        if self._stream is None:
            return
        line = self._stream.readline(MAX_TEXT_BYTES)
        self._line += 1
        if json is not None and not _is_same_json(line, json):
            actual = "it ends" if not line else "another line than the JSON in the tar"
            self._add(f"line {self._line}: {actual}", f"the JSON of {key}")
            # All lines after a missing or extra one would differ too.
            self._stream = None

    def finish(self) -> None:
        """Checks that no lines remain."""
        if self._stream is not None and self._stream.readline(MAX_TEXT_BYTES):
            self._add(f"more than {self._line} lines", f"{self._line} lines, one per sample")

    def _add(self, actual: str, expected: str) -> None:
        self._findings.add(FindingCode.META, self._path, actual, expected)


def _is_same_json(line: bytes, json: bytes) -> bool:
    if line.rstrip(b"\n") == json.rstrip(b"\n"):
        return True
    try:
        return bool(load_bounded(line) == load_bounded(json))
    except ValueError:
        return False
