"""Buckets, plans and bytes of shards."""

import hashlib
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from curator.buckets import Bucket, aspect_loss, bucket_of
from curator.dataset import shard_plan
from curator.dataset.sample import Sample
from curator.dataset.shard_plan import ShardPlan, plan_shards, write_shard
from curator.dataset.tar_reader import Split
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.split_groups import drawn_split
from curator.tables.clip_locations import Location
from curator.tables.spill_file import Spill

CONFIG = ShardConfig()
WIDE = Bucket(resolution=720, aspect="16,9", min_frames=121)
PLAIN = ("json", "mp4", "txt")
CAPTIONS = ("A shot.", 'Größe: 日本語, 🎬, "quoted"\n', "")


@pytest.mark.parametrize(
    ("width", "height", "n_frames", "name"),
    [
        (1280, 720, 121, "720p_16-9_121f"),
        (1280, 720, 120, "720p_16-9_93f"),
        (1280, 720, 60, "720p_16-9_49f"),
        (1280, 720, 49, "720p_16-9_49f"),
        (1280, 720, 48, "720p_16-9_33f"),
        (1280, 720, 1000, "720p_16-9_129f"),
        (1280, 720, 17, "720p_16-9_17f"),
        (1280, 720, 18, "720p_16-9_17f"),
        (1280, 718, 18, "480p_16-9_17f"),
        (720, 1280, 18, "720p_9-16_17f"),
        (1440, 1080, 18, "1080p_4-3_17f"),
        (480, 640, 18, "480p_3-4_17f"),
        (500, 500, 18, "480p_1-1_17f"),
        (426, 240, 18, "240p_16-9_17f"),
        (4096, 2160, 18, "2160p_16-9_17f"),
        (2560, 1080, 18, "1080p_16-9_17f"),
        (550, 480, 18, "480p_1-1_17f"),
        (560, 480, 18, "480p_4-3_17f"),
        (1280, 720, 16, None),
        (424, 238, 500, None),
    ],
)
def test_buckets_are_the_largest_class_reached_and_the_nearest_shape(
    width: int, height: int, n_frames: int, name: str | None
) -> None:
    """Pins N frames for class N, shorter sides, nearness by ratio, and classes in any order."""
    bucket = bucket_of(width, height, n_frames, CONFIG)
    assert (bucket.name if bucket is not None else None) == name
    mixed = ShardConfig(resolutions=CONFIG.resolutions[::-1], lengths=CONFIG.lengths[::-1])
    assert bucket_of(width, height, n_frames, mixed) == bucket


@pytest.mark.parametrize(
    ("width", "height", "loss"),
    [(1920, 1080, 0.0), (1998, 1080, 0.039), (1350, 1080, 0.0625), (2580, 1080, 0.256)],
)
def test_shapes_far_from_all_classes_have_no_bucket_where_that_is_asked_for(
    width: int, height: int, loss: float
) -> None:
    """Pins the loss by a crop, and that a clip is put into the nearest class by default."""
    assert aspect_loss(width, height, CONFIG) == pytest.approx(loss, abs=0.001)
    assert bucket_of(width, height, 50, CONFIG) is not None
    strict = ShardConfig(aspects_strict=True, aspects_tolerance=0.05)
    assert (bucket_of(width, height, 50, strict) is None) == (loss > 0.05)


@pytest.mark.parametrize(
    ("content", "name"),
    [("sports", "sports"), ("Video Game/HUD", "video-game-hud"), (None, "unknown"), ("!", "other")],
)
def test_a_content_type_ends_the_name_of_its_bucket(content: str | None, name: str) -> None:
    """Pins that any words make a plain folder name, and that no clip is lost without a type."""
    for config, end in ((ShardConfig(by_content_type=True), f"_{name}"), (CONFIG, "")):
        bucket = bucket_of(1280, 720, 60, config, content_type=content)
        assert bucket is not None
        assert bucket.name == f"720p_16-9_49f{end}"


