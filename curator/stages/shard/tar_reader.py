"""Shards under an output root: the manifest, and tars read as streams.

All input is untrusted: a damaged object gives a `ShardError`, never another exception.
"""

import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from curator.errors import ShardError, UsageError, raised_as
from curator.family import Family, FamilyError
from curator.storage import Store, open_store
from curator.tables.checksums import opened_json
from curator.tables.parts import SUMMARY
from curator.tables.sample_members import MEMBERS
from curator.tables.snapshot_store import INDEXES, read_snapshot

FOLDER = "shards/"
MANIFEST = "manifest.json"
DATASET = "dataset.parquet"
NEXT_MANIFEST = "manifest.next.json"
"""Written before the first index of a commit, and removed at its end."""
Declared = Mapping[str, Mapping[str, Any]]
"""Declarations of families, with fingerprints: by member, or by name for those of columns."""
COLUMNS = "columns"
"""Field of the manifest with families of columns, and of a sample's JSON with their values."""
Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")
BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
MAX_TEXT_BYTES = 64 << 20
"""Largest JSON, caption or vector of a sample that is read into memory."""


def index_name(tar: str) -> str:
    """Returns the name of a tar's index for Megatron-Energon."""
    return f"{tar}.idx"


def meta_name(tar: str) -> str:
    """Returns the name of a tar's metadata."""
    return f"{tar.removesuffix('.tar')}.meta.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in a tar."""

    name: str
    offset: int
    """Of its header."""
    bytes: int

    @property
    def key(self) -> str:
        """Name up to the first dot, as readers of WebDataset split it."""
        return self.name.partition(".")[0]

    @property
    def suffix(self) -> str:
        """Name after the first dot."""
        return self.name.partition(".")[2]

    @property
    def data_offset(self) -> int:
        """Of its first byte."""
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
    """Its entry in the manifest; empty without one."""

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
        """`train` or `val`; tars of versions that did not split are for training."""
        return "val" if self.stem.startswith("val-") else "train"

    @property
    def idx_name(self) -> str:
        """Object with the offsets of its samples."""
        return index_name(self.name)

    @property
    def meta_name(self) -> str:
        """Object with the JSON of its samples, a line each."""
        return meta_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """The shards under an output root, or under a folder that they were copied to."""

    store: Store
    prefix: str
    """`shards/`, or nothing where the tars lie in folders of the root itself."""
    sizes: dict[str, int]
    """Bytes of each object, by its name relative to the shards' folder."""
    manifest: dict[str, Any] | None = None
    """None where there is none, or none that can be read: see `problem`."""
    problem: str | None = None
    shards: tuple[Shard, ...] = ()
    """Tars that the manifest names, sorted; without a manifest all that are there."""
    snapshot: int | None = None
    """Number of the snapshot that was asked for; None for the files at fixed paths."""
    own_dataset: str | None = None
    """Object with that snapshot's table of the samples."""
    following: "ShardSet | None" = None
    """The set of a commit that was begun and is not finished, whose tars are all there, too.

    An index is of this set or of that; a first commit replaces the empty set.
    """

    def key(self, name: str) -> str:
        """Returns the store key of an object of the shards' folder."""
        return self.prefix + name

    @property
    def dataset(self) -> str:
        """Store key of the table of the samples."""
        return self.own_dataset or self.key(DATASET)

    @property
    def declared(self) -> "Declared":
        """Members that families declare; raises as `declared_families` does."""
        families = declared_families(self.manifest)
        return {suffix: value for suffix, value in families.items() if value["member"]}

    def named(self, manifest: dict[str, Any]) -> "ShardSet":
        """Returns the shards that a manifest names."""
        listed = sorted(manifest["shards"], key=lambda facts: str(facts["name"]))
        shards = tuple(Shard(name=facts["name"], facts=facts) for facts in listed)
        return replace(self, manifest=manifest, shards=shards)

    def uri(self, name: str) -> str:
        """Returns the address of an object of the shards' folder."""
        return f"{self.store.uri}/{self.prefix}{name}"


