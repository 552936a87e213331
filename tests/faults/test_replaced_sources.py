"""Whole runs over films that were replaced: what is written is of the film that the tables name."""

import hashlib
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from film_makers import write_video
from film_shots import moving_texture
from place import Place

from curator.cli import main
from curator.storage import content_id
from curator.storage.content_id import WHOLE_BYTES
from curator.tools.commands.arguments import EXIT_FAILED
from curator.tools.verify import verify


class Replaced(Place):
    """A folder of films, and the output of their last run."""

    settings = (*Place.settings, "analyze.text=false", "analyze.audio=false", "--max-failed=1")

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {Path(row["uri"]).name: row for row in self.table("sources")}

    def sha256(self, name: str) -> str:
        return hashlib.sha256((self.sources / name).read_bytes()).hexdigest()

    def mp4s(self) -> set[str]:
        return {clip["mp4_sha256"] for clip in self.table("clips")}


@pytest.fixture
def place(tmp_path: Path) -> Replaced:
    (tmp_path / "in").mkdir()
    return Replaced(tmp_path / "in", tmp_path / "out")


@pytest.mark.long
def test_another_film_of_the_same_size_and_time_is_another_source(place: Replaced) -> None:
    """Pins problem 1 of trust: at e0fe287 the new film's pixels got the old one's SHA-256."""
    film = place.sources / "v.mp4"
    write_video(film, moving_texture(60, seed=1), fps=Fraction(25))
    other = place.sources.parent / "other.mp4"
    write_video(other, moving_texture(60, seed=2), fps=Fraction(25))
    size = max(film.stat().st_size, other.stat().st_size)
    for path in (film, other):
        # Behind the last box there may be anything.
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
        os.utime(path, ns=(10**18, 10**18))
    place.run()
    assert place.by_name()["v.mp4"]["sha256"] == place.sha256("v.mp4")
    before = place.mp4s()
    film.write_bytes(other.read_bytes())
    os.utime(film, ns=(10**18, 10**18))
    place.run("--replace", "cut.mode=encode")
    assert place.by_name()["v.mp4"]["sha256"] == place.sha256("v.mp4")
    verify_sources(place, film)
    assert before
    assert before.isdisjoint(place.mp4s())


def verify_sources(place: Replaced, film: Path) -> None:
    """Checks that `verify --sources` finds a flipped bit, and calls a missing film a warning."""
    found = verify(str(place.out), frames="none", sources=True)
    assert (found.is_well, found.n_sources, found.counts) == (True, 1, {})
    data = bytearray(film.read_bytes())
    data[len(data) // 2] ^= 1
    film.write_bytes(data)
    assert main(["verify", str(place.out), "--sources", "--frames", "none"]) == EXIT_FAILED
    found = verify(str(place.out), frames="none", sources=True)
    assert found.counts == {"source_changed": 1}
    (finding,) = found.findings
    assert finding.path == str(film)
    assert place.sha256(film.name) in finding.found
    film.unlink()
    found = verify(str(place.out), frames="none", sources=True)
    assert (found.is_well, found.n_sources, found.counts) == (True, 0, {"source_gone": 1})


@pytest.mark.long
def test_films_that_agree_in_all_samples_are_each_analyzed(place: Replaced) -> None:
    """Pins problem 2 of trust, first in one listing, then after a repair."""
    good = place.sources / "good.mkv"
    frames = moving_texture(100, seed=3, width_px=640, height_px=360)
    write_video(good, frames, fps=Fraction(25), codec="ffv1")
    data = bytearray(good.read_bytes())
    assert len(data) > WHOLE_BYTES
    # Between the second and the third sample.
    begin = 2 * len(data) // 15 - 200_000
    data[begin : begin + 1000] = bytes(1000)
    bad = place.sources / "bad.mkv"
    bad.write_bytes(data)
    ids = set()
    for path in (good, bad):
        with path.open("rb") as reader:
            ids.add(content_id(reader, len(data)))
    assert len(ids) == 1
    place.run()
    sources = place.by_name()
    for name in ("good.mkv", "bad.mkv"):
        assert sources[name]["sha256"] == place.sha256(name)
        assert "same_bytes" not in sources[name]["notes"]
    bad.unlink()
    good.rename(bad)
    place.run("--replace")
    assert place.by_name()["bad.mkv"]["sha256"] == place.sha256("bad.mkv")
