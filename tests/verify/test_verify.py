"""`curate verify`: each kind of damage gives its own finding, and none an exception."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_samples import MadeClip, made_clips, made_mp4, make_shards

from curator.cli import main
from curator.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from curator.storage import open_store
from curator.verify import Verified, verify
from curator.verify.findings import MAX_STORED


class Out:
    """An output root with one file of each kind at hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clips = made_clips()
        self.tars = make_shards(str(root), self.clips)
        self.tar = root / "shards" / self.tars[0]
        self.idx = self.tar.with_name(self.tar.name + ".idx")
        self.meta = self.tar.with_suffix(".meta.jsonl")
        self.shards = root / "shards"
        (self.table,) = (root / "clips").iterdir()

    def flip(self, path: Path, at: int) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 0x40
        path.write_bytes(data)

    def edit_json(self, name: str, change: Callable[[dict], object]) -> None:
        path = self.root / name
        value = json.loads(path.read_bytes())
        change(value)
        path.write_text(json.dumps(value))

    def edit_table(self, path: Path, column: str, change: Callable[[list], list]) -> None:
        table = pq.read_table(path)
        values = change(table[column].to_pylist())
        at = table.column_names.index(column)
        field = table.schema.field(column)
        pq.write_table(table.set_column(at, field, [values]), path)

    def offset_of_mp4(self, number: int = 0) -> int:
        row = pq.read_table(self.shards / "dataset.parquet").to_pylist()
        own = [r for r in row if r["shard"] == self.tars[0]]
        return int(own[number]["offset"])


@pytest.fixture
def out(tmp_path: Path) -> Out:
    return Out(tmp_path / "out")


def checked(out: Out | Path, **options: object) -> Verified:
    root = out.root if isinstance(out, Out) else out
    return verify(str(root), **({"frames": "all"} | options))  # type: ignore[arg-type]


def test_what_was_just_written_is_well(out: Out) -> None:
    """Pins the counts of a whole output root, with every clip decoded."""
    verified = checked(out)
    assert verified.findings == []
    assert verified.is_well
    assert (verified.n_shards, verified.n_samples, verified.n_decoded) == (6, 8, 8)
    assert verified.n_bytes == sum((out.shards / name).stat().st_size for name in out.tars)


@pytest.mark.parametrize(("frames", "n_decoded"), [("none", 0), (3, 3), (100, 8), ("all", 8)])
def test_the_number_of_decoded_clips_is_the_one_asked_for(
    out: Out, frames: object, n_decoded: int
) -> None:
    assert checked(out, frames=frames).n_decoded == n_decoded


def _set(field: str, value: object) -> Callable[[Out], None]:
    return lambda out: out.edit_json(
        "shards/manifest.json", lambda m: m["shards"][0].__setitem__(field, value)
    )


def _swap_lines(out: Out) -> None:
    first, second = out.meta.read_bytes().splitlines()
    out.meta.write_bytes(second + b"\n" + first + b"\n")


def _shift_idx(out: Out) -> None:
    offsets = np.frombuffer(out.idx.read_bytes(), "<u8").copy()
    offsets[1] += 512
    out.idx.write_bytes(offsets.tobytes())


