"""`curate verify`: each kind of damage gives its own finding, and none an exception."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_samples import MadeClip, made_clips, made_mp4, make_shards
from numpy.typing import NDArray
from sweeps import sampled

from curator.cli import main
from curator.storage import Store, open_store
from curator.tables.fenced_store import Digest
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from curator.tools.verify import Verified, verify
from curator.tools.verify.defects import defects
from curator.tools.verify.findings import MAX_STORED

Change = Callable[[bytes], bytes | None]
"""Makes other bytes of an object; None to delete it."""


class Out:
    """An output root with one file of each kind at hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tars = make_shards(str(root), made_clips())
        self.shards = root / "shards"
        self.tar = self.shards / self.tars[0]
        self.idx = self.tar.with_name(self.tar.name + ".idx")
        self.meta = self.tar.with_suffix(".meta.jsonl")
        (self.table,) = (root / "clips").iterdir()

    def change(self, name: str, change: Change) -> None:
        """Changes an object by its attribute here, or by its name under `shards/`."""
        path = getattr(self, name, self.shards / name)
        data = change(path.read_bytes())
        path.unlink() if data is None else path.write_bytes(data)


@pytest.fixture
def out(tmp_path: Path) -> Out:
    return Out(tmp_path / "out")


def checked(out: Out | Path, **options: object) -> Verified:
    root = out.root if isinstance(out, Out) else out
    return verify(str(root), **({"frames": "all"} | options))  # type: ignore[arg-type]


def flipped(at: int) -> Change:
    def change(data: bytes) -> bytes:
        at_ = at % len(data)
        return data[:at_] + bytes([data[at_] ^ 0x40]) + data[at_ + 1 :]

    return change


def gone(_: bytes) -> None:
    return None


def json_with(place: Sequence[str | int], value: object) -> Change:
    """Sets a field of an object of JSON."""

    def change(data: bytes) -> bytes:
        whole = json.loads(data)
        *outer, last = place
        reduce(getitem, outer, whole)[last] = value
        # Without a checksum, what it says is compared all the same.
        whole.pop("checksum", None)
        return json.dumps(whole).encode()

    return change


def table_with(column: str, change: Callable[[list], list]) -> Change:
    """Changes the first rows of a column."""

    def changed(data: bytes) -> bytes:
        table = pq.read_table(pa.BufferReader(data))
        at, values = table.column_names.index(column), change(table[column].to_pylist())
        return parquet(table.set_column(at, table.schema.field(column), [values]))

    return changed


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def offsets_with(change: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]) -> Change:
    return lambda data: change(np.frombuffer(data, "<u8").copy()).tobytes()


