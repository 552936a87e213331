"""Still images as sources, beside videos: from the folder to the tars, their readers, and back."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import webdataset as wds
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from PIL import Image, ImageOps
from place import SHORT, Place, sets
from served import FakeServer

from curator.cli import main
from curator.errors import StorageError
from curator.loading.dataset import ClipDataset
from curator.runs import one_pass
from curator.storage import open_store
from curator.tables.mark_table import MarkWriter
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.review.finished_run import open_finished
from curator.tools.view.viewed_run import ViewedRun

SETTINGS = (
    *SHORT, "dedup.enabled=true", "scan.media=[video,image]", "filters.noise.max=1",
    "cut.length_frames=25", "cut.fps=25", "propose.windows=[]",
)  # fmt: skip
"""Bounds of time and length, which apply to videos alone."""
KEPT = {
    "a.jpg": ("jpg", "copy", (320, 240)), "b.png": ("png", "copy", (321, 241)),
    "c.webp": ("webp", "copy", (320, 240)), "d.avif": ("jpg", "encode", (320, 240)),
    "turned.jpg": ("jpg", "encode", (240, 320)), "clear.png": ("png", "encode", (320, 240)),
    "film.mp4": ("mp4", "encode", (320, 240)),
}  # fmt: skip
FAILED = {
    "cut.jpg": "no_frames", "moving.webp": "unsupported_codec", "old.bmp": "unsupported_codec",
    "printed.jpg": "unsupported_codec", "sound.wav": None,
}  # fmt: skip


def scene(seed: int, width: int = 320, height: int = 240) -> Image.Image:
    """A picture with structure that no other seed has."""
    (frame,) = moving_texture(1, seed=seed, width_px=width, height_px=height)
    return Image.fromarray(np.asarray(frame))


def write_sources(folder: Path) -> Path:
    folder.mkdir()
    scene(1).save(folder / "a.jpg", quality=95)
    scene(2, 321, 241).save(folder / "b.png")
    scene(3).save(folder / "c.webp", quality=95)
    scene(4).save(folder / "d.avif", quality=95)
    exif = Image.Exif()
    exif[0x112] = 6
    scene(5).save(folder / "turned.jpg", quality=95, exif=exif)
    clear = scene(6).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize((320, 240)))
    clear.save(folder / "clear.png")
    scene(1).resize((240, 180)).save(folder / "small_copy_of_a.jpg", quality=90)
    write_video(folder / "film.mp4", moving_texture(40, seed=7, width_px=320, height_px=240))
    (folder / "cut.jpg").write_bytes((folder / "a.jpg").read_bytes()[:5000])
    scene(8).save(folder / "moving.webp", save_all=True, append_images=[scene(9)])
    scene(10).save(folder / "old.bmp")
    scene(11).convert("CMYK").save(folder / "printed.jpg")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run over pictures and a film; tests do not change it."""
    root = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place = Place(write_sources(root / "in"), root / "out")
        run(place)
    return place


def run(place: Place, *more: str) -> None:
    named = ["run", "--recipe", "quickstart", str(place.sources), str(place.out)]
    assert main([*named, "--max-failed", "1", *sets((*SETTINGS, *more))]) == EXIT_OK


def by_name(place: Place) -> dict[str, dict[str, Any]]:
    return {Path(row["source_uri"]).name: row for row in place.table("clips")}


def test_every_source_is_kept_rejected_or_failed_by_name(place: Place) -> None:
    sources = {Path(row["uri"]).name: row for row in place.table("sources")}
    codes = {name: row["error_code"] for name, row in sources.items() if row["error_code"]}
    assert codes == {name: code for name, code in FAILED.items() if code}
    clips = by_name(place)
    assert {n for n, row in clips.items() if row["decision"] == "kept"} == set(KEPT)
    copy = clips["small_copy_of_a.jpg"]
    assert (copy["reason"], copy["duplicate_of"]) == ("duplicate", clips["a.jpg"]["clip_id"])
    assert set(sources) == {*codes, *clips}


