"""Configurations of trainers that `curate export --format folder` writes.

Numbers of frames were computed by hand from the trainers' rules.
"""

import json
import shlex
import tomllib
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from small_output import SmallOutput

from curator.cli import main
from curator.export import export
from curator.strict_yaml import load_yaml
from curator.tools.commands.arguments import EXIT_OK
from curator.trainers.clip_fit import OutputSpec, fit_clips
from curator.trainers.filled_config import config_file
from curator.trainers.fit_words import seen_line
from curator.trainers.trainer_files import FOLDER, Trainer, load_trainer, trainer_names

PLACES = {"root": "/to", "folder": "/to/train", "videos": "/to/train/videos", "split": "train"}
ODD = 'a "b" \\n it\'s $HOME `x` ünï #'
NTSC = Fraction(30000, 1001)
CONFIGURED = [name for name in trainer_names() if load_trainer(name).rules.config is not None]
MIXED = {
    (n, fps): 1 + n % 3
    for fps in (Fraction(16), Fraction(24), NTSC)
    for n in (17, 49, 50, 61, 80, 81, 97, 121, 122, 241)
}


def forms(
    kinds: dict[tuple[int, Any], int], size: str = "1280x720"
) -> dict[OutputSpec, tuple[int, float]]:
    width, height = map(int, size.split("x"))
    return {
        OutputSpec(n_frames=n, fps=Fraction(fps), width=width, height=height, has_sound=False): (
            k,
            k * float(n / Fraction(fps)),
        )
        for (n, fps), k in kinds.items()
    }


def text(name: str, kinds: dict[tuple[int, Any], int], size: str = "1280x720") -> str:
    filled = config_file(name, forms(kinds, size), PLACES, {})
    assert filled is not None
    return filled[1]


def flags(name: str, kinds: dict[tuple[int, Any], int], size: str = "1280x720") -> dict[str, str]:
    words = shlex.split(text(name, kinds, size), comments=True)
    return {a: b for a, b in pairwise(words) if a.startswith("--")}


def trainer_of(filled: str, name: str) -> Trainer:
    """The trainer with the values of the command that a file names."""
    command = next(line for line in filled.splitlines() if "curate fit OUT" in line)
    command = command[command.index("curate fit") :].rstrip('",')
    words = shlex.split(command)
    values = [words[at + 1].partition("=") for at, word in enumerate(words) if word == "--set"]
    assert words[words.index("--for") + 1] == name
    return load_trainer(name, {key: load_yaml(value) for key, _, value in values})


def test_clips_without_a_caption_count_as_dropped_where_the_trainer_gets_none() -> None:
    filled = config_file("cosmos3", forms({(61, 24): 3}), PLACES, forms({(61, 24): 1}))
    assert filled is not None
    assert "67% of the clips" in filled[1]
    assert "1 clip dropped (no caption)" in filled[1]


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_share_of_a_file_is_the_one_of_fit(name: str) -> None:
    """Pins the engine's own share for the written parameters, and that a file parses."""
    rows = [
        {
            "n_frames": form.n_frames, "fps_fraction": str(form.fps), "width": form.width,
            "height": form.height, "audio": "none", "start_s": 0.0,
            "end_s": float(form.n_frames / form.fps), "caption": "a square",
        }
        for form, (n, _) in forms(MIXED).items()
        for _ in range(n)
    ]  # fmt: skip
    filled = text(name, MIXED)
    facts = fit_clips(trainer_of(filled, name), [pa.Table.from_pylist(rows)])
    assert facts["read"] > 0
    assert seen_line(facts) in filled
    for reason in facts["dropped"]:
        assert reason == "too_short"
        assert f"{facts['dropped'][reason]} clips dropped (too few frames)" in filled
    for key, words in (("cut_at_tail", "cut at the tail"), ("retimed", "at another speed")):
        assert not facts[key] or f"{facts[key]} clips {words}" in filled
    assert "$" not in filled


def test_whole_windows_are_read_whole() -> None:
    """Pins values for clips that were cut for the trainer."""
    wan, ltx = {(81, 16): 5}, {(121, 24): 5}
    assert tomllib.loads(text("musubi", wan))["datasets"] == [
        {
            "video_directory": "/to/train/videos", "cache_directory": "/to/train/cache/musubi",
            "resolution": [960, 544], "target_frames": [81], "frame_extraction": "head",
        }
    ]  # fmt: skip
    pipe = tomllib.loads(text("diffusion-pipe", wan))
    assert (pipe["frame_buckets"], pipe["resolutions"]) == ([81], [512])
    assert pipe["directory"] == [{"path": "/to/train/videos", "num_repeats": 1}]
    assert json.loads(text("simpletuner", wan))[0]["video"]["num_frames"] == 81
    (dataset,) = yaml.safe_load(text("ai-toolkit-auto", wan))["datasets"]
    assert (dataset["auto_frame_count"], dataset["fps"]) == (True, 16)
    assert flags("ltx2", ltx)["--resolution-buckets"] == "960x544x121"
    assert flags("wan-diffsynth", wan)["--num_frames"] == "81"
    assert flags("fastvideo", wan)["--preprocess.num_frames"] == "81"
    assert flags("videox-fun", wan)["--video_sample_stride"] == "1"
    assert flags("automodel", wan)["--target_frames"] == "81"
    for name, kinds in (("musubi", wan), ("ltx2", ltx), ("videox-fun", wan)):
        assert "sees 100% of the footage" in text(name, kinds)


