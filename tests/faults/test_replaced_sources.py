"""Whole runs over films that were replaced: what is written is of the film that the tables name."""

import hashlib
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from captioned import run_arguments
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.commands.arguments import EXIT_FAILED
from curator.storage import content_id
from curator.storage.content_id import WHOLE_BYTES
from curator.verify import verify

SETTINGS = ["--set", "shard.resolutions=[120]", "--set", "filters.short_side_px.min=100",
            "--set", "analyze.text=false", "--set", "analyze.audio=false"]  # fmt: skip


class Place:
    """A folder of films, and the output of their last run."""

    def __init__(self, folder: Path) -> None:
        self.films, self.out = folder / "in", folder / "out"
        self.films.mkdir()

    def run(self, *more: str) -> dict[str, dict[str, Any]]:
        assert main(run_arguments(self.films, self.out, *SETTINGS, *more)) == 0
        summary = json.loads((self.out / "summary.json").read_text())
        (part,) = summary["tables"]["sources"]
        rows = pq.ParquetFile(self.out / part).read().to_pylist()
        return {Path(row["uri"]).name: row for row in rows}

    def sha256(self, name: str) -> str:
        return hashlib.sha256((self.films / name).read_bytes()).hexdigest()

    def mp4s(self) -> set[str]:
        summary = json.loads((self.out / "summary.json").read_text())
        (part,) = summary["tables"]["clips"]
        return set(pq.ParquetFile(self.out / part).read(["mp4_sha256"])["mp4_sha256"].to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_another_film_of_the_same_size_and_time_is_another_source(place: Place) -> None:
    """Pins problem 1 of trust: at e0fe287 the new film's pixels got the old one's SHA-256."""
    film = place.films / "v.mp4"
    write_video(film, moving_texture(60, seed=1), fps=Fraction(25))
    other = place.films.parent / "other.mp4"
    write_video(other, moving_texture(60, seed=2), fps=Fraction(25))
    size = max(film.stat().st_size, other.stat().st_size)
    for path in (film, other):
        # Behind the last box there may be anything.
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
        os.utime(path, ns=(10**18, 10**18))
    assert place.run()["v.mp4"]["sha256"] == place.sha256("v.mp4")
    before = place.mp4s()
    film.write_bytes(other.read_bytes())
    os.utime(film, ns=(10**18, 10**18))
    after = place.run("--replace", "--set", "cut.mode=encode")
    assert after["v.mp4"]["sha256"] == place.sha256("v.mp4")
    verify_sources(place, film)
    assert before
    assert before.isdisjoint(place.mp4s())


def verify_sources(place: Place, film: Path) -> None:
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


def test_films_that_agree_in_all_samples_are_each_analyzed(place: Place) -> None:
    """Pins problem 2 of trust, first in one listing, then after a repair."""
    good = place.films / "good.mkv"
    frames = moving_texture(100, seed=3, width_px=640, height_px=360)
    write_video(good, frames, fps=Fraction(25), codec="ffv1")
    data = bytearray(good.read_bytes())
    assert len(data) > WHOLE_BYTES
    # Between the second and the third sample.
    begin = 2 * len(data) // 15 - 200_000
    data[begin : begin + 1000] = bytes(1000)
    bad = place.films / "bad.mkv"
    bad.write_bytes(data)
    ids = set()
    for path in (good, bad):
        with path.open("rb") as reader:
            ids.add(content_id(reader, len(data)))
    assert len(ids) == 1
    sources = place.run()
    for name in ("good.mkv", "bad.mkv"):
        assert sources[name]["sha256"] == place.sha256(name)
        assert "same_bytes" not in sources[name]["notes"]
    bad.unlink()
    good.rename(bad)
    sources = place.run("--replace")
    assert sources["bad.mkv"]["sha256"] == place.sha256("bad.mkv")