@pytest.mark.parametrize("name", list(KEPT))
def test_a_clip_is_the_original_where_that_shows_the_same(place: Place, name: str) -> None:
    clip = by_name(place)[name]
    form, mode, size = KEPT[name]
    assert (clip["format"], clip["cut_mode"]) == (form, mode)
    assert (clip["width"], clip["height"]) == size
    assert clip["bucket"].endswith("_1f" if form != "mp4" else "_17f")
    data = place.sample(clip, form)
    assert hashlib.sha256(data).hexdigest() == clip["mp4_sha256"]
    if form != "mp4":
        assert (data == (place.sources / name).read_bytes()) == (mode == "copy")
        picture = Image.open(io.BytesIO(data))
        assert picture.size == size
        assert (picture.mode, picture.getexif().get(0x112)) == ("RGB", None)


def test_scores_of_time_are_null_and_reject_no_picture(place: Place) -> None:
    clip = by_name(place)["a.jpg"]
    assert {clip[n] for n in ("motion", "fps", "duration_s", "camera_motion", "noise")} >= {None}
    assert all(clip[n] is None for n in ("motion", "fps", "duration_s", "camera_motion"))
    assert all(clip[n] is not None for n in ("sharpness", "luma", "contrast", "text_area"))
    assert clip["short_side_px"] == 240
    assert (clip["n_frames"], clip["medium"], clip["reason"]) == (1, "image", None)


def test_a_tar_has_one_medium_and_one_format(place: Place) -> None:
    manifest = json.loads((place.out / "shards" / "manifest.json").read_text())
    for shard in manifest["shards"]:
        with tarfile.open(place.out / "shards" / shard["name"]) as tar:
            suffixes = {name.partition(".")[2] for name in tar.getnames()} - {"json", "txt"}
        assert len(suffixes) == 1
        assert (suffixes == {"mp4"}) == (shard["medium"] == "video")


def test_captions_speak_of_pictures(place: Place) -> None:
    clip = by_name(place)["a.jpg"]
    assert clip["caption"].startswith("A landscape picture of 320x240 pixels.")
    assert "second" not in clip["caption"]


def test_readers_find_pictures_and_films(place: Place) -> None:
    """Pins frames=1 over both media, exact pixels, and plain WebDataset."""
    dataset = ClipDataset(place.out, frames=1, batch_size=1, split="train", window="first")
    seen = {}
    for batch in dataset:
        assert batch["video"].shape[:3] == (1, 3, 1)
        seen[batch["key"][0]] = batch["video"][0, :, 0].permute(1, 2, 0).numpy()
    clips = by_name(place)
    train = {c["clip_id"]: n for n, c in clips.items() if "train" in (c["shard"] or "")}
    assert {train[key] for key in seen} == set(train.values())
    for key, rgb in seen.items():
        if train[key] in ("b.png", "a.jpg"):
            own = np.asarray(Image.open(place.sources / train[key]).convert("RGB"))
            height, width = rgb.shape[:2]
            top, left = (own.shape[0] - height) // 2, (own.shape[1] - width) // 2
            cropped = own[top : top + height, left : left + width]
            assert np.abs(cropped.astype(int) - rgb).mean() < 3
    tars = sorted(str(path) for path in (place.out / "shards").glob("*_1f/*.tar"))
    pictures = list(wds.WebDataset(tars, shardshuffle=False).decode("rgb8"))
    assert len(pictures) == len(KEPT) - 1
    assert all({"jpg", "png", "webp"} & sample.keys() for sample in pictures)


def test_datasets_reads_all_media_by_the_card(place: Place) -> None:
    datasets = pytest.importorskip("datasets")
    card = (place.out / "shards" / "README.md").read_text()
    assert all(f"name: {form}" in card for form in ("mp4", "jpg", "png", "webp"))
    folder = next(iter((place.out / "shards").glob("*_1f")))
    shards = [p for p in folder.glob("train-*.tar")]
    read = datasets.load_dataset(str(folder), split="train", streaming=True)
    read = read.cast_column("jpg", datasets.Image(decode=False)) if shards else read
    assert all(row["json"]["medium"] == "image" for row in read)


def test_verify_finds_no_fault_and_names_one(place: Place, tmp_path: Path) -> None:
    assert main(["verify", str(place.out), "--frames", "all"]) == EXIT_OK
    other = place.copy(tmp_path / "other")
    tar = next((other.out / "shards").glob("*_1f/*.tar"))
    data = bytearray(tar.read_bytes())
    at = data.index(b"\xff\xd8\xff") if b"\xff\xd8\xff" in data else data.index(b"IHDR")
    data[at + 200] ^= 255
    tar.write_bytes(data)
    assert main(["verify", str(other.out)]) != EXIT_OK


