"""Copied clips in a whole run: the span written, in table, sample and shard, and taken over later.

The steps run in this process, so that no Ray is needed.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from newest import earlier_objects

from curator.cli import main
from curator.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK
from curator.errors import StorageError
from curator.stages.commit import stage as commit_stage
from curator.stages.cut.stage import CutStage
from curator.stages.propose.clip_spans import clip_id

N = 100
GOP = 6
SETTINGS = (
    "shard.resolutions=[120]", "filters.short_side_px.min=100", "propose.min_s=1",
    "propose.max_s=2.5", "dedup.enabled=false", "filters.motion.min=0.0001",
    "filters.sharpness.min=0.0001",
)  # fmt: skip
SHORT, LONG = "shard.lengths=[17,33]", "shard.lengths=[17,33,49]"
"""Buckets that a clip of 50 frames stays in without its first four, and those it does not."""


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    params = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:b-adapt=0"
    for number, suffix in enumerate((".mp4", ".mkv")):
        write_video(
            folder / f"{number}{suffix}",
            moving_texture(N, width_px=160, height_px=120, seed=number),
            bframes=2,
            options={"preset": "veryfast", "x264-params": params},
        )
    return folder


def code(sources: Path, out: Path, *more: str) -> int:
    settings = [part for setting in (*SETTINGS, *more) for part in ("--set", setting)]
    return main(["run", "--recipe", "quickstart", str(sources), str(out), *settings])


def curated(sources: Path, out: Path, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary, and rows of the clips that were kept."""
    assert code(sources, out, *more) == EXIT_OK
    summary = json.loads((out / "summary.json").read_text())
    rows = [
        row
        for part in summary["tables"]["clips"]
        for row in pq.ParquetFile(out / part).read().to_pylist()
    ]
    return summary, [row for row in rows if row["decision"] == "kept"]


def objects(out: Path, *folders: str) -> dict[str, str]:
    earlier = earlier_objects(out)
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted((out / folder).rglob("*"))
        if path.is_file() and str(path.relative_to(out)) not in earlier
    }


RESULTS = ("shards", "clips", "sources", "shots")


def test_table_and_sample_carry_the_span_that_was_written(sources: Path, tmp_path: Path) -> None:
    """Pins frames, seconds and timestamps of a copy, under the id of what was proposed."""
    summary, clips = curated(sources, tmp_path / "out", SHORT)
    assert [clip["cut_mode"] for clip in clips] == ["copy"] * 4
    assert summary["counts"]["by_cut_mode"] == {"copy": 4}
    assert summary["cut"]["copied"] == summary["work"]["clips_cut"] == 4
    assert summary["cut"]["not_copied"] == {}
    starts = set()
    for clip in clips:
        start, end = clip["start_frame"], clip["end_frame"]
        starts.add(start)
        assert clip["n_frames"] == end - start
        assert clip["end_s"] - clip["start_s"] == pytest.approx((end - start) / 30, abs=0.002)
        half = 0 if start < 50 else 50
        with av.open(clip["source_uri"]) as container:
            frames = list(container.decode(video=0))
        times = [*(frame.pts for frame in frames), frames[-1].pts + frames[-1].duration]
        assert (clip["start_pts"], clip["end_pts"]) == (times[start], times[end])
        assert clip["clip_id"] == clip_id(clip["source_id"], times[half], times[half + 50])
        with tarfile.open(tmp_path / "out" / clip["shard"]) as tar:
            sample = json.load(tar.extractfile(f"{clip['key']}.json"))  # type: ignore[arg-type]
            caption = tar.extractfile(f"{clip['key']}.txt").read()  # type: ignore[union-attr]
            mp4 = tar.extractfile(f"{clip['key']}.mp4").read()  # type: ignore[union-attr]
        for name, column in (
            ("source_start_s", "start_s"), ("source_end_s", "end_s"), ("n_frames", "n_frames"),
            ("source_start_pts", "start_pts"), ("source_end_pts", "end_pts"),
            ("cut_mode", "cut_mode"), ("mp4_sha256", "mp4_sha256"),
        ):  # fmt: skip
            assert sample[name] == pytest.approx(clip[column], abs=1e-6)
        assert f" of {(end - start) / 30:.1f} seconds," in caption.decode()
        with av.open(io.BytesIO(mp4)) as container:
            copied = [frame.to_ndarray() for frame in container.decode(video=0)]
        np.testing.assert_array_equal(copied, [f.to_ndarray() for f in frames[start:end]])
    assert starts == {0, 54}


@pytest.mark.usefixtures("unsandboxed")
def test_a_rerun_takes_over_what_was_written(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that nothing is cut again, from shards and from parts, and all bytes are the same."""
    out, broken = tmp_path / "out", tmp_path / "broken"
    curated(sources, out, SHORT)
    before = objects(out, *RESULTS)

    def fail(_: object) -> None:
        raise StorageError("full")

    with monkeypatch.context() as context:
        context.setattr(commit_stage, "commit_run", fail)
        assert code(sources, broken, SHORT) == EXIT_BROKEN_OFF
    assert objects(broken, "cuts")
    monkeypatch.setattr(CutStage, "process", None)
    for folder in (out, broken):
        summary, _ = curated(sources, folder, SHORT)
        assert summary["work"]["clips_cut"] == summary["cut"]["copied"] == 0
        assert summary["counts"]["by_cut_mode"] == {"copy": 4}
        assert objects(folder, *RESULTS) == before


def test_other_buckets_cut_again_what_would_be_written_otherwise(
    sources: Path, tmp_path: Path
) -> None:
    """Pins that results do not depend on what was written before: either way and back."""
    out = tmp_path / "out"
    curated(sources, out, SHORT)
    short = objects(out, *RESULTS)
    summary, clips = curated(sources, out, LONG)
    modes = {clip["start_frame"]: (clip["cut_mode"], clip["copy_frames"]) for clip in clips}
    assert modes == {0: ("encode", 49), 50: ("encode", 46)}
    assert summary["cut"]["not_copied"] == {"too_few_frames": summary["cut"]["encoded"]}
    curated(sources, tmp_path / "fresh", LONG)
    assert objects(out, *RESULTS) == objects(tmp_path / "fresh", *RESULTS)
    curated(sources, out, SHORT)
    assert objects(out, *RESULTS) == short


def test_mode_encode_encodes_everything(sources: Path, tmp_path: Path) -> None:
    """Pins that the recipe decides, and that a change of it cuts anew."""
    curated(sources, tmp_path / "out", SHORT)
    summary, clips = curated(sources, tmp_path / "out", SHORT, "cut.mode=encode")
    assert summary["cut"]["encoded"] == summary["counts"]["by_cut_mode"]["encode"] == 4
    assert {clip["start_frame"] for clip in clips} == {0, 50}
