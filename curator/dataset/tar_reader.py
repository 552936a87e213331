"""Reads shards under an output root: the manifest, and tars as streams.

All input is untrusted: a damaged object raises a `ShardError`, never another exception.
"""

import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from curator.errors import ShardError, UsageError, raised_as
from curator.family import Family, FamilyError
from curator.storage import Store, open_store
from curator.tables.json_objects import opened_json
from curator.tables.out_layout import SIDES, SUMMARY
from curator.tables.output_format import refuse_other_format
from curator.tables.sample_members import MEMBERS
from curator.tables.snapshot_store import INDEXES, read_snapshot

FOLDER = "shards/"
MANIFEST = "manifest.json"
DATASET = "dataset.parquet"
NEXT_MANIFEST = "manifest.next.json"
"""The manifest of an unfinished commit: written before the first index, removed at the end."""
Declared = Mapping[str, Mapping[str, Any]]
"""Declarations of families, with fingerprints: by member, or by name for families of columns."""
COLUMNS = "columns"
"""Field of the manifest with families of columns, and of a sample's JSON with their values."""
Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")
BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
MAX_TEXT_BYTES = 64 << 20
"""Largest JSON, caption or vector of a sample that readers load into memory."""


def index_name(tar: str) -> str:
    """Returns the name of a tar's index for Megatron-Energon."""
    return f"{tar}.idx"


def meta_name(tar: str) -> str:
    """Returns the name of a tar's metadata."""
    return f"{tar.removesuffix('.tar')}.meta.jsonl"


def members_name(tar: str) -> str:
    """Returns the name of a tar's index for webshart, which replaces the suffix of the tar."""
    return f"{tar.removesuffix('.tar')}.json"


BESIDE: Mapping[str, Callable[[str], str]] = {
    "idx_sha256": index_name,
    "meta_sha256": meta_name,
    "members_sha256": members_name,
}
"""The objects next to a tar: the manifest's field with the SHA-256, and how the tar names it."""
_OF_TAR = re.compile(r"(.*?)(?:\.tar\.idx|\.meta\.jsonl|(?<=-[0-9a-f]{8})\.json|\.tar)")


