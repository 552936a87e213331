"""`curate export`: what each format holds, that it is made alike each time, and goes on."""

import csv
import hashlib
import io
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset as wds
import yaml
from command_line import Curate
from made_samples import FPS, HEIGHT, WIDTH, MadeClip, make_shards
from PIL import Image

from curator.errors import UsageError
from curator.export import FORMATS, Exported, export
from curator.export.exporter import load_format
from curator.export.frame_tars import fitted
from curator.field_docs import description_of
from curator.storage import open_store
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_USAGE
from curator.tools.verify import verify

FOLDER_FORMATS = (
    "cosmos",
    "opensora",
    "cogvideo",
    "parquet",
    "frames",
    "energon",
    "wids",
    "webshart",
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "jsonl_export.py"
SAME_ANYWHERE: dict[str, dict[str, object]] = {
    "opensora": {"relative": True},
    "frames": {"size": (16, 16)},
}
"""Options with which objects do not depend on the destination, and are small."""


def exported(out: Path | str, destination: Path | str, form: str, **options: object) -> Exported:
    """Exports; `splits`, `buckets` and `workers` are for all formats, the rest is the format's."""
    shared = {
        name: options.pop(name) for name in ("splits", "buckets", "workers") if name in options
    }
    return export(str(out), str(destination), form, **shared, options=options)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_cosmos_is_what_its_dataset_class_reads(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins the folders by the rules of that class: `videos/*.mp4`, `metas/<name>.txt`."""
    done = exported(out, tmp_path / "to", "cosmos")
    assert (done.n_clips, done.n_objects, done.n_reused) == (8, 16, 0)
    for split in ("train", "val"):
        own = {clip.key: clip for clip in clips if clip.split == split}
        videos = sorted((tmp_path / "to" / split / "videos").iterdir())
        assert [video.name for video in videos] == sorted(f"{key}.mp4" for key in own)
        for video in videos:
            clip = own[video.name.replace(".mp4", "")]
            assert video.read_bytes() == clip.mp4
            meta = tmp_path / "to" / split / "metas" / f"{clip.key}.txt"
            assert meta.read_text() == clip.caption
    # What a killed export left is removed by the next one.
    left = [tmp_path / "to" / name for name in (f".tmp-{7:016x}", f"train/videos/.tmp-{8:016x}")]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (time.time() - 60,) * 2)
    exported(out, tmp_path / "to", "cosmos")
    assert not any(path.exists() for path in left)


def test_opensora_tables_name_videos_that_are_there(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins columns and values of both tables, with paths that a loader can open."""
    exported(out, tmp_path / "to", "opensora")
    by_key = {clip.key: clip for clip in clips}
    n_rows = 0
    for split in ("train", "val"):
        with (tmp_path / "to" / f"{split}.csv").open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        table = pq.read_table(tmp_path / "to" / f"{split}.parquet").to_pylist()
        assert [row["path"] for row in rows] == [row["path"] for row in table]
        for row, typed in zip(rows, table, strict=True):
            clip = by_key[Path(row["path"]).stem]
            assert clip.split == split
            assert Path(row["path"]).read_bytes() == clip.mp4
            assert row["text"] == clip.caption
            assert typed == {
                "path": row["path"], "text": clip.caption, "num_frames": clip.n_frames,
                "height": HEIGHT, "width": WIDTH, "aspect_ratio": HEIGHT / WIDTH,
                "resolution": HEIGHT * WIDTH, "fps": float(FPS),
            }  # fmt: skip
        n_rows += len(rows)
    assert n_rows == len(clips)


def test_captions_that_no_model_wrote_are_counted(
    tmp_path: Path, clips: list[MadeClip], curate: Curate
) -> None:
    """Pins what the command says of measured captions, and that it is silent about a model's."""
    models = ["curate/measured-1"] * 3 + ["some/vlm"] * (len(clips) - 3)
    own = [
        replace(clip, changes={"caption_model": m}) for clip, m in zip(clips, models, strict=True)
    ]
    for number, (some, n_measured) in enumerate(((own, 3), (own[3:], 0))):
        out = tmp_path / f"out{number}"
        make_shards(str(out), some)
        printed = curate("export", out, tmp_path / f"{number}", "--format", "cosmos")
        said = f"{n_measured} captions composed of measurements, not written by a model"
        assert (said in printed) == (n_measured > 0)


def test_every_caption_survives_a_csv(tmp_path: Path, clips: list[MadeClip]) -> None:
    """Pins what Open-Sora does: `read_csv`, then the caption plus words on the frame rate."""
    pandas = pytest.importorskip("pandas")
    captions = ["", "None", "NA", "nan", "null", "N/A", " ", 'one, "two"\nthree; ünïcode']
    own = [
        replace(clip, caption=text, split="train")
        for clip, text in zip(clips, captions, strict=True)
    ]
    make_shards(str(tmp_path / "out"), own)
    exported(tmp_path / "out", tmp_path / "to", "opensora", relative=True)
    read = pandas.read_csv(tmp_path / "to" / "train.csv")
    by_path = {Path(row["path"]).stem: row["text"] for _, row in read.iterrows()}
    expected = {clip.key: clip.caption.strip() for clip in own}
    assert {key: text.strip() for key, text in by_path.items()} == expected
    with (tmp_path / "to" / "train.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["path"] for row in rows} == {f"videos/train/{clip.key}.mp4" for clip in own}
    assert {Path(row["path"]).stem: row["text"].strip() for row in rows} == expected


def test_cogvideo_is_what_its_dataset_classes_read(tmp_path: Path, clips: list[MadeClip]) -> None:
    """Pins both ways: `labels` for `videos` in a path, and two lists of the same length.

    The first takes the first line of a label, so that none may be empty or of several lines; the
    second passes over empty lines, so that a clip without a caption is in neither list.
    """
    texts = ["", "two\nlines ", "\u2028 one, 'two'", *(clip.caption for clip in clips[3:])]
    own = [replace(clip, caption=text) for clip, text in zip(clips, texts, strict=True)]
    make_shards(str(tmp_path / "out"), own)
    done = exported(tmp_path / "out", tmp_path / "to", "cogvideo")
    assert (done.n_clips, done.n_objects, done.n_without_text) == (8, 8 + 7 + 4, 1)
    assert done.n_records == 7
    said = {clip.key: " ".join(clip.caption.split()) for clip in own if clip.caption}
    for split in ("train", "val"):
        folder = tmp_path / "to" / split
        keys = {clip.key for clip in own if clip.split == split}
        found = {path.stem: path for path in folder.rglob("*.mp4")}
        assert set(found) == keys
        for key, path in found.items():
            assert path.read_bytes() == next(clip.mp4 for clip in own if clip.key == key)
            label = Path(str(path).replace(".mp4", ".txt").replace("videos", "labels"))
            assert label.exists() == (key in said)
            if label.exists():
                assert label.read_text(encoding="utf-8").splitlines() == [said[key]]
        videos, prompts = (
            (folder / name).read_text(encoding="utf-8").splitlines()
            for name in ("videos.txt", "prompts.txt")
        )
        assert {Path(v).stem: p for v, p in zip(videos, prompts, strict=True)} == {
            key: said[key] for key in keys if key in said
        }
        assert all((folder / video).is_file() for video in videos)
    again = exported(tmp_path / "out", tmp_path / "to", "cogvideo")
    assert (again.n_reused, again.n_others) == (15, 0)
    for name in ("my_videos", "a.mp4"):
        with pytest.raises(UsageError, match="choose a destination with neither"):
            exported(tmp_path / "out", tmp_path / name, "cogvideo")


def test_a_destination_that_cannot_be_written_is_refused(out: Path, tmp_path: Path) -> None:
    """Pins that no part of the export is done: the same command would never resume it."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "to", Path("/proc/x")):
        with pytest.raises(UsageError, match="choose another output folder"):
            exported(out, place, "parquet")


@pytest.mark.parametrize("form", ["cosmos", "opensora", "cogvideo"])
def test_clips_that_are_too_short_for_a_trainer_stay_out(
    out: Path, tmp_path: Path, clips: list[MadeClip], form: str
) -> None:
    """Pins that the bound is a least number of frames, and that what it leaves out is counted."""
    done = exported(out, tmp_path / "to", form, min_frames=7)
    enough = {clip.key for clip in clips if clip.n_frames >= 7}
    assert {path.stem for path in (tmp_path / "to").rglob("*.mp4")} == enough
    assert (done.n_clips, done.n_short) == (len(enough), len(clips) - len(enough))
    assert 0 < len(enough) < len(clips)
    with pytest.raises(UsageError, match="cosmos, opensora, cogvideo"):
        exported(out, tmp_path / "table", "parquet", min_frames=7)


@pytest.mark.parametrize("with_videos", [False, True])
def test_parquet_has_a_row_per_clip_and_leads_to_its_bytes(
    out: Path, tmp_path: Path, clips: list[MadeClip], with_videos: bool
) -> None:
    """Pins that `path`, `offset` and `bytes` find the MP4 in the tar, and `video` holds it."""
    exported(out, tmp_path / "to", "parquet", videos=with_videos)
    rows = [
        row
        for path in sorted((tmp_path / "to").glob("*/*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(row["clip_id"] for row in rows) == sorted(clip.key for clip in clips)
    by_key = {clip.key: clip for clip in clips}
    for row in rows:
        clip = by_key[row["clip_id"]]
        tar, _, member = row["path"].partition("#")
        assert member == f"{clip.key}.mp4"
        data = Path(tar).read_bytes()[row["offset"] : row["offset"] + row["bytes"]]
        assert data == clip.mp4
        assert json.loads(row["json"])["mp4_sha256"] == row["sha256"]
        assert row.get("video") == (clip.mp4 if with_videos else None)
        assert (row["split"], row["bucket"], row["text"]) == (clip.split, clip.bucket, clip.caption)


@pytest.mark.parametrize("pictures", ["npz", "webp"])
def test_frames_are_the_decoded_ones_at_the_size_asked_for(
    out: Path, tmp_path: Path, clips: list[MadeClip], pictures: str
) -> None:
    """Pins number, size and content of pictures, read by `webdataset` itself."""
    exported(out, tmp_path / "to", "frames", size=(32, 32), pictures=pictures, max_frames=6)
    tars = sorted(str(path) for path in (tmp_path / "to").glob("*/*/*.tar"))
    by_key = {clip.key: clip for clip in clips}
    samples = list(wds.WebDataset(tars, shardshuffle=False))
    assert {sample["__key__"] for sample in samples} == set(by_key)
    for sample in samples:
        clip = by_key[sample["__key__"]]
        if pictures == "npz":
            frames = np.load(io.BytesIO(sample["npz"]))["frames"]
        else:
            names = sorted(name for name in sample if name.endswith(".webp"))
            frames = np.stack([np.array(Image.open(io.BytesIO(sample[n]))) for n in names])
        assert frames.shape == (min(6, clip.n_frames), 32, 32, 3)
        with av.open(io.BytesIO(clip.mp4)) as container:
            decoded = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
        for number, frame in enumerate(frames):
            errors = [
                float(np.abs(frame.astype(float) - fitted(d, (32, 32)).astype(float)).mean())
                for d in decoded
            ]
            assert errors[number] == min(errors)
            assert errors[number] < (0.01 if pictures == "npz" else 6.0)
        stored = json.loads(sample["json"])["frames"]
        assert stored["n_frames"] == len(frames)
        assert sample["txt"].decode() == clip.caption


@pytest.mark.parametrize(
    ("shape", "size_px", "kept"),
    [((40, 80), (40, 40), (20, 60)), ((40, 80), (160, 80), (0, 80)), ((90, 30), (10, 10), (0, 30))],
)
def test_pictures_are_cut_around_their_middle(
    shape: tuple[int, int], size_px: tuple[int, int], kept: tuple[int, int]
) -> None:
    """Pins which columns survive: each column is as bright as its number."""
    ramp = np.broadcast_to(np.arange(shape[1], dtype=np.uint8)[None, :, None], (*shape, 3))
    scaled = fitted(np.ascontiguousarray(ramp), size_px)
    assert scaled.shape == (size_px[1], size_px[0], 3)
    step = (kept[1] - kept[0]) / size_px[0]
    middles = kept[0] + (np.arange(size_px[0]) + 0.5) * step - 0.5
    assert np.abs(scaled[0, 2:-2, 0] - middles[2:-2]).max() <= 1.0


@pytest.mark.parametrize("form", FOLDER_FORMATS)
def test_an_export_is_the_same_each_time(out: Path, tmp_path: Path, form: str) -> None:
    """Pins equal bytes for any number of threads, and that only what is missing is written."""
    options, to = SAME_ANYWHERE.get(form, {}), tmp_path / "a"
    first = exported(out, to, form, workers=1, **options)
    exported(out, tmp_path / "b", form, workers=4, **options)
    whole = files(to)
    assert whole == files(tmp_path / "b")
    before = {path: path.stat().st_mtime_ns for path in to.rglob("*.mp4")}
    again = exported(out, to, form, **options)
    n_tables = 4 if form in ("opensora", "cogvideo") else 0
    assert (again.n_objects, again.n_clips) == (n_tables, first.n_clips)
    assert again.n_reused == first.n_objects - n_tables
    assert {path: path.stat().st_mtime_ns for path in before} == before
    objects = [name for name in sorted(whole) if not name.endswith((".csv", "train.parquet"))]
    (to / objects[0]).unlink()
    if form in ("cosmos", "opensora"):
        (to / objects[1]).write_bytes(bytes(len(whole[objects[1]])))
    exported(out, to, form, **options)
    assert files(to) == whole


def test_shards_of_a_run_that_was_killed_are_not_taken_for_all(
    tmp_path: Path, clips: list[MadeClip], curate: Curate
) -> None:
    """Pins the first run's case: whole tars stand, and nothing says that others are to come."""
    make_shards(str(tmp_path / "out"), clips, with_manifest=False)
    (tmp_path / "out" / "summary.json").unlink()
    command = ["export", str(tmp_path / "out"), str(tmp_path / "to"), "--format", "cosmos"]
    assert f"name the folder {tmp_path / 'out' / 'shards'} to use" in curate(
        *command, code=EXIT_USAGE
    )
    assert not (tmp_path / "to").exists()
    command[1] = str(tmp_path / "out" / "shards")
    assert "no manifest (there is none): existing tars were exported" in curate(*command)


def test_split_and_bucket_choose_clips(out: Path, tmp_path: Path, clips: list[MadeClip]) -> None:
    """Pins that files a loader would take, of clips that are no more, are counted."""
    exported(out, tmp_path / "to", "cosmos", splits=("val",), buckets=("36p_4-3_4f",))
    wanted = {c.key for c in clips if c.split == "val" and c.bucket == "36p_4-3_4f"}
    assert {p.stem for p in (tmp_path / "to").rglob("*.mp4")} == wanted
    assert wanted
    (tmp_path / "to" / "val" / "videos" / "old.mp4").write_bytes(b"old")
    assert exported(out, tmp_path / "to", "cosmos").n_others == 1


def test_indexes_are_those_that_were_written_with_the_shards(out: Path, tmp_path: Path) -> None:
    """Pins that indexes made from the tars alone equal those of the run, and replace lost ones."""
    before = files(out / "shards")
    for form in ("energon", "wids", "webshart"):
        exported(out, tmp_path / "apart", form)
    made = files(tmp_path / "apart")
    assert made == {name: before[name] for name in made}
    assert before.keys() - made.keys() == {
        name
        for name in before
        if name.endswith((".tar", ".meta.jsonl", "README.md", ".parquet", "manifest.json"))
    }
    for name in made:
        (out / "shards" / name).unlink()
    assert not verify(str(out), frames="none").is_well
    for form in ("energon", "wids", "webshart"):
        exported(out, out, form)
    assert files(out / "shards") == before
    assert verify(str(out), frames="none").findings == []


def test_an_index_that_the_manifest_names_and_a_card_that_stands_are_left(out: Path) -> None:
    """Pins another version's index, with which its manifest holds, and what people wrote."""
    card = out / "shards" / "README.md"
    card.write_text("---\nlicense: mit\n---\nOurs.\n")
    path = out / "shards" / ".nv-meta" / "dataset.yaml"
    path.write_bytes(b"__module__: mine\n__class__: Mine\n")
    manifest = json.loads((out / "shards" / "manifest.json").read_bytes())
    del manifest["checksum"]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = {"bytes": path.stat().st_size, "sha256": sha256}
    manifest["files"][".nv-meta/dataset.yaml"] = facts
    (out / "shards" / "manifest.json").write_text(json.dumps(manifest))
    for form in ("energon", "wids", "webshart"):
        exported(out, out, form)
    assert path.read_bytes().startswith(b"__module__: mine")
    assert card.read_text().endswith("Ours.\n")


def test_shards_without_a_manifest_get_indexes(tmp_path: Path, clips: list[MadeClip]) -> None:
    """Pins indexes where there were none, and that tars without a split are for training."""
    tars = make_shards(str(tmp_path / "out"), clips, with_manifest=False)
    shards = tmp_path / "out" / "shards"
    for path in [*shards.rglob("*.idx"), *shards.rglob("*.jsonl")]:
        path.unlink()
    exported(tmp_path / "out", tmp_path / "out", "energon")
    exported(tmp_path / "out", tmp_path / "out", "wids")
    info = json.loads((shards / ".nv-meta" / ".info.json").read_bytes())
    assert sorted(info["shard_counts"]) == sorted(tars)
    assert sum(info["shard_counts"].values()) == len(clips)
    assert set(verify(str(tmp_path / "out")).counts) == {"manifest_missing"}
    _, header, _ = (shards / "README.md").read_text().split("---", 2)
    (config,) = yaml.safe_load(header)["configs"]
    named = {path for files in config["data_files"] for path in files["path"]}
    assert named == set(tars)


@pytest.mark.parametrize("form", ["cosmos", "opensora", "cogvideo", "parquet", "frames"])
def test_a_damaged_shard_ends_the_export_and_leaves_no_half_object(
    out: Path, tmp_path: Path, form: str, curate: Curate
) -> None:
    """Pins that no damaged clip is copied, and what is said: half a tar, and another byte."""
    tar = next((out / "shards").rglob("train-000000*.tar"))
    data = tar.read_bytes()
    at = data.index(b"mdat") + 60
    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    for damaged in (data[: len(data) // 2], *([changed] if form == "cosmos" else [])):
        tar.write_bytes(damaged)
        # A clip that an earlier command wrote is not read again.
        to = tmp_path / f"to-{len(damaged)}"
        error = curate("export", out, to, "--format", form, code=EXIT_BROKEN_OFF)
        assert f"curate verify {out}" in error
        assert "has sha256" in error or damaged is not changed
        assert not list(to.rglob(".tmp-*"))


def test_the_command_says_what_it_did(out: Path, tmp_path: Path, curate: Curate) -> None:
    command = ["export", str(out), str(tmp_path / "to"), "--format"]
    assert "8 clips as cosmos; 16 objects written" in curate(*command, "cosmos")
    for arguments, words in (
        (["cosmos", "--bucket", "none"], "no bucket 'none'"),
        (["wids", "--split", "val"], "indexes all clips of all shards"),
        (["mds", "--size", "8x8"], "no option 'size'; those that have it: frames"),
        (["frames", "--size", "0x3"], "frames: size.0: expected a number greater"),
    ):
        assert words in curate(*command, *arguments, code=EXIT_USAGE)
    curate("export", out, out, "--format", "cosmos", code=EXIT_USAGE)


def test_s3_gives_and_takes_what_folders_do(
    out: Path, tmp_path: Path, s3_bucket: str, clips: list[MadeClip]
) -> None:
    """Pins S3 on both sides against folders on both sides, byte by byte, and the second call."""
    remote = f"s3://{s3_bucket}/run"
    make_shards(remote, clips)
    for form in FOLDER_FORMATS:
        to, options = f"s3://{s3_bucket}/to/{form}", SAME_ANYWHERE.get(form, {})
        exported(remote, to, form, **options)
        exported(out, tmp_path / form, form, **options)
        store = open_store(to)
        there = {info.key: store.read(info.key) for info in store.list()}
        here = files(tmp_path / form)
        assert set(there) == set(here)
        # Rows of `parquet` name where the tar lies.
        assert form == "parquet" or there == here
        n_tables = 4 if form in ("opensora", "cogvideo") else 0
        assert exported(remote, to, form, **options).n_objects == n_tables


def test_a_format_is_one_class_and_says_what_it_is() -> None:
    """Pins that an entry of the list is all that a format needs: help comes from the class."""
    for exporter in (load_format(name)[0] for name in FORMATS):
        assert exporter.about
        options = exporter.options_type
        assert all(description_of(options, name) for name in options.model_fields)


def test_an_installed_package_offers_a_format(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the entry point, and that the export names the package and its version."""
    site = tmp_path / "site"
    (site / "lines-2.5.dist-info").mkdir(parents=True)
    (site / "lines-2.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lines\nVersion: 2.5\n"
    )
    (site / "lines-2.5.dist-info" / "top_level.txt").write_text("lines_format\n")
    (site / "lines-2.5.dist-info" / "entry_points.txt").write_text(
        "[curate.exporters]\nlines = lines_format:JsonLines\n"
    )
    shutil.copy(EXAMPLE, site / "lines_format.py")
    monkeypatch.syspath_prepend(str(site))
    done = exported(out, tmp_path / "to", "lines")
    assert done.n_records == 8
    assert done.origin == {
        "class": "lines_format:JsonLines",
        "version": "1",
        "distribution": "lines",
        "distribution_version": "2.5",
    }
