"""Runs whose recipe sets several sizes: decisions for each size, one decode, reruns, readers.

The steps run in this process, so that no Ray is needed.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from place import Place

from curator.export.job import export
from curator.loading import ClipDataset
from curator.records.clips import REMAINDER
from curator.tools.review.bound_tuning import tune
from curator.tools.review.finished_run import open_finished

N, SMALL_N = 100, 60
QVGA = {"width_px": 320, "height_px": 240}
LARGE, SMALL = "320x240", "160x120"
BOTH = f"cut.size=[{LARGE}, {SMALL}]"
SETTINGS = (
    "propose.min_s=1", "propose.max_s=2.5", "shard.lengths=[17]", "cut.max_size_factor=null",
    "filters.motion.min=0.0001", "filters.sharpness.min=0.0001", "dedup.enabled=false",
)  # fmt: skip


class Sizes(Place):
    """A film of 320x240, and one of 192x144."""

    settings = SETTINGS

    def by_form(self) -> dict[tuple[str, int, str], dict[str, Any]]:
        """Rows by name of the source, first frame, and size."""
        return {
            (Path(row["source_uri"]).name, row["start_frame"], f"{row['width']}x{row['height']}"):
                row
            for row in self.table("clips")
        }  # fmt: skip


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Sizes:
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in/large.mp4", moving_texture(N, **QVGA), gop=25)
    small = moving_texture(SMALL_N, width_px=192, height_px=144, seed=1)
    write_video(tmp_path / "in/small.mp4", small, gop=25)
    return Sizes(tmp_path / "in", tmp_path / "out")


def test_each_size_is_decided_and_written_from_one_decode(place: Sizes, tmp_path: Path) -> None:
    summary, rows = place.run(BOTH), place.by_form()
    reasons = Counter((name, size, row["reason"]) for (name, _, size), row in rows.items())
    assert reasons == {
        ("large.mp4", LARGE, None): 2,
        ("large.mp4", SMALL, None): 2,
        ("small.mp4", LARGE, "smaller_than_size"): 1,
        ("small.mp4", SMALL, None): 1,
    }
    assert all(row["output_size"] == size for (_, _, size), row in rows.items())
    kept = [row for row in rows.values() if row["reason"] is None]
    for row in kept:
        assert json.loads(place.sample(row, "json"))["output_size"] == row["output_size"]
    # No frame is decoded twice.
    assert summary["cut"]["decoded_frames"] == N + SMALL_N
    assert {row["bucket"] for row in kept} == {"240p_4-3_17f", "120p_4-3_17f"}
    single = Sizes(place.sources, tmp_path / "single")
    assert single.run(f"cut.size={SMALL}")["cut"]["decoded_frames"] == N + SMALL_N
    for key, row in single.by_form().items():
        assert rows[key]["mp4_sha256"] == row["mp4_sha256"] is not None


def test_another_size_leaves_clips_of_the_other_sizes_as_they_are(place: Sizes) -> None:
    assert place.run(BOTH)["work"]["clips_cut"] == 5
    before = {key: row["clip_id"] for key, row in place.by_form().items() if key[2] == SMALL}
    summary = place.run(f"cut.size=[240x180, {SMALL}]")
    assert summary["work"]["sources_analyzed"] == 0
    assert summary["work"]["clips_cut"] == 2
    after = place.by_form()
    assert {key: after[key]["clip_id"] for key in before} == before
    assert place.run(f"cut.size=[240x180, {SMALL}]")["work"]["clips_cut"] == 0


def test_exports_and_the_loader_read_one_size(place: Sizes, tmp_path: Path) -> None:
    place.run(BOTH, "shard.val_share=0")
    where = f"output_size = '{SMALL}'"
    dataset = ClipDataset(str(place.out), frames=17, batch_size=1, where=where)
    assert len(list(dataset)) == 3
    assert {tuple(batch["video"].shape[-2:]) for batch in dataset} == {(120, 160)}
    export(str(place.out), str(tmp_path / "sft"), format="folder", where=where)
    lines = (tmp_path / "sft/train/metadata.jsonl").read_text().splitlines()
    assert [(row["width"], row["height"]) for row in map(json.loads, lines)] == [(160, 120)] * 3
    export(str(place.out), str(tmp_path / "large"), format="folder", buckets=["240p_4-3_17f"])
    lines = (tmp_path / "large/train/metadata.jsonl").read_text().splitlines()
    assert [json.loads(line)["width"] for line in lines] == [320] * 2


def test_windows_have_sizes_of_their_own(place: Sizes) -> None:
    windows = "[{frames: 40, fps: 30, size: 320x240}, {frames: 17, fps: 15, size: 160x120}]"
    place.run(f"propose.windows={windows}")
    rows = place.by_form()
    kept = Counter((size, row["n_frames"]) for (*_, size), row in rows.items() if not row["reason"])
    assert kept == {(LARGE, 40): 2, (SMALL, 17): 3}
    reasons = Counter(row["reason"] for (name, _, _), row in rows.items() if name == "small.mp4")
    assert reasons["smaller_than_size"] == 1


def test_parts_of_a_clip_keep_its_size(place: Sizes) -> None:
    """A clip of which another one shows a part is divided for each size."""
    film = list(moving_texture(190, **QVGA, seed=2))
    write_video(place.sources / "begin.mp4", iter(film[:120]), gop=25)
    write_video(place.sources / "end.mp4", iter(film[60:]), gop=25)
    place.run(BOTH, "propose.max_s=10", "dedup.enabled=true")
    every = place.table("clips")
    parts = [row for row in every if REMAINDER in row["tags"]]
    assert sorted(row["output_size"] for row in parts if row["reason"] is None) == [SMALL, LARGE]
    assert len({row["clip_id"] for row in every}) == len(every)


def test_other_lists_of_sizes_need_a_run(place: Sizes) -> None:
    place.run(BOTH)
    finished = open_finished(str(place.out))
    with pytest.raises(Exception, match="which only a run can"):
        tune(finished, [f"cut.size=[{SMALL}]"])
    assert not list(tune(finished, ["cut.enlarge=always"]).moved(was_kept=True))
    assert len(tune(finished, ["cut.enlarge=always"]).moved(was_kept=False)) == 1
