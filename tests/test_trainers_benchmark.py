"""Pins how the benchmark of trainers' loaders reads the number of a frame, and what it compares."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

RED = (200, 0, 0)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1] / "benchmarks")])


def shown(clips: Any, number: int, width: int, height: int) -> Image.Image:  # noqa: ANN401
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = RED
    left, top, side = clips.box_in_source(width, height)
    picture[top : top + side, left : left + side] = clips.counter(number, side)[..., None]
    return Image.fromarray(picture)


@pytest.mark.parametrize("size", [(64, 64), (36, 64), (64, 36), (256, 448)])
@pytest.mark.parametrize("source", [(320, 180), (180, 320), (240, 240)])
def test_number_and_crop_are_read_from_scaled_and_cropped_frames(
    source: tuple[int, int], size: tuple[int, int]
) -> None:
    clips = importlib.import_module("counted_clips")
    clip = next(c for c in clips.plan(1000) if (c.width, c.height) == source)
    for number in (0, 1, 80, 129, 1465):
        frame = ImageOps.fit(shown(clips, number, *source), size)
        read, box = clips.read_counter(np.asarray(frame))
        assert read == number
    left, top, right, bottom = clips.crop_of(clip, size, box)
    scale = max(size[0] / source[0], size[1] / source[1])
    assert abs(right - left - size[0] / scale) <= 3
    assert abs(bottom - top - size[1] / scale) <= 3
    assert abs(left + right - source[0]) <= 3
    assert abs(top + bottom - source[1]) <= 3


def test_blend_of_two_frames_is_no_number() -> None:
    clips = importlib.import_module("counted_clips")
    first, second = (np.asarray(shown(clips, n, 240, 240), np.uint16) for n in (85, 42))
    blend = ((first * 11 + second * 9) // 20).astype(np.uint8)
    assert clips.read_counter(blend)[0] in (None, 85)
    assert clips.read_counter(np.zeros((64, 64, 3), np.uint8))[0] is None


def test_corpus_is_the_same_each_time_and_has_all_thresholds() -> None:
    clips = importlib.import_module("counted_clips")
    planned = clips.plan()
    assert planned == clips.plan()
    assert len({clip.clip for clip in planned}) == len(planned) == 1000
    assert {(c.width, c.height) for c in planned} >= set(clips.SIZES)
    assert {c.rate for c in planned} == {None, *map(str, clips.RATES.values())}
    assert {c.sound for c in planned} == {"none", "silent", "tone"}
    frames = {(c.rate, c.frames) for c in planned}
    assert {("16", 80), ("16", 81), ("16", 82), ("30", 151), ("30", 152), ("30", 153)} <= frames


def test_comparison_names_each_kind_of_disagreement(tmp_path: Path) -> None:
    trainers = importlib.import_module("trainers")
    row = {"kept": True, "frames": [0, 1], "size": [64, 64], "caption": "a", "sound": None}
    seen = [row | {"clip": "a"}, row | {"clip": "b"}, row | {"clip": "c"}, row | {"clip": "d"}]
    told = [
        row | {"clip": "a", "size": (64, 64), "sound": True},
        row | {"clip": "b", "kept": False, "frames": []},
        row | {"clip": "c", "frames": [0, 2], "caption": "b"},
        row | {"clip": "e"},
    ]
    for name, rows in (("seen", seen), ("told", told)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = trainers.compare(tmp_path / "seen", tmp_path / "told")
    assert (found["clips"], found["only_observed"], found["only_fit"]) == (3, 1, 1)
    assert found["decisions"] == pytest.approx(2 / 3)
    assert (found["frames_compared"], found["frames"]) == (4, 3 / 4)
    assert (found["disagreements"], found["clips_that_differ"]) == (3, 2)
    assert (found["size"], found["caption"], found["sound"]) == (1, 1 / 2, None)
    assert [(d["clip"], d["key"]) for d in found["first"]] == [
        ("b", "kept"), ("c", "frames"), ("c", "caption")
    ]  # fmt: skip


def test_table_of_agreement_sums_what_was_read_and_what_differs(tmp_path: Path) -> None:
    trainers = importlib.import_module("trainers")
    row = {"kept": True, "frames": [0, 1], "size": [64, 64], "sound": None}
    for folder, clips in (("seen", {"a": "x", "b": "x", "c": "x"}), ("told", {"a": "x", "b": "y"})):
        (tmp_path / folder).mkdir()
        rows = [row | {"clip": clip, "caption": text} for clip, text in clips.items()]
        (tmp_path / folder / "energon.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = list(trainers.compare_all(tmp_path / "seen", tmp_path / "told"))
    table = trainers.agreement_table(found)
    assert "| `energon` | `energon` | 3 | 2 | 4 | 100% | 100% | 100% | 50.0% |  |" in table
    assert table.endswith("3 readings of clips; 2 compared, with 4 frames: 1 differ in something")


def test_each_loader_has_a_trainer_and_fit_speaks_of_each_clip_of_a_constant_rate() -> None:
    trainers = importlib.import_module("trainers")
    clips = importlib.import_module("counted_clips").plan()[::20]
    assert set(trainers.FITS) == set(trainers.LOADERS)
    constant = [clip.clip for clip in clips if clip.rate is not None]
    for name in trainers.FITS:
        assert [row["clip"] for row in trainers.fit(name, clips)] == constant
    row = next(row for row in trainers.fit("musubi-wan", clips) if row["kept"])
    assert row["frames"] == list(range(81))


def test_sample_without_a_frame_is_not_kept() -> None:
    adapters = importlib.import_module("trainer_adapters")
    clip = importlib.import_module("counted_clips").plan()[0]
    assert not adapters.observed(clip, [], caption="a", sound=None)["kept"]
