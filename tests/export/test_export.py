"""`curate export`: what each format holds, that it is made alike each time, and goes on."""

import csv
import hashlib
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset as wds
import yaml
from made_samples import FPS, HEIGHT, WIDTH, MadeClip, made_clips, make_shards
from PIL import Image

from curator.cli import main
from curator.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK, EXIT_USAGE
from curator.errors import UsageError
from curator.export import Exported, export
from curator.export.frame_tars import fitted
from curator.storage import open_store
from curator.verify import verify

FOLDER_FORMATS = ("cosmos", "opensora", "cogvideo", "parquet", "frames", "energon", "wids")
SAME_ANYWHERE: dict[str, dict[str, object]] = {
    "opensora": {"relative": True},
    "frames": {"size": (16, 16)},
}
"""Options with which objects do not depend on the destination, and are small."""


@pytest.fixture
def clips() -> list[MadeClip]:
    return made_clips()


@pytest.fixture
def out(tmp_path: Path, clips: list[MadeClip]) -> Path:
    make_shards(str(tmp_path / "out"), clips)
    return tmp_path / "out"


def exported(out: Path | str, destination: Path | str, form: str, **options: object) -> Exported:
    """Exports; `splits`, `buckets` and `workers` are for all formats, the rest is the format's."""
    shared = {
        name: options.pop(name) for name in ("splits", "buckets", "workers") if name in options
    }
    return export(str(out), str(destination), form, **shared, options=options)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_a_killed_export_left_is_removed_by_the_next(out: Path, tmp_path: Path) -> None:
    exported(out, tmp_path / "to", "cosmos")
    left = [tmp_path / "to" / name for name in (f".tmp-{7:016x}", f"train/videos/.tmp-{8:016x}")]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (time.time() - 60,) * 2)
    exported(out, tmp_path / "to", "cosmos")
    assert not any(path.exists() for path in left)


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
                "path": row["path"],
                "text": clip.caption,
                "num_frames": clip.n_frames,
                "height": HEIGHT,
                "width": WIDTH,
                "aspect_ratio": HEIGHT / WIDTH,
                "resolution": HEIGHT * WIDTH,
                "fps": float(FPS),
            }
        n_rows += len(rows)
    assert n_rows == len(clips)


def test_a_caption_with_commas_quotes_and_lines_survives_csv(
    tmp_path: Path, clips: list[MadeClip]
) -> None:
    caption = 'one, "two"\nthree; ünïcode'
    make_shards(str(tmp_path / "out"), [replace(clips[0], caption=caption)])
    exported(tmp_path / "out", tmp_path / "to", "opensora", relative=True)
    with (tmp_path / "to" / "train.csv").open(newline="", encoding="utf-8") as lines:
        (row,) = csv.DictReader(lines)
    assert row["text"] == caption
    assert row["path"] == f"videos/train/{clips[0].key}.mp4"