def objects_of(facts: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the SHA-256 of the objects of a tar by name; None where the manifest has none.

    `facts` is the tar's entry in a manifest. The objects are the tar, those next to it, and the
    tars with members of its samples. Names are relative to the folder of the shards.
    """
    objects = {facts["name"]: facts.get("sha256")}
    objects |= {name(facts["name"]): facts.get(field) for field, name in BESIDE.items()}
    for side in facts.get("sides", {}).values():
        objects |= {side["name"]: side["sha256"], index_name(side["name"]): side["idx_sha256"]}
    return objects


def tar_of(name: str) -> str:
    """Returns the name of the tar that an object is, or lies next to; else the name itself."""
    match = _OF_TAR.fullmatch(name)
    return f"{match[1]}.tar" if match is not None else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in a tar."""

    name: str
    offset: int
    """Offset of the header in the tar, in bytes."""
    bytes: int

    @property
    def key(self) -> str:
        """Name before the first dot: readers of WebDataset group members by it."""
        return self.name.partition(".")[0]

    @property
    def suffix(self) -> str:
        """Name after the first dot."""
        return self.name.partition(".")[2]

    @property
    def data_offset(self) -> int:
        """Offset of the first byte of the data."""
        return self.offset + BLOCK

    @property
    def end(self) -> int:
        """Offset of the next header."""
        return self.data_offset + -(-self.bytes // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A tar and the facts in its name."""

    name: str
    """Relative to the shards' folder, such as `720p_16-9_121f/train-000000-0123abcd.tar`."""
    facts: dict[str, Any]
    """The tar's entry in the manifest; empty without a manifest."""

    @property
    def bucket(self) -> str:
        """Folder of the tar."""
        return self.name.rpartition("/")[0]

    @property
    def stem(self) -> str:
        """File name without `.tar`."""
        return self.name.rpartition("/")[2].removesuffix(".tar")

    @property
    def split(self) -> Split:
        """`train` or `val`; `train` for a tar without a split in its name."""
        return "val" if self.stem.startswith("val-") else "train"

    @property
    def idx_name(self) -> str:
        """Name of the object with the offsets of the samples."""
        return index_name(self.name)

    @property
    def meta_name(self) -> str:
        """Name of the object with the JSON of the samples, one line each."""
        return meta_name(self.name)

    @property
    def objects(self) -> dict[str, str | None]:
        """SHA-256 of the tar and of the objects that belong to it, as `objects_of` returns them.

        Tars of an older version have no index for webshart, and their manifest names none.
        """
        objects = objects_of({"name": self.name} | self.facts)
        if not self.facts.get("members_sha256"):
            del objects[members_name(self.name)]
        return objects

    @property
    def indexes(self) -> dict[str, str | None]:
        """Those of `objects` that are no tars."""
        return {n: sha256 for n, sha256 in self.objects.items() if not n.endswith(".tar")}

    @property
    def side_tars(self) -> list[str]:
        """Names of the tars with one member of each sample."""
        return [side["name"] for side in self.sides.values()]

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """The tars with one member of each sample: their entry in the manifest, by member."""
        sides: dict[str, dict[str, Any]] = self.facts.get("sides", {})
        return sides


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """The shards under an output root, or under a folder to which they were copied."""

    store: Store
    prefix: str
    """`shards/`, or empty if the root itself has the contents of `shards/`."""
    sizes: dict[str, int]
    """Bytes of each object, by name relative to the shards' folder."""
    manifest: dict[str, Any] | None = None
    """None if the manifest is missing or damaged; `problem` has the reason."""
    problem: str | None = None
    shards: tuple[Shard, ...] = ()
    """Tars that the manifest names, sorted; without a manifest, all tars in the folder."""
    snapshot: int | None = None
    """Number of the requested snapshot; None for the files at fixed paths."""
    own_dataset: str | None = None
    """Store key of the requested snapshot's table of samples."""
    following: "ShardSet | None" = None
    """The shards that an unfinished commit publishes; None without an unfinished commit.

    All tars of both sets exist. Until the commit ends, each index describes one of the two sets.
    """

    def key(self, name: str) -> str:
        """Returns the store key of an object of the shards' folder."""
        return self.prefix + name

    @property
    def missing(self) -> frozenset[str]:
        """Tars that the manifest names, and that are not there."""
        return frozenset(shard.name for shard in self.shards if shard.name not in self.sizes)

    @property
    def dataset(self) -> str:
        """Store key of the table of the samples."""
        return self.own_dataset or self.key(DATASET)

    @property
    def declared(self) -> "Declared":
        """Declarations of families by member; raises as `declared_families` does."""
        families = declared_families(self.manifest)
        return {suffix: value for suffix, value in families.items() if value["member"]}

    def named(self, manifest: dict[str, Any]) -> "ShardSet":
        """Returns this set with the shards that a manifest names."""
        listed = sorted(manifest["shards"], key=lambda facts: str(facts["name"]))
        shards = tuple(Shard(name=facts["name"], facts=facts) for facts in listed)
        return replace(self, manifest=manifest, shards=shards)

    def uri(self, name: str) -> str:
        """Returns the address of an object of the shards' folder."""
        return f"{self.store.uri}/{self.prefix}{name}"


def declared_families(manifest: Mapping[str, Any] | None) -> Declared:
    """Returns the declarations in a manifest: by member, and by name for families of columns.

    Raises:
        ShardError: The manifest has no valid declarations in these fields.
    """
    families: dict[str, Mapping[str, Any]] = {}
    for kind, named_by in ((MEMBERS, "member"), (COLUMNS, "name")):
        declared = (manifest or {}).get(kind, {})
        with raised_as(ShardError, FamilyError, AttributeError, of=f"the manifest's `{kind}`: "):
            for name, value in declared.items():
                if getattr(Family.from_json(value), named_by) != name:
                    raise ShardError(f"the manifest's `{kind}` has another {named_by} in {name!r}")
        families |= declared
    return families


def open_shards(out: str, snapshot: int | None = None) -> ShardSet:
    """Finds the shards of an output root, or of a folder with the contents of its `shards/`.

    Args:
        out: The root or the folder.
        snapshot: Number of a snapshot of the root; None for the files at fixed paths.

    Raises:
        UsageError: `out` has no shards, no finished run, no snapshot of this number, or another
            output format.
        ShardError: The manifest of the snapshot is missing or damaged.
    """
    store = open_store(out)
    if snapshot is not None:
        indexes = read_snapshot(store, snapshot)[INDEXES]
        manifest, problem = _manifest(store, indexes["manifest"])
        if manifest is None:
            raise ShardError(f"{store.uri}/{indexes['manifest']}: {problem}")
        shards = ShardSet(
            store=store,
            prefix=FOLDER,
            sizes=_sizes(store, FOLDER),
            own_dataset=indexes["dataset"],
            snapshot=snapshot,
        )
        return shards.named(manifest)
    prefix = FOLDER
    sizes = _sizes(store, prefix)
    if not sizes and not store.exists(SUMMARY):
        prefix = ""
        sizes = _sizes(store, prefix)
        if not any(map(is_tar_of_samples, sizes)):
            raise UsageError(
                f"{store.uri} has no shards: expected OUT of a finished `curate run`, or a folder "
                "with the contents of OUT/shards"
            )
    if prefix:
        refuse_other_format(store)
    shards = ShardSet(store=store, prefix=prefix, sizes=sizes)
    manifest, problem = _manifest(store, prefix + MANIFEST)
    if (coming := _manifest(store, prefix + NEXT_MANIFEST)[0]) is not None:
        shards = replace(shards, following=shards.named(coming))
        if MANIFEST not in sizes:
            manifest = {"shards": []}
    if manifest is not None:
        return shards.named(manifest)
    if prefix and MANIFEST not in sizes and not store.exists(SUMMARY):
        raise UsageError(
            f"{store.uri} has no finished run, so its tars may be only some of its shards; run "
            f"`curate run` again, or name the folder {store.uri}/{prefix.rstrip('/')} to use the "
            "tars that it has"
        )
    tars = sorted(filter(is_tar_of_samples, sizes))
    there = tuple(Shard(name=name, facts={}) for name in tars)
    return replace(shards, problem=problem, shards=there, following=None)


def _sizes(store: Store, prefix: str) -> dict[str, int]:
    return {info.key.removeprefix(prefix): info.bytes for info in store.list(prefix)}


def _manifest(store: Store, name: str) -> tuple[dict[str, Any] | None, str | None]:
    """Returns the manifest and None, or None and the reason why there is no usable manifest."""
    if not store.exists(name):
        return None, "there is none"
    try:
        manifest = opened_json(store.read(name), name)
    except ValueError as error:
        return None, f"it is damaged ({error})"
    if not isinstance(manifest, dict) or not isinstance(manifest.get("shards"), list):
        return None, "it has no list `shards`"
    for facts in manifest["shards"]:
        tar = facts.get("name") if isinstance(facts, dict) else None
        if not isinstance(tar, str) or not _is_safe(tar) or not tar.endswith(".tar"):
            return None, f"it names a shard {tar!r}; expected the name of a tar inside its folder"
        with suppress(AttributeError, KeyError, TypeError):
            if all(map(_is_safe, objects_of(facts))):
                continue
        return None, f"it names no usable `sides` of {tar}"
    files = manifest.get("files", {})
    if not isinstance(files, dict):
        return None, "its `files` is not a JSON object"
    for name in files:
        if not _is_safe(name):
            return None, f"it names a file {name!r}; expected a name inside its folder"
    return manifest, None


def is_tar_of_samples(name: str) -> bool:
    """Returns whether an object, by its name below the folder of the shards, is a tar of samples.

    Tars with members of one family are none.
    """
    return name.endswith(".tar") and not name.startswith(f"{SIDES}/")


def _is_safe(name: str) -> bool:
    return all(segment not in ("", ".", "..") for segment in name.split("/"))


class TarReader:
    """Reads a tar of regular files from start to end, one member at a time.

    Args:
        read: Returns the next bytes; returns fewer bytes than requested only at the end.
        n_bytes: Size of the tar.
        seek: Moves to an offset, to skip data; without it, the reader reads the skipped data.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        n_bytes: int,
        *,
        seek: Callable[[int], object] | None = None,
    ) -> None:
        self._read = read
        self._seek = seek
        self._n_bytes = n_bytes
        self._unread = 0
        self.end = 0
        """Offset of the end of the last member that was read."""

    def __iter__(self) -> Iterator[Member]:
        """Yields members; skips data that the caller does not read.

        Raises:
            ShardError: A header is damaged, a member is no regular file, or the tar ends early.
        """
        while True:
            self._pass_over()
            header = self._take(BLOCK, f"the header at {self.end}")
            if header == bytes(BLOCK):
                second = self._take(BLOCK, "the second of two empty blocks at the end")
                if second != bytes(BLOCK):
                    raise ShardError(f"one empty block at {self.end}; expected two at the end")
                return
            member = self._parse(header)
            self.end = member.end
            self._unread = member.end - member.data_offset
            yield member

    def _parse(self, header: bytes) -> Member:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise ShardError(f"the header at {self.end} is damaged ({error})") from error
        if not info.isreg() or info.size < 0:
            raise ShardError(
                f"the member {info.name!r} at {self.end} has type {info.type!r}; expected files"
            )
        member = Member(name=info.name, offset=self.end, bytes=info.size)
        if member.end > self._n_bytes:
            raise ShardError(
                f"{info.name!r} would end at {member.end}, after the end of the tar at "
                f"{self._n_bytes}: the tar is truncated or the header is damaged"
            )
        return member

    def chunks(self, member: Member) -> Iterator[bytes]:
        """Yields the data of the last member, in chunks of up to 1 MiB."""
        left = member.bytes
        while left:
            data = self._take(min(left, _CHUNK_BYTES), f"data of {member.name!r}")
            left -= len(data)
            self._unread -= len(data)
            yield data

    def read(self, member: Member) -> bytes:
        """Returns the data of the last member."""
        return b"".join(self.chunks(member))

    def _pass_over(self) -> None:
        if not self._unread:
            return
        if self._unread >= BLOCK and self._seek is not None:
            self._seek(self.end)
        else:
            self._take(self._unread, "padding")
        self._unread = 0

    def _take(self, n_bytes: int, what: str) -> bytes:
        data = self._read(n_bytes)
        if len(data) != n_bytes:
            raise ShardError(
                f"the tar is truncated within {what}: it has {len(data)} of {n_bytes} bytes"
            )
        return data
