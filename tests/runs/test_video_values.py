"""Videos as values: the loader decodes the same window of them as of the clip."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import yaml
from captioned import work_here
from film_makers import write_video
from numbered_films import number_of, numbered
from place import Place

from curator.cli import main
from curator.export import export
from curator.family import Family, FamilyError, Scope, Video
from curator.loading import ClipDataset
from curator.tools.commands.arguments import EXIT_OK
from curator.value_header import ValueHeader

OWN = '''"""Control videos with the numbers of the clip's frames."""

import numpy as np

from curator.family import Family, Scope, Video
from curator.stage import Annotator, FrameRequest, StageConfig


class Controls(Annotator[StageConfig]):
    name, version = "controls", 1
    frames = (FrameRequest(),)
    families = (
        Family("negative", Scope.CLIP, Video("h264"), member="negative.mp4"),
        Family("depth", Scope.CLIP, Video("ffv1"), member="depth.mkv"),
    )

    def process(self, unit):
        return [
            {
                "negative": 255 - clip.frames,
                "depth": clip.frames[..., 0].astype(np.uint16) * 257,
            }
            for clip in unit
        ]
'''
RECIPE = {
    "stages": [{"use": "own_controls:Controls"}, {"use": "edges"}],
    "propose": {"min_s": 0.3, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip
FPS = Fraction(30000, 1001)


@dataclass(frozen=True)
class Controlled(Place):
    """A film, and an output whose samples have control videos."""

    settings = ()
    recipe: str = ""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    """A clip of 50 frames, with three control videos."""
    folder = tmp_path_factory.mktemp("controlled")
    (folder / "own_controls.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    (folder / "in").mkdir()
    write_video(
        folder / "in" / "film.mp4", numbered(50), fps=FPS, gop=10, bframes=2,
        options={"x264-params": "scenecut=0"},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[1]}")
        work_here(patch)
        place = Controlled(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        assert place.run()["counts"]["kept"] == 1
        yield place


@pytest.mark.parametrize(
    "window", [{"frames": 7}, {"frames": 5, "stride": 6}, {"frames": 6, "fps": 10}]
)
def test_the_frames_of_a_control_video_are_those_of_the_window(
    finished: Controlled, window: dict[str, int]
) -> None:
    starts = set()
    for seed in range(6):
        (batch,) = ClipDataset(
            str(finished.out), members=["negative", "depth", "edges"], batch_size=1, seed=seed,
            **window,  # type: ignore[arg-type]
        )  # fmt: skip
        video, negative, depth = (batch[name][0] for name in ("video", "negative", "depth"))
        assert negative.shape == video.shape == batch["edges"][0].shape
        assert (depth.dtype, depth.shape) == (torch.int32, (1, *video.shape[1:]))
        for t in range(video.shape[1]):
            number = number_of(video[:, t].permute(1, 2, 0).numpy())
            assert number_of(255 - negative[:, t].permute(1, 2, 0).numpy()) == number
            grey = (depth[0, t] // 257).to(torch.uint8).numpy()
            assert number_of(np.repeat(grey[:, :, None], 3, axis=2)) == number
        starts.add(int(batch["start_frame"]))
    assert len(starts) > 2
    assert main(["verify", str(finished.out), "--json"]) == EXIT_OK


def test_control_videos_are_scaled_and_cropped_as_the_clip(finished: Controlled) -> None:
    (batch,) = ClipDataset(
        str(finished.out), members=["negative"], batch_size=1, frames=3, size=(48, 48)
    )
    assert batch["negative"].shape == batch["video"].shape == (1, 3, 3, 48, 48)
    difference = batch["video"].float() + batch["negative"].float() - 255
    assert difference.abs().mean() < 4
    (whole,) = ClipDataset(str(finished.out), members=["depth", "edges"], batch_size=1, video=False)
    assert whole["depth"].shape == (1, 1, 50, 64, 160)
    assert whole["edges"].shape == (1, 3, 50, 64, 160)


def header(**changed: object) -> ValueHeader:
    facts = {"fingerprint": "f", "mp4_sha256": "0" * 64, "fps": FPS} | changed
    return ValueHeader(**facts)  # type: ignore[arg-type]


def test_a_video_keeps_its_frames_and_its_header() -> None:
    """Pins that 16 bits come back as they were, that RGB does nearly, and that a bit is missed."""
    family = Family("depth", Scope.CLIP, Video("ffv1"), member="depth.mkv")
    depth = np.random.default_rng(1).integers(0, 1 << 16, (5, 34, 46), np.uint16)
    data = family.encode(depth, header())
    assert isinstance(data, bytes)
    assert data == family.encode(depth, header())
    np.testing.assert_array_equal(family.decode(data), depth)
    assert family.header(data) == header(fps=None)
    for at in (len(data) // 2, len(data) - 40):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(FamilyError, match=r"the value's bytes have the SHA-256|no video"):
            family.header(damaged)
    colour = Family("mask", Scope.CLIP, Video("h264"), member="mask.mp4")
    frames = np.repeat(np.arange(6, dtype=np.uint8)[:, None, None, None] * 40, 64, 1)
    frames = np.broadcast_to(frames, (6, 64, 96, 3)).copy()
    found = colour.decode(colour.encode(frames, header()))
    assert found.shape == frames.shape
    assert np.abs(found.astype(int) - frames).max() <= 2


@pytest.mark.parametrize(
    ("codec", "member", "value", "words"),
    [
        ("h264", "a.mp4", np.zeros((3, 33, 64, 3), np.uint8), "even H and W"),
        ("h264", "a.mp4", np.zeros((3, 32, 64), np.uint8), r"expected uint8 \[T, H, W, 3\]"),
        ("ffv1", "a.mkv", np.zeros((3, 32, 64), np.uint8), r"expected uint16 \[T, H, W\]"),
        ("ffv1", "a.mp4", np.zeros((3, 32, 64), np.uint16), "expected 'mkv'"),
        ("h264", "a.mp4", np.zeros((0, 32, 64, 3), np.uint8), r"\[0, 32, 64, 3\]"),
    ],
)
def test_a_video_that_does_not_fit_is_refused(
    codec: str, member: str, value: np.ndarray, words: str
) -> None:
    with pytest.raises(FamilyError, match=words):
        Family("a", Scope.CLIP, Video(codec), member=member).encode(value, header())  # type: ignore[arg-type]


def test_a_video_of_another_length_is_refused(finished: Controlled) -> None:
    family = Family("negative", Scope.CLIP, Video("h264"), member="negative.mp4")
    with pytest.raises(FamilyError, match="a value of 49 frames; expected 50"):
        family.check_length((49, 64, 160), header(), 50, FPS)


def test_a_control_video_goes_to_cosmos3_with_the_frames_of_its_clip(
    finished: Controlled, tmp_path: Path
) -> None:
    """Pins both codecs, and that the loader is predicted to drop clips without a control."""
    for values, suffix in (("negative", "mp4"), ("depth", "mkv")):
        to = tmp_path / values
        options = {"control": "depth", "control_values": values, "relative": True}
        done = export(str(finished.out), str(to), "cosmos3", options=options)
        (line,) = map(
            json.loads, (to / "train" / "video_dataset_file.jsonl").read_text().splitlines()
        )
        assert line["control_path"] == f"control/{line['uuid']}_depth.{suffix}"
        with av.open(str(to / "train" / line["control_path"])) as container:
            assert sum(1 for _ in container.decode(video=0)) == line["nb_frames"] == 50
        assert values not in str(done.left_members)
        assert "edges.mp4" in done.left_members
        assert done.notes == [
            "train: the trainer reads 0 of 1 windows; dropped: 1 too_short (train/dropped.jsonl)"
        ]
