"""Objects that no run can make again: marks, learned scores, and footage of removals.

    marks/<random>.parquet                       an object
    copies/marks/<random>.parquet                the same bytes
    copies/marks/<random>.parquet.receipt.json   SHA-256, number of entries, and time of the object

A write writes the copy first, then the receipt, then the object. So a kill leaves a valid object or
a valid copy. The receipt also names the hashes of earlier contents: an object with one of these is
older than its copy, and an object with other valid contents is newer, such as after a backup of
`copies/`. A receipt proves that an object existed, so a lost object is noticed even if its copy is
lost too.

Commands that write call `repair_lasting` first. It restores a damaged or missing object from its
copy, and a missing copy from the object.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from curator.errors import DamagedError, UsageError
from curator.number_text import amount
from curator.storage import Store
from curator.tables.checksums import read_sealed
from curator.tables.json_objects import find_json, sealed_json, to_json
from curator.tables.out_layout import COPIES, LEARNED, MARKS, copy_name, is_own

logger = logging.getLogger(__name__)

LISTED = (MARKS, LEARNED)
"""Folders whose objects are all kept. Records of removals name the footage that is kept."""
_RECEIPT = ".receipt.json"
_READERS = 8
_MAX_EARLIER = 1000
"""Most hashes of earlier contents in a receipt."""
_FIELDS = frozenset({"sha256", "entries", "written"})
_WHAT = {MARKS: "mark", LEARNED: "curve"}
"""Entries of the objects of a folder. Footage has an entry per removed clip."""


def receipt_name(name: str) -> str:
    """Returns the name of an object's receipt."""
    return f"{COPIES}/{name}{_RECEIPT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingObject:
    """An object, its copy and its receipt, as they are stored.

    Attributes:
        name: Name of the object.
        data: Valid bytes of the object or of its copy, the newer ones if they differ; None if both
            are lost.
        fault: What is wrong with the object itself; empty if nothing is.
        receipt: Contents of the receipt; None if it is missing or damaged.
        stale: Names of the object, copy and receipt that must be written again.
    """

    name: str
    data: bytes | None
    fault: str
    receipt: dict[str, Any] | None
    stale: tuple[str, ...]

    @classmethod
    def read(cls, store: Store, name: str) -> "LastingObject":
        """Reads an object and, if needed, its copy."""
        receipt = _find_receipt(store, name)
        sha256 = receipt["sha256"] if receipt is not None else None
        own, fault = _read(store, name, name, sha256)
        if own is not None and not fault and sha256 in (None, _sha256(own)):
            info = store.find(copy_name(name))
            copy = own if info is not None and store.holds(info, own) else None
        else:
            copy, copy_fault = _read(store, copy_name(name), name, sha256)
            if own is None or own != copy:
                # Equal bytes prove each other: a killed writer may have written only the receipt.
                own = None if fault else own
                copy = None if copy_fault else copy
            else:
                fault = ""
        valid = [data for data in (own, copy) if data is not None]
        newest = [data for data in valid if _sha256(data) == sha256]
        if receipt is not None and own is not None and not _is_earlier(own, receipt):
            newest = [own]
        data = next(iter([*newest, *valid]), None)
        if own is not None and own != data:
            fault = "is older than its copy"
        stale = [] if own == data else [name]
        stale += [] if copy == data else [copy_name(name)]
        is_proved = receipt is not None and (data is None or _sha256(data) == sha256)
        stale += [] if is_proved else [receipt_name(name)]
        return cls(name=name, data=data, fault=fault, receipt=receipt, stale=tuple(stale))

    def loss(self, uri: str) -> str:
        """Returns what is lost, without a remedy."""
        what = _WHAT.get(self.name.split("/")[0], "removed clip")
        size = f"an unknown number of {what}s"
        if self.receipt is not None:
            size = f"{amount(self.receipt['entries'], what)} of {self.receipt['written']}"
        return (
            f"{uri}/{self.name} {self.fault}, and {copy_name(self.name)} is no valid copy of it; "
            f"lost: {size}"
        )


def lasting_names(store: Store, folders: Iterable[str] = LISTED) -> list[str]:
    """Returns the names of all objects in some folders, also of lost ones."""
    names = set()
    for folder in folders:
        for prefix in ("", f"{COPIES}/"):
            for info in store.list(f"{prefix}{folder}/"):
                name = info.key.removeprefix(prefix)
                names.add(name.removesuffix(_RECEIPT) if prefix else name)
    return sorted(filter(is_own, names))