def test_sources_are_split_by_their_hash() -> None:
    """Pins the share, that a seed changes it, and that one source's split needs no other's."""
    sources = [hashlib.sha256(str(n).encode()).hexdigest()[:32] for n in range(4000)]
    config = ShardConfig(val_share=0.1)
    val = {source for source in sources if drawn_split(source, config) == "val"}
    assert 0.08 < len(val) / len(sources) < 0.12
    other = {s for s in sources if drawn_split(s, ShardConfig(val_share=0.1, seed=1)) == "val"}
    assert 0.05 < len(val & other) / len(val) < 0.2
    wider = {s for s in sources if drawn_split(s, ShardConfig(val_share=0.2)) == "val"}
    assert val < wider
    assert {drawn_split(s, ShardConfig(val_share=0.0)) for s in sources} == {"train"}
    assert {drawn_split(s, ShardConfig(val_share=1.0)) for s in sources} == {"val"}


@pytest.mark.parametrize("aspect", ["16:9", "16", "0,9", "a,b", "-1,2"])
def test_shapes_that_are_no_two_numbers_are_refused(aspect: str) -> None:
    """Pins the message for a misspelt shape."""
    with pytest.raises(ValidationError, match="expected two whole numbers such as '16,9'"):
        ShardConfig(aspects=(aspect,))


def mp4_of(key: str) -> bytes:
    """Stands for an encoded clip: other bytes and another size for each key."""
    return key.encode() * (100 + int(key, 16) % 97)


def sample(
    number: int,
    *,
    caption: str | None = None,
    split: Split = "train",
    sha256: str | None = None,
    embedding: NDArray[np.float32] | None = None,
    has_id: bool = False,
    spill: Spill | None = None,
    **metadata: object,
) -> Sample:
    key = f"{number:024x}"
    return Sample(
        key=key, metadata={"clip_id": key, "medium": "video", "fps": 30.0, **metadata},
        caption=CAPTIONS[number % 3] if caption is None else caption, mp4_bytes=len(mp4_of(key)),
        mp4_sha256=sha256 or f"{number:064x}",
        location=Location(name="cuts/part.parquet", row=number), split=split, embedding=embedding,
        has_id=has_id, spill=spill,
    )  # fmt: skip


def plan_of(n: int) -> ShardPlan:
    (plan,) = plan_shards([(WIDE, sample(i)) for i in range(n)], CONFIG)
    return plan


def written(plan: ShardPlan) -> bytes:
    output = io.BytesIO()
    write_shard(plan, output.write, lambda s: mp4_of(s.key))
    return output.getvalue()


def test_plans_depend_on_what_is_inside_and_not_on_its_order() -> None:
    """Pins deterministic names and contents for any order of arrival."""
    tall = Bucket(resolution=480, aspect="9,16", min_frames=17)
    samples = [(WIDE if i % 3 else tall, sample(i)) for i in range(40)]
    config = ShardConfig(max_bytes=1 << 16)
    plans = plan_shards(samples, config)
    assert plans == plan_shards(samples[::-1], config)
    assert len(plans) > 2
    assert [plan.name for plan in plans] == sorted(plan.name for plan in plans)
    assert {plan.bucket for plan in plans} == {WIDE.name, tall.name}
    assert all(plan.name.startswith(f"shards/{plan.bucket}/train-00000") for plan in plans)
    keys = [s.key for plan in plans for s in plan.samples]
    assert sorted(keys) == sorted(s.key for _, s in samples)
    for bucket in (WIDE.name, tall.name):
        order = [s.key for plan in plans if plan.bucket == bucket for s in plan.samples]
        assert order != sorted(order)
        other = plan_shards(samples, ShardConfig(max_bytes=1 << 16, seed=1))
        assert order != [s.key for plan in other if plan.bucket == bucket for s in plan.samples]
    # Another caption, clip or score makes another name, and nothing else does.
    base = [(WIDE, sample(i)) for i in range(3)]
    name = plan_shards(base, CONFIG)[0].name
    assert name == plan_shards(list(base), CONFIG)[0].name
    for other in (sample(1, caption="Other."), sample(1, luma=0.5), sample(9)):
        assert plan_shards([base[0], (WIDE, other), base[2]], CONFIG)[0].name != name
    # The split is in the name, and that tars are numbered within it.
    samples = [(WIDE, sample(i, split="val" if i % 4 == 0 else "train")) for i in range(40)]
    plans = plan_shards(samples, ShardConfig(max_bytes=1 << 16))
    assert {plan.split for plan in plans} == {"train", "val"}
    for plan in plans:
        assert {s.split for s in plan.samples} == {plan.split}
    for split in ("train", "val"):
        numbers = [p.name.split("-")[-2] for p in plans if p.split == split]
        assert numbers == [f"{n:06d}" for n in range(len(numbers))]