DAMAGES: dict[str, tuple[Callable[[Out], object], set[str]]] = {
    "truncated tar": (
        lambda out: out.tar.write_bytes(out.tar.read_bytes()[:2100]),
        {"size", "hash", "tar_damaged"},
    ),
    "tar without its end": (
        lambda out: out.tar.write_bytes(out.tar.read_bytes()[:-1024]),
        {"size", "hash", "tar_damaged"},
    ),
    "flipped bit in a header": (
        lambda out: out.flip(out.tar, 3),
        {"hash", "tar_damaged"},
    ),
    "flipped bit in the JSON": (
        lambda out: out.flip(out.tar, 512),
        {"hash", "json", "meta", "count", "wids", "manifest_wrong"},
    ),
    "flipped bit in the last padding": (
        lambda out: out.flip(out.tar, -1025),
        {"hash", "wids"},
    ),
    "empty tar": (lambda out: out.tar.write_bytes(b""), {"size", "hash", "tar_damaged"}),
    "noise for a tar": (
        lambda out: out.tar.write_bytes(bytes(range(256)) * 20),
        {"size", "hash", "tar_damaged"},
    ),
    "tar gone": (
        lambda out: out.tar.unlink(),
        {"missing", "energon", "wids", "dataset", "clips"},
    ),
    "idx gone": (lambda out: out.idx.unlink(), {"missing"}),
    "idx of another length": (
        lambda out: out.idx.write_bytes(out.idx.read_bytes()[:-8]),
        {"hash", "index"},
    ),
    "idx with half an offset": (
        lambda out: out.idx.write_bytes(out.idx.read_bytes()[:-3]),
        {"hash", "index"},
    ),
    "idx with another offset": (_shift_idx, {"hash", "index"}),
    "meta gone": (lambda out: out.meta.unlink(), {"missing"}),
    "meta in another order": (_swap_lines, {"hash", "meta"}),
    "meta too long": (
        lambda out: out.meta.write_bytes(out.meta.read_bytes() + b"{}\n"),
        {"hash", "meta"},
    ),
    "meta cut": (
        lambda out: out.meta.write_bytes(out.meta.read_bytes()[:40]),
        {"hash", "meta"},
    ),
    "manifest gone": (
        lambda out: (out.shards / "manifest.json").unlink(),
        {"manifest_missing"},
    ),
    "manifest is no JSON": (
        lambda out: (out.shards / "manifest.json").write_bytes(b'{"shards": ['),
        {"manifest_wrong"},
    ),
    "manifest leads out of the folder": (
        _set("name", "../../x.tar"),
        {"manifest_wrong"},
    ),
    "manifest counts other samples": (_set("samples", 7), {"count"}),
    "manifest counts other frames": (_set("frames", 1), {"count"}),
    "manifest has another hash": (_set("sha256", "0" * 64), {"hash"}),
    "manifest has another split": (_set("split", "val"), {"manifest_wrong"}),
    "manifest has other sums": (
        lambda out: out.edit_json(
            "shards/manifest.json", lambda m: m["counts"].__setitem__("frames", 3)
        ),
        {"manifest_wrong"},
    ),
    "energon counts other samples": (
        lambda out: out.edit_json(
            "shards/.nv-meta/.info.json",
            lambda info: info["shard_counts"].__setitem__(out.tars[0], 9),
        ),
        {"size", "hash", "energon"},
    ),
    "energon split is no YAML": (
        lambda out: (out.shards / ".nv-meta/split.yaml").write_text("{["),
        {"size", "hash", "energon"},
    ),
    "energon of a bucket gone": (
        lambda out: (out.tar.parent / ".nv-meta/.info.json").unlink(),
        {"missing", "energon"},
    ),
    "wids with another MD5": (
        lambda out: out.edit_json(
            "shards/wids-train.json",
            lambda index: index["shardlist"][0].__setitem__("md5sum", "0" * 32),
        ),
        {"size", "hash", "wids"},
    ),
    "wids without a shard": (
        lambda out: out.edit_json("shards/wids-val.json", lambda i: i["shardlist"].pop()),
        {"size", "hash", "wids"},
    ),
    "wids is no index": (
        lambda out: (out.shards / "wids-val.json").write_text("[1]"),
        {"size", "hash", "wids"},
    ),
    "dataset with another caption": (
        lambda out: out.edit_table(
            out.shards / "dataset.parquet", "text", lambda texts: ["other", *texts[1:]]
        ),
        {"size", "hash", "dataset"},
    ),
    "dataset with another offset": (
        lambda out: out.edit_table(
            out.shards / "dataset.parquet", "offset", lambda offsets: [1, *offsets[1:]]
        ),
        {"size", "hash", "dataset"},
    ),
    "dataset with width by height": (
        lambda out: out.edit_table(
            out.shards / "dataset.parquet", "aspect_ratio", lambda ratios: [1 / r for r in ratios]
        ),
        {"size", "hash", "dataset"},
    ),
    "dataset with words for numbers": (
        lambda out: pq.write_table(
            pa.table({"clip_id": ["a"], "shard": [out.tars[0]], "height": ["x"], "fps": ["y"]}),
            out.shards / "dataset.parquet",
        ),
        {"size", "hash", "dataset"},
    ),
    "dataset cut": (
        lambda out: (out.shards / "dataset.parquet").write_bytes(b"PAR1" * 9),
        {"size", "hash", "dataset"},
    ),
    "clips with another offset": (
        lambda out: out.edit_table(out.table, "mp4_offset", lambda offsets: [1, *offsets[1:]]),
        {"clips"},
    ),
    "clips with another key": (
        lambda out: out.edit_table(out.table, "key", lambda keys: ["no", *keys[1:]]),
        {"clips"},
    ),
    "clips lacks one": (
        lambda out: out.edit_table(
            out.table, "decision", lambda decisions: ["rejected", *decisions[1:]]
        ),
        {"clips"},
    ),
    "clips cut": (lambda out: out.table.write_bytes(b"PAR1"), {"clips"}),
    "summary gone": (lambda out: (out.root / "summary.json").unlink(), {"missing"}),
    "summary is no JSON": (
        lambda out: (out.root / "summary.json").write_bytes(b"\xff"),
        {"missing"},
    ),
    "a tar that nobody names": (
        lambda out: (out.tar.parent / "train-000009-00000000.tar").write_bytes(b"x"),
        {"unnamed"},
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_named(out: Out, name: str) -> None:
    """Pins the codes of each damage: none is missed, none drags in others, none raises."""
    damage, codes = DAMAGES[name]
    damage(out)
    verified = checked(out)
    assert set(verified.counts) == codes, verified.findings
    assert verified.is_well == (codes == {"unnamed"})
    assert all(f.path.startswith(str(out.root)) and f.found and f.remedy for f in verified.findings)


def test_a_flipped_bit_in_a_picture_is_found_without_decoding(out: Out) -> None:
    """Pins that every byte of every clip is hashed, whichever clips are decoded."""
    begin = out.offset_of_mp4()
    out.flip(out.tar, out.tar.read_bytes().index(b"mdat", begin) + 60)
    assert set(checked(out, frames="none").counts) == {"hash", "mp4_hash", "wids"}


def _made(tmp_path: Path, clips: list[MadeClip]) -> Verified:
    make_shards(str(tmp_path), clips)
    return checked(tmp_path)


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({"n_frames": 50}, {"mp4_header", "frames", "dataset"}),
        ({"width": 100}, {"mp4_header", "frames", "dataset"}),
        ({"fps": 25.0, "fps_fraction": "25"}, {"mp4_header", "dataset"}),
        ({"fps_fraction": "1/0"}, {"json"}),
        ({"mp4_sha256": "0" * 64}, {"mp4_hash", "dataset"}),
        ({"width": None}, {"json"}),
        ({"key": "other"}, {"json"}),
        ({"caption": "other"}, {"json"}),
    ],
)
def test_a_json_that_does_not_fit_its_mp4_is_found(
    tmp_path: Path, change: dict[str, object], codes: set[str]
) -> None:
    """Pins fields that are checked against bytes, where every hash in the manifest is right."""
    clips = made_clips()
    clips[0] = replace(clips[0], changes=change)
    found = set(_made(tmp_path, clips).counts)
    # The manifest sums the real frames.
    assert found - {"count", "manifest_wrong"} == codes


