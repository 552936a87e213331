"""Stores models' replies by request key, so that no finished request is made twice.

Each reply becomes an object of its own at once. From time to time, and at the end of a run, many
of them become one part. The next run finds both, even after a crash.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pyarrow as pa

from curator.errors import StorageError
from curator.fingerprints import fingerprint
from curator.stages.caption.caption_records import Reply, Unanswered
from curator.stages.caption.captioners.captioner_list import outside_version
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.storage import Store
from curator.tables.checksums import read_json, read_parquet, sealed_json
from curator.tables.disk_records import Keyed
from curator.tables.parts import columns_to_rows, to_parquet

REPLIES = "replies"
PACK_FROM = 512
"""Loose replies per part: more would slow the next start, fewer would make many parts."""
_READERS = 16
_PART = ".parquet"

REPLY_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("text", pa.string()),
        ("is_whole", pa.bool_()),
        ("tokens_in", pa.int32()),
        ("tokens_out", pa.int32()),
        ("seconds", pa.float64()),
        ("n_tries", pa.int32()),
        ("failure", pa.string()),
        ("detail", pa.string()),
    ]
)
"""A row per request that was answered or finally refused."""


def replies_stamp(config: CaptionConfig) -> str:
    """Returns the stamp of the replies that a run may use: those of its models and prompts."""
    named = [(one.name, load_prompt(one.prompt).fingerprint) for one in config.models]
    return fingerprint("replies", named, *outside_version(config.captioner))


class Replies(Mapping[str, Reply]):
    """Replies of one model and prompt, in the one process that packs loose replies into parts.

    Memory holds the keys. A reply's content is copied to the local disk on first use.

    Args:
        stamp: Stamp of the replies; a run reads no others.
    """

    def __init__(self, store: Store, stamp: str) -> None:
        self.store = store
        self._stamp = stamp
        self._parts: list[str] = []
        self._known = Keyed(self._rows)
        self._loose: dict[str, str] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Reply:
        """Returns the reply to a request.

        Raises:
            StorageError: The stored reply cannot be read.
        """
        record = self._known.get(key)
        row = {} if record is None else orjson.loads(record)
        if row.get("key") != key:
            raise KeyError(key)
        return _reply(row)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._known

    def __iter__(self) -> Iterator[str]:
        return (orjson.loads(record)["key"] for record in self._known.records())

    def __len__(self) -> int:
        return len(self._known)

    def load(self) -> None:
        """Finds the stored replies.

        Raises:
            StorageError: An object is corrupt.
        """
        read: set[str] = set()
        with ThreadPoolExecutor(_READERS) as pool:
            while True:
                names = [info.key for info in self.store.list(f"{REPLIES}/{self._stamp}-")]
                new = [name for name in names if name not in read]
                found = dict(zip(new, pool.map(self._content, new), strict=True))
                parts = {}
                for name, content in found.items():
                    if isinstance(content, list):
                        parts[name] = content
                    elif content is not None:
                        self._known.add(content["key"], orjson.dumps(content))
                        self._loose[content["key"]] = name
                self._known.expect_all(list(parts.values()), len(self._parts))
                self._parts += parts
                # Objects that vanished meanwhile are in another part, which the next listing has.
                if None not in found.values():
                    return
                read |= {name for name, content in found.items() if content is not None}

    def _content(self, name: str) -> list[str] | dict[str, Any] | None:
        """Returns keys of a part, or the row of a loose reply; None if gone since the listing."""
        try:
            if name.endswith(_PART):
                keys: list[str] = read_parquet(self.store, name, ["key"])["key"].to_pylist()
                return keys
            row = read_json(self.store, name)
            _reply(row)
            return {"key": row["key"], **row}
        except StorageError:
            if self.store.exists(name):
                raise
            return None

    def _rows(self, number: int) -> Iterator[tuple[str, bytes]]:
        rows = columns_to_rows(read_parquet(self.store, self._parts[number], REPLY_SCHEMA.names))
        return ((row["key"], orjson.dumps(row)) for row in rows)

    def keep(self, key: str, reply: Reply) -> None:
        """Stores a reply: after the return, no later run repeats its request."""
        store_reply(self.store, self._stamp, key, reply)
        self.added_elsewhere(key, reply)

    def added_elsewhere(self, key: str, reply: Reply) -> None:
        """Adds a reply that this or another process has stored."""
        with self._lock:
            self._known.add(key, orjson.dumps(_row(key, reply)))
            self._loose[key] = loose_name(self._stamp, key)
            is_much = len(self._loose) >= PACK_FROM
        if is_much:
            self.pack()

    def pack(self) -> None:
        """Makes one part of all loose replies."""
        with self._lock:
            loose, self._loose = self._loose, {}
        if not loose:
            return
        rows = [_row(key, self[key]) for key in sorted(loose)]
        named = hashlib.sha256("\n".join(sorted(loose)).encode()).hexdigest()[:16]
        table = pa.Table.from_pylist(rows, schema=REPLY_SCHEMA)
        # The part is written before its pieces go: a run that ends in between finds them twice.
        self.store.write(f"{REPLIES}/{self._stamp}-{named}.parquet", to_parquet(table))
        self.store.delete(list(loose.values()))


class UnitReplies(Mapping[str, Reply]):
    """Replies that a worker needs for one unit.

    Args:
        known: Replies that were stored when the unit was made.
        rereads: Whether a worker that died on the unit may have stored more since.
    """

    def __init__(
        self, store: Store, stamp: str, known: Mapping[str, Reply], *, rereads: bool
    ) -> None:
        self._store = store
        self._stamp = stamp
        self._known = dict(known)
        self._rereads = rereads

    def __getitem__(self, key: str) -> Reply:
        if key not in self._known and self._rereads:
            name = loose_name(self._stamp, key)
            if self._store.exists(name):
                self._known[key] = _reply(read_json(self._store, name))
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, key: str, reply: Reply) -> None:
        """Stores a reply as `Replies.keep` does."""
        store_reply(self._store, self._stamp, key, reply)
        self._known[key] = reply


def loose_name(stamp: str, key: str) -> str:
    """Returns the name of the object of a single reply."""
    return f"{REPLIES}/{stamp}-{key}.json"


def store_reply(store: Store, stamp: str, key: str, reply: Reply) -> None:
    """Stores a reply as an object of its own."""
    store.write(loose_name(stamp, key), sealed_json(_row(key, reply), orjson.dumps))


def _row(key: str, reply: Reply) -> dict[str, object]:
    return {"key": key, **{name: getattr(reply, name) for name in REPLY_SCHEMA.names[1:]}}


def _reply(row: Mapping[str, Any]) -> Reply:
    values = {name: value for name, value in row.items() if name != "key"}
    failure = values.pop("failure")
    return Reply(failure=None if failure is None else Unanswered(failure), **values)