def test_tars_are_filled_up_to_their_limit_and_not_below_the_floor() -> None:
    """Pins both for every tar, that a small rest is joined with the tar before, and no loss."""
    config = ShardConfig(max_bytes=1 << 16)
    plans = plan_shards([(WIDE, sample(i)) for i in range(60)], config)
    sizes = [len(written(plan)) for plan in plans]
    assert max(sizes[:-1]) <= config.max_bytes
    assert sizes[-1] <= config.max_bytes + config.floor_bytes
    assert min(sizes[:-1]) > config.max_bytes - 20_000
    config = ShardConfig(max_bytes=1 << 16, min_bytes=40_000)
    for n in range(8, 28):
        plans = plan_shards([(WIDE, sample(i)) for i in range(n)], config)
        assert sum(len(plan.samples) for plan in plans) == n
        sizes = [plan.layout.n_bytes for plan in plans]
        assert len(sizes) == 1 or min(sizes) >= config.floor_bytes
        assert max(sizes) < config.max_bytes + config.floor_bytes
    # A clip that is larger has a tar of its own; no empty tar is planned, on which Energon fails.
    large = sample(9)
    large.mp4_bytes = 1 << 20
    config = ShardConfig(max_bytes=1 << 16, min_bytes=0)
    plans = plan_shards([(WIDE, large), (WIDE, sample(1))], config)
    assert [len(plan.samples) for plan in plans] == [1, 1]
    assert plan_shards([], CONFIG) == []
    # The message, and that the floor follows the limit by default.
    with pytest.raises(ValidationError, match="min_bytes 70000 is more than max_bytes 65536"):
        ShardConfig(max_bytes=65536, min_bytes=70000)
    assert ShardConfig(max_bytes=65536).floor_bytes == 16384


SMALL = ShardConfig(max_bytes=1 << 16)


def keys_of(plans: list[ShardPlan]) -> dict[str, set[str]]:
    return {plan.name: {s.key for s in plan.samples} for plan in plans}


def test_tars_that_stand_stay_and_new_samples_go_into_new_ones() -> None:
    """Pins appending: names, contents and numbers."""
    first = plan_shards([(WIDE, sample(i)) for i in range(30)], SMALL)
    reusable = keys_of(first)
    both = plan_shards([(WIDE, sample(i)) for i in range(50)], SMALL, reusable)
    assert {plan.name for plan in first} < {plan.name for plan in both}
    assert [plan for plan in both if plan.name in reusable] == first
    new = [plan for plan in both if plan.name not in reusable]
    assert sorted(s.key for p in new for s in p.samples) == [sample(i).key for i in range(30, 50)]
    assert min(plan.name for plan in new) > max(reusable)
    assert plan_shards([(WIDE, sample(i)) for i in range(50)], SMALL, keys_of(both)) == both
    alone = ShardConfig(max_bytes=1 << 16, append=False)
    again = plan_shards([(WIDE, sample(i)) for i in range(50)], alone, reusable)
    assert again == plan_shards([(WIDE, sample(i)) for i in range(50)], SMALL)