FIRST = ("shards", 0)
DAMAGES: dict[str, tuple[str, Change, set[str]]] = {
    "truncated tar": ("tar", lambda data: data[:2100], {"tar_damaged"}),
    "tar without its end": ("tar", lambda data: data[:-1024], {"tar_damaged"}),
    "empty tar": ("tar", lambda data: b"", {"tar_damaged"}),
    "noise for a tar": ("tar", lambda data: bytes(range(256)) * 20, {"tar_damaged"}),
    "flipped bit in a header": ("tar", flipped(3), {"tar_damaged"}),
    "flipped bit in the JSON": (
        "tar", flipped(512), {"json", "meta", "count", "wids", "manifest_wrong"},
    ),
    "flipped bit in the last padding": ("tar", flipped(-1025), {"wids"}),
    "tar gone": ("tar", gone, {"missing"}),
    "idx gone": ("idx", gone, {"missing"}),
    "idx of another length": ("idx", lambda data: data[:-8], {"index"}),
    "idx with half an offset": ("idx", lambda data: data[:-3], {"index"}),
    "idx with another offset": (
        "idx", offsets_with(lambda o: o + np.uint64(512) * (np.arange(len(o)) == 1)),
        {"index"},
    ),
    "meta gone": ("meta", gone, {"missing"}),
    "meta in another order": (
        "meta", lambda data: b"\n".join([*data.splitlines()[::-1], b""]), {"meta"},
    ),
    "meta too long": ("meta", lambda data: data + b"{}\n", {"meta"}),
    "meta cut": ("meta", lambda data: data[:40], {"meta"}),
    "manifest gone": ("manifest.json", gone, {"manifest_missing"}),
    "manifest is no JSON": ("manifest.json", lambda data: b'{"shards": [', {"manifest_wrong"}),
    "manifest leads out of the folder": (
        "manifest.json", json_with((*FIRST, "name"), "../../x.tar"), {"manifest_wrong"},
    ),
    "manifest counts other samples": (
        "manifest.json", json_with((*FIRST, "samples"), 7), {"count"},
    ),
    "manifest counts other frames": ("manifest.json", json_with((*FIRST, "frames"), 1), {"count"}),
    "manifest has another hash": (
        "manifest.json", json_with((*FIRST, "sha256"), "0" * 64), {"hash"},
    ),
    "manifest has another split": (
        "manifest.json", json_with((*FIRST, "split"), "val"), {"manifest_wrong"},
    ),
    "manifest has other sums": (
        "manifest.json", json_with(("counts", "frames"), 3), {"manifest_wrong"},
    ),
    "energon counts other samples": (
        ".nv-meta/.info.json", json_with(("shard_counts", "x.tar"), 9), {"energon"},
    ),
    "energon split is no YAML": (".nv-meta/split.yaml", lambda data: b"{[", {"energon"}),
    "energon of a bucket gone": ("36p_16-9_4f/.nv-meta/.info.json", gone, {"missing"}),
    "wids with another MD5": (
        "wids-train.json", json_with(("shardlist", 0, "md5sum"), "1"), {"wids"},
    ),
    "wids without a shard": ("wids-val.json", json_with(("shardlist",), []), {"wids"}),
    "wids is no index": ("wids-val.json", lambda data: b"[1]", {"wids"}),
    "dataset with another caption": (
        "dataset.parquet", table_with("text", lambda texts: ["other", *texts[1:]]),
        {"dataset"},
    ),
    "dataset with another offset": (
        "dataset.parquet", table_with("offset", lambda offsets: [1, *offsets[1:]]),
        {"dataset"},
    ),
    "dataset with width by height": (
        "dataset.parquet", table_with("aspect_ratio", lambda ratios: [1 / r for r in ratios]),
        {"dataset"},
    ),
    "dataset with words for numbers": (
        "dataset.parquet", lambda data: parquet(pa.table({"clip_id": ["a"], "fps": ["y"]})),
        {"dataset"},
    ),
    "dataset cut": ("dataset.parquet", lambda data: b"PAR1" * 9, {"dataset"}),
    "clips with another offset": (
        "table", table_with("mp4_offset", lambda offsets: [1, *offsets[1:]]), {"clips"},
    ),
    "clips with another key": ("table", table_with("key", lambda k: ["no", *k[1:]]), {"clips"}),
    "clips lacks one": (
        "table", table_with("decision", lambda own: ["rejected", *own[1:]]), {"clips"},
    ),
    "clips cut": ("table", lambda data: b"PAR1", {"clips"}),
    "summary gone": ("../summary.json", gone, {"missing"}),
    "summary is no JSON": ("../summary.json", lambda data: b"\xff", {"missing"}),
}  # fmt: skip


def test_what_was_just_written_is_well(out: Out) -> None:
    """Pins the counts of a whole output root, and how many clips are decoded."""
    verified = checked(out)
    assert verified.findings == []
    assert verified.is_well
    assert (verified.n_shards, verified.n_samples, verified.n_decoded) == (6, 8, 8)
    assert verified.n_bytes == sum((out.shards / name).stat().st_size for name in out.tars)
    for frames, n_decoded in (("none", 0), (3, 3), (100, 8)):
        assert checked(out, frames=frames).n_decoded == n_decoded
    # A copy of `shards/` needs no tables.
    assert checked(out.shards.rename(out.root.parent / "data")).findings == []


def without_hashes(data: bytes) -> bytes:
    """A manifest that records no sizes and hashes, so that only contents can be compared."""
    manifest = json.loads(data)
    del manifest["checksum"]
    manifest["files"] = {name: {} for name in manifest["files"]}
    for facts in manifest["shards"]:
        for name in ("bytes", "sha256", "idx_sha256", "meta_sha256"):
            del facts[name]
    return json.dumps(manifest).encode()


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_in_contents_and_named(out: Out, name: str) -> None:
    """Pins the codes of each damage to contents: none is missed, and none raises."""
    path, change, codes = DAMAGES[name]
    if path != "manifest.json":
        out.change("manifest.json", without_hashes)
    out.change(path, change)
    verified = checked(out)
    assert set(verified.counts) == codes, verified.findings
    assert not verified.is_well
    assert all(f.path.startswith(str(out.root)) and f.found and f.remedy for f in verified.findings)


