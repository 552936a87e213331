"""The medium: found by the scan, accepted by stages, and a fact of sources, clips and samples."""

import json
from pathlib import Path

import av
import numpy as np
import pytest
import yaml
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from place import QVGA, SHORT, Place

from curator.cli import main
from curator.pipeline import Graph, graph_of
from curator.recipe import load_recipe
from curator.records.sources import Medium, SourceRef
from curator.stages.scan.probe import ScanRow, scan_source
from curator.storage.source_reader import stat_source
from curator.tools.commands.arguments import EXIT_OK

PICTURE = np.arange(64 * 96 * 3, dtype=np.uint32).astype(np.uint8).reshape(64, 96, 3)
MEDIA = {
    "picture.png": Medium.IMAGE, "picture.jpg": Medium.IMAGE, "picture.avif": Medium.IMAGE,
    "sound.m4a": Medium.SOUND, "sound.wav": Medium.SOUND, "sound.mp4": Medium.SOUND,
    "picture.gif": Medium.IMAGE, "film.gif": Medium.VIDEO, "film.avif": Medium.VIDEO,
    "film.mp4": Medium.VIDEO,
}  # fmt: skip


def write_picture(path: Path, form: str, codec: str, pixels: str, n_frames: int = 1) -> None:
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        frame = av.VideoFrame.from_ndarray(PICTURE, format="rgb24").reformat(format=pixels)
        for i in range(n_frames):
            frame.pts = i
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_sound(path: Path, codec: str, form: str | None = None) -> None:
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream(codec, rate=48_000)
        silence = np.zeros((1, 4096), np.int16)
        frame = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
        frame.sample_rate = 48_000
        container.mux([*stream.encode(frame), *stream.encode()])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind in `MEDIA`."""
    folder = tmp_path_factory.mktemp("media")
    write_picture(folder / "picture.png", "image2", "png", "rgb24")
    write_picture(folder / "picture.jpg", "image2", "mjpeg", "yuvj420p")
    write_picture(folder / "picture.avif", "avif", "libsvtav1", "yuv420p")
    write_picture(folder / "picture.gif", "gif", "gif", "rgb8")
    write_picture(folder / "film.gif", "gif", "gif", "rgb8", n_frames=3)
    write_picture(folder / "film.avif", "avif", "libsvtav1", "yuv420p", n_frames=3)
    for name, codec in (("sound.m4a", "aac"), ("sound.wav", "pcm_s16le"), ("sound.mp4", "aac")):
        write_sound(folder / name, codec)
    write_video(folder / "film.mp4", moving_texture(60, **QVGA))
    return folder


def probed(path: Path, *accepts: Medium) -> ScanRow:
    return scan_source(
        str(path), *stat_source(str(path)), accepts=frozenset(accepts or {Medium.VIDEO})
    )


@pytest.mark.parametrize("name", list(MEDIA))
def test_the_scan_finds_the_medium(files: Path, name: str) -> None:
    row = probed(files / name)
    assert row["medium"] == MEDIA[name]
    code = None if MEDIA[name] is Medium.VIDEO else "unused_medium"
    assert row.get("error_code") == code
    accepted = probed(files / name, *Medium)
    # A GIF with one picture is a still image that is not read.
    unread = "unsupported_codec" if name == "picture.gif" else None
    assert (accepted["medium"], accepted.get("error_code")) == (MEDIA[name], unread)
    assert accepted["source_id"]


def test_the_recipe_says_which_media_the_graph_takes(files: Path) -> None:
    def graph(*media: str) -> Graph:
        changes = [f"scan.media=[{','.join(media)}]"] if media else []
        return graph_of(load_recipe("quickstart", changes))

    def scanned(name: str, *media: str) -> object:
        scan = graph(*media)["scan"]
        uri = str(files / name)
        n_bytes, version = stat_source(uri)
        row = scan.process(SourceRef(uri=uri, n_bytes=n_bytes, version=version))
        return row.get("error_code")

    assert scanned("picture.png") == "unused_medium"
    assert scanned("picture.png", "video", "image") is None
    assert scanned("sound.wav", "video", "image") == "unused_medium"
    assert scanned("film.mp4", "image") == "unused_medium"
    fingerprints = [
        graph(*media)["scan"].fingerprint({}) for media in ((), ("video",), ("video", "image"))
    ]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_the_medium_is_a_fact_of_sources_clips_and_samples(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    place = Place(files, tmp_path / "out")
    named = [str(files / name) for name in ("picture.png", "sound.wav", "film.mp4")]
    settings = [part for change in (*SHORT, "shard.lengths=[17]") for part in ("--set", change)]
    arguments = ["run", *named, str(place.out), "--recipe", "quickstart", "--max-failed", "1"]
    assert main([*arguments, *settings]) == EXIT_OK
    sources = {Path(row["uri"]).name: row for row in place.table("sources")}
    assert {name: row["medium"] for name, row in sources.items()} == {
        Path(name).name: MEDIA[Path(name).name] for name in named
    }
    assert sources["sound.wav"]["error_code"] == "unused_medium"
    assert "sound without pictures, and no stage" in sources["sound.wav"]["error_message"]
    (clip,) = place.clips()
    assert clip["medium"] == json.loads(place.sample(clip, "json"))["medium"] == "video"
    manifest = json.loads((place.out / "shards" / "manifest.json").read_text())
    assert [tar["medium"] for tar in manifest["shards"]] == ["video"]
    card = yaml.safe_load((place.out / "shards" / "README.md").read_text().split("---")[1])
    (facts,) = (f for f in card["dataset_info"]["features"] if f["name"] == "json")
    assert {"name": "medium", "dtype": "string"} in facts["struct"]
    assert main(["verify", str(place.out)]) == EXIT_OK


def test_a_run_accounts_for_each_file_of_a_folder_by_what_it_holds(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of videos, so that none is skipped; the film has the brand of a still image."""
    work_here(monkeypatch)
    folder = tmp_path / "films"
    folder.mkdir()
    for form, codec, pixels in (("ico", "png", "rgba"), ("gif", "gif", "rgb8")):
        write_picture(folder / f"{form}.mp4", form, codec, pixels)
    for form, codec in (("adts", "aac"), ("au", "pcm_s16be"), ("flac", "flac")):
        write_sound(folder / f"{form}.mp4", codec, form)
    film = (files / "film.mp4").read_bytes()
    labelled = film.replace(b"ftypisom", b"ftypheic", 1)
    assert labelled != film
    for name, data in {
        "labelled.mp4": labelled,
        "cut.mp4": labelled[: labelled.index(b"moov") - 4],
        "jp2.mp4": b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 " + bytes(99),
        "svg.mp4": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "noise.mp4": bytes(range(1, 256)),
        "raw.mp4": b"\0\0\0\0RED2" + bytes(99),
        # Skipped: by its name, and because it is no video and its name says nothing.
        "a.ico": (folder / "ico.mp4").read_bytes(),
        "a.jp2": b"\xff\x4f\xff\x51" + bytes(99),
    }.items():
        (folder / name).write_bytes(data)
    place = Place(folder, tmp_path / "out")
    settings = [part for change in (*SHORT, "shard.lengths=[17]") for part in ("--set", change)]
    arguments = ["run", str(folder), str(place.out), "--recipe", "quickstart", "--max-failed", "1"]
    assert main([*arguments, *settings]) == EXIT_OK
    image, sound, other = ("unused_medium", "image"), ("unused_medium", "sound"), "not_a_video"
    found = {
        Path(row["uri"]).stem: (row["error_code"], row["medium"]) for row in place.table("sources")
    }
    assert found == {
        "ico": image, "gif": image, "jp2": image, "svg": image,
        "adts": sound, "au": sound, "flac": sound,
        "labelled": (None, "video"), "cut": (other, None), "noise": (other, None),
        "raw": ("unsupported_codec", None),
    }  # fmt: skip
    assert len(place.clips()) == 1
    assert place.summary()["counts"]["skipped_names"] == 2
