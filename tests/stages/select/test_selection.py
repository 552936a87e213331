"""Balanced selection: shares and caps of groups, the same whatever the order."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from filtered_clips import run_stage
from pydantic import ValidationError

from curator.stages.select.config import SelectConfig
from curator.stages.select.stage import Selected, SelectStage, groups_of, select
from curator.tables.clip_rows import ClipRow, ClipRows
from tests.made_clips import clip_rows


def clips(n: int, **columns: Any) -> ClipRows:  # noqa: ANN401
    return clip_rows(
        {"clip_id": f"clip{number}", "decision": "kept", "reasons": [], "bucket": "wide"}
        | {name: values[number % len(values)] for name, values in columns.items()}
        for number in range(n)
    )


def taken(rows: Sequence[ClipRow], **config: Any) -> set[str]:  # noqa: ANN401
    ids, chosen = chosen_of(rows, SelectConfig.model_validate(config))
    return {name for name, is_taken in zip(ids, chosen.is_taken, strict=True) if is_taken}


def chosen_of(rows: Sequence[ClipRow], config: SelectConfig) -> tuple[list[str], Selected]:
    ids = [row.clip_id for row in rows]
    columns = [pa.chunked_array([[row.value(name) for row in rows]]) for name in config.by]
    return ids, select(pa.array(ids), columns, config)


def test_a_cap_holds_for_each_group_and_shares_for_single_ones() -> None:
    # Pins so many of each group, all where there are fewer.
    rows = clips(20, bucket=["wide"] * 9 + ["tall"])
    names = taken(rows, by=["bucket"], max_per_group=3)
    groups = [row.bucket for row in rows if row.clip_id in names]
    assert sorted(groups) == ["tall", "tall", "wide", "wide", "wide"]
    # Pins down-sampling per category, by one column and by two.
    rows = clips(40, tags=[["b", "a"], ["a", "b"], []])
    names = taken(rows, by=["bucket"], keep_fractions={"wide": 0.25})
    assert len(names) == 10
    config = SelectConfig(by=("bucket", "tags"), keep_fractions={"wide | a+b": 0})
    _, chosen = chosen_of(rows, config)
    assert set(chosen.names) == {"wide | a+b", "wide | none"}
    left = [row for row, one in zip(rows, chosen.is_taken, strict=True) if one]
    assert {tuple(row.tags) for row in left} == {()}
    # Pins that a missing value and its name are one, and the sign between columns too.
    columns = [["a | b", "a", None, "none"], ["c", "b | c", "d", "d"]]
    names, group = groups_of([pa.chunked_array([values]) for values in columns], 4)
    assert [names[number] for number in group] == ["a | b | c"] * 2 + ["none | d"] * 2
    # Pins that a section which only names columns selects nothing.
    rows = clips(5)
    run_stage(SelectStage(SelectConfig(by=("bucket",))), rows)
    assert {row.decision for row in rows} == {"kept"}


@pytest.mark.parametrize(("share", "n"), [(0.0, 0), (0.1, 10), (0.29, 29), (0.5, 50), (1.0, 100)])
def test_a_share_is_exact_and_rounded_up(share: float, n: int) -> None:
    """Pins the count: 0.29 of 100 is 29, although the float is a little less."""
    assert len(taken(clips(100), keep_fraction=share)) == n
    assert len(taken(clips(3), keep_fraction=0.1)) == 1


def test_what_is_taken_of_the_survivors_depends_on_seed_and_ids_alone() -> None:
    """Pins the choice against shuffling, that a seed makes another one and a larger cap more."""
    rows = clips(200)
    first = taken(rows, max_per_group=40)
    mixed = list(rows)
    random.Random(5).shuffle(mixed)
    assert taken(mixed, max_per_group=40) == first
    assert first < taken(rows, max_per_group=60)
    assert len(first & taken(rows, max_per_group=40, seed=1)) < 25
    assert sorted(first)[:3] == ["clip1", "clip10", "clip101"]
    # Pins the columns of a clip that is left out, and that rejected ones take no place.
    rows = clips(6)
    rows[0].decision, rows[0].reason, rows[0].reasons = "rejected", "too_dark", ["too_dark"]
    run_stage(SelectStage(SelectConfig(by=("bucket",), max_per_group=2)), rows)
    out = [row for row in rows[1:] if row.decision == "rejected"]
    assert rows[0].reasons == ["too_dark"]
    assert len(out) == 3
    assert sorted(row.reason_score for row in out) == [3.0, 4.0, 5.0]
    for row in out:
        assert (row.reason, row.reasons) == ("not_selected", ["not_selected"])
        assert row.reason_threshold == 2.0
        assert row.reason_detail.startswith("group wide: 2 of 5 taken, this is no. ")
    # Pins that a rejected clip says the cap that would have kept it.
    stage = SelectStage(SelectConfig(max_per_group=3))
    rows = clips(3)
    left = run_stage(stage, rows, earlier={"taken": {"": 2}})
    lost = sorted(row.reason_score for row in rows if row.decision == "rejected")
    assert lost == [4, 5]
    assert {row.reason_threshold for row in rows if row.decision == "rejected"} == {3}
    details = [str(row.reason_detail) for row in rows if row.decision == "rejected"]
    assert all("1 of 3 taken" in d and "after 2 of earlier generations" in d for d in details)
    assert left == {"taken": {"": 3}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"by": ["buckt"]}, "unknown column of clips 'buckt'; did you mean 'bucket'"),
        ({"by": ["shard"]}, "unknown column of clips 'shard'"),
        ({"max_per_group": 0}, "greater than or equal to 1"),
        ({"keep_fraction": 1.5}, "less than or equal to 1"),
        ({"by": "bucket", "keep_fractions": {"a": 2}}, "'a' is 2.0; expected 0 to 1"),
        ({"keep_fractions": {"a": 1}}, "names no column"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(config: dict[str, Any], message: str) -> None:
    """Pins the words for columns that do not exist or come later, and for wrong numbers."""
    with pytest.raises(ValidationError, match=message):
        SelectConfig.model_validate(config)
