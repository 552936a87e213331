"""A tar without some samples is the one that a run would write of the others."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest

from curator.dataset.sample import Sample
from curator.dataset.shard_plan import ShardPlan, plan_shard, write_shard
from curator.errors import ShardError
from curator.family import Array, Family, FamilyVersion, Scope
from curator.models.text_encoder import text_hash
from curator.storage import Store, open_store
from curator.tables.clip_locations import Location
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.sample_members import StoredMember
from curator.tools.removal.tar_rewriting import TarRewriting, TarToRewrite, Values

FAMILY = Family("vectors", Scope.CLIP, Array("f16", (3, "d")), member="text.npy")
VERSION = FamilyVersion(FAMILY, "5" * 16)


def vector_of(caption: str) -> bytes:
    output = io.BytesIO()
    np.lib.format.write_array(output, np.full((3, len(caption)), 0.5, np.float16))
    return output.getvalue()


def sample(number: int, *, rich: bool) -> Sample:
    mp4, caption = bytes([number]) * (700 + number), f"caption {number}"
    sha256 = hashlib.sha256(mp4).hexdigest()
    facts = {"n_frames": 10 + number, "duration": 0.1 * number, "mp4_sha256": sha256}
    npy = vector_of(caption)
    return Sample(
        key=f"{number:024x}",
        metadata={
            **facts, "width": 64, "height": 36, "fps": 30.0, "clip_id": f"{number:024x}",
            "source_id": f"{number % 2:032x}", "medium": "video",
        },
        caption=caption,
        mp4_bytes=len(mp4),
        mp4_sha256=sha256,
        location=Location(name="", offset=0, n_bytes=len(mp4)),
        split="val",
        embedding=np.linspace(0, number, 8, dtype=np.float32) if rich else None,
        stored=[
            StoredMember(
                version=VERSION, key=text_hash(caption),
                where=Location(name=caption, row=0, n_bytes=len(npy), column="npy"),
            )
        ] if rich else [],
        has_id=rich,
    )  # fmt: skip


def tar_bytes(plan: ShardPlan) -> bytes:
    output = io.BytesIO()

    def mp4(one: Sample) -> bytes:
        number = int(one.key, 16)
        return bytes([number]) * (700 + number)

    write_shard(plan, output.write, mp4, lambda member: vector_of(member.where.name))
    return output.getvalue()


def stored(store: Store, *, rich: bool) -> ShardPlan:
    plan = plan_shard("36p_16-9_4f", "val", 7, [sample(n, rich=rich) for n in (5, 1, 4, 2)])
    store.write(plan.name, tar_bytes(plan))
    return plan


def alone(name: str, values: Values | None = None) -> TarToRewrite:
    """A tar without others beside it."""
    return TarToRewrite(name=name, sides=(), values=values or {}, side_members={})


@pytest.mark.parametrize("rich", [True, False])
def test_the_bytes_and_the_name_are_those_of_a_run(rich: bool, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    plan = stored(store, rich=rich)
    expected = plan_shard("36p_16-9_4f", "val", 7, [plan.samples[n] for n in (0, 2, 3)])
    removals = Removals(clip_ids=frozenset({removal_hash(plan.samples[1].key)}), n_records=1)
    values = {(s.key, m.suffix): (m.version, m.key) for s in plan.samples for m in s.stored}
    for _ in range(2):
        new = TarRewriting(store, removals).rewrite(alone(plan.name, values))
        assert new is not None
        assert f"shards/{new.described.name}" == expected.name
        assert store.read(expected.name) == tar_bytes(expected)
        assert new.rows["offset"].to_pylist() == list(expected.layout.mp4_starts)
        assert new.described.samples == 3
        assert new.described.members["with_id"] is rich
        assert set(new.summary["versions"]) == {
            info.key for info in store.list(expected.name.removesuffix(".tar"))
        }


def test_a_tar_with_nothing_left_goes(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    plan = stored(store, rich=False)
    sources = {removal_hash(f"{number:032x}"): "" for number in (0, 1)}
    rewriting = TarRewriting(store, Removals(sources=sources, n_records=1))
    assert rewriting.rewrite(alone(plan.name)) is None
    assert [info.key for info in store.list("shards/")] == [plan.name]


def test_a_damaged_tar_is_an_error(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    plan = stored(store, rich=False)
    store.write(plan.name, store.read(plan.name)[:-2000])
    removals = Removals(clip_ids=frozenset({removal_hash(plan.samples[1].key)}), n_records=1)
    with pytest.raises(ShardError, match="truncated"):
        TarRewriting(store, removals).rewrite(alone(plan.name))
