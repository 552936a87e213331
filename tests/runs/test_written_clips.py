"""Clips that are rejected after the cut: later runs neither cut nor decode them again."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from captioned import work_here
from place import QVGA, SHORT, Place, count_units, write_films

from curator.runs import curation, one_pass, written_clips
from curator.stages.shard.split_groups import split_sources
from curator.tables.removal_records import Removals

LENGTHS = (60, 75, 90)


class Films(Place):
    """Three films of a clip each."""

    settings = (*SHORT, "shard.lengths=[17]", "shard.val_share=0", "propose.max_s=10")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Films:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("written")
    place = Films(write_films(folder / "in", LENGTHS, fps=30, **QVGA), folder / "out")
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place.run()
    return place


@pytest.fixture
def place(finished: Films, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Films:
    work_here(monkeypatch)
    return finished.copy(tmp_path)


def rejected_once(place: Films, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs several times; one clip is rejected, and no unit cuts or decodes."""
    calls = count_units(monkeypatch)
    place.run("--replace")
    before = place.files("shards", "clips")
    for _ in range(2):
        assert place.run("--replace")["work"]["clips_cut"] == 0
        (clip,) = place.clips("rejected")
        assert clip["reason"] == reason
        assert clip["mp4_sha256"] is not None
        assert place.files("shards", "clips") == before
    assert calls == []


@pytest.mark.long
def test_clips_with_the_bytes_of_a_removed_clip(
    place: Films, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins also that such a clip is cut when it may come back."""
    sha256 = place.clips()[0]["mp4_sha256"]
    with monkeypatch.context() as patch:
        removals = Removals(mp4=frozenset({sha256}), n_records=1)
        patch.setattr(curation, "finished_removals", lambda _: removals)
        rejected_once(place, "removed", patch)
    assert place.run()["work"]["clips_cut"] == 1
    assert len(place.clips()) == 3


def test_clips_that_fit_no_bucket_as_written(place: Films, monkeypatch: pytest.MonkeyPatch) -> None:
    shortest = min(clip["n_frames"] for clip in place.clips())
    whole = written_clips.bucket_of
    monkeypatch.setattr(
        written_clips,
        "bucket_of",
        lambda w, h, n, buckets, **of: None if n == shortest else whole(w, h, n, buckets, **of),
    )
    rejected_once(place, "no_bucket", monkeypatch)
    (clip,) = place.clips("rejected")
    assert clip["reason_detail"].endswith(f"{shortest} frames as written")


def test_clips_that_no_split_takes_are_not_cut(
    finished: Films, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    sources = tmp_path / "in"
    sources.mkdir()
    for number in range(2):
        shutil.copy(finished.sources / f"{number}.mp4", sources)
    place = replace(finished, sources=sources, out=tmp_path / "out")
    growing = ("run.mode=growing", "run.generation_hours=0.0001")
    place.run(*growing)
    earlier = {clip["source_id"] for clip in place.clips()}
    assert len(earlier) == 2
    shutil.copy(finished.sources / "2.mp4", sources)

    def between(units: dict[str, str], *more: object, **options: object) -> object:
        groups = split_sources(units, *more, **options)  # type: ignore[arg-type]
        return replace(groups, across=frozenset(units) - earlier)

    monkeypatch.setattr(one_pass, "split_sources", between)
    calls = count_units(monkeypatch)
    for _ in range(2):
        assert place.run(*growing)["work"]["clips_cut"] == 0
        assert "cut" not in calls
        (clip,) = place.clips("rejected")
        assert (clip["reason"], clip["mp4_sha256"]) == ("across_splits", None)
