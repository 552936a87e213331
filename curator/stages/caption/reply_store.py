"""Stores models' replies by request key, so that no answered request is repeated.

The store also holds annotations (`annotations.remember`) and OCR texts, as replies.

Each second, a unit writes its new replies as a part; at its end, the unit merges its parts. The run
reads the keys of all parts, and from time to time merges small parts.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self

import orjson
import pyarrow as pa

from curator.errors import StorageError
from curator.fingerprints import fingerprint
from curator.stages.caption.caption_records import Reply, Unanswered
from curator.stages.caption.captioners.captioner_contract import outside_version
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.out_layout import REPLIES
from curator.tables.parts import columns_schema, to_parquet
from curator.tables.spill_file import SpilledRecords

PACK_FROM = 512
"""Parts with fewer replies are merged, because many parts would slow the next start."""
STORE_S = 1.0
"""Interval between a unit's parts; a kill loses at most the replies of one interval."""
_READERS = 16
_HASH_CHARS = 16

REPLY_SCHEMA = columns_schema(
    ("key text", pa.string()),
    ("is_whole", pa.bool_()),
    ("tokens_in tokens_out", pa.int32()),
    ("seconds", pa.float64()),
    ("n_tries", pa.int32()),
    ("failure detail", pa.string()),
)
"""A row for each final reply (`Reply.is_final`), annotation, and clip's text by OCR."""


def replies_fingerprint(config: CaptionConfig) -> str:
    """Returns the fingerprint of models, prompts and custom captioner, which names the replies."""
    named = [(model.name, load_prompt(model.prompt).fingerprint) for model in config.models]
    return fingerprint("replies", named, *outside_version(config.captioner))


class Replies(Mapping[str, Reply]):
    """The replies of one fingerprint: all stored replies, or the replies of one unit.

    A local file holds the keys; the first use of a reply copies its part into the file. Inside
    `with`, a thread stores new replies each second; the end merges them into one part.

    Args:
        store: Output root.
        models: The `replies_fingerprint`.
        unit: Name of the unit, eight hexadecimal digits; the pieces of a divided unit share it.
            Empty for the process of the run, which packs the replies of all units.
        stored: Replies that are stored already and that the unit may use, by key.
    """

    def __init__(
        self, store: Store, models: str, unit: str = "", stored: Mapping[str, Reply] | None = None
    ) -> None:
        self._store, self._unit = store, unit
        self._prefix = f"{REPLIES}/{models}-{unit}"
        self._parts: list[str] = []
        self._rows = SpilledRecords(self._rows_of)
        self._new: dict[str, Reply] = {}
        self._small: dict[str, Sequence[str]] = {}
        """Keys of each part to merge, by its name."""
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._ended = threading.Event()
        for key, reply in (stored or {}).items():
            self._rows.add(key, orjson.dumps(_row(key, reply)))

    @property
    def parts(self) -> dict[str, Sequence[str]]:
        """Returns the keys of each part that a unit wrote, by the part's name."""
        return dict(self._small)

    def __getitem__(self, key: str) -> Reply:
        row = orjson.loads(self._rows.get(key) or b"{}")
        if row.get("key") != key:
            raise KeyError(key)
        return _reply(row)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._rows

    def __iter__(self) -> Iterator[str]:
        return (orjson.loads(record)["key"] for record in self._rows.records())

    def __len__(self) -> int:
        return len(self._rows)

    def load(self) -> Self:
        """Reads the keys of stored replies; for a unit, of replies that a killed worker stored."""
        read: set[str] = set()
        with ThreadPoolExecutor(_READERS) as pool:
            while True:
                names = [info.key for info in self._store.list(self._prefix)]
                new = [name for name in names if name not in read]
                contents = dict(zip(new, pool.map(self._keys_of, new), strict=True))
                parts = {name: keys for name, keys in contents.items() if keys is not None}
                self._rows.expect_all(list(parts.values()), len(self._parts))
                self._parts += parts
                if not self._unit:
                    self._small |= {n: keys for n, keys in parts.items() if len(keys) < PACK_FROM}
                # Replies of an object that vanished are in a merged part: the next listing has it.
                read |= parts.keys()
                if len(parts) == len(contents):
                    break
        return self

    def keep(self, key: str, reply: Reply) -> None:
        """Adds a reply, to be stored soon; raises the error of an earlier failure to store."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._rows.add(key, orjson.dumps(_row(key, reply)))
            self._new[key] = reply
            is_much = len(self._new) >= PACK_FROM
        if is_much and not self._unit:
            self.pack()

    def add(self, parts: Mapping[str, Sequence[str]]) -> None:
        """Adds the parts that a unit wrote."""
        for name, keys in parts.items():
            self._add(name, keys)
        if sum(map(len, self._small.values())) >= PACK_FROM:
            self.pack()

    def pack(self) -> None:
        """Merges small parts and unstored replies into one part."""
        with self._lock:
            new, self._new = self._new, {}
            small, self._small = self._small, {}
        if not new and len(small) < 2:
            self._small |= small
            return
        read = partial(read_parquet, self._store, columns=REPLY_SCHEMA.names)
        with ThreadPoolExecutor(_READERS) as pool:
            tables = list(pool.map(read, small))
        name = self._write(pa.concat_tables([*tables, _table_of(new)]))
        # Deletion comes last: a kill before it leaves replies twice.
        self._store.delete([other for other in small if other != name])

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._store_often, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Stores and merges all replies; raises the error of a reply that could not be stored."""
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self.pack()

    def _store_often(self) -> None:
        while not self._ended.wait(STORE_S):
            with self._lock:
                new, self._new = self._new, {}
            try:
                if new:
                    self._write(_table_of(new))
            except Exception as error:  # noqa: BLE001 - raised by `keep` and `__exit__`
                self._error = error
                return

    def _write(self, table: pa.Table) -> str:
        keys = table["key"].to_pylist()
        digest = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()
        name = f"{self._prefix}{digest[: _HASH_CHARS - len(self._unit)]}.parquet"
        self._store.write(name, to_parquet(table, name))
        self._add(name, keys)
        return name

    def _add(self, name: str, keys: Sequence[str]) -> None:
        with self._lock:
            self._rows.expect_all([keys], len(self._parts))
            self._parts.append(name)
            if self._unit or len(keys) < PACK_FROM:
                self._small[name] = keys

    def _keys_of(self, name: str) -> list[str] | None:
        """Returns the keys of a part; None if the object vanished."""
        try:
            keys: list[str] = read_parquet(self._store, name, ["key"])["key"].to_pylist()
            return keys
        except StorageError:
            if self._store.exists(name):
                raise
            return None

    def _rows_of(self, number: int) -> Iterator[tuple[str, bytes]]:
        table = read_parquet(self._store, self._parts[number], REPLY_SCHEMA.names)
        return ((row["key"], orjson.dumps(row)) for row in table.to_pylist())


def _table_of(replies: Mapping[str, Reply]) -> pa.Table:
    return pa.Table.from_pylist([_row(*pair) for pair in replies.items()], schema=REPLY_SCHEMA)


def _row(key: str, reply: Reply) -> dict[str, object]:
    return {"key": key, **{name: getattr(reply, name) for name in REPLY_SCHEMA.names[1:]}}


def _reply(row: Mapping[str, Any]) -> Reply:
    values = {name: value for name, value in row.items() if name not in ("key", "failure")}
    return Reply(failure=Unanswered(row["failure"]) if row["failure"] else None, **values)
