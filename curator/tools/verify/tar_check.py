"""Reads one tar from start to end, and checks its members and its MP4s."""

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError

from curator.dataset.shard_index import DATASET_SCHEMA, sample_row
from curator.dataset.tar_reader import (
    MAX_TEXT_BYTES,
    Member,
    Shard,
    ShardSet,
    TarReader,
    declared_families,
)
from curator.errors import CuratorError, ShardError, raised_as
from curator.family import Family, FamilyError, FamilyVersion
from curator.json_bounds import load_bounded
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.media.still_images import read_still
from curator.records.clips import CLIP_FORMATS, ClipFormat
from curator.tools.verify.findings import FindingCode, Findings
from curator.tools.verify.side_reader import SideReader
from curator.value_header import HeaderError, ValueHeader

MAX_PIXELS = 1 << 27
"""Pixels of the largest frame that is decoded; a larger frame counts as damage."""


def header_differences(mp4: bytes, sample: dict[str, Any], uri: str) -> list[tuple[str, str]]:
    """Compares the header of a clip's file with its JSON; returns pairs of found and expected.

    The JSON has `width`, `height`, `n_frames` and `fps_fraction` or `fps`; messages name `uri`.
    """
    try:
        still = read_still(io.BytesIO(mp4), uri, len(mp4))
        with open_container(io.BytesIO(mp4), uri, n_bytes=len(mp4), still=still) as container:
            stream = video_stream(container, uri, still=still)
            size = f"{stream.width}x{stream.height}"
            n_frames, fps = stream.frames if still is None else 1, stream.average_rate
    except Exception as error:  # noqa: BLE001 - damage may raise anything; it becomes a finding
        return [(f"it cannot be opened: {error}", "an MP4 or a picture")]
    wanted_fps = float(rate_of(sample))
    pairs = [
        (size, f"{sample['width']}x{sample['height']}"),
        (f"{n_frames} frames", f"{sample['n_frames']} frames"),
    ]
    # Containers round frame rates to their time base.
    if fps is None or abs(float(fps) - wanted_fps) > 1e-3 * wanted_fps:
        pairs.append((f"{fps or 'unknown'} frames/s", f"{wanted_fps:g} frames/s"))
    return [(actual, expected) for actual, expected in pairs if actual != expected]


def frame_differences(
    mp4: bytes, sample: dict[str, Any], uri: str, *, threads: int
) -> list[tuple[str, str]]:
    """Compares the decoded frames with the JSON; returns pairs of found and expected."""
    first_s: float | None = None
    try:
        still = read_still(io.BytesIO(mp4), uri, len(mp4))
        with open_container(io.BytesIO(mp4), uri, n_bytes=len(mp4), still=still) as container:
            stream = video_stream(container, uri, still=still)
            reader = FrameReader(
                container, stream, uri, threads=threads, max_pixels=MAX_PIXELS, still=still
            )
            for frame in reader:
                if first_s is None:
                    first_s = float(frame.pts * reader.time_base)
    except Exception as error:  # noqa: BLE001 - damage may raise anything; it becomes a finding
        return [(f"it cannot be decoded: {error}", "frames")]
    report = reader.report
    sizes = ", ".join(f"{width}x{height}" for width, height in report.sizes) or "none"
    pairs = [
        (f"{report.n_frames} frames decode", f"{sample['n_frames']} frames decode"),
        (f"frames of {sizes}", f"frames of {sample['width']}x{sample['height']}"),
        (f"first frame at {first_s} s", "first frame at 0.0 s"),
    ]
    if report.is_damaged:
        pairs.append((f"{report.n_errors + report.n_concealed} damaged frames", "none"))
    return [(actual, expected) for actual, expected in pairs if actual != expected]


def rate_of(sample: dict[str, Any]) -> Fraction:
    """Returns the frames per second of a sample's JSON.

    Raises:
        ValueError: The rate is not a number.
    """
    with raised_as(ValueError, ZeroDivisionError):
        return Fraction(str(sample.get("fps_fraction") or sample["fps"]))


