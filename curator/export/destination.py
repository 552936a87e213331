"""Where an export writes: which objects exist with the right bytes, and MP4s that are not sent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

import orjson

from curator.errors import StorageError, UsageError
from curator.records.clips import CLIP_FORMATS
from curator.storage import ObjectInfo, Store, open_store
from curator.storage.source_reader import content_version
from curator.tables.fenced_store import Digest
from curator.tables.out_layout import is_unfinished

if TYPE_CHECKING:
    from curator.export.job import Exported, ShardClip

RECORDS = ".exported/"
"""Folder with a record for each tar: SHA-256 and version of its MP4s, by key of the MP4."""


class ProvenObjects:
    """Existing objects of a store, with the SHA-256 of those that a record names.

    Every existing object is complete, because objects appear only when fully written. A record is
    valid for an object as long as the object has the version that the record names.

    Args:
        folders: Prefixes of the keys. Existing objects there are listed once, which takes about 400
            bytes of memory for each.
    """

    def __init__(self, store: Store, folders: Iterable[str]) -> None:
        self.store = store
        listed = (info for folder in folders for info in store.list(folder))
        self.objects: dict[str, ObjectInfo] = {info.key: info for info in listed}
        self._recorded: dict[str, tuple[str, str]] = {}

    def read_record(self, key: str) -> None:
        """Reads a record if it exists; a damaged record proves nothing."""
        with suppress(StorageError, OSError, ValueError, TypeError, AttributeError, LookupError):
            if key in self.objects:
                record = orjson.loads(self.store.read(key))
                self._recorded |= {name: (value[0], value[1]) for name, value in record.items()}

    def has(self, key: str, n_bytes: int, sha256: str) -> bool:
        """Returns whether the object exists with these bytes; reads it without a valid record."""
        info = self.objects.get(key)
        if info is None or info.bytes != n_bytes:
            return False
        if self._recorded.get(key) == (sha256, content_version(info.version)):
            return True
        # An unreadable object is written again.
        with suppress(StorageError, OSError):
            return Digest.of_object(self.store, key).sha256 == sha256
        return False


class EarlierVideos:
    """The MP4s of an earlier export, which this export takes without a transfer.

    Args:
        uri: Destination of the earlier export, of any format with a file for each MP4.
    """

    def __init__(self, uri: str) -> None:
        self._proven = ProvenObjects(open_store(uri), [""])
        self.store, self._keys = self._proven.store, dict[str, str]()
        for key in self._proven.objects:
            if key.rpartition(".")[2] in CLIP_FORMATS:
                self._keys[key.rpartition("/")[2]] = key
            elif RECORDS in key:
                self._proven.read_record(key)
        if not self._keys:
            raise UsageError(
                f"--reuse {uri}: no MP4s there; expected DEST of an earlier `curate export` with "
                "--format folder, or another format that writes MP4s as files"
            )

    def check_kind(self, store: Store) -> None:
        """Raises `UsageError` if MP4s cannot come to a store without a transfer."""
        if type(self.store) is not type(store):
            raise UsageError(
                f"--reuse {self.store.uri}: expected a place of the same kind as {store.uri}, for "
                "links or copies; the format folder names the MP4s there with --in-place"
            )

    def find(self, clip: "ShardClip", sha256: str) -> str | None:
        """Returns the key of a clip's MP4 if the earlier export has it with these bytes."""
        key = self._keys.get(clip.file_name)
        return key if key and self._proven.has(key, clip.mp4_bytes, sha256) else None

    def address(self, clip: "ShardClip") -> str:
        """Returns the address of a clip's MP4; raises `UsageError` if it is not there."""
        key = self.find(clip, str(clip.fields["mp4_sha256"]))
        if key is None:
            raise UsageError(
                f"--reuse {self.store.uri} does not have the MP4 of {clip.key} with the bytes of "
                "the tar: export there first, or leave out --in-place"
            )
        return f"{self.store.uri}/{key}"


class Destination:
    """The destination of an export.

    Args:
        folders: Prefixes of the keys, as for `ProvenObjects`.
        earlier: MP4s that need no transfer.
    """

    def __init__(
        self,
        store: Store,
        exported: "Exported",
        folders: Sequence[str],
        earlier: EarlierVideos | None = None,
    ) -> None:
        self._store, self._exported, self._earlier = store, exported, earlier
        self._proven = ProvenObjects(store, folders)
        # Temporary objects of killed exports, which may have finished none in their folder.
        tops = (folder.partition("/")[0] for folder in folders)
        own = (key.rpartition("/")[0] for key in self._proven.objects)
        store.clean_temporary({"", *tops, *own}, is_unfinished)
        self._mine: set[str] = set()

    def exists_as(self, key: str, n_bytes: int, sha256: str) -> bool:
        """Returns whether the object exists with these bytes, and counts it if so."""
        is_there = self._proven.has(key, n_bytes, sha256)
        if is_there:
            self.reuse(key)
        return is_there

    def size(self, key: str) -> int | None:
        """Returns the size of an object that existed at the beginning, or None."""
        info = self._proven.objects.get(key)
        return None if info is None else info.bytes

    def reuse(self, *keys: str, clips: int = 0) -> None:
        """Counts existing objects, and the clips in them, as part of this export."""
        self._mine.update(keys)
        self._exported.add(reused=len(keys), clips=clips)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object, unless it exists with these bytes."""
        with suppress(StorageError, OSError):
            if self._store.holds(self._proven.objects.get(key), data):
                self.reuse(key)
                return
        self._store.write(key, data)
        self._has_written(key)
        self._exported.add(objects=1, bytes=len(data))

    def take(self, key: str, clip: "ShardClip", tars: Store, tar: str, sha256: str) -> bool:
        """Makes an MP4 without a transfer, and counts it; returns whether it did.

        The MP4 is a hard link to, or the server's copy of, the MP4 of an earlier export; or the
        server's copy of bytes of the tar with the key `tar`.
        """
        earlier = self._earlier
        found = earlier.find(clip, sha256) if earlier is not None else None
        if earlier is not None and found is not None:
            is_made = self._store.copy_from(earlier.store, found, key)
        else:
            span = clip.mp4_offset, clip.mp4_offset + clip.mp4_bytes
            is_made = self._store.copy_range(tars, tar, span, key, sha256)
        if is_made:
            self._has_written(key)
            self._exported.add(objects=1, linked=1)
        return is_made

    def _has_written(self, key: str) -> None:
        self._mine.add(key)
        # The listed version is not the new one.
        self._proven.objects.pop(key, None)

    def read_record(self, key: str) -> None:
        """Reads the record of a tar, which saves reading its MP4s at the destination."""
        self._proven.read_record(key)

    def put_record(self, key: str, sha256s: Mapping[str, str]) -> None:
        """Writes the record of a tar; `sha256s` has the SHA-256 of its MP4s by key."""
        there = self._proven.objects
        infos = {name: there.get(name) or self._store.find(name) for name in sha256s}
        record = {
            name: [sha256s[name], content_version(info.version)]
            for name, info in infos.items()
            if info is not None
        }
        data = orjson.dumps(record, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
        if self.size(key) != len(data) or self._store.read(key) != data:
            self._store.write(key, data)

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens a stream to an object, which appears when the block ends without error."""
        self._mine.add(key)
        with self._store.create(key) as output:
            yield output
        self._exported.add(objects=1)

    def others(self, suffixes: tuple[str, ...]) -> list[str]:
        """Returns objects that existed at the beginning and do not belong to this export."""
        return sorted(
            k for k in self._proven.objects if k not in self._mine and k.endswith(suffixes)
        )