def test_a_second_run_changes_nothing(place: Place, tmp_path: Path) -> None:
    other = place.copy(tmp_path / "other")
    before = {p.name: p.read_bytes() for p in (other.out / "shards").rglob("*.tar")}
    run(other)
    assert other.summary()["cut"]["copied"] + other.summary()["cut"]["encoded"] == 0
    assert {p.name: p.read_bytes() for p in (other.out / "shards").rglob("*.tar")} == before


@pytest.mark.long
def test_tars_of_a_run_that_broke_off_are_used(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that tars of pictures that no manifest names are compared with the plan."""
    whole, broken = (place.copy(tmp_path / name) for name in ("whole", "broken"))
    run(whole, "shard.id_member=true")
    with monkeypatch.context() as patch:
        patch.setattr(one_pass, "commit_run", raising)
        with pytest.raises(AssertionError):
            run(broken, "shard.id_member=true")
    run(broken, "shard.id_member=true")
    assert broken.tars() == whole.tars()
    assert broken.summary()["work"]["shards_written"] == 0


OWN = """
import numpy as np
from curator.family import FRAMES, Array, Family, Scope
from curator.stage import Annotator, FrameRequest, StageConfig

class Means(Annotator[StageConfig]):
    name, version = "means", 1
    frames = (FrameRequest(size=(32, 32)),)
    families = (
        Family("mean", Scope.CLIP, Array("f32", (FRAMES, 3)), member="mean.npy", place="side"),
    )

    def process(self, unit):
        return [c.frames.reshape(len(c.frames), -1, 3).mean(1).astype(np.float32) for c in unit]
"""


@pytest.mark.long
def test_annotators_and_batches_mix_both_media(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_means.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    work_here(monkeypatch)
    other = place.copy(tmp_path / "other")
    run(other, "stages=[own_means:Means]")
    assert other.summary()["work"]["mean_made"] == len(KEPT)
    n_seen = 0
    settings = {"frames": 1, "audio": 16_000, "size": (64, 64), "members": ["mean"]}
    for batch in ClipDataset(str(other.out), batch_size=2, **settings):  # type: ignore[arg-type]
        # Pictures and a film without sound.
        assert not batch["has_audio"].any()
        assert not batch["audio"].any()
        seen = batch["video"].float().mean((2, 3, 4))
        # Both are scaled and cropped alike, to other sizes.
        assert (batch["mean"][:, 0] - seen).abs().max() < 4
        n_seen += len(batch["key"])
    assert n_seen == len([clip for clip in other.clips() if "/train-" in clip["shard"]]) > 4
    assert main(["verify", str(other.out), "--json"]) == EXIT_OK


def raising(_: object) -> None:
    raise StorageError("full")


@pytest.mark.long
def test_removed_pictures_stay_away_and_so_do_their_copies(place: Place, tmp_path: Path) -> None:
    other = place.copy(tmp_path / "other")
    condition = "source_uri LIKE '%/a.jpg'"
    assert main(["remove", str(other.out), "--where", condition]) == EXIT_OK
    assert main(["verify", str(other.out), "--removed"]) == EXIT_OK
    run(other)
    clips = by_name(other)
    assert "a.jpg" not in clips
    assert clips["small_copy_of_a.jpg"]["reason"] == "removed_before"


def test_exports_hold_the_media_that_their_readers_take(place: Place, tmp_path: Path) -> None:
    to = tmp_path / "pictures"
    assert main(["export", str(place.out), str(to), "--format", "images"]) == EXIT_OK
    rows = [
        json.loads(line) for path in to.glob("*/metadata.jsonl")
        for line in path.read_text().splitlines()
    ]  # fmt: skip
    clips = by_name(place)
    expected = {f"{clips[n]['clip_id']}.{form}" for n, (form, *_) in KEPT.items() if form != "mp4"}
    assert {row["file_name"] for row in rows} == expected
    for row in rows:
        (picture,) = to.glob(f"*/{row['file_name']}")
        assert Image.open(picture).size == (row["width"], row["height"])
        assert picture.with_suffix(".txt").read_text() == row["text"]
    films = tmp_path / "films"
    assert main(["export", str(place.out), str(films), "--format", "folder"]) == EXIT_OK
    assert {p.stem for p in films.glob("*/videos/*.mp4")} == {clips["film.mp4"]["clip_id"]}
    assert not [p for p in films.rglob("*") if p.suffix in (".jpg", ".png", ".webp")]


@pytest.mark.long
def test_videos_alone_leave_pictures_out_by_name(place: Place, tmp_path: Path) -> None:
    """Pins the default: a folder's pictures are skipped, and a named one is `unused_medium`."""
    own = Place(place.sources, tmp_path / "out")
    run(own, "scan.media=[video]")
    assert set(by_name(own)) == {"film.mp4"}
    assert [row["error_code"] for row in own.table("sources")] == [None]


def ids_found(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    capsys.readouterr()
    assert main(["search", *map(str, arguments), "--json"]) == EXIT_OK
    return [clip["clip_id"] for clip in json.loads(capsys.readouterr().out)]


def test_pictures_are_searched_and_search(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that a file, a picture of the run and a frame of a film find pictures and films."""
    ids = {name: clip["clip_id"] for name, clip in by_name(place).items()}
    for name in ("a.jpg", "d.avif", "turned.jpg"):
        query = tmp_path / f"{name}.png"
        original = ImageOps.exif_transpose(Image.open(place.sources / name)).convert("RGB")
        original.resize((original.width * 3 // 4, original.height * 3 // 4)).save(query)
        assert ids_found(capsys, place.out, "--picture", query, "-k", 1) == [ids[name]]
    with av.open(str(place.sources / "film.mp4")) as film:
        next(film.decode(video=0)).to_image().save(tmp_path / "frame.png")
    found = ids_found(capsys, place.out, "--picture", tmp_path / "frame.png", "-k", 1)
    assert found == [ids["film.mp4"]]
    near = ids_found(capsys, place.out, "--clip", ids["a.jpg"], "--all", "-k", 1)
    assert near == [ids["small_copy_of_a.jpg"]]
    pictures = ids_found(capsys, place.out, "--clip", ids["film.mp4"], "--where", "medium='image'")
    assert set(pictures) == {ids[name] for name in KEPT} - {ids["film.mp4"]}


def test_new_captions_change_texts_and_no_picture(
    place: Place, tmp_path: Path, fake_server: FakeServer
) -> None:
    """Pins that pictures of every format reach a model, read from the tars."""
    other = place.copy(tmp_path / "other")
    fake_server.start(captions=True)
    model = ("caption.captioner=openai", "caption.model=tiny-vlm")
    changes = sets((*model, f"caption.url={fake_server.config().url}"))
    assert main(["recaption", str(other.out), *changes]) == EXIT_OK
    before, after = by_name(place), by_name(other)
    for name, (form, *_) in KEPT.items():
        assert after[name]["caption_failure"] is None
        assert after[name]["caption"] not in (None, before[name]["caption"])
        assert other.sample(after[name], "txt").decode() == after[name]["caption"]
        assert other.sample(after[name], form) == place.sample(before[name], form)


def test_view_shows_kept_and_rejected_pictures(place: Place, tmp_path: Path) -> None:
    other = place.copy(tmp_path / "other")
    store = open_store(str(other.out))
    viewed = ViewedRun(open_finished(str(other.out)), MarkWriter(store))
    clips = by_name(other)
    shard, offset, n_bytes, kind = viewed.mp4_of(clips["a.jpg"]["clip_id"])
    assert kind == "image/jpeg"
    data = store.read_range(shard, offset, offset + n_bytes)
    assert data == (place.sources / "a.jpg").read_bytes()
    assert viewed.mp4_of(clips["b.png"]["clip_id"])[3] == "image/png"
    # The page shows the stored picture of an unwritten clip, and decodes no source.
    copy = clips["small_copy_of_a.jpg"]["clip_id"]
    (jpeg,) = viewed.pictures(copy)
    shown = Image.open(io.BytesIO(jpeg))
    own = Image.open(place.sources / "small_copy_of_a.jpg").resize(shown.size)
    assert np.abs(np.asarray(shown, int) - np.asarray(own, int)).mean() < 8
    card = viewed.clip(copy, ())
    assert (card["is_picture"], card["is_written"], card["can_play"]) == (True, False, False)