NEEDED = ("json", "txt")
"""Members of each sample, besides the clip's file."""
ALLOWED = frozenset({*NEEDED, *CLIP_FORMATS, "npy", "id"})
MAX_VALUE_BYTES = MAX_MP4_BYTES = 2 << 30


class SampleFields(BaseModel, strict=True):
    """Fields that readers and these checks need in a sample's JSON."""

    key: str
    source_id: str
    n_frames: PositiveInt
    fps: PositiveFloat
    width: PositiveInt
    height: PositiveInt
    mp4_sha256: str
    format: ClipFormat = "mp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class TarFacts:
    """Contents of a tar; arrays have an entry per sample and take about 100 bytes a sample."""

    shard: Shard
    is_whole: bool
    """Whether the tar could be read to its end."""
    offsets: NDArray[np.int64]
    """Byte offset of each sample's first header."""
    end: int
    """Byte offset of the end of the last sample; 0 for a tar that is not whole."""
    keys: NDArray[np.bytes_]
    mp4_offsets: NDArray[np.int64]
    mp4_bytes: NDArray[np.int64]
    digests: NDArray[np.uint64]
    """Digests of the expected rows in `dataset.parquet`; 0 for a sample without usable JSON."""
    sources: frozenset[bytes]
    n_frames: int
    bytes: int
    sha256: str
    """SHA-256 of the tar; this and the MD5 are empty for an unreadable tar."""
    md5: str
    n_decoded: int
    side_members: Mapping[str, Mapping[str, tuple[int, int]]]
    """First byte and size of members in side tars, by member and key."""

    @property
    def is_sound(self) -> bool:
        """Whether the tar was read to its end and has the bytes that the manifest names.

        A tar that is not sound has a finding, so indexes and tables are not compared with it.
        """
        return self.is_whole and self.shard.facts.get("sha256") in (None, self.sha256)


class SuffixRules:
    """Suffixes that the manifests of some sets of shards allow."""

    def __init__(self, sets: Sequence[ShardSet]) -> None:
        declared = [declared_families(shard_set.manifest).values() for shard_set in sets]
        versions = [FamilyVersion.from_json(value) for values in declared for value in values]
        self.families = {v.family.member: v.family for v in versions if v.family.member}
        self.fingerprints: defaultdict[str, set[str]] = defaultdict(set)
        """Fingerprints of each member's family in all manifests."""
        for version in versions:
            self.fingerprints[version.family.member].add(version.fingerprint)
        self.allowed = ALLOWED | self.families.keys()


_DECLARED = "a value as the manifest declares it"


@dataclass(slots=True)
class _ReadSample:
    """The members of one sample read so far."""

    key: str
    offset: int
    sizes: dict[str, int] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    """Suffixes of the clip's file; more than one is a fault."""
    mp4_offset: int = -1
    json: bytes | None = None
    text: bytes = b""
    mp4: bytes | None = None
    mp4_sha256: str = ""
    values: list[tuple[str, Family, ValueHeader | None, tuple[int, ...]]] = field(
        default_factory=list
    )
    """Address, family, header and shape of each value."""