@pytest.mark.parametrize("name", DAMAGES)
def test_one_fault_is_one_finding(out: Out, name: str) -> None:
    """Pins that a damaged object has one finding, which no finding on its contents repeats."""
    path, change, codes = DAMAGES[name]
    whole = getattr(out, path, out.shards / path)
    n_bytes = whole.stat().st_size
    out.change(path, change)
    verified = checked(out)
    assert not verified.is_well
    if path not in ("manifest.json", "table", "../summary.json"):
        (finding,) = verified.findings
        n_now = whole.stat().st_size if whole.exists() else None
        is_same = n_now == n_bytes or path in ("idx", "meta")
        code = "missing" if n_now is None else "hash" if is_same else "size"
        assert (finding.code, finding.path) == (code, str(whole))
        assert path != "tar" or all(
            word in finding.found for word in codes & {"tar_damaged", "json", "count"}
        )
    assert not any("delete" in finding.remedy for finding in verified.findings)


def test_an_object_that_nothing_names_is_a_warning(out: Out) -> None:
    (out.tar.parent / "train-000009-00000000.tar").write_bytes(b"x")
    verified = checked(out)
    assert (verified.counts, verified.is_well) == ({"unnamed": 1}, True)


def test_a_flipped_bit_in_a_picture_is_found_without_decoding(out: Out) -> None:
    """Pins that every byte of every clip is hashed, whichever clips are decoded."""
    rows = pq.read_table(out.shards / "dataset.parquet").to_pylist()
    begin, key = next((r["offset"], r["clip_id"]) for r in rows if r["shard"] == out.tars[0])
    out.change("tar", flipped(out.tar.read_bytes().index(b"mdat", begin) + 60))
    (finding,) = checked(out, frames="none").findings
    assert finding.code == "hash"
    assert f"mp4_hash of 1 sample, such as {key}" in finding.found


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
    out.change("manifest.json", without_hashes)
    counts = checked(out).counts
    assert {"key", "members", "key_twice", "index"} <= set(counts)


def test_a_run_without_manifest_is_checked_against_its_tables(tmp_path: Path) -> None:
    """Pins that the missing manifest is the only finding, and that a lost tar is seen."""
    tars = make_shards(str(tmp_path), made_clips(), with_manifest=False)
    assert set(checked(tmp_path).counts) == {"manifest_missing"}
    (tmp_path / "shards" / tars[0]).unlink()
    assert set(checked(tmp_path).counts) == {"manifest_missing", "missing", "clips"}


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
    assert "1 object wrong" in printed
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


@pytest.mark.parametrize("seed", sampled(range(30), range(10)))
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


@pytest.mark.parametrize("n_places", [6, pytest.param(20, marks=pytest.mark.long)])
def test_one_damaged_object_is_named_once(
    out: Out, capsys: pytest.CaptureFixture[str], n_places: int
) -> None:
    """Pins that findings of other checks go to the object whose bytes are wrong."""
    tar = next(path for path in sorted(out.shards.rglob("*.tar")))
    index = tar.with_name(f"{tar.name}.idx")
    (meta,) = tar.parent.glob(f"{tar.stem}.meta.jsonl")
    for path in (tar, index, meta, out.shards / "dataset.parquet"):
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // n_places)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            verified = checked(out)
            assert [defect.path for defect in defects(verified.findings)] == [str(path)], at
        path.write_bytes(whole)
    data = bytearray(tar.read_bytes())
    tar.unlink()
    (defect,) = defects(checked(out).findings)
    assert (defect.path, defect.findings[0].code) == (str(tar), "missing")
    data[data.index(b"mdat") + 40] ^= 1
    tar.write_bytes(data)
    assert len(checked(out).findings) == 1
    assert main(["verify", str(out.root)]) == EXIT_FAILED
    printed = capsys.readouterr().out
    assert printed.count("wrong") == 2
    assert "of 1 sample, such as " in printed
    assert printed.endswith("1 object wrong\n")


@pytest.mark.parametrize("seed", sampled(range(20), range(8)))
def test_a_damaged_manifest_never_raises(out: Out, seed: int) -> None:
    """Pins that whatever the manifest holds ends in findings or, if harmless, in none."""
    rng = random.Random(seed)
    path = out.shards / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["checksum"]
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


def test_an_object_that_the_disk_does_not_read_is_found(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(store: Store, name: str) -> Digest:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Digest, "of_object", fails)
    assert "unreadable" in {str(finding.code) for finding in checked(out).findings}