@pytest.mark.parametrize("change", ["gone", "caption", "metadata", "mp4", "split", "bucket", "npy"])
def test_a_tar_with_a_sample_that_changed_does_not_stay(change: str) -> None:
    """Pins that only that tar is given up, and that none of its samples is lost."""
    samples = {i: (WIDE, sample(i)) for i in range(30)}
    first = plan_shards(samples.values(), SMALL)
    changed = int(first[1].samples[0].key, 16)
    bucket, old = samples.pop(changed)
    tall = Bucket(resolution=480, aspect="9,16", min_frames=17)
    replaced = {
        "caption": (bucket, sample(changed, caption="Other.")),
        "metadata": (bucket, sample(changed, luma=0.5)),
        "mp4": (bucket, sample(changed, sha256="f" * 64)),
        "split": (bucket, sample(changed, split="val")),
        "bucket": (tall, old),
        "npy": (bucket, sample(changed, embedding=np.zeros(4, np.float32))),
    }
    if change in replaced:
        samples[changed] = replaced[change]
    plans = plan_shards(samples.values(), SMALL, keys_of(first))
    names = {plan.name for plan in plans}
    assert {plan.name for plan in first} - names == {first[1].name}
    assert sorted(s.key for p in plans for s in p.samples) == sorted(
        s.key for _, s in samples.values()
    )


def test_tars_of_other_names_sizes_and_seeds_do_not_stay() -> None:
    """Pins that tars with names of another form, and those above the limit, are packed anew."""
    samples = [(WIDE, sample(i)) for i in range(30)]
    large = plan_shards(samples, ShardConfig(max_bytes=1 << 20))
    assert plan_shards(samples, SMALL, keys_of(large)) == plan_shards(samples, SMALL)
    other = {"shards/720p_16-9_121f/000000-0a1b2c3d.tar": {s.key for _, s in samples}}
    assert plan_shards(samples, SMALL, other) == plan_shards(samples, SMALL)
    seeded = ShardConfig(max_bytes=1 << 16, seed=3)
    assert plan_shards(samples, seeded, keys_of(plan_shards(samples, SMALL))) == plan_shards(
        samples, seeded
    )


def test_tarfile_webdataset_and_the_layout_find_members_unchanged(tmp_path: Path) -> None:
    """Pins order, contents and headers of the members, which name no user, time or machine."""
    plan = plan_of(5)
    with tarfile.open(fileobj=io.BytesIO(written(plan))) as tar:
        members = tar.getmembers()
        expected = [f"{s.key}.{part}" for s in plan.samples for part in PLAIN]
        assert [member.name for member in members] == expected
        contents = {}
        for member in members:
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
            assert (member.mode, member.isreg()) == (0o644, True)
            stored = tar.extractfile(member)
            assert stored is not None
            contents[member.name] = stored.read()
    for s in plan.samples:
        assert contents[f"{s.key}.mp4"] == mp4_of(s.key)
        assert contents[f"{s.key}.txt"].decode() == s.caption
        assert json.loads(contents[f"{s.key}.json"]) == s.metadata
    # A trainer's loader finds each sample whole, with its key and caption.
    wds = pytest.importorskip("webdataset")
    plan = plan_of(5)
    path = tmp_path / "000000.tar"
    path.write_bytes(written(plan))
    samples = list(wds.WebDataset(str(path), shardshuffle=False).decode())
    assert [s["__key__"] for s in samples] == [s.key for s in plan.samples]
    for read, meant in zip(samples, plan.samples, strict=True):
        assert read["mp4"] == mp4_of(meant.key)
        assert read["txt"] == meant.caption
        assert read["json"] == meant.metadata
    # The offsets in `clips.mp4_offset` and the size, without writing the tar.
    plan = plan_of(7)
    layout = plan.layout
    data = written(plan)
    assert layout.n_bytes == len(data)
    for s, start, offset in zip(plan.samples, layout.offsets, layout.mp4_starts, strict=False):
        assert data[offset : offset + s.mp4_bytes] == mp4_of(s.key)
        assert data[start : start + 512].startswith(f"{s.key}.json\0".encode())
    assert not any(data[layout.offsets[-1] :])


