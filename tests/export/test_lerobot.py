"""The export `lerobot`: tables, videos and statistics, and what the format cannot hold."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from captioned import work_here
from counted_rows import N_FRAMES, RECIPE, WithRows, stages, write_csv, write_films
from numbered_films import number_of

from curator.cli import main
from curator.loading import ClipDataset, ClipLoader
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

FIRST = N_FRAMES + 1
"""Only frame 0, of which 0 is the remainder, has no row."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithRows]:
    """Clips of 25 frames/s, one of which has a frame without a row."""
    folder = tmp_path_factory.mktemp("lerobot")
    write_films(folder / "in")
    (folder / "in" / "vfr.mkv").unlink()
    write_csv(folder / "in", ("long.mp4", "short.mp4"), lost=FIRST)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place = WithRows(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        place.run(stages())
        yield place


def exported(place: WithRows, to: Path, *options: str) -> Path:
    assert main(["export", str(place.out), str(to), "--format", "lerobot", *options]) == EXIT_OK
    return to / "train"


def table(path: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    return columns


def test_rows_times_and_videos_are_those_of_the_clips(counted: WithRows, tmp_path: Path) -> None:
    root = exported(counted, tmp_path, "--state", "number", "--action", "half,number")
    info = json.loads((root / "meta" / "info.json").read_text())
    data = table(root / "data" / "chunk-000" / "file-000.parquet")
    episodes = table(root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    clips = {clip["mp4_sha256"]: clip for clip in counted.clips()}
    whole = [clip for clip in counted.clips() if clip["start_frame"] > 0]
    assert info["fps"] == 25
    assert info["total_episodes"] == len(whole) == len(counted.clips()) - 2
    assert info["total_frames"] == sum(clip["n_frames"] for clip in whole) == len(data["index"])
    assert data["index"] == list(range(len(data["index"])))
    assert info["features"]["action"] == {
        "dtype": "float32", "shape": [2], "names": ["half", "number"],
    }  # fmt: skip
    for number, (begin, end) in enumerate(
        zip(episodes["dataset_from_index"], episodes["dataset_to_index"], strict=True)
    ):
        video = root / info["video_path"].format(
            video_key="observation.images.main",
            chunk_index=episodes["videos/observation.images.main/chunk_index"][number],
            file_index=episodes["videos/observation.images.main/file_index"][number],
        )
        clip = clips[sha256(video.read_bytes()).hexdigest()]
        frames = np.arange(clip["start_frame"], clip["end_frame"])
        np.testing.assert_array_equal(data["observation.state"][begin:end], frames)
        np.testing.assert_array_equal(
            data["action"][begin:end], np.stack([frames / 2, frames], axis=1)
        )
        times_s = np.arange(end - begin) / 25
        np.testing.assert_allclose(data["timestamp"][begin:end], times_s, atol=1e-6)
        assert set(data["episode_index"][begin:end]) == {number}
    stats = json.loads((root / "meta" / "stats.json").read_text())
    numbers = np.array(data["observation.state"])
    assert stats["observation.state"]["mean"] == pytest.approx([numbers.mean()])
    assert stats["observation.state"]["std"] == pytest.approx([numbers.std()])
    assert stats["action"]["max"] == [numbers.max() / 2, numbers.max()]
    assert np.shape(stats["observation.images.main"]["mean"]) == (3, 1, 1)
    tasks = pq.read_table(root / "meta" / "tasks.parquet").to_pandas()
    assert tasks.index.name == "task"
    assert set(data["task_index"]) == set(tasks["task_index"])


def test_all_columns_are_the_state_by_default_and_exports_are_repeatable(
    counted: WithRows, tmp_path: Path
) -> None:
    root = exported(counted, tmp_path)
    info = json.loads((root / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["names"] == ["number", "half"]
    assert "action" not in info["features"]
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    exported(counted, tmp_path)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--state", "numbre"], "unknown column of the rows 'numbre'; did you mean 'number'"),
        (["--rows", "row", "--state", "number"], "unknown family 'row'"),
        (["--task", "job"], "has no such metadata"),
    ],
)
def test_unknown_columns_are_refused(
    counted: WithRows, tmp_path: Path, options: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command = ["export", str(counted.out), str(tmp_path), "--format", "lerobot", *options]
    assert main(command) == EXIT_USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cut.fps=12.5", "clips of 12.5 frames/s; LeRobot's rates are whole numbers"),
        ("cut.mode=encode", "LeRobot has one rate and one size"),
    ],
)
def test_other_rates_and_sizes_are_refused(
    counted: WithRows, tmp_path: Path, setting: str, message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_films(tmp_path / "in")
    write_csv(tmp_path / "in", lost=FIRST)
    place = WithRows(tmp_path / "in", tmp_path / "out", recipe=counted.recipe)
    place.run(stages(), setting, "cut.most_repeated=1")
    command = ["export", str(place.out), str(tmp_path / "to"), "--format", "lerobot"]
    assert main(command) == EXIT_USAGE
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_exported_rows_come_in_again(counted: WithRows, tmp_path: Path) -> None:
    """Pins the annotator `rows` on LeRobot's own tables, by episode."""
    root = exported(counted, tmp_path / "to")
    data = root / "data" / "chunk-000" / "file-000.parquet"
    videos = sorted((root / "videos" / "observation.images.main" / "chunk-000").iterdir())
    lines = [f"{path},{number}" for number, path in enumerate(videos)]
    manifest = tmp_path / "episodes.csv"
    manifest.write_text("\n".join(["uri,episode", *lines]))
    place = WithRows(manifest, tmp_path / "out", recipe=counted.recipe)
    place.run(
        stages(
            table=str(data), time="timestamp", unit="s", columns=["observation.state"],
            source="episode_index", source_value="meta.episode",
        )
    )  # fmt: skip
    dataset = ClipDataset(str(place.out), frames=9, batch_size=1, members=["rows"])
    n_clips = 0
    for batch in ClipLoader(dataset, num_workers=0):
        frames = batch["video"][0].movedim(0, -1).numpy()
        shown = np.array([number_of(frame) for frame in frames])
        np.testing.assert_array_equal(batch["rows"][0], np.stack([shown, shown / 2], axis=1))
        n_clips += 1
    assert n_clips == len(place.clips()) >= 3
