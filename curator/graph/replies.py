"""What models answered, stored by the key of the request: no finished request is made twice.

A reply is an object of its own from the moment it is there; many of them become one part now and
then, and when a run ends. Both are found by the next run, whatever became of this one.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import orjson
import pyarrow as pa

from curator.captions.config import CaptionConfig
from curator.captions.prompts import load_prompt
from curator.captions.records import Reply, Unanswered
from curator.errors import StorageError
from curator.lake import fingerprint, read_parquet, to_parquet
from curator.storage import Store

REPLIES = "replies"
PACK_FROM = 512
"""Loose replies that become a part: more would make the next start slow, fewer many parts."""
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
"""A row per request that was answered, or refused for good."""


def replies_stamp(config: CaptionConfig) -> str:
    """Names the replies that a run may use: those of its models and prompts."""
    asked = [config, *filter(None, [config.judge])]
    named = [(one.name, load_prompt(one.prompt).fingerprint) for one in asked]
    return fingerprint("replies", named)


class Replies(Mapping[str, Reply]):
    """Replies of one model and prompt.

    Args:
        store: Output root.
        stamp: Names whose they are; a run reads no others.
        packs: Whether this process makes parts of loose replies; one of all does.
    """

    def __init__(self, store: Store, stamp: str, *, packs: bool = True) -> None:
        self.store = store
        self._packs = packs
        self._stamp = stamp
        self._known: dict[str, Reply] = {}
        self._loose: dict[str, str] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Reply:
        """The reply to a request."""
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        """Keys of requests."""
        return iter(self._known)

    def __len__(self) -> int:
        """Replies that are known."""
        return len(self._known)

    def load(self) -> None:
        """Reads what is stored.

        Raises:
            StorageError: An object is not what was written.
        """
        read: set[str] = set()
        with ThreadPoolExecutor(_READERS) as pool:
            while True:
                names = [info.key for info in self.store.list(f"{REPLIES}/{self._stamp}-")]
                new = [name for name in names if name not in read]
                found = list(pool.map(self._read, new))
                for name, rows in zip(new, found, strict=True):
                    for key, reply in rows or ():
                        self._known[key] = reply
                        if not name.endswith(_PART):
                            self._loose[key] = name
                read |= {name for name, rows in zip(new, found, strict=True) if rows is not None}
                # What went meanwhile was made part of another, which the next listing has.
                if None not in found:
                    return

    def _read(self, name: str) -> list[tuple[str, Reply]] | None:
        """Replies of an object; None if it is gone since it was listed."""
        try:
            if name.endswith(_PART):
                rows = read_parquet(self.store, name).to_pylist()
            else:
                rows = [orjson.loads(self.store.read(name))]
            return [(row.pop("key"), _reply(row)) for row in rows]
        except StorageError:
            if self.store.exists(name):
                raise
            return None
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{self.store.uri}/{name} is no stored reply ({error}); delete it, its "
                "requests are made again"
            ) from error

    def keep(self, key: str, reply: Reply) -> None:
        """Stores a reply: when this returns, no later run makes its request again.

        Args:
            key: Of its request.
            reply: One that is final.
        """
        name = f"{REPLIES}/{self._stamp}-{key}.json"
        self.store.write(name, orjson.dumps({"key": key, **_row(reply)}))
        self._note(key, reply, name)

    def add(self, key: str, reply: Reply) -> None:
        """Knows a reply in this run, without storing it."""
        self._known[key] = reply

    def added_elsewhere(self, key: str, reply: Reply) -> None:
        """Knows a reply that another process has stored as `keep` does."""
        self._note(key, reply, f"{REPLIES}/{self._stamp}-{key}.json")

    def pack(self) -> None:
        """Makes one part of all loose replies."""
        with self._lock:
            packed = self._take_loose()
        self._pack(packed)

    def _note(self, key: str, reply: Reply, name: str) -> None:
        with self._lock:
            self.add(key, reply)
            self._loose[key] = name
            is_much = self._packs and len(self._loose) >= PACK_FROM
            packed = self._take_loose() if is_much else {}
        self._pack(packed)

    def _take_loose(self) -> dict[str, str]:
        taken, self._loose = self._loose, {}
        return taken

    def _pack(self, loose: Mapping[str, str]) -> None:
        if not loose:
            return
        rows = [{"key": key, **_row(self._known[key])} for key in sorted(loose)]
        named = hashlib.sha256("\n".join(sorted(loose)).encode()).hexdigest()[:16]
        table = pa.Table.from_pylist(rows, schema=REPLY_SCHEMA)
        # The part before its pieces go: a run that ends between the two finds them twice.
        self.store.write(f"{REPLIES}/{self._stamp}-{named}.parquet", to_parquet(table))
        self.store.delete(list(loose.values()))


def _row(reply: Reply) -> dict[str, object]:
    return {name: getattr(reply, name) for name in REPLY_SCHEMA.names if name != "key"}


def _reply(row: dict[str, object]) -> Reply:
    failure = row.pop("failure")
    return Reply(failure=None if failure is None else Unanswered(str(failure)), **row)  # type: ignore[arg-type]