def test_numbers_of_frames_follow_rates_and_lengths() -> None:
    # 152 frames at 30 are int(152 * 16 / 30) = 81 at 16, and 151 * 16 / 30 is 80.5: 81 frames.
    thirty = {(152, 30): 4}
    assert tomllib.loads(text("diffusion-pipe", thirty))["frame_buckets"] == [81]
    (dataset,) = tomllib.loads(text("musubi", thirty))["datasets"]
    assert (dataset["source_fps"], dataset["target_frames"]) == (30.0, [81])
    # musubi-tuner's schema takes no whole number here.
    assert isinstance(dataset["source_fps"], float)
    # Of 121 frames, chunks of 49 and 81 reach 98, the first 81 only 81.
    several = {(49, 16): 10, (81, 16): 10, (121, 16): 10}
    (dataset,) = tomllib.loads(text("musubi", several))["datasets"]
    assert (dataset["target_frames"], dataset["frame_extraction"]) == ([49, 81], "chunk")
    # FramePack takes 36n + 1 frames: of 121 at 30, 109.
    (dataset,) = tomllib.loads(text("musubi-framepack", {(121, 30): 3}))["datasets"]
    assert (dataset["max_frames"], dataset["frame_extraction"]) == (109, "full")
    # Two thirds of this footage are lost with 81 frames, one third with 33: few long clips.
    most = {(33, 16): 60, (81, 16): 10}
    assert flags("fastvideo", most)["--preprocess.num_frames"] == "33"
    # A stride shows more of a long clip, but at twice the speed, unless the rate is twice.
    for rate, stride in ((16, "1"), (32, "2")):
        assert flags("videox-fun", {(162, rate): 1})["--video_sample_stride"] == stride
    # LTX-2: 8n + 1 frames, and a size of the clips' aspect: 540x960 has the area of 960x544.
    buckets = flags("ltx2", {(50, 24): 1, (97, 24): 1}, "1080x1920")["--resolution-buckets"]
    assert buckets == "544x960x49;544x960x97"
    # The speed is 1 where 60 frames at 30, two seconds, are 33 at 16.
    assert flags("automodel", {(60, 30): 1})["--target_frames"] == "29"


def test_values_are_few_and_at_most_what_the_model_takes() -> None:
    kinds = {(n, 16): 1 for n in range(9, 400, 9)}
    for name in ("musubi", "diffusion-pipe"):
        loaded = tomllib.loads(text(name, kinds))
        frames = loaded.get("frame_buckets") or loaded["datasets"][0]["target_frames"]
        assert 1 < len(frames) <= 4
        assert max(frames) == 81
        assert all(n % 4 == 1 for n in frames)


@pytest.mark.parametrize("name", CONFIGURED)
def test_any_folder_name_is_read_back(name: str) -> None:
    places = {key: f"/{ODD}/{value}" for key, value in PLACES.items() if key != "split"}
    filled = config_file(name, forms({(81, 16): 1}), {**places, "split": "train"}, {})
    assert filled is not None
    file, words = filled
    suffix = Path(file).suffix
    if suffix == ".sh":
        assert any(places["root"] in word for word in shlex.split(words, comments=True))
        return
    loaders: dict[str, Any] = {
        ".toml": tomllib.loads, ".yaml": yaml.safe_load, ".json": json.loads,
    }  # fmt: skip
    assert places["videos"] in _texts(loaders[suffix](words))


def _texts(value: object) -> set[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(_texts, value))
    return {value} if isinstance(value, str) else set()


def test_a_trainer_that_appears_next_month_is_one_file(tmp_path: Path) -> None:
    lines = (FOLDER / "diffusion-pipe.yaml").read_text().split("\nconfig:")[0]
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        f"{lines}\nconfig:\n  suffix: .yaml\n  up_to: 49\n  most: 2\n"
        '  text: |\n    data: "$videos"\n    frames: $frames\n'
    )
    filled = config_file(str(mine), forms({(49, 16): 1, (25, 16): 1}), PLACES, {})
    assert filled is not None
    assert yaml.safe_load(filled[1]) == {"data": "/to/train/videos", "frames": [25, 49]}


def test_an_export_has_a_file_per_trainer_and_fit_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = SmallOutput(tmp_path / "out", {1, 2})
    output.run({1, 2})
    export(str(output.out), str(tmp_path / "to"), "folder")
    folder = tmp_path / "to/train/trainers"
    assert {path.stem for path in folder.iterdir()} == set(CONFIGURED)
    # Readers that walk through all folders take videos and pictures by their suffix.
    assert {path.suffix for path in folder.iterdir()} == {".toml", ".yaml", ".json", ".sh"}
    for name in ("musubi.toml", "ltx2.sh"):
        filled = (folder / name).read_text()
        assert str(tmp_path / "to/train") in filled
        command = next(line for line in filled.splitlines() if "curate fit OUT" in line)
        words = shlex.split(command.removeprefix("# curate "))
        capsys.readouterr()
        assert main([*words, "--json"]) != EXIT_OK
        capsys.readouterr()
        assert main([str(output.out) if w == "OUT" else w for w in words] + ["--json"]) == EXIT_OK
        (facts,) = json.loads(capsys.readouterr().out)
        assert seen_line(facts) in filled