def test_further_members_come_last_and_samples_on_disk_are_the_same_in_another_process() -> None:
    """Pins name, type and place of `npy` and `id`, and that samples without them have none."""
    # `id` is a whole number that `webdataset` decodes and that fits 64 bits. CogVideo's SAT loader
    # looks for a member of this suffix, and then for the line of `.meta.jsonl` whose `key` is the
    # member's name before the dot.
    vector = np.linspace(-1, 1, 7, dtype=np.float32)
    samples = [sample(1, embedding=vector), sample(2, has_id=True), sample(3, has_id=True)]
    (plan,) = plan_shards([(WIDE, one) for one in samples], CONFIG)
    data = written(plan)
    assert plan.layout.n_bytes == len(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        contents = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    for one in samples:
        last = "npy" if one.embedding is not None else "id"
        own = [name for name in contents if name.startswith(one.key)]
        assert own == [f"{one.key}.{suffix}" for suffix in (*PLAIN, last)]
    read = np.load(io.BytesIO(contents[f"{samples[0].key}.npy"]))
    assert (read.dtype, read.tolist()) == (np.float32, vector.tolist())
    values = {int(contents[f"{one.key}.id"]) for one in samples[1:]}
    assert len(values) == 2
    assert all(0 <= value < 2**52 for value in values)
    plain = plan_shards([(WIDE, sample(number)) for number in (1, 2, 3)], CONFIG)
    assert plan.name != plain[0].name
    # A sample on disk is the same in another process.
    spill = Spill()
    samples = [
        sample(number, spill=spill, has_id=True, embedding=np.full(3, number, np.float32))
        for number in range(4)
    ]
    (plan,) = plan_shards([(WIDE, one) for one in samples], CONFIG)
    told = pickle.loads(pickle.dumps(plan))
    held = [
        sample(number, has_id=True, embedding=np.full(3, number, np.float32)) for number in range(4)
    ]
    assert [*told.samples] == [*plan.samples]
    assert written(told) == written(plan)
    assert plan_shards([(WIDE, one) for one in held], CONFIG)[0].name == plan.name
    assert sample(1) != sample(1, caption="another")


@pytest.mark.parametrize("n_name", [5, 100, 101])
@pytest.mark.parametrize("size", [0, 123_456_789, 8**11 - 1])
def test_headers_are_those_of_tarfile(n_name: int, size: int) -> None:
    info = tarfile.TarInfo("k" * (n_name - 4) + "/mp4")
    info.size, info.mtime, info.mode = size, 0, 0o644
    expected = info.tobuf(format=tarfile.USTAR_FORMAT)
    assert shard_plan.tar_header(info.name, size) == expected


def test_the_same_plan_gives_the_same_bytes_and_canonical_json() -> None:
    """Pins the end of the archive, and determinism."""
    plan = plan_of(4)
    assert written(plan) == written(plan)
    assert len(written(plan)) % 512 == 0
    assert written(plan)[-1024:] == b"\0" * 1024
    # Sorted keys, no spaces and unescaped text, so that equal metadata is equal bytes.
    text = (
        '{"alpha":[1,null],"clip_id":"000000000000000000000001","fps":30.0,"medium":"video",'
        '"zeta":"é"}'
    )
    assert sample(1, zeta="é", alpha=[1, None]).json() == text.encode()


@pytest.mark.parametrize("key", ["a.b", "a/b", "__a__", "", "a b"])
def test_keys_that_readers_would_split_or_skip_are_refused(key: str) -> None:
    """Pins that a key is plain: webdataset cuts names at the first dot and skips `__x__`."""
    with pytest.raises(ValueError, match="expected letters and digits only"):
        Sample(
            key=key, metadata={}, caption="", mp4_bytes=1, mp4_sha256="",
            location=Location(name="cuts/part.parquet", row=0),
        )  # fmt: skip