@pytest.mark.parametrize(
    "form",
    [
        "cosmos",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("opensora", "cogvideo", "parquet")
        ),
    ],
)
def test_captions_that_no_model_wrote_are_counted(
    tmp_path: Path, clips: list[MadeClip], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins what the command says of measured captions, and that it is silent about a model's."""
    models = ["curate/measured-1"] * 3 + ["some/vlm"] * (len(clips) - 3)
    own = [
        replace(clip, changes={"caption_model": m}) for clip, m in zip(clips, models, strict=True)
    ]
    for number, (some, n_measured) in enumerate(((own, 3), (own[3:], 0))):
        out, to = tmp_path / f"out{number}", tmp_path / f"to{number}"
        make_shards(str(out), some)
        assert exported(out, to, form).n_measured == n_measured
        assert main(["export", str(out), str(tmp_path / f"again{number}"), "--format", form]) == 0
        said = f"{n_measured} captions are composed of measurements, and no model wrote them"
        assert (said in capsys.readouterr().out) == (n_measured > 0)


def test_pandas_reads_every_caption_as_text(tmp_path: Path, clips: list[MadeClip]) -> None:
    """Pins what Open-Sora does: `read_csv`, then the caption plus words on the frame rate."""
    pandas = pytest.importorskip("pandas")
    captions = ["", "None", "NA", "nan", "null", "N/A", " ", "a dog"]
    own = [
        replace(clip, caption=text, split="train")
        for clip, text in zip(clips, captions, strict=True)
    ]
    make_shards(str(tmp_path / "out"), own)
    exported(tmp_path / "out", tmp_path / "to", "opensora")
    read = pandas.read_csv(tmp_path / "to" / "train.csv")
    by_path = {Path(row["path"]).stem: row["text"] for _, row in read.iterrows()}
    assert {key: text.strip() for key, text in by_path.items()} == {
        clip.key: clip.caption.strip() for clip in own
    }


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


def test_cogvideo_refuses_a_path_that_its_loader_would_change(out: Path, tmp_path: Path) -> None:
    for name in ("my_videos", "a.mp4"):
        with pytest.raises(UsageError, match="choose a destination with neither"):
            exported(out, tmp_path / name, "cogvideo")


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
def test_an_export_is_the_same_each_time_and_writes_nothing_twice(
    out: Path, tmp_path: Path, form: str
) -> None:
    """Pins equal bytes with other numbers of threads, and that a second call writes no clip."""
    options = SAME_ANYWHERE.get(form, {})
    first = exported(out, tmp_path / "a", form, workers=1, **options)
    exported(out, tmp_path / "b", form, workers=4, **options)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*.mp4")}
    again = exported(out, tmp_path / "a", form, **options)
    n_tables = 4 if form in ("opensora", "cogvideo") else 0
    assert (again.n_objects, again.n_clips) == (n_tables, first.n_clips)
    assert again.n_reused == first.n_objects - n_tables
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("form", FOLDER_FORMATS)
def test_an_export_that_was_broken_off_is_completed(out: Path, tmp_path: Path, form: str) -> None:
    """Pins that what is missing, cut or of another clip is written anew, and nothing else."""
    exported(out, tmp_path / "to", form)
    whole = files(tmp_path / "to")
    objects = [name for name in sorted(whole) if not name.endswith((".csv", "train.parquet"))]
    (tmp_path / "to" / objects[0]).unlink()
    if form in ("cosmos", "opensora"):
        other = tmp_path / "to" / objects[1]
        other.write_bytes(bytes(len(whole[objects[1]])))
    exported(out, tmp_path / "to", form)
    assert files(tmp_path / "to") == whole


def test_shards_of_a_run_that_was_killed_are_not_taken_for_all(
    tmp_path: Path, clips: list[MadeClip], capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the first run's case: whole tars stand, and nothing says that others are to come."""
    make_shards(str(tmp_path / "out"), clips, with_manifest=False)
    (tmp_path / "out" / "summary.json").unlink()
    command = ["export", str(tmp_path / "out"), str(tmp_path / "to"), "--format", "cosmos"]
    assert main(command) == EXIT_USAGE
    assert f"or name {tmp_path / 'out' / 'shards'} itself" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
    command[1] = str(tmp_path / "out" / "shards")
    assert main(command) == EXIT_OK
    assert "no manifest (there is none): all tars that are there" in capsys.readouterr().out


def test_what_another_export_left_is_told(out: Path, tmp_path: Path) -> None:
    """Pins that files a loader would take, of clips that are no more, are counted."""
    folder = tmp_path / "to" / "train" / "videos"
    folder.mkdir(parents=True)
    (folder / "old.mp4").write_bytes(b"old")
    assert exported(out, tmp_path / "to", "cosmos").n_others == 1


def test_split_and_bucket_choose(out: Path, tmp_path: Path, clips: list[MadeClip]) -> None:
    exported(out, tmp_path / "to", "cosmos", splits=("val",), buckets=("36p_4-3_4f",))
    wanted = {c.key for c in clips if c.split == "val" and c.bucket == "36p_4-3_4f"}
    assert {p.stem for p in (tmp_path / "to").rglob("*.mp4")} == wanted
    assert wanted


def test_indexes_are_those_that_were_written_with_the_shards(out: Path, tmp_path: Path) -> None:
    """Pins that indexes made from the tars alone equal those of the run, and replace lost ones."""
    before = files(out / "shards")
    for form in ("energon", "wids"):
        exported(out, tmp_path / "apart", form)
    made = files(tmp_path / "apart")
    assert made == {name: before[name] for name in made}
    assert {n for n in before if ".nv-meta" in n or n.endswith(".idx") or "wids" in n} == set(made)
    for name in made:
        (out / "shards" / name).unlink()
    assert not verify(str(out), frames="none").is_well
    for form in ("energon", "wids"):
        exported(out, out, form)
    assert files(out / "shards") == before
    assert verify(str(out), frames="none").findings == []


def test_an_index_that_the_manifest_names_is_left(out: Path) -> None:
    """Pins that another version's index stays, with which its manifest holds."""
    path = out / "shards" / ".nv-meta" / "dataset.yaml"
    path.write_bytes(b"__module__: mine\n__class__: Mine\n")
    manifest = json.loads((out / "shards" / "manifest.json").read_bytes())
    del manifest["checksum"]
    manifest["files"][".nv-meta/dataset.yaml"] = {
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (out / "shards" / "manifest.json").write_text(json.dumps(manifest))
    exported(out, out, "energon")
    assert path.read_bytes().startswith(b"__module__: mine")


def test_a_card_that_stands_is_left(out: Path) -> None:
    """Pins that what people wrote into a card is not lost."""
    card = out / "shards" / "README.md"
    card.write_text("---\nlicense: mit\n---\nOurs.\n")
    for form in ("energon", "wids"):
        exported(out, out, form)
    assert card.read_text().endswith("Ours.\n")


def test_shards_of_an_older_version_get_indexes(tmp_path: Path, clips: list[MadeClip]) -> None:
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


def _damage(tar: Path, change: Callable[[bytes], bytes]) -> None:
    tar.write_bytes(change(tar.read_bytes()))


@pytest.mark.parametrize("form", ["cosmos", "opensora", "cogvideo", "parquet", "frames"])
def test_a_damaged_shard_ends_the_export_and_leaves_no_half_object(
    out: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that no damaged clip is copied, and what is said."""
    tar = next((out / "shards").rglob("train-000000*.tar"))
    _damage(tar, lambda data: data[: len(data) // 2])
    assert main(["export", str(out), str(tmp_path / "to"), "--format", form]) == EXIT_BROKEN_OFF
    assert f"curate verify {out}" in capsys.readouterr().err
    left = list((tmp_path / "to").rglob(".tmp-*"))
    assert left == []


def test_a_clip_with_other_bytes_is_not_exported(out: Path, tmp_path: Path) -> None:
    tar = next((out / "shards").rglob("train-000000*.tar"))
    at = tar.read_bytes().index(b"mdat") + 60
    _damage(tar, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(Exception, match="has sha256"):
        exported(out, tmp_path / "to", "cosmos")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "cosmos", "--bucket", "none"], "no bucket 'none'"),
        (["--format", "wids", "--split", "val"], "indexes all shards"),
        (["--format", "mds", "--size", "8x8"], "no option 'size'; those that have it: frames"),
    ],
)
def test_wrong_choices_are_usage_errors(
    out: Path,
    tmp_path: Path,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", str(out), str(tmp_path / "to"), *arguments]) == EXIT_USAGE
    assert words in capsys.readouterr().err
    assert main(["export", str(out), str(out), "--format", "cosmos"]) == EXIT_USAGE


def test_the_command_says_what_it_did(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(out), str(tmp_path / "to"), "--format", "cosmos"]
    assert main(arguments) == EXIT_OK
    assert "8 clips as cosmos; 16 objects written" in capsys.readouterr().out
    frames = [*arguments[:-1], "frames", "--size", "0x3"]
    assert main(frames) == EXIT_USAGE
    assert "frames: size is '0x3': " in capsys.readouterr().err


@pytest.mark.parametrize("form", FOLDER_FORMATS)
def test_s3_gives_and_takes_what_folders_do(
    out: Path, tmp_path: Path, s3_bucket: str, clips: list[MadeClip], form: str
) -> None:
    """Pins S3 on both sides against folders on both sides, byte by byte, and the second call."""
    remote = f"s3://{s3_bucket}/run"
    make_shards(remote, clips)
    to = f"s3://{s3_bucket}/to/{form}"
    options = SAME_ANYWHERE.get(form, {})
    exported(remote, to, form, **options)
    exported(out, tmp_path / "to", form, **options)
    store = open_store(to)
    there = {info.key: store.read(info.key) for info in store.list()}
    here = files(tmp_path / "to")
    assert set(there) == set(here)
    if form != "parquet":
        # Rows of `parquet` name where the tar lies.
        assert there == here
    assert exported(remote, to, form, **options).n_objects == (
        4 if form in ("opensora", "cogvideo") else 0
    )