def write_lasting(store: Store, name: str, data: bytes, *, entries: int) -> None:
    """Writes an object with its copy and receipt; `entries` says how much a loss would lose."""
    before, sha256 = _find_receipt(store, name) or {}, _sha256(data)
    earlier = [*before.get("earlier", ()), *([before["sha256"]] if before else [])]
    receipt = {
        "sha256": sha256,
        "earlier": [hashed for hashed in earlier if hashed != sha256][-_MAX_EARLIER:],
        "entries": entries,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    store.write(copy_name(name), data)
    store.write(receipt_name(name), sealed_json(receipt, to_json, receipt_name(name)))
    store.write(name, data)


def read_lasting(store: Store, name: str) -> bytes:
    """Reads an object, or its copy if the object is damaged; writes nothing.

    Raises `UsageError`, with a remedy, if both are lost.
    """
    stored = LastingObject.read(store, name)
    if stored.data is None:
        raise UsageError(f"{stored.loss(store.uri)}; {loss_remedy(store.uri, name)}")
    if stored.fault:
        logger.warning("%s/%s %s; its copy is read", store.uri, name, stored.fault)
    return stored.data


def lasting_objects(store: Store, names: Iterable[str]) -> Iterator[LastingObject]:
    """Reads objects in threads: each needs several requests to a bucket."""
    with ThreadPoolExecutor(_READERS) as pool:
        yield from pool.map(partial(LastingObject.read, store), names)


def lost_objects(store: Store, names: Iterable[str]) -> list[LastingObject]:
    """Returns the objects that are lost with their copies."""
    return [stored for stored in lasting_objects(store, names) if stored.data is None]


def repair_lasting(store: Store, names: Collection[str] | None = None) -> None:
    """Restores objects from their copies, and copies from their objects; None for all listed.

    Raises `UsageError`, with a remedy, if an object is lost with its copy. The function checks all
    objects before it writes any.
    """
    names = lasting_names(store) if names is None else names
    broken = []
    for stored in lasting_objects(store, names):
        if stored.data is None:
            raise UsageError(
                f"{stored.loss(store.uri)}; {loss_remedy(store.uri, stored.name)}; this command "
                "changed nothing"
            )
        if stored.stale:
            broken.append(stored.name)
    for name in broken:
        stored = LastingObject.read(store, name)
        if stored.data is not None:
            _restore(store, stored, stored.data)


def _restore(store: Store, stored: LastingObject, data: bytes) -> None:
    name = stored.name
    if stored.fault:
        logger.warning("%s/%s %s; its copy replaces it", store.uri, name, stored.fault)
    elif copy_name(name) in stored.stale:
        logger.warning(
            "%s/%s is damaged or missing; it is written again", store.uri, copy_name(name)
        )
    if receipt_name(name) in stored.stale:
        # The receipt is lost or older.
        write_lasting(store, name, data, entries=_entries(data, name))
        return
    for key in stored.stale:
        store.write(key, data)


def give_up_lasting(store: Store) -> list[str]:
    """Forgets listed objects that are lost with their copies; returns what each loss is."""
    lost = lost_objects(store, lasting_names(store))
    for stored in lost:
        # The receipt goes last: until then, the loss stays known.
        for key in (stored.name, copy_name(stored.name), receipt_name(stored.name)):
            store.delete([key])
    return [f"{stored.loss(store.uri)}, and given up" for stored in lost]


def loss_remedy(out: str, name: str) -> str:
    """Returns the remedy for an object that is lost with its copy."""
    words = "restore the object or its copy from a backup of OUT"
    if name.startswith(f"{LEARNED}/"):
        words += f", learn it again with `curate learn {out}`"
    if name.split("/")[0] in LISTED:
        return f"{words}, or accept the loss with `curate mark {out} --give-up-lost`"
    return (
        f"{words}, or give it up with `curate remove {out} --give-up-lost`: edited copies of this "
        "footage are then no longer recognised"
    )


def _find_receipt(store: Store, name: str) -> dict[str, Any] | None:
    """Returns the receipt of an object; None if it is missing or damaged."""
    try:
        receipt = find_json(store, receipt_name(name))
    except DamagedError:
        return None
    return receipt if receipt is not None and receipt.keys() >= _FIELDS else None


def _is_earlier(data: bytes, receipt: dict[str, Any]) -> bool:
    """Returns whether a receipt is of these contents, or of later ones."""
    return _sha256(data) in (receipt["sha256"], *receipt.get("earlier", ()))


def _read(store: Store, key: str, name: str, sha256: str | None) -> tuple[bytes | None, str]:
    """Reads the object `name` or its copy, stored as `key`; returns its bytes, and its fault.

    Bytes without a checksum may be of another program: a receipt decides.
    """
    try:
        data, is_sealed = read_sealed(store, key, name)
    except DamagedError as error:
        is_missing = error.why == "it is missing"
        return None, "is missing" if is_missing else f"is damaged ({error.why})"
    is_known = is_sealed or sha256 in (None, _sha256(data))
    return data, "" if is_known else "is damaged (its bytes are not those that were written)"


def _entries(data: bytes, name: str) -> int:
    if not name.endswith(".parquet"):
        return 1
    import pyarrow as pa
    import pyarrow.parquet as pq

    return int(pq.read_metadata(pa.BufferReader(data)).num_rows)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
