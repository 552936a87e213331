"""Stores models' replies by request key, so that no finished request is made twice.

In the driver each reply becomes an object of its own at once. A worker stores each second the
replies that came, and at the end of a unit one part of all of them. From time to time, and at the
end of a run, small objects become one part. The next run finds all of them, even after a crash.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
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
STORE_S = 1.0
"""Time in which the replies of a worker wait for each other: what a kill may lose of them."""
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

    Memory holds the keys. A reply's content is copied to the local disk on first use. Replies of
    other stamps are not read.
    """

    def __init__(self, store: Store, stamp: str) -> None:
        self.store = store
        self._stamp = stamp
        self._parts: list[str] = []
        self._known = Keyed(self._rows)
        self._loose: dict[str, str] = {}
        self._small: list[str] = []
        """Parts of units with few replies."""
        self._n_small = 0
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Reply:
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
        """Finds the stored replies."""
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
        name = f"{REPLIES}/{self._stamp}-{key}.json"
        self.store.write(name, sealed_json(_row(key, reply), orjson.dumps, name))
        with self._lock:
            self._known.add(key, orjson.dumps(_row(key, reply)))
            self._loose[key] = name
            is_much = len(self._loose) >= PACK_FROM
        if is_much:
            self.pack()

    def add_part(self, part: "StoredReplies") -> None:
        """Adds the replies that a worker has stored."""
        with self._lock:
            self._known.expect(part.keys, len(self._parts))
            self._parts.append(part.name)
            if len(part.keys) < PACK_FROM:
                self._small.append(part.name)
                self._n_small += len(part.keys)
            is_much = self._n_small >= PACK_FROM
        if is_much:
            self.pack()

    def pack(self) -> None:
        """Makes one part of all loose replies and small parts."""
        with self._lock:
            loose, self._loose = self._loose, {}
            small, self._small, self._n_small = self._small, [], 0
        if not loose and len(small) < 2:
            return
        with ThreadPoolExecutor(_READERS) as pool:
            rows = partial(read_parquet, self.store, columns=REPLY_SCHEMA.names)
            tables = list(pool.map(rows, small))
        tables.append(_table_of((key, self[key]) for key in sorted(loose)))
        table = pa.concat_tables(tables)
        keys = table["key"].to_pylist()
        name = f"{REPLIES}/{self._stamp}-{_hash(*sorted(keys))}{_PART}"
        # The part is written before its pieces go: a run that ends in between finds them twice.
        self.store.write(name, to_parquet(table, name))
        with self._lock:
            self._known.expect([key for key in keys if key not in loose], len(self._parts))
            self._parts.append(name)
        self.store.delete([*loose.values(), *(one for one in small if one != name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReplies:
    """A part of replies, and the keys of their requests."""

    name: str
    keys: Sequence[str]


class WorkerReplies(Mapping[str, Reply]):
    """Replies of a worker, one unit after the other.

    A thread stores each second what came. The end of a unit makes one part of it.
    """

    def __init__(self, store: Store, stamp: str) -> None:
        self._store = store
        self._stamp = stamp
        self._lock = threading.Lock()
        self._known: dict[str, Reply] = {}
        self._new: dict[str, Reply] = {}
        self._unstored: dict[str, Reply] = {}

    def __getitem__(self, key: str) -> Reply:
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, name: str, known: Mapping[str, Reply], before: Sequence[str] = ()) -> None:
        """Begins a unit; the arguments are `WindowUnit`'s."""
        self._name = name
        self._known = dict(known)
        for other in before:
            self._known |= self._left_by(other)[0]
        # A worker whose node went may have had this very unit.
        self._new, self._n_pieces = self._left_by(name)
        self._known |= self._new
        self._unstored = {}
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._store_often, daemon=True)
        self._thread.start()

    def keep(self, key: str, reply: Reply) -> None:
        """Takes a reply, to be stored within a second; raises where earlier ones were not."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._known[key] = self._new[key] = self._unstored[key] = reply

    def end(self) -> StoredReplies | None:
        """Ends the unit; returns the part of its replies, or None if there were none.

        Raises:
            CuratorError: They could not be stored.
        """
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if not self._new:
            return None
        part = self._piece(self._name, 0)
        if self._unstored or self._n_pieces != 1:
            self._store.write(part, to_parquet(_table_of(self._new.items()), part))
            self._store.delete([self._piece(self._name, n) for n in range(1, self._n_pieces)])
        return StoredReplies(name=part, keys=list(self._new))

    def _store_often(self) -> None:
        while not self._ended.wait(STORE_S):
            with self._lock:
                waiting, self._unstored = self._unstored, {}
            try:
                if waiting:
                    table = _table_of(waiting.items())
                    piece = self._piece(self._name, self._n_pieces)
                    self._store.write(piece, to_parquet(table, piece))
                    self._n_pieces += 1
            except Exception as error:  # noqa: BLE001 - raised again where the unit's process waits
                self._error = error
                return

    def _left_by(self, name: str) -> tuple[dict[str, Reply], int]:
        """Returns the replies that a worker stored for a unit, and the number of their objects."""
        found: dict[str, Reply] = {}
        for number in count():
            piece = self._piece(name, number)
            if not self._store.exists(piece):
                return found, number
            rows = columns_to_rows(read_parquet(self._store, piece, REPLY_SCHEMA.names))
            found |= {row["key"]: _reply(row) for row in rows}
        raise AssertionError

    def _piece(self, name: str, number: int) -> str:
        return f"{REPLIES}/{self._stamp}-{_hash(name, str(number))}{_PART}"


def _hash(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _table_of(replies: Iterable[tuple[str, Reply]]) -> pa.Table:
    return pa.Table.from_pylist([_row(key, one) for key, one in replies], schema=REPLY_SCHEMA)


def _row(key: str, reply: Reply) -> dict[str, object]:
    return {"key": key, **{name: getattr(reply, name) for name in REPLY_SCHEMA.names[1:]}}


def _reply(row: Mapping[str, Any]) -> Reply:
    values = {name: value for name, value in row.items() if name != "key"}
    failure = values.pop("failure")
    return Reply(failure=None if failure is None else Unanswered(failure), **values)
