"""A run over tars: members go to the tars of the output, are cut later, verified and removed."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from PIL import Image
from place import SHORT, Place, sets

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

SETTINGS = (
    *SHORT, "dedup.enabled=true", "scan.media=[video,image]", "filters.noise.max=1",
    "scan.sidecar_meta=true", "--max-failed=1",
)  # fmt: skip


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def picture(seed: int) -> bytes:
    (frame,) = moving_texture(1, seed=seed, width_px=320, height_px=240)
    stream = io.BytesIO()
    Image.fromarray(np.asarray(frame)).save(stream, "jpeg", quality=95)
    return stream.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run over a folder with a tar of pictures and a film; tests do not change it."""
    root = tmp_path_factory.mktemp("tars")
    write_video(root / "film.mp4", moving_texture(40, seed=7, width_px=320, height_px=240))
    (root / "in").mkdir()
    with tarfile.open(root / "in/x.tar", "w") as tar:
        add(tar, "1.jpg", picture(1))
        add(tar, "1.json", json.dumps({"rating": 4}).encode())
        add(tar, "1.txt", b"A wall.")
        add(tar, "2.jpg", picture(2)[:4000])
        add(tar, "film.mp4", (root / "film.mp4").read_bytes())
        add(tar, "film.txt", b"A pattern moves.")
    (root / "in/copy.jpg").write_bytes(picture(1))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place = Place(root / "in", root / "out")
        place.run(*SETTINGS)
    return place


def by_name(place: Place) -> dict[str, dict[str, Any]]:
    return {row["source_uri"].rpartition("/")[2]: row for row in place.table("clips")}


def test_members_are_curated_like_files(place: Place) -> None:
    sources = {row["uri"].rpartition("/")[2]: row for row in place.table("sources")}
    assert {name: row["error_code"] for name, row in sources.items()} == {
        "copy.jpg": None, "x.tar::1.jpg": None, "x.tar::2.jpg": "no_frames",
        "x.tar::film.mp4": None,
    }  # fmt: skip
    assert sources["copy.jpg"]["source_id"] == sources["x.tar::1.jpg"]["source_id"]
    clips = by_name(place)
    (jpeg,) = (clip for name, clip in clips.items() if name.endswith(".jpg"))
    assert place.sample(jpeg, "jpg") == picture(1)
    assert clips["x.tar::film.mp4"]["decision"] == "kept"
    tar_row = sources["x.tar::1.jpg"]
    assert (tar_row["meta.rating"], tar_row["meta.txt"]) == (4, "A wall.")


def test_a_second_run_reads_no_member(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place.copy(tmp_path / "other")
    summary = other.run(*SETTINGS)
    assert summary["work"]["sources_scanned"] == 0
    assert summary["cut"]["copied"] + summary["cut"]["encoded"] == 0
    assert other.tars() == place.tars()


def test_members_are_cut_again_verified_and_removed(place: Place, tmp_path: Path) -> None:
    other = place.copy(tmp_path / "other")
    other.run(*SETTINGS, "cut.mode=encode")
    assert by_name(other)["x.tar::film.mp4"]["cut_mode"] == "encode"
    assert main(["verify", str(other.out), "--frames", "all"]) == EXIT_OK
    uri = f"{other.sources}/x.tar::film.mp4"
    (tmp_path / "removed.txt").write_text(f"{uri}\n")
    assert main(["remove", str(other.out), "--sources", str(tmp_path / "removed.txt")]) == EXIT_OK
    assert "x.tar::film.mp4" not in by_name(other)
    assert main(["verify", str(other.out), "--removed"]) == EXIT_OK


def test_texts_of_members_are_captions(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins captions of other datasets: kept as they are, and clips without one are counted."""
    other = place.copy(tmp_path)
    text = ("caption.captioner=column", "caption.column=meta.txt")
    assert main(["recaption", str(other.out), *sets(text)]) == EXIT_OK
    clips = by_name(other)
    film, copy = clips["x.tar::film.mp4"], clips["copy.jpg"]
    assert (film["caption"], film["caption_model"]) == ("A pattern moves.", "meta.txt")
    assert other.sample(film, "txt") == b"A pattern moves."
    assert (copy["caption"], copy["caption_failure"]) == (None, "empty")
    assert other.sample(copy, "txt") == b""
    other.run(*SETTINGS, *text)
    assert "captions: 1 kept clip without a text in meta.txt" in capsys.readouterr().out
    assert by_name(other)["x.tar::film.mp4"]["caption"] == "A pattern moves."
    wrong = ["recaption", str(other.out), "--set", "caption.column=meta.text"]
    assert main(wrong) == EXIT_USAGE
    assert "did you mean 'meta.txt'" in capsys.readouterr().err