@dataclass
class TarCheck:
    """Checks one tar and its `.meta.jsonl`.

    Attributes:
        decoded: Positions of the samples to decode; None for all.
        threads: Number of decoder threads.
        seen: Called for each clip, with the bytes of its MP4.
    """

    shards: ShardSet
    shard: Shard
    rules: SuffixRules
    findings: Findings
    decoded: Set[int] | None
    threads: int
    seen: Callable[[int], None]

    def __post_init__(self) -> None:
        """Starts without any member read."""
        self._add = self.findings.add
        self._path = self.shards.uri(self.shard.name)
        self._meta: BinaryIO | None = None
        self._keys: list[str] = []
        self._closed: set[str] = set()
        """Keys of samples whose members have all been read."""
        self._numbers: list[tuple[int, int, int]] = []
        self._digests: list[int] = []
        self._sources: set[bytes] = set()
        self._n_frames = self._n_decoded = 0
        self._sides: list[SideReader] = []
        self._side_members: dict[str, dict[str, tuple[int, int]]] = {}

    def run(self) -> TarFacts:
        """Reads all bytes of the tar, and adds a finding for each fault."""
        shards, shard = self.shards, self.shard
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        n_bytes, hashes, is_whole = shards.sizes[shard.name], ("", ""), False
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(shards.store.open(shards.key(shard.name)))
                # `check_objects` reports a missing file.
                if shard.meta_name in shards.sizes:
                    self._open_meta(stack)

                def read(n: int) -> bytes:
                    data = stream.read(n)
                    sha256.update(data)
                    md5.update(data)
                    return data

                self._sides = [
                    SideReader(shards, suffix, entry, self.findings, MAX_VALUE_BYTES, stack)
                    for suffix, entry in shard.sides.items()
                ]
                reader = TarReader(read, n_bytes)
                is_whole = self._samples(reader)
                for side in self._sides if is_whole else ():
                    side.finish()
                while read(1 << 20):
                    pass
                n_bytes, hashes = stream.tell(), (sha256.hexdigest(), md5.hexdigest())
                if is_whole and self._next_line():
                    n_lines = len(self._numbers)
                    self._meta_differs(f"more than {n_lines} lines", f"{n_lines}, one per sample")
            except (CuratorError, OSError) as error:
                is_whole = False
                self._add(FindingCode.UNREADABLE, self._path, str(error), "a readable object")
        numbers = np.array(self._numbers, np.int64).reshape(-1, 3)
        keys = [key.encode("utf-8", "replace")[:255] for key in self._keys]
        return TarFacts(
            shard=shard,
            is_whole=is_whole,
            offsets=numbers[:, 0],
            end=reader.end if is_whole else 0,
            keys=np.array(keys, np.bytes_),
            mp4_offsets=numbers[:, 1],
            mp4_bytes=numbers[:, 2],
            digests=np.array(self._digests, np.uint64),
            sources=frozenset(self._sources),
            n_frames=self._n_frames,
            bytes=n_bytes,
            sha256=hashes[0],
            md5=hashes[1],
            n_decoded=self._n_decoded,
            side_members=self._side_members,
        )

    def _open_meta(self, stack: ExitStack) -> None:
        try:
            meta = self.shards.store.open(self.shards.key(self.shard.meta_name))
            self._meta = stack.enter_context(meta)
        except CuratorError as error:
            self._meta_refused(error)

    def _meta_refused(self, error: Exception) -> None:
        where = self.shards.uri(self.shard.meta_name)
        self._add(FindingCode.UNREADABLE, where, str(error), "a readable object")

    def _samples(self, reader: TarReader) -> bool:
        """Reads all members; returns whether the tar is whole."""
        sample: _ReadSample | None = None
        try:
            for member in reader:
                if sample is None or member.key != sample.key:
                    if sample is not None:
                        self._close(sample)
                    sample = _ReadSample(member.key, member.offset)
                    self._check_key(member)
                if "." in member.suffix and member.suffix not in self.rules.allowed:
                    seen_as = f"to readers {member.suffix!r} of {member.key!r}"
                    actual = f"the member {member.name!r}, {seen_as}"
                    self._add(FindingCode.KEY, self._path, actual, "one dot in its name")
                self._read(reader, member, sample)
        except ShardError as error:
            self._add(FindingCode.TAR_DAMAGED, self._path, str(error), "a whole tar")
            return False
        if sample is not None:
            self._close(sample)
        return True

    def _check_key(self, member: Member) -> None:
        if not member.key.isalnum() or not member.key.isascii():
            actual = f"the member {member.name!r}"
            self._add(FindingCode.KEY, self._path, actual, "a key of ASCII letters and digits")
        if member.key in self._closed:
            where, expected = f"{self._path}#{member.key}", "all members of a sample adjacent"
            self._add(FindingCode.KEY, where, "members not adjacent", expected)

    def _read(self, reader: TarReader, member: Member, sample: _ReadSample) -> None:
        if member.suffix in sample.sizes:
            sample.repeated.append(member.suffix)
            return
        sample.sizes[member.suffix] = member.bytes
        if member.suffix in CLIP_FORMATS:
            sample.formats.append(member.suffix)
            sample.mp4_offset = member.data_offset
            digest, parts = hashlib.sha256(), []
            for chunk in reader.chunks(member):
                digest.update(chunk)
                if member.bytes <= MAX_MP4_BYTES:
                    parts.append(chunk)
            sample.mp4 = b"".join(parts) if member.bytes <= MAX_MP4_BYTES else None
            sample.mp4_sha256 = digest.hexdigest()
        elif (family := self.rules.families.get(member.suffix)) is not None:
            is_small = member.bytes <= MAX_VALUE_BYTES
            data = reader.read(member) if is_small else None
            self._check_value(data, f"{self._path}#{member.name}", family, sample)
        elif member.bytes <= MAX_TEXT_BYTES:
            data = reader.read(member)
            if member.suffix == "json":
                sample.json = data
            elif member.suffix == "txt":
                sample.text = data

    def _read_sides(self, sample: _ReadSample) -> None:
        """Reads the members of a sample that are in side tars."""
        for side in self._sides:
            for own in side.of_sample(sample.key):
                if own.member.suffix in sample.sizes:
                    sample.repeated.append(own.member.suffix)
                sample.sizes[own.member.suffix] = own.member.bytes
                place = own.member.data_offset, own.member.bytes
                self._side_members.setdefault(side.suffix, {})[sample.key] = place
                family = self.rules.families[side.suffix]
                self._check_value(own.data, own.where, family, sample)

    def _check_value(
        self, data: bytes | None, where: str, family: Family, sample: _ReadSample
    ) -> None:
        """Checks a member against the declaration of its family; None is one that is too large."""
        if data is None:
            found, most = f"more than {MAX_VALUE_BYTES} bytes", f"at most {MAX_VALUE_BYTES}"
            self._add(FindingCode.MEMBERS, where, found, most)
            return
        try:
            header, value = family.header(data), family.decode(data)
        except FamilyError as error:
            self._add(FindingCode.MEMBERS, where, str(error), _DECLARED)
            return
        sample.values.append((where, family, header, tuple(getattr(value, "shape", ()))))

    def _close(self, sample: _ReadSample) -> None:
        """Checks a completely read sample, and records its facts."""
        self._read_sides(sample)
        path, allowed = f"{self._path}#{sample.key}", self.rules.allowed
        missing = [name for name in NEEDED if name not in sample.sizes]
        missing += [] if sample.formats else ["mp4"]
        others = sorted(sample.sizes.keys() - allowed) + sample.repeated + sample.formats[1:]
        if missing or others:
            actual = ", ".join([f"no {n}" for n in missing] + [f"another {n!r}" for n in others])
            perhaps = ", ".join(sorted(allowed - {*NEEDED, *CLIP_FORMATS}))
            expected = (
                f"one each of json, mp4 (of an image {', '.join(CLIP_FORMATS[1:])}), txt, and "
                f"perhaps {perhaps}"
            )
            self._add(FindingCode.MEMBERS, path, actual, expected)
        position, n_bytes = len(self._keys), sample.sizes.get("".join(sample.formats[:1]), -1)
        self._closed.add(sample.key)
        self._keys.append(sample.key)
        self._numbers.append((sample.offset, sample.mp4_offset, n_bytes))
        fields = self._fields(sample, path)
        self._compare_meta(sample)
        self._digests.append(0)
        if fields is not None:
            self._n_frames += fields["n_frames"]
            for where, family, header, shape in sample.values:
                try:
                    family.check_length(shape, header, fields["n_frames"], rate_of(fields))
                    if header is not None:
                        header.check(self.rules.fingerprints[family.member], fields)
                except (FamilyError, HeaderError) as error:
                    self._add(FindingCode.MEMBERS, where, str(error), _DECLARED)
            self._sources.add(fields["source_id"].encode())
            text = sample.text.decode("utf-8", "replace")
            row = sample_row(self.shard.name, sample.key, fields, text)
            row |= {"offset": sample.mp4_offset, "bytes": n_bytes}
            self._digests[-1] = row_digest(row)
        self.seen(max(0, n_bytes))
        if fields is not None and sample.formats:
            if sample.formats[0] != fields.get("format", "mp4"):
                expected = f"{fields.get('format', 'mp4')}, as its JSON says"
                self._add(FindingCode.MEMBERS, path, sample.formats[0], expected)
            self._check_mp4(sample, fields, path, self.decoded is None or position in self.decoded)

    def _check_mp4(
        self, sample: _ReadSample, fields: dict[str, Any], path: str, decodes: bool
    ) -> None:
        if sample.mp4_sha256 != fields["mp4_sha256"]:
            actual = f"sha256 {sample.mp4_sha256}"
            self._add(FindingCode.MP4_HASH, path, actual, fields["mp4_sha256"])
        if sample.mp4 is None:
            n_bytes = sample.sizes[sample.formats[0]]
            self._add(FindingCode.MP4_HEADER, path, f"{n_bytes} bytes", "at most 2 GiB")
            return
        for actual, expected in header_differences(sample.mp4, fields, path):
            self._add(FindingCode.MP4_HEADER, path, actual, expected)
        if decodes:
            self._n_decoded += 1
            wrong = frame_differences(sample.mp4, fields, path, threads=self.threads)
            for actual, expected in wrong:
                self._add(FindingCode.FRAMES, path, actual, expected)

    def _fields(self, sample: _ReadSample, path: str) -> dict[str, Any] | None:
        """Returns the sample's JSON; None if a needed field is missing or wrong."""
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
        wrong: list[object] = []
        try:
            SampleFields.model_validate(fields)
            wrong += [] if rate_of(fields) > 0 else ["fps_fraction"]
        except ValidationError as error:
            wrong += [fault["loc"][0] for fault in error.errors()]
        except ValueError:
            wrong.append("fps_fraction")
        if wrong:
            actual = f"no usable {', '.join(map(str, wrong))}"
            expected = f"fields {', '.join(SampleFields.model_fields)}"
            self._add(FindingCode.JSON, path, actual, expected)
            return None
        if fields["key"] != sample.key:
            self._add(FindingCode.JSON, path, f"key {fields['key']!r}", f"key {sample.key!r}")
        caption = fields.get("caption")
        if isinstance(caption, str) and caption.encode() != sample.text:
            self._add(
                FindingCode.JSON,
                path,
                "a caption that differs from its txt",
                "the caption of the txt",
            )
        return fields

    def _compare_meta(self, sample: _ReadSample) -> None:
        """Compares the next line of the `.meta.jsonl` with a sample's JSON."""
        line = self._next_line()
        if self._meta is not None and sample.json is not None and not _is_same(line, sample.json):
            actual = "differs from the JSON in the tar" if line else "missing"
            self._meta_differs(f"line {len(self._keys)}: {actual}", f"the JSON of {sample.key}")
            # After a missing or extra line, all further lines would differ.
            self._meta = None

    def _next_line(self) -> bytes:
        try:
            return b"" if self._meta is None else self._meta.readline(MAX_TEXT_BYTES)
        except (CuratorError, OSError) as error:
            self._meta_refused(error)
            self._meta = None
            return b""

    def _meta_differs(self, actual: str, expected: str) -> None:
        self._add(FindingCode.META, self.shards.uri(self.shard.meta_name), actual, expected)


def _is_same(line: bytes, json: bytes) -> bool:
    if line.rstrip(b"\n") == json.rstrip(b"\n"):
        return True
    try:
        return bool(load_bounded(line) == load_bounded(json))
    except ValueError:
        return False


def row_digest(row: Mapping[str, Any]) -> int:
    """Returns a 64-bit hash of a sample's row in `dataset.parquet`, never 0."""
    # Tables may hold floats in single precision, other paths of MP4s, and no members.
    values = (row.get(name) for name in DATASET_SCHEMA.names if name not in _UNHASHED)
    rounded = [f"{value:.6g}" if isinstance(value, float) else value for value in values]
    data = orjson.dumps(rounded, default=str)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


_UNHASHED = ("path", "members", "member_bytes", "side_members")
