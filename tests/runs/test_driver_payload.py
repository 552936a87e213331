"""Workers store payload, such as pictures: the driver gets names, places and numbers."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from place import SHORT, Place, write_films

from curator.executor.engine import Engine
from curator.storage import Store
from curator.tables.fenced_store import Digest

LONGEST = 4096
"""Bytes of the longest value that is no payload, such as the pickled form of a declaration."""


def payload_in(value: object, path: str = "") -> Iterator[str]:
    """Yields the places of binary columns and long bytes in a result of a unit."""
    if isinstance(value, pa.Table):
        for field in value.schema:
            kind = field.type
            while pa.types.is_list(kind) or pa.types.is_large_list(kind):
                kind = kind.value_type
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                yield f"{path}.{field.name}"
    elif isinstance(value, bytes | bytearray | memoryview):
        if len(value) > LONGEST:
            yield path
    elif dataclasses.is_dataclass(value):
        for named in dataclasses.fields(value):
            yield from payload_in(getattr(value, named.name), f"{path}.{named.name}")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from payload_in(inner, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from payload_in(inner, f"{path}[]")


def test_results_of_units_have_no_binary_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins all results of a whole run, and that its commit does not read payload for its hash."""
    assert list(payload_in({"a": [pa.table({"b": pa.array([[b"c"]])})]})) == ["['a'][].b"]
    found, kinds, run = list[str](), set[str](), Engine.run

    def watched(self: Engine, *arguments: Any, **settings: Any) -> Iterator[Any]:  # noqa: ANN401
        for result in run(self, *arguments, **settings):
            found.extend(payload_in(result))
            kinds.add(type(getattr(result, "results", result)).__name__)
            yield result

    hashed, of_object = list[str](), Digest.of_object

    def noted(store: Store, name: str) -> Digest:
        hashed.append(name)
        return of_object(store, name)

    monkeypatch.setattr(Engine, "run", watched)
    monkeypatch.setattr(Digest, "of_object", noted)
    place = Place(write_films(tmp_path / "in", (60, 50)), tmp_path / "out")
    place.run(*SHORT, "dedup.enabled=true")
    assert place.clips()
    assert "ProposedUnit" in kinds
    assert found == []
    pictures = list((tmp_path / "out/candidates/pictures").iterdir())
    objects = json.loads((tmp_path / "out/snapshots/00000001.json").read_text())["objects"]
    for path in pictures:
        name = f"candidates/pictures/{path.name}"
        assert objects[name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert pictures
    assert not [name for name in hashed if name.startswith("candidates/")]
