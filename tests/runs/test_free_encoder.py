"""Clips in VP9, without x264, from a run to verification, export and training."""

import json
from pathlib import Path

import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.commands.arguments import EXIT_OK
from curator.loading import ClipDataset
from curator.media.encode import vp9_crf

SETTINGS = (
    "cut.mode=encode", "cut.encoder=vp9", "shard.resolutions=[120]", "shard.lengths=[17,33]",
    "filters.short_side_px.min=100", "propose.min_s=1", "propose.max_s=2.5", "dedup.enabled=false",
    "filters.motion.min=0.0001", "filters.sharpness.min=0.0001",
)  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    for number in range(2):
        frames = moving_texture(100, width_px=160, height_px=120, seed=number)
        write_video(folder / f"{number}.mp4", frames)
    return folder


def curate(sources: Path, out: Path, *more: str) -> int:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return main(["run", "--recipe", "quickstart", str(sources), str(out), *settings, *more])


def tars(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.tar")}


def test_a_run_in_vp9_is_verified_exported_and_loaded(sources: Path, tmp_path: Path) -> None:
    """Pins that every reader of a run takes VP9."""
    out = tmp_path / "out"
    assert curate(sources, out) == EXIT_OK
    assert json.loads((out / "summary.json").read_text())["counts"]["by_cut_mode"] == {"encode": 4}
    assert main(["verify", str(out), "--frames", "all"]) == EXIT_OK
    for form in ("frames", "cosmos", "opensora"):
        assert main(["export", "--format", form, str(out), str(tmp_path / form)]) == EXIT_OK
    dataset = ClipDataset(str(out), frames=17, size=(128, 160), batch_size=2)
    batch = next(iter(dataset))
    assert sorted(batch["video"].shape) == [2, 3, 17, 128, 160]


@pytest.mark.long
def test_vp9_has_the_same_bytes_for_any_number_of_workers(sources: Path, tmp_path: Path) -> None:
    assert curate(sources, tmp_path / "out") == EXIT_OK
    assert curate(sources, tmp_path / "again", "--workers", "2") == EXIT_OK
    assert len(tars(tmp_path / "out")) > 0
    assert tars(tmp_path / "out") == tars(tmp_path / "again")


def test_qualities_of_x264_have_one_of_vp9_each() -> None:
    """Pins the line and its ends."""
    assert [vp9_crf(crf) for crf in (1, 14, 20, 26, 32, 37, 51)] == [1, 17, 29, 41, 53, 63, 63]
