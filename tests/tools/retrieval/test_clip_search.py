"""Search of a made run: by clip, picture and video, with conditions, and what is refused."""

# ruff: noqa: N803 - shape letters

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from searchable import searchable_out, unit_vectors

import curator
from curator.cli import main
from curator.errors import UsageError
from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import Match, verify_pair
from curator.runs import query_stage
from curator.runs.query_media import picture_vector, video_spans
from curator.stages.analyze.config import AnalyzeConfig
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.footage.scenes import Picture
from curator.tools.retrieval import clip_search
from curator.tools.retrieval.clip_search import ClipSearch, SharedFootage, joined_spans

N = 30
REJECTED, LIKE, SHOWN, FILMED = 5, (7, 8), 11, 13
"""A clip that moves too little; two that mean the same; those of the picture and of the film."""


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = EXIT_OK) -> str:
    assert main([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == EXIT_OK else captured.err


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a picture and a film beside it that are in clips of it."""
    place = tmp_path_factory.mktemp("search")
    frames = _flickering([*moving_texture(150)])
    write_video(place / "whole.mp4", frames, fps=Fraction(25))
    # An edited video: another shot, then a part of the film.
    edited = [*moving_texture(50, seed=3), *frames[50:]]
    write_video(place / "part.mkv", edited, fps=Fraction(25), options={"crf": "32"})
    picture = np.full((270, 480, 3), 200, np.uint8)
    for number in range(9):
        cv2.circle(picture, (50 * number + 40, 30 * number + 20), 25, (28 * number, 80, 40), -1)
    cv2.imwrite(str(place / "picture.png"), picture)
    film = video_spans(place / "whole.mp4", AnalyzeConfig())[0.0]
    like = unit_vectors(3 * N).reshape(N, 3, -1)[LIKE[0]] + 0.2 * unit_vectors(3, seed=1)
    like /= np.linalg.norm(like, axis=1, keepdims=True)
    shown = np.stack([*unit_vectors(2, seed=2), picture_vector(place / "picture.png")])
    ids = searchable_out(
        place / "out",
        N,
        recipe={"filters": {"motion": {"min": 0.5}}},
        footage={
            FILMED: film,
            SHOWN: _with_vectors(film, shown),
            LIKE[1]: _with_vectors(film, like),
        },
        captions={LIKE[1]: "A dog runs over a field.\n" * 9},
        motion=[0.1 if number == REJECTED else 1.0 + number for number in range(N)],
    )
    (place / "ids").write_text(json.dumps(ids))
    return place


def _flickering(frames: list[Picture]) -> list[Picture]:
    """Changes their brightness, as films do, by which two are aligned."""
    steps = np.random.default_rng(0).normal(0, 0.04, len(frames)).cumsum()
    gains = 0.75 + 0.2 * np.sin(steps)
    return [(frame * gain).astype(np.uint8) for frame, gain in zip(frames, gains, strict=True)]


def _with_vectors(film: ClipFootage, vectors_VD: np.ndarray) -> ClipFootage:
    """Returns black pictures with three other vectors, which verify nothing."""
    black = cv2.imencode(".jpg", np.zeros((90, 160, 3), np.uint8))[1].tobytes()
    second = np.array([0.0, 2.0, 4.0], np.float32)
    return replace(
        film, pictures=(black,) * 3, picture_s=second, vector_s=second, vectors_VD=vectors_VD
    )


@pytest.fixture(scope="module")
def ids(place: Path) -> list[str]:
    return [str(name) for name in json.loads((place / "ids").read_text())]


@pytest.fixture(scope="module")
def clips(place: Path) -> ClipSearch:
    return ClipSearch.open(str(place / "out"))


@pytest.mark.long
def test_clips_of_one_meaning_are_found_by_a_prefix(clips: ClipSearch, ids: list[str]) -> None:
    found = clips.by_clip(ids[LIKE[0]][:12], k=3)
    assert [clip.rank for clip in found] == [1, 2, 3]
    assert found[0].clip_id == ids[LIKE[1]]
    assert found[0].score > found[1].score + 0.3
    assert (found[0].shared, found[0].decision) == (None, "kept")
    assert (found[0].shard, found[0].key) == ("shards/train-0.tar", ids[LIKE[1]])
    assert ids[LIKE[0]] not in {clip.clip_id for clip in found}
    found = clips.by_clip(ids[0], k=N, where="motion > 20 AND source_uri LIKE '%00000%'")
    assert {clip.clip_id for clip in found} == set(ids[20:])
    assert clips.by_clip(ids[0], where="motion > 1e9") == []


@pytest.mark.long
def test_a_rejected_clip_asks_but_is_found_only_if_wanted(place: Path, ids: list[str]) -> None:
    """Pins also that a search changes nothing."""
    files = [path for path in (place / "out").rglob("*") if path.is_file()]
    before = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    kept = curator.search(place / "out", clip=ids[REJECTED], k=N)
    assert len(kept) == N - 1
    found = curator.search(place / "out", clip=ids[0], k=N)
    assert ids[REJECTED] not in {clip.clip_id for clip in found}
    both = curator.search(place / "out", clip=ids[0], k=N, rejected=True)
    (rejected,) = (clip for clip in both if clip.clip_id == ids[REJECTED])
    assert (rejected.decision, rejected.shard) == ("rejected", None)
    curator.search(place / "out", video=place / "part.mkv")
    assert files == [path for path in (place / "out").rglob("*") if path.is_file()]
    assert before == [(path.stat().st_mtime_ns, path.stat().st_size) for path in files]


def test_a_picture_is_found_where_it_is_in_a_clip(
    clips: ClipSearch, place: Path, ids: list[str]
) -> None:
    """Pins the second of the picture, and that a smaller JPEG finds it too."""
    picture = cv2.imread(str(place / "picture.png"))
    assert picture is not None
    smaller = place / "smaller.jpg"
    cv2.imwrite(str(smaller), cv2.resize(picture, None, fx=0.6, fy=0.6))
    for file in (place / "picture.png", smaller):
        found = clips.by_picture(file, k=2)
        assert (found[0].clip_id, found[0].at_s) == (ids[SHOWN], 4.0)
        assert found[0].score > 0.9
        assert found[1].score < found[0].score


def test_a_video_is_found_with_its_offset_and_before_clips_that_are_alike(
    clips: ClipSearch, place: Path, ids: list[str]
) -> None:
    found = clips.by_video(place / "part.mkv", k=4)
    assert found[0].clip_id == ids[FILMED]
    shared = found[0].shared
    assert shared is not None
    assert shared.offset_s == pytest.approx(0.0, abs=0.1)
    assert found[0].at_s == pytest.approx(2.0, abs=0.1)
    assert shared.query_s == pytest.approx(2.0, abs=0.1)
    assert shared.overlap_s == pytest.approx(4.0, abs=0.2)
    assert (shared.speed, shared.mirrored) == (pytest.approx(1.0, abs=0.02), False)
    assert [clip.shared for clip in found[1:]] == [None] * 3


def test_shared_footage_is_at_most_the_clip(
    clips: ClipSearch, place: Path, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(a: ClipFootage, b: ClipFootage) -> Match | None:
        match = verify_pair(a, b)
        return match and replace(match, overlap_s=1000.0)

    monkeypatch.setattr(clip_search, "verify_pair", too_long)
    (found,) = clips.by_video(place / "part.mkv", k=1)
    assert found.shared is not None
    assert found.shared.overlap_s == pytest.approx(150 / 25, abs=0.05)


def test_no_query_is_decoded_in_this_process(
    clips: ClipSearch, place: Path, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("analyze_source", "scene_picture"):
        monkeypatch.delattr(query_stage, name)
    assert clips.by_video(place / "part.mkv", k=1)[0].clip_id == ids[FILMED]
    assert clips.by_picture(place / "picture.png", k=1)[0].clip_id == ids[SHOWN]


def test_spans_of_a_video_that_show_one_clip_are_joined() -> None:
    """Pins seconds of the whole video; a span that shows another part of the clip is left out."""
    parts = [
        SharedFootage(query_s=query_s, at_s=at_s, overlap_s=overlap_s, offset_s=at_s - query_s,
                      speed=1.0, mirrored=False)
        for query_s, at_s, overlap_s in [(55.0, 0.0, 5.0), (60.1, 5.0, 20.0), (80.0, 3.0, 4.0)]
    ]  # fmt: skip
    joined = joined_spans(parts)
    assert (joined.query_s, joined.at_s, joined.overlap_s) == (55.0, 0.0, 25.0)
    assert joined.offset_s == pytest.approx(-55.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clip", "zz"], "no clip of the 30"),
        (["--picture", "{place}/part.mkv"], "cannot be read as a picture (unreadable)"),
        (["--picture", "{place}/none.png"], "cannot be read as a picture (vanished)"),
        (["--picture", "{place}/grey.png"], "of one colour"),
        (["--video", "{place}/picture.png"], "cannot be read as a video"),
        (["--video", "{place}/none.mp4"], "cannot be read as a video"),
        (["--text", "a", "--match", "pictures"], "--set analyze.clip=openai-vit-b-32"),
        (["--clip", "{id}", "--match", "words"], "--match words is for --text"),
        (["--clip", "{id}", "--where", "motionn > 1"], "motionn"),
        (["--clip", "{id}", "--where", "1=1; DROP TABLE clips"], "--where"),
        (["--clip", "{id}", "--where", "clip_id IN (SELECT * FROM '/etc/passwd')"], "--where"),
        (["--clip", "{id}", "--html", "{place}"], "cannot be written"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(
    place: Path,
    ids: list[str],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    cv2.imwrite(str(place / "grey.png"), np.full((90, 160, 3), 90, np.uint8))
    given = [argument.format(place=place, id=ids[0]) for argument in arguments]
    text = said(capsys, "search", place / "out", *given, code=EXIT_USAGE)
    assert words in text
    assert text.count("\n") == 1


def test_python_refuses_what_the_command_line_cannot_say(place: Path, ids: list[str]) -> None:
    with pytest.raises(UsageError, match="k is 0"):
        curator.search(place / "out", clip=ids[0], k=0)
    with pytest.raises(UsageError, match="queries are none; expected one of clip, picture"):
        curator.search(place / "out")
    with pytest.raises(UsageError, match="queries are clip, text"):
        curator.search(place / "out", clip=ids[0], text="a dog")


def test_json_and_the_table_name_the_same_clips(
    place: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("search", place / "out", "--clip", ids[LIKE[0]], "-k", 3)
    rows: list[dict[str, Any]] = json.loads(said(capsys, *asked, "--json"))
    lines = said(capsys, *asked).splitlines()
    assert [row["clip_id"] for row in rows] == [line.split()[1] for line in lines[1:]]
    assert (rows[0]["rank"], rows[0]["shared"], rows[0]["shard"]) == (1, None, "shards/train-0.tar")
    assert lines[1].endswith("…")
    assert "A dog runs over a field.\\n" in lines[1]
    assert all(len(line) < 240 for line in lines)
    text = said(capsys, "search", place / "out", "--video", place / "part.mkv", "-k", 2)
    _, first, second = text.splitlines()
    assert "4.0 s from 2 s of the video on" in first
    assert "no, similar" in second