def declared_families(manifest: Mapping[str, Any] | None) -> Declared:
    """Returns the declarations in a manifest: by member, and by name for families of columns.

    Raises:
        ShardError: It has something else there.
    """
    families: dict[str, Mapping[str, Any]] = {}
    for kind, named_by in ((MEMBERS, "member"), (COLUMNS, "name")):
        declared = (manifest or {}).get(kind, {})
        with raised_as(ShardError, FamilyError, AttributeError, of=f"the manifest's `{kind}`: "):
            for name, value in declared.items():
                if getattr(Family.from_json(value), named_by) != name:
                    raise ShardError(f"the manifest's `{kind}` declares {name!r} as another one")
        families |= declared
    return families


def open_shards(out: str, snapshot: int | None = None) -> ShardSet:
    """Finds the shards of a run's output root, or of a folder with the contents of its `shards/`.

    Args:
        out: The root or the folder.
        snapshot: Number of a snapshot of the root; None for the files at fixed paths.

    Raises:
        UsageError: It has neither, no run was finished there, or there is no such snapshot.
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
        if not any(name.endswith(".tar") for name in sizes):
            raise UsageError(
                f"{store.uri} has no shards: expected OUT of a finished `curate run`, or a folder "
                "with the contents of OUT/shards"
            )
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
            f"{store.uri} has no shards yet: no run was finished there, and the tars may be only "
            "some of its shards; run `curate run` again, or name "
            f"{store.uri}/{prefix.rstrip('/')} itself to take the tars that are there"
        )
    tars = sorted(name for name in sizes if name.endswith(".tar"))
    there = tuple(Shard(name=name, facts={}) for name in tars)
    return replace(shards, problem=problem, shards=there, following=None)


def _sizes(store: Store, prefix: str) -> dict[str, int]:
    return {info.key.removeprefix(prefix): info.bytes for info in store.list(prefix)}


def _manifest(store: Store, name: str) -> tuple[dict[str, Any] | None, str | None]:
    """Returns the manifest of a name, or None and the reason."""
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
            return None, f"it names a shard {tar!r}"
    files = manifest.get("files", {})
    if not isinstance(files, dict):
        return None, "its `files` is no object"
    for name in files:
        if not _is_safe(name):
            return None, f"it names a file {name!r}"
    return manifest, None


def _is_safe(name: str) -> bool:
    return all(segment not in ("", ".", "..") for segment in name.split("/"))


class TarReader:
    """Reads a tar of plain files from front to end, one member at a time.

    Args:
        read: Returns the next bytes, and fewer only at the end.
        n_bytes: Size of the tar.
        seek: Goes to an offset, to skip data; without it, skipped data is read.
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
        """Offset behind the last member that was seen."""

    def __iter__(self) -> Iterator[Member]:
        """Yields members; skips unread data.

        Raises:
            ShardError: A header is damaged or of another kind, or the tar ends early.
        """
        while True:
            self._pass_over()
            header = self._take(BLOCK, f"the header at {self.end}")
            if header == bytes(BLOCK):
                second = self._take(BLOCK, "the second of two empty blocks at the end")
                if second != bytes(BLOCK):
                    raise ShardError(f"at {self.end} is one empty block; expected two at the end")
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
                f"the member {info.name!r} at {self.end} is of type {info.type!r}; expected files"
            )
        member = Member(name=info.name, offset=self.end, bytes=info.size)
        if member.end > self._n_bytes:
            raise ShardError(
                f"{info.name!r} would end at {member.end}, behind the last byte {self._n_bytes}: "
                "the tar ends early or the header is damaged"
            )
        return member

    def chunks(self, member: Member) -> Iterator[bytes]:
        """Yields the data of the last member."""
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
                f"it ends within {what}: {len(data)} of {n_bytes} bytes are there; "
                "the tar is truncated"
            )
        return data
