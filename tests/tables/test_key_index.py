"""Keys of stored parts, in a few bytes each."""

from pathlib import Path

import pyarrow as pa

from curator.storage import open_store
from curator.tables.key_index import KnownKeys
from curator.tables.parts import Parts


def test_keys_are_found_in_the_part_that_has_them() -> None:
    known = KnownKeys({"a": ["1", "2"], "b": [], "c": ["ü\t3", "2"]})
    assert len(known) == 4
    assert known.find(["ü\t3", "nothing", "1", "2"]) == ["c", None, "a", "a"]
    assert known.find([]) == []
    assert KnownKeys({}).find(["1"]) == [None]


def test_keys_come_from_the_footers_of_parts(tmp_path: Path) -> None:
    parts = Parts(open_store(str(tmp_path)), "scan", "stamp")
    rows = pa.table({"n": [1]})
    first, second = parts.write(rows, ["x", "y"]), parts.write(rows, ["z"])
    assert KnownKeys.of(parts).find(["z", "y", "w"]) == [second, first, None]
    assert len(KnownKeys.of(Parts(parts.store, "scan", "another"))) == 0
