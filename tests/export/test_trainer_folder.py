"""`curate export --format folder`: each file as its reader takes it, and what is not sent twice."""

import base64
import hashlib
import json
import os
import time
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import av
import pytest
from botocore.exceptions import ClientError
from command_line import Curate
from made_samples import FPS, HEIGHT, WIDTH, MadeClip, make_shards
from small_output import SmallOutput, source_id

from curator.errors import ShardError, UsageError
from curator.export import Exported, export
from curator.export import destination as destination_module
from curator.storage import open_store, s3_store
from curator.storage.s3_client import client
from curator.tables.fenced_store import Digest
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_USAGE
from curator.trainers.trainer_files import load_trainer, trainer_names

AUDIO = ("copy", "dropped", "aac", "none")
CAPTIONS = ["", 'a "square"\nand a second line', "\u2028 ünïcode", " ", "null"]
FILES_OF_LTX2 = {
    "audio", "media_path", "ref_media_path", "reference_video", "reference_audio", "video_mask",
    "audio_mask",
}  # fmt: skip
"""Columns that its `process_dataset.py` opens as files."""
N_CONFIGS = sum(load_trainer(name).rules.config is not None for name in trainer_names())
OPENED_BY_NO_READER = {".txt", ".npz", ".json", ".parquet", ".bak", ".db", ".mp4"}
"""Suffixes in `videos/` that diffusion-pipe does not open, and the videos themselves."""


@pytest.fixture
def clips(clips: list[MadeClip]) -> list[MadeClip]:
    texts = [*CAPTIONS, *(clip.caption for clip in clips[len(CAPTIONS) :])]
    changes = {"scores": {"motion": 0.5}, "meta": {"place": "Rome"}}
    return [
        replace(clip, caption=text, changes={"audio": audio, **changes})
        for clip, text, audio in zip(clips, texts, cycle(AUDIO), strict=False)
    ]


def folder(out: object, to: object, where: str | None = None, **options: object) -> Exported:
    return export(str(out), str(to), "folder", where=where, options=options)


def files(root: Path) -> dict[str, bytes]:
    """All files but the records, which name versions."""
    paths = (p for p in root.rglob("*") if p.is_file() and ".exported" not in p.parts)
    return {str(p.relative_to(root)): p.read_bytes() for p in paths}


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL as Python's `open` splits them."""
    with path.open(encoding="ascii") as opened:
        return [json.loads(line) for line in opened]


