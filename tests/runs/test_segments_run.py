"""Whole runs over sources in segments: the same tables, and a way back for what cannot join."""

from fractions import Fraction
from itertools import chain
from pathlib import Path

import pytest
from film_makers import flip_bytes, write_video
from film_shots import moving_texture
from place import Place

from curator.executor.engine import Engine
from curator.media import source_segments as segments
from curator.stages.analyze.stage import PlanStage

SHOTS = (150, 170, 160)


def film(path: Path, seed: int, *, height_px: int = 270) -> None:
    size = {"width_px": height_px * 16 // 9, "height_px": height_px}
    shots = (moving_texture(n, seed=seed + i, **size) for i, n in enumerate(SHOTS))
    mux_options = {"movflags": "faststart"} if path.suffix == ".mp4" else None
    write_video(
        path, chain.from_iterable(shots), fps=Fraction(30), gop=60, bframes=2,
        mux_options=mux_options,
    )  # fmt: skip


class Long(Place):
    """Films of three shots, which default settings keep."""

    settings = ()


@pytest.mark.long
@pytest.mark.usefixtures("unsandboxed")
def test_segments_change_no_table_and_what_cannot_be_joined_is_analyzed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "LEAST_FRAMES", 120)
    sources = tmp_path / "in"
    sources.mkdir()
    film(sources / "sound.mp4", seed=1)
    film(sources / "damaged.mp4", seed=11)
    flip_bytes(sources / "damaged.mp4", 60, seed=5, start_fraction=0.8)
    film(sources / "stream.ts", seed=21)

    one, many = Long(sources, tmp_path / "whole"), Long(sources, tmp_path / "cut")
    whole = one.run("analyze.segment_s=120")
    assert whole["work"]["segments_analyzed"] == 0
    cut = many.run("analyze.segment_s=10")
    assert cut["work"]["segments_analyzed"] == 4
    assert cut["work"]["sources_joined"] == 1
    assert cut["long_sources_analyzed_whole"] == {"damaged": 1, "no_index": 1}
    assert cut["counts"] == whole["counts"]
    assert cut["counts"]["kept"] >= 3
    for table in ("sources", "shots", "clips", "embeddings"):
        assert many.table(table) == one.table(table), table
    assert [s["name"] for s in cut["shards"]] == [s["name"] for s in whole["shards"]]
    assert not list((tmp_path / "cut" / "segments").glob("*.parquet"))

    again = many.run("analyze.segment_s=20")
    assert set(again["work"].values()) == {0}


def test_the_cpu_seconds_of_a_run_are_divided_among_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "film.mp4", moving_texture(60, width_px=480, height_px=270))
    place = Long(tmp_path / "in", tmp_path / "out")
    spent = place.run("analyze.segment_s=120")["cpu_seconds"]
    assert {"decode", "scale", "shot_network", "measure", "start_up"} <= set(spent)
    assert all(seconds >= 0 for seconds in spent.values())
    assert spent["shot_network"] > spent["scale"]


@pytest.mark.long
def test_a_run_that_broke_off_goes_on_from_the_segments_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "LEAST_FRAMES", 120)
    monkeypatch.setattr(PlanStage, "sandboxed", False)
    # Segments are never small, and would start Ray.
    monkeypatch.setattr(Engine, "is_small", lambda *_: True)
    sources, out = tmp_path / "in", tmp_path / "out"
    sources.mkdir()
    film(sources / "film.mp4", seed=1, height_px=90)
    place = Long(sources, out)
    place.break_off(monkeypatch, "analyze.segment_s=10")
    assert len(list((out / "segments").glob("*.parquet"))) == 2
    for part in (out / "tracks").glob("*/*.parquet"):
        part.unlink()
    again = place.run("analyze.segment_s=10")
    assert again["work"]["segments_analyzed"] == 0
    assert again["work"]["sources_joined"] == 1
    assert again["counts"]["done"] == 1
