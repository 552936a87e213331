"""Pins that the comparison of two versions' results sees what differs, and only that."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1] / "benchmarks")])
    return importlib.import_module("house")


def facts(house: Any, **columns: list[Any]) -> Any:  # noqa: ANN401
    return {"clips": house.rows(pa.table({"clip_id": ["a", "b"]} | columns), ("clip_id",))}


def test_a_changed_score_is_named_with_both_values(house: Any) -> None:  # noqa: ANN401
    result = house.compare(facts(house, motion=[1.0, 2.0]), facts(house, motion=[1.0, 2.5]))
    assert result["differences"] == ["clips.motion: 1 of 2 differ, first b: 2.0 -> 2.5"]
    assert result["compared"] == {"clips": {"rows": 2, "values": 4}}


def test_what_is_meant_to_differ_is_no_difference(house: Any) -> None:  # noqa: ANN401
    """Pins hashes in names of tars, and added columns."""
    base = facts(house, shard=["0-01234567.tar"] * 2)
    new = facts(house, shard=["0-89abcdef.tar"] * 2, more=[1, 2])
    result = house.compare(base, new)
    assert result["differences"] == []
    assert result["added"] == {"clips": ["more"]}


@pytest.mark.parametrize(
    ("ids", "said"),
    [(["a", "c"], "1 lost ['b'], 1 gained ['c']"), (["b", "a"], "in another order, from a")],
)
def test_other_rows_and_another_order_are_seen(house: Any, ids: list[str], said: str) -> None:  # noqa: ANN401
    (found,) = house.compare(facts(house), facts(house, clip_id=ids))["differences"]
    assert said in found


def test_a_missing_column_is_a_difference(house: Any) -> None:  # noqa: ANN401
    (found,) = house.compare(facts(house, tags=[["x"], []]), facts(house))["differences"]
    assert found == "clips.tags: 2 of 2 differ, first a: ['x'] -> 'missing'"
