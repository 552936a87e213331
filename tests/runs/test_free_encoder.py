"""Clips in VP9, without x264, from a run to verification, export and training."""

from pathlib import Path

import pytest
from place import QVGA, SHORT, Place, write_films

from curator.cli import main
from curator.loading import ClipDataset
from curator.media.encode import vp9_crf
from curator.tools.commands.arguments import EXIT_OK


class Vp9(Place):
    """Two films that are encoded without x264."""

    settings = (
        *SHORT, "cut.mode=encode", "cut.encoder=vp9", "shard.lengths=[17,33]", "propose.max_s=2.5",
    )  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_films(tmp_path_factory.mktemp("in"), (100, 100), fps=30, **QVGA)


def test_a_run_in_vp9_is_verified_exported_and_loaded(sources: Path, tmp_path: Path) -> None:
    """Pins that every reader of a run takes VP9."""
    out = tmp_path / "out"
    assert Vp9(sources, out).run()["counts"]["by_cut_mode"] == {"encode": 4}
    assert main(["verify", str(out), "--frames", "all"]) == EXIT_OK
    for form in ("frames", "cosmos", "opensora"):
        assert main(["export", "--format", form, str(out), str(tmp_path / form)]) == EXIT_OK
    dataset = ClipDataset(str(out), frames=17, size=(160, 128), batch_size=2)
    batch = next(iter(dataset))
    assert sorted(batch["video"].shape) == [2, 3, 17, 128, 160]


@pytest.mark.long
def test_vp9_has_the_same_bytes_for_any_number_of_workers(sources: Path, tmp_path: Path) -> None:
    one, two = Vp9(sources, tmp_path / "out"), Vp9(sources, tmp_path / "again")
    one.run()
    two.run("--workers=2")
    assert one.tars() == two.tars() != {}


def test_qualities_of_x264_have_one_of_vp9_each() -> None:
    """Pins the line and its ends."""
    assert [vp9_crf(crf) for crf in (1, 14, 20, 26, 32, 37, 51)] == [1, 17, 29, 41, 53, 63, 63]