def test_each_index_is_what_its_reader_takes(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins every file of a split; the rules of the readers are named at each."""
    to = tmp_path / "to"
    done = folder(out, to)
    assert (done.n_clips, done.n_objects, done.n_without_text) == (
        8,
        8 * 2 + 2 * (7 + N_CONFIGS),
        2,
    )
    for split in ("train", "val"):
        own = {clip.key: clip for clip in clips if clip.split == split}
        root, videos = to / split, to / split / "videos"
        names = {f"{key}.{suffix}" for key in own for suffix in ("mp4", "txt")}
        assert {p.name for p in videos.iterdir()} == names | {"captions.json", "meta.json"}
        assert {p.suffix for p in videos.iterdir()} <= OPENED_BY_NO_READER
        assert {p.name for p in root.iterdir() if p.is_file()} == {
            "metadata.jsonl", "metadata.json", "video_dataset_file.jsonl", "videos2caption.json",
            "facts.json",
        }  # fmt: skip
        for key, clip in own.items():
            assert (videos / f"{key}.mp4").read_bytes() == clip.mp4
            assert (videos / f"{key}.txt").read_bytes() == clip.caption.encode()
        # DiffSynth, LTX-2: `video` below the folder; VideoX-Fun: a list, not lines.
        rows = lines(root / "metadata.jsonl")
        assert json.loads((root / "metadata.json").read_bytes()) == rows
        assert {row["key"] for row in rows} == set(own)
        for row in rows:
            clip, file = own[row["key"]], f"videos/{row['key']}.mp4"
            assert row == {
                "video": file, "file_path": file, "video_path": str(root / file),
                "prompt": clip.caption, "caption": clip.caption, "text": clip.caption,
                "type": "video", "width": WIDTH, "height": HEIGHT, "num_frames": clip.n_frames,
                "fps": float(FPS), "duration": round(float(clip.n_frames / FPS), 6),
                "has_audio": clip.changes["audio"] in ("copy", "aac"), "bucket": clip.bucket,
                "key": clip.key,
            }  # fmt: skip
            assert not FILES_OF_LTX2 & row.keys()
        # Cosmos 3: paths below the JSONL's folder, the last frame of a window is in it. A clip
        # without a caption has no window: the trainer would train on a full stop.
        for line in lines(root / "video_dataset_file.jsonl"):
            clip = own[line["uuid"]]
            window = {
                "start_frame": 0, "end_frame": clip.n_frames - 1, "temporal_interval": 1,
                "caption": clip.caption,
            }  # fmt: skip
            assert line["t2w_windows"] == ([window] if clip.caption.strip() else [])
            assert (root / line["vision_path"]).is_file()
            assert (line["nb_frames"], line["framerate"]) == (clip.n_frames, float(FPS))
            assert (line["width"], line["height"]) == (WIDTH, HEIGHT)
            assert line["duration"] == round(float(clip.n_frames / FPS), 6)
        # FastVideo joins `path` with `videos/`, and drops a clip with the caption "".
        items = json.loads((root / "videos2caption.json").read_bytes())
        assert {item["path"]: item["cap"] for item in items} == {
            f"{key}.mp4": clip.caption or " " for key, clip in own.items()
        }
        assert all(
            item["resolution"] == {"width": WIDTH, "height": HEIGHT}
            and item["num_frames"] == own[item["path"].removesuffix(".mp4")].n_frames
            and item["fps"] == float(FPS)
            for item in items
        )
        # diffusion-pipe: lists of captions; Automodel takes the file's name for the caption "".
        assert json.loads((videos / "captions.json").read_bytes()) == {
            f"{key}.mp4": [clip.caption] for key, clip in own.items()
        }
        assert json.loads((videos / "meta.json").read_bytes()) == [
            {"file_name": row["key"] + ".mp4", "caption": own[row["key"]].caption or " "}
            for row in rows
        ]
        facts = json.loads((root / "facts.json").read_bytes())
        n_frames = [clip.n_frames for clip in own.values()]
        assert (facts["least_frames"], facts["most_frames"]) == (min(n_frames), max(n_frames))
        assert facts["fps"] == {str(FPS): len(own)}
        assert facts["with_audio"] == sum(row["has_audio"] for row in rows)
        assert facts["sizes"] == {f"{WIDTH}x{HEIGHT}": len(own)}
        assert facts["with_empty_caption"] == sum(not c.caption.strip() for c in own.values())
        assert sum(facts["buckets"].values()) == facts["clips"] == len(own)


def test_a_moved_folder_names_no_place(out: Path, tmp_path: Path) -> None:
    """Pins that `--relative` gives the same bytes anywhere, for any number of threads."""
    for number, name in enumerate("ab"):
        options = {"relative": True, "columns": "v=path"}
        export(str(out), str(tmp_path / name), "folder", workers=1 + number, options=options)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert not any(str(tmp_path).encode() in d for d in files(tmp_path / "a").values())


def test_a_split_without_clips_has_valid_indexes(out: Path, tmp_path: Path) -> None:
    assert folder(out, tmp_path / "to", min_frames=99).n_short == 8
    for path in (tmp_path / "to").rglob("*.json"):
        json.loads(path.read_bytes())
    assert [p.stat().st_size for p in (tmp_path / "to").rglob("*.jsonl")] == [0] * 4


def test_a_destination_among_the_shards_is_refused(out: Path) -> None:
    """Readers of the shards would take the folder for samples, and `verify` warns of each file."""
    for to in ("shards", "shards/sft", "views/sft"):
        with pytest.raises(UsageError, match=f"{to} is in a folder of OUT.* choose another dest"):
            folder(out, out / to)
    with pytest.raises(UsageError, match="/sft is in a folder of OUT"):
        folder(out / "shards", out / "shards" / "sft")
    assert not (out / "shards" / "train").exists()
    assert folder(out, out / "sft").n_clips


def test_columns_have_names_of_choice(out: Path, tmp_path: Path, clips: list[MadeClip]) -> None:
    columns = "video=path,prompt=text, n = num_frames,m=scores.motion,at=meta.place,a=audio"
    folder(out, tmp_path / "to", columns=columns)
    by_key = {clip.key: clip for clip in clips}
    rows = [row for s in ("train", "val") for row in lines(tmp_path / "to" / s / "columns.jsonl")]
    assert len(rows) == len(clips)
    for row in rows:
        clip = by_key[Path(row["video"]).stem]
        assert Path(row["video"]).read_bytes() == clip.mp4
        assert row == {
            "video": row["video"], "prompt": clip.caption, "n": clip.n_frames, "m": 0.5,
            "at": "Rome", "a": clip.changes["audio"],
        }  # fmt: skip
    for wrong, words in (
        ("m=scores.motoin", "--columns m=scores.motoin: unknown value 'scores.motoin'; did you "
         "mean 'scores.motion'?"),
        ("v=paht", "did you mean 'path'?"),
        ("v=subfile", "unknown value 'subfile'"),
        ("video", "expected different names with values, such as video=path"),
        ("v=path,v=text", "expected different names"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as raised:
            folder(out, tmp_path / "no", columns=wrong)
        assert words in str(raised.value)
    assert not (tmp_path / "no").exists()


def test_an_export_again_reads_no_mp4(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the records, and that they do not prove a file that was changed in place."""
    to = tmp_path / "to"
    folder(out, to)
    whole = files(to)
    read: list[str] = []

    def reads(cls: type, store: object, name: str) -> Digest:
        read.append(name)
        return of_object(store, name)

    of_object = Digest.of_object
    monkeypatch.setattr(destination_module.Digest, "of_object", classmethod(reads))
    again = folder(out, to)
    assert (read, again.n_reused, again.n_objects) == ([], 18 + 2 * N_CONFIGS, 12)
    changed = next(to.rglob("*.mp4"))
    changed.write_bytes(bytes(changed.stat().st_size))
    assert folder(out, to).n_objects == 13
    assert read == [str(changed.relative_to(to))]
    next(to.rglob(".exported/*")).write_bytes(b"{")
    folder(out, to)
    assert len(read) == 3
    assert files(to) == whole


def test_another_export_links_to_the_mp4s_of_an_earlier_one(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins one file with two names, from any format, and none for other bytes."""
    export(str(out), str(tmp_path / "a"), "cosmos")
    wrong = next((tmp_path / "a").rglob("*.mp4"))
    wrong.write_bytes(bytes(wrong.stat().st_size))
    done = folder(out, tmp_path / "b", reuse=str(tmp_path / "a"))
    assert done.n_linked == len(clips) - 1
    plain = tmp_path / "plain"
    folder(out, plain)

    def without_paths(root: Path) -> dict[str, bytes]:
        names = ("metadata", "trainers/")
        return {n: d for n, d in files(root).items() if not any(name in n for name in names)}

    assert without_paths(tmp_path / "b") == without_paths(plain)
    for path in (tmp_path / "b").rglob("*.mp4"):
        earlier = tmp_path / "a" / path.relative_to(tmp_path / "b")
        assert os.path.samefile(path, earlier) == (path.name != wrong.name)
    again = folder(out, tmp_path / "b", reuse=str(tmp_path / "a"))
    assert (again.n_linked, again.n_reused) == (0, 18 + 2 * N_CONFIGS)
    with pytest.raises(UsageError, match="no MP4s there"):
        folder(out, tmp_path / "c", reuse=str(tmp_path / "nowhere"))


def test_indexes_in_place_name_mp4s_that_exist(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins addresses of an earlier export, else the bytes in the tars, and no path to a tar."""
    by_key = {clip.key: clip for clip in clips}
    folder(out, tmp_path / "a")
    done = folder(out, tmp_path / "b", in_place=True, reuse=str(tmp_path / "a"))
    assert (done.n_clips, done.n_linked) == (8, 0)
    assert {Path(name).name for name in files(tmp_path / "b")} == {
        "metadata.jsonl", "metadata.json", "video_dataset_file.jsonl", "videos2caption.json",
        "facts.json", "cosmos3.sh", "fastvideo.sh", "ltx2.sh", "ltx2-diffsynth.sh",
        "videox-fun.sh", "wan-diffsynth.sh",
    }  # fmt: skip
    root = tmp_path / "b" / "train"
    for row in lines(root / "metadata.jsonl"):
        for name in ("video", "video_path", "file_path"):
            assert Path(row[name]).read_bytes() == by_key[row["key"]].mp4
    for item in json.loads((root / "videos2caption.json").read_bytes()):
        assert Path(root / "videos" / item["path"]).is_file()
    assert all(
        Path(row["vision_path"]).is_file() for row in lines(root / "video_dataset_file.jsonl")
    )

    folder(out, tmp_path / "c", in_place=True, columns="v=subfile")
    root = tmp_path / "c" / "train"
    assert {p.name for p in root.iterdir()} == {
        "metadata.jsonl",
        "metadata.json",
        "columns.jsonl",
        "facts.json",
    }
    rows = lines(root / "metadata.jsonl")
    for row, column in zip(rows, lines(root / "columns.jsonl"), strict=True):
        assert not {"video", "video_path", "file_path"} & row.keys()
        data = Path(row["address"]).read_bytes()[row["offset"] : row["offset"] + row["bytes"]]
        assert data == by_key[row["key"]].mp4
        with av.open(column["v"]) as container:
            assert sum(1 for _ in container.decode(video=0)) == row["num_frames"]

    next((tmp_path / "a").rglob("*.mp4")).unlink()
    with pytest.raises(UsageError, match="export there first"):
        folder(out, tmp_path / "d", in_place=True, reuse=str(tmp_path / "a"))


def test_an_export_that_broke_off_goes_on(out: Path, tmp_path: Path, curate: Curate) -> None:
    """Pins that no index names some of the clips only, and equal bytes after the same command."""
    folder(out, tmp_path / "whole", relative=True)
    tar = sorted((out / "shards").rglob("train-*.tar"))[-1]
    data = tar.read_bytes()
    tar.write_bytes(data[: len(data) // 2])
    command = ["export", out, tmp_path / "to", "--format", "folder", "--relative"]
    curate(*command, code=EXIT_BROKEN_OFF)
    written = files(tmp_path / "to")
    assert written
    assert all(name.endswith((".mp4", ".txt")) for name in written)
    # What a killed export leaves in a folder without finished files.
    killed = tmp_path / "to" / "train" / f".tmp-{7:016x}"
    killed.write_bytes(b"half")
    os.utime(killed, (time.time() - 60,) * 2)
    tar.write_bytes(data)
    curate(*command)
    assert files(tmp_path / "to") == files(tmp_path / "whole")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "out"
    output = SmallOutput(root, {1, 2, 3})
    output.run({1, 2, 3})
    return root


@pytest.mark.parametrize("form", ["folder", "cosmos", "opensora", "cogvideo", "parquet", "frames"])
def test_a_condition_chooses_the_clips_of_every_format(
    finished: Path, tmp_path: Path, form: str
) -> None:
    """Pins the clips, their counts, and that other conditions give other objects."""
    options: dict[str, object] = {"size": "16x16"} if form == "frames" else {}
    of_clips = {"parquet": ".parquet", "frames": ".tar"}.get(form, ".mp4")

    def exported(where: str | None, name: str) -> tuple[int, int, set[bytes]]:
        to = tmp_path / name
        done = export(str(finished), str(to), form, where=where, options=options)
        written = {n: d for n, d in files(to).items() if n.endswith(of_clips)}
        if of_clips == ".mp4":
            return done.n_clips, done.n_unselected, {Path(n).stem.encode() for n in written}
        return done.n_clips, done.n_unselected, set(written.values())

    one, others = (f"source_id {sign} '{source_id(1)}'" for sign in ("=", "<>"))
    first, second = exported(one, "one"), exported(others, "others")
    assert (first[:2], second[:2]) == ((3, 6), (6, 3))
    assert not first[2] & second[2]
    assert exported(one, "one") == first
    plain = exported(None, "plain")
    assert plain[:2] == (9, 0)
    if of_clips == ".mp4":
        assert first[2] | second[2] == plain[2]
    # All clips of a tar give the objects that an export without a condition gives.
    again = export(str(finished), str(tmp_path / "plain"), form, where="true", options=options)
    assert (again.n_clips, again.n_bytes) == (9, 0)


def test_conditions_that_cannot_be_met_are_refused(
    finished: Path, tmp_path: Path, curate: Curate
) -> None:
    command = ["export", finished, tmp_path / "to", "--format", "folder", "--where"]
    printed = curate(*command, f"source_id = '{source_id(2)}'")
    assert "3 clips as folder" in printed
    assert "6 clips left out because they do not meet --where" in printed
    for out, form, where, words in (
        (finished, "folder", "motion > 99", "none of 9 clips of the chosen splits and buckets"),
        (finished, "folder", "motoin > 1", "motion"),
        (finished, "energon", "true", "indexes all clips"),
        (finished / "shards", "folder", "true", "has no finished run"),
    ):
        arguments = ["export", out, tmp_path / "no", "--format", form, "--where", where]
        assert words in curate(*arguments, code=EXIT_USAGE)
    assert not (tmp_path / "no").exists()
    snapshot = export(str(finished), str(tmp_path / "s"), "folder", where="true", snapshot=1)
    assert snapshot.n_clips == 9


def with_checksums(monkeypatch: pytest.MonkeyPatch, *, reads: list[str]) -> None:
    """Makes the server of the tests return the SHA-256 of a copied part, as S3 does."""
    service = client()
    copy, complete = service.upload_part_copy, service.complete_multipart_upload

    def copied(**call: Any) -> dict[str, Any]:  # noqa: ANN401 - of boto3
        answer = copy(**call)
        source, span = call["CopySource"], call["CopySourceRange"]
        data = service.get_object(**source, Range=span)["Body"].read()
        reads.append(source["Key"])
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        answer["CopyPartResult"]["ChecksumSHA256"] = checksum
        return answer

    def completed(**call: Any) -> dict[str, Any]:  # noqa: ANN401 - of boto3
        (part,) = call["MultipartUpload"]["Parts"]
        assert part.pop("ChecksumSHA256")
        return complete(**call)

    monkeypatch.setattr(service, "upload_part_copy", copied)
    monkeypatch.setattr(service, "complete_multipart_upload", completed)
    monkeypatch.setattr(s3_store, "COPIED_RANGE_BYTES", 1)


@pytest.mark.long
def test_s3_copies_clips_out_of_tars_by_itself(
    s3_bucket: str,
    tmp_path: Path,
    clips: list[MadeClip],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins copies by the server, compared by SHA-256, and a transfer where it cannot do either."""
    remote, copied = f"s3://{s3_bucket}/run", list[str]()
    clips = clips[2:6:3]
    for place in (remote, str(tmp_path / "out")):
        make_shards(place, clips)
    folder(tmp_path / "out", tmp_path / "to", relative=True)
    whole = files(tmp_path / "to")
    n_small = sum(name.endswith("facts.json") or "/trainers/" in name for name in whole)

    def at(name: str) -> dict[str, bytes]:
        store = open_store(f"s3://{s3_bucket}/{name}")
        return {i.key: store.read(i.key) for i in store.list() if ".exported" not in i.key}

    assert folder(remote, f"s3://{s3_bucket}/read", relative=True).n_linked == 0
    with_checksums(monkeypatch, reads=copied)
    done = folder(remote, f"s3://{s3_bucket}/copied", relative=True)
    assert (done.n_linked, len(copied)) == (len(clips), len(clips))
    assert at("read") == at("copied") == whole
    assert (
        folder(remote, f"s3://{s3_bucket}/copied", relative=True).n_reused
        == 2 * len(clips) + n_small
    )
    # An earlier export is copied whole, or named by its addresses.
    copied.clear()
    earlier = f"s3://{s3_bucket}/copied"
    done = folder(remote, f"s3://{s3_bucket}/again", relative=True, reuse=earlier)
    assert (done.n_linked, copied, at("again")) == (len(clips), [], whole)
    folder(remote, f"s3://{s3_bucket}/indexes", in_place=True, reuse=earlier)
    rows = [json.loads(line) for line in at("indexes")["train/metadata.jsonl"].splitlines()]
    assert {row["video"] for row in rows} == {
        f"{earlier}/{name}" for name in whole if name.endswith(".mp4") and "train" in name
    }
    # A byte that changed in a tar is not copied.
    store = open_store(remote)
    tar = next(i.key for i in store.list("shards/") if "train" in i.key and i.key.endswith(".tar"))
    data = store.read(tar)
    at_byte = data.index(b"mdat") + 60
    store.write(tar, data[:at_byte] + bytes([data[at_byte] ^ 1]) + data[at_byte + 1 :])
    with pytest.raises(ShardError, match="has sha256"):
        folder(remote, f"s3://{s3_bucket}/broken")
    assert not _uploads(s3_bucket)


@pytest.mark.long
def test_refusals_of_copies_are_remembered(
    s3_bucket: str, tmp_path: Path, clips: list[MadeClip], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins one attempt for each tar that is too small, and one for a server without checksums."""
    remote, begun = f"s3://{s3_bucket}/run", list[str]()
    tars = make_shards(remote, clips[:4])
    monkeypatch.setattr(s3_store, "COPIED_RANGE_BYTES", 1)
    service = client()
    create, copy = service.create_multipart_upload, service.upload_part_copy

    def created(**call: Any) -> object:  # noqa: ANN401 - of boto3
        begun.append(call["Key"])
        return create(**call)

    def refused(**call: Any) -> object:  # noqa: ANN401 - of boto3
        raise ClientError({"Error": {"Code": "InvalidRequest"}}, "UploadPartCopy")

    monkeypatch.setattr(service, "create_multipart_upload", created)
    for name, copied, n_attempts in (("small", refused, len(tars)), ("plain", copy, 1)):
        monkeypatch.setattr(service, "upload_part_copy", copied)
        monkeypatch.setattr(s3_store, "_without_ranges", set())
        begun.clear()
        done = export(remote, f"s3://{s3_bucket}/{name}", "folder", workers=1)
        assert (done.n_linked, done.n_clips, len(begun)) == (0, 4, n_attempts)
        assert not _uploads(s3_bucket)
    options = {"reuse": f"s3://{s3_bucket}/plain"}
    for form in ("folder", "cogvideo"):
        with pytest.raises(UsageError, match="expected a place of the same kind as"):
            export(remote, str(tmp_path / "local"), form, options=options)
    assert not (tmp_path / "local").exists()


def test_an_export_again_on_s3_receives_no_clip(
    s3_bucket: str, clips: list[MadeClip], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that captions are compared by ETag and MP4s by their record."""
    remote, to = f"s3://{s3_bucket}/run", f"s3://{s3_bucket}/to"
    make_shards(remote, clips[:3])
    folder(remote, to)
    got: list[str] = []
    service = client()
    get = service.get_object

    def gets(**call: Any) -> object:  # noqa: ANN401 - of boto3
        got.append(call["Key"])
        return get(**call)

    monkeypatch.setattr(service, "get_object", gets)
    assert folder(remote, to).n_reused == 3 * 2 + 1 + N_CONFIGS
    read = {key for key in got if key.startswith("to/")}
    assert read
    assert all("/.exported/" in key for key in read)
    assert not any(key.endswith(".tar") for key in got)


def _uploads(bucket: str) -> list[object]:
    return list(client().list_multipart_uploads(Bucket=bucket).get("Uploads", ()))