def test_a_clip_whose_header_lies_about_its_frames_is_found_by_decoding(tmp_path: Path) -> None:
    """Pins why clips are decoded: half of the pictures are gone, the header counts all."""
    clips = made_clips()
    whole = made_mp4(1, 8)
    cut = bytearray(whole)
    at = whole.index(b"mdat") + 4
    cut[at + (len(whole) - at) // 4 :] = bytes(len(whole) - at - (len(whole) - at) // 4)
    clips[1] = replace(clips[1], mp4=bytes(cut), n_frames=8)
    make_shards(str(tmp_path), clips)
    assert set(checked(tmp_path).counts) == {"frames"}
    assert checked(tmp_path, frames="none").is_well


@pytest.mark.parametrize(
    ("clips", "code"),
    [
        ([replace(made_clips()[0], key="a.b")], "key"),
        ([replace(made_clips()[0], key="sub/a")], "key"),
        ([made_clips()[0], made_clips()[2], made_clips()[0]], "key_twice"),
        ([made_clips()[0], replace(made_clips()[2], split="val")], "split"),
        ([replace(made_clips()[0], mp4=b"no video")], "mp4_header"),
        ([replace(made_clips()[0], mp4=b"")], "mp4_header"),
    ],
)
def test_samples_that_readers_cannot_use_are_found(
    tmp_path: Path, clips: list[MadeClip], code: str
) -> None:
    """Pins rules of WebDataset and of the split that no hash can tell."""
    clips = [replace(clip, source="0" * 32) for clip in clips]
    assert code in _made(tmp_path, clips).counts


def test_members_of_a_sample_must_be_adjacent_and_complete(out: Out) -> None:
    """Pins the two findings on a tar whose first JSON is moved to its end."""
    data = out.tar.read_bytes()
    n_bytes = int(data[124:135], 8)
    end = 512 + -(-n_bytes // 512) * 512
    out.tar.write_bytes(data[end:-1024] + data[:end] + data[-1024:])
    counts = checked(out).counts
    assert {"key", "members", "key_twice", "index"} <= set(counts)


def test_an_older_run_without_manifest_is_checked_against_its_tables(tmp_path: Path) -> None:
    """Pins that the missing manifest is the only finding, and that a lost tar is seen."""
    tars = make_shards(str(tmp_path), made_clips(), with_manifest=False)
    assert set(checked(tmp_path).counts) == {"manifest_missing"}
    (tmp_path / "shards" / tars[0]).unlink()
    assert set(checked(tmp_path).counts) == {"manifest_missing", "missing", "clips"}


def test_shards_alone_in_another_folder_are_checked(out: Out, tmp_path: Path) -> None:
    """Pins that a copy of `shards/` needs no tables."""
    (tmp_path / "copy").mkdir()
    moved = (out.root / "shards").rename(tmp_path / "copy" / "data")
    assert checked(moved).findings == []


def test_many_findings_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    """Pins that a table that is wrong all through does not flood."""
    n = MAX_STORED + 10
    clips = [
        replace(made_clips(1)[0], key=f"{number:024x}", changes={"caption": "x"})
        for number in range(n)
    ]
    verified = _made(tmp_path, clips)
    assert verified.counts["json"] == n
    assert sum(f.code == "json" for f in verified.findings) == MAX_STORED


def test_the_command_says_what_is_wrong_and_ends_with_3(
    out: Out, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins words, JSON and exit codes."""
    assert main(["verify", str(out.root), "--frames", "2"]) == EXIT_OK
    assert "6 shards, 8 clips" in capsys.readouterr().out
    out.idx.unlink()
    assert main(["verify", str(out.root), "--frames", "none"]) == EXIT_FAILED
    printed = capsys.readouterr().out
    assert f"wrong missing: {out.idx}" in printed
    assert "1 thing wrong" in printed
    assert main(["verify", str(out.root), "--json"]) == EXIT_FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["counts"] == {"missing": 1}
    assert answer["findings"][0]["path"] == str(out.idx)


def test_a_place_without_shards_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path / "none")]) == EXIT_USAGE
    assert "has no shards" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(tmp_path), "--frames", "some"])
    assert stop.value.code == EXIT_USAGE


def test_s3_is_checked_as_a_folder_is(s3_bucket: str) -> None:
    """Pins the checks on S3, whole and with one byte changed and one object gone."""
    out = f"s3://{s3_bucket}/run"
    tars = make_shards(out, made_clips())
    assert verify(out, frames="all").findings == []
    store = open_store(out)
    data = bytearray(store.read(f"shards/{tars[0]}"))
    data[-1500] ^= 1
    store.write(f"shards/{tars[0]}", bytes(data))
    store.delete([f"shards/{tars[1]}.idx"])
    assert {"hash", "missing"} <= set(verify(out, frames="none").counts)


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_is_always_found_and_never_raises(out: Out, seed: int) -> None:
    """Pins that any change of any object that the manifest hashes ends in findings."""
    rng = random.Random(seed)
    paths = sorted(p for p in out.shards.rglob("*") if p.is_file() and p.name != "manifest.json")
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    match rng.choice(("flip", "cut", "zero", "insert", "noise", "twice")):
        case "flip":
            data[at] ^= 1 << rng.randrange(8)
        case "cut":
            del data[at:]
        case "zero":
            data[at : at + 600] = bytes(b ^ 0xFF for b in data[at : at + 600])
        case "insert":
            data = data[:at] + rng.randbytes(100) + data[at:]
        case "noise":
            data = bytearray(rng.randbytes(len(data)))
        case "twice":
            data = data * 2
    path.write_bytes(data)
    assert not checked(out).is_well


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_manifest_never_raises(out: Out, seed: int) -> None:
    """Pins that whatever the manifest holds ends in findings or, if harmless, in none."""
    rng = random.Random(seed)
    path = out.shards / "manifest.json"
    manifest = json.loads(path.read_bytes())
    values = [None, 0, -1, "x", [], {}, [1], {"a": 1}, 1e300, "../x", True]
    target = rng.choice([manifest, manifest["counts"], *manifest["shards"], manifest["files"]])
    target[rng.choice(sorted(target))] = rng.choice(values)
    path.write_text(json.dumps(manifest))
    assert isinstance(checked(out).counts, dict)


def test_a_run_that_kept_nothing_is_well(tmp_path: Path) -> None:
    """Pins an empty manifest: nothing is wrong, and there is nothing to export."""
    make_shards(str(tmp_path), [])
    verified = checked(tmp_path)
    assert (verified.findings, verified.n_shards) == ([], 0)
    to = str(tmp_path / "to")
    assert main(["export", str(tmp_path), to, "--format", "cosmos"]) == EXIT_USAGE
