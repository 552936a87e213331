"""Removed footage does not come back in a file with other bytes and the same frames."""

import hashlib
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pytest
from captioned import Captioned
from removable import SHARED
from test_removing import kept, mp4_of, of_film, remove, rows_of, search, thumbnails

from curator.cli import main
from curator.runs import one_pass
from curator.storage import open_store
from curator.tables import candidate_store, track_parts
from curator.tables.frame_hashes import NO_REGIONS
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK
from curator.tools.removal.removal_selection import _Selection


def appended(source: Path, target: Path) -> None:
    """The same file with a byte more."""
    target.write_bytes(source.read_bytes() + b"\0")


def remuxed(source: Path, target: Path) -> None:
    """The same packets in another container, as `ffmpeg -c copy` writes them."""
    with av.open(str(source)) as there, av.open(str(target), "w") as here:
        stream = here.add_stream_from_template(there.streams.video[0])
        for packet in there.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                here.mux(packet)


@pytest.fixture
def copies(place: Captioned, tmp_path: Path) -> Captioned:
    """The output, over copies of two films."""
    (tmp_path / "in").mkdir()
    appended(place.sources / "3.mp4", tmp_path / "in" / "3.mp4")
    remuxed(place.sources / "5.mp4", tmp_path / "in" / "5.mkv")
    return Captioned(tmp_path / "in", place.out, place.server)


def of_copies(done: Captioned) -> list[dict[str, Any]]:
    rows = rows_of(done.out)[-1]
    return [row for row in rows if Path(row["source_uri"]).parent == done.sources]


def overlap_s(clip: dict[str, Any], other: dict[str, Any]) -> float:
    return float(min(clip["end_s"], other["end_s"]) - max(clip["start_s"], other["start_s"]))


@pytest.mark.long
def test_copies_of_removed_footage_are_excluded_before_they_are_cut(copies: Captioned) -> None:
    out = copies.out
    victim, whole = of_film(kept(out), 3)[0], of_film(kept(out), 5)
    mp4s = [mp4_of(out, clip) for clip in (victim, *whole)]
    shown = thumbnails(out, {clip["clip_id"] for clip in (victim, *whole)})
    pictures = [jpeg for jpegs in shown for jpeg in jpegs]
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert remove(out, "sources", whole[0]["source_uri"]) == EXIT_OK
    duplicates = [clip for clip in rows_of(out)[-1] if clip["reason"] == "duplicate"]
    work = copies.run(*SHARED)["work"]
    assert work.get("clips_of_removed_footage", 0) >= 1 + len(whole)
    back = of_copies(copies)
    # What was not removed of the same film is used.
    assert back
    assert {Path(clip["source_uri"]).name for clip in back} == {"3.mp4"}
    assert max(overlap_s(clip, victim) for clip in back) < 0.05
    # This recipe keeps what was a duplicate.
    assert work["clips_cut"] <= len(back) + len(duplicates)
    assert not search(out, [*mp4s, *pictures])
    assert main(["verify", str(out), "--removed"]) == EXIT_OK


@pytest.mark.long
def test_without_hashes_of_frames_mp4s_are_compared(
    copies: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copies.out
    victim = of_film(kept(out), 3)[0]
    copies.forget("tracks")
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert "no frames are stored of 1 of their sources" in capsys.readouterr().out
    copies.run(*SHARED)
    (back,) = [
        clip for clip in of_copies(copies)
        if Path(clip["source_uri"]).name == "3.mp4" and overlap_s(clip, victim) > 0.05
    ]  # fmt: skip
    assert (back["decision"], back["reason"]) == ("rejected", "removed")
    assert main(["verify", str(out), "--removed"]) == EXIT_OK


@pytest.mark.long
def test_finish_takes_out_all_that_verify_finds(
    copies: Captioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copies.out
    victim, whole = of_film(kept(out), 3)[0], of_film(kept(out), 5)
    sha256s = {hashlib.sha256(mp4_of(out, clip)).hexdigest() for clip in (victim, *whole)}
    names = "\n".join(clip["clip_id"] for clip in (victim, *whole))
    assert remove(out, "clips", names) == EXIT_OK
    with monkeypatch.context() as patch:
        # As a version that does not compare.
        patch.setattr(candidate_store, "frame_regions", lambda *_: {})
        patch.setattr(one_pass, "reject_as_written", lambda *_: None)
        patch.setattr(track_parts, "matching_regions", lambda *_: NO_REGIONS)
        copies.run(*SHARED)
    # The times of some frames are rounded in Matroska, and then the MP4 is another.
    assert len({clip["mp4_sha256"] for clip in of_copies(copies)} & sha256s) > 1
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
    assert main(["remove", str(out), "--finish"]) == EXIT_OK
    assert not sha256s & {clip["mp4_sha256"] for rows in rows_of(out) for clip in rows}
    assert main(["verify", str(out), "--removed"]) == EXIT_OK
    assert main(["verify", str(out)]) == EXIT_OK
    records = len(list((out / "removed").iterdir()))
    assert main(["remove", str(out), "--finish"]) == EXIT_OK
    assert len(list((out / "removed").iterdir())) == records


@pytest.mark.long
def test_a_copy_that_is_there_goes_with_the_clip(copies: Captioned) -> None:
    out = copies.out
    copies.run(*SHARED, "dedup.enabled=false")
    victim = of_film(kept(out), 3)[0]
    assert [clip for clip in of_copies(copies) if overlap_s(clip, victim) > 0.05]
    mp4 = mp4_of(out, victim)
    original = [c for c in kept(out) if c["mp4_sha256"] == victim["mp4_sha256"]]
    assert len(original) == 2
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    assert not search(out, [mp4])
    assert main(["verify", str(out), "--removed"]) == EXIT_OK


def test_a_clip_that_overlaps_a_named_one_goes_and_is_not_known_again() -> None:
    """Pins that what is kept of a removal is of named clips alone: a rerun kept others out."""
    spans = {"named": (200, 300), "whole": (0, 300), "other": (0, 200), "part": (220, 260)}
    rows = [
        {"clip_id": name, "source_id": "film", "start_frame": a, "end_frame": b, "fps": 25.0,
         "start_pts": a, "end_pts": b, "start_s": a / 25, "end_s": b / 25}
        for name, (a, b) in spans.items()
    ]  # fmt: skip
    clips = pa.Table.from_pylist(rows)
    selection = _Selection(open_store("."), clips, clips)
    selection.add(["named"])
    assert selection.ids() == {"named", "whole", "part"}
    assert selection.own_ids() == {"named", "part"}
