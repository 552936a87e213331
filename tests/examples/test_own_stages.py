"""The examples of stages, in a whole run: one changes pixels, one rejects clips."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_OK

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = (
    "shard.resolutions=[120]", "filters.short_side_px.min=100", "propose.min_s=1",
    "shard.lengths=[17]", "dedup.enabled=false", "filters.motion.min=0.0001",
    "filters.sharpness.min=0.0001",
)  # fmt: skip


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate(("beach.mp4", "holiday.mp4")):
        frames = moving_texture(60, width_px=160, height_px=120, seed=number)
        write_video(folder / name, frames, fps=Fraction(30))
    return folder


def run(sources: Path, out: Path, *more: str) -> int:
    settings = [part for setting in (*SETTINGS, *more) for part in ("--set", setting)]
    return main(["run", "--recipe", "quickstart", str(sources), str(out), *settings])


def curated(sources: Path, out: Path, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    assert run(sources, out, *more) == EXIT_OK
    summary = json.loads((out / "summary.json").read_text())
    rows = [
        row for part in summary["tables"]["clips"] for row in pq.read_table(out / part).to_pylist()
    ]
    return summary, rows


def first_frame(out: Path, clip: dict[str, Any], folder: Path) -> np.ndarray[Any, Any]:
    """Float [height, width] luma of a clip's first frame, out of its tar."""
    with (out / clip["shard"]).open("rb") as tar:
        tar.seek(clip["mp4_offset"])
        file = folder / "clip.mp4"
        file.write_bytes(tar.read(clip["mp4_bytes"]))
    with av.open(str(file)) as container:
        return next(container.decode(video=0)).to_ndarray(format="gray").astype(float)


def roughness(luma: np.ndarray[Any, Any]) -> float:
    """How much neighbours differ."""
    return float(np.abs(np.diff(luma, axis=1)).mean())


def test_a_stage_changes_pixels_before_the_encoder(sources: Path, tmp_path: Path) -> None:
    """Pins that the region is blurred, the rest is not, nothing is copied, and origin is named."""
    _, plain = curated(sources, tmp_path / "plain")
    stage = "stages=[{use: blur_regions:BlurRegions, config: {regions: [[0, 0, 1, 0.5]]}}]"
    summary, clips = curated(sources, tmp_path / "out", stage)
    assert {clip["cut_mode"] for clip in clips} == {"encode"}
    assert summary["cut"]["not_copied"] == {"pixels_changed": 2}
    (extension,) = summary["extensions"]
    assert extension["class"] == "blur_regions:BlurRegions"
    assert (extension["kind"], extension["version"]) == ("stages", "1")
    before = first_frame(tmp_path / "plain", plain[0], tmp_path)
    after = first_frame(tmp_path / "out", clips[0], tmp_path)
    assert roughness(after[:50]) < 0.3 * roughness(before[:50])
    assert roughness(after[70:]) > 0.8 * roughness(before[70:])
    assert np.abs(after.mean() - before.mean()) < 3
    again, _ = curated(sources, tmp_path / "out", stage)
    assert again["work"]["clips_cut"] == 0
    back, _ = curated(sources, tmp_path / "out")
    assert (back["work"]["clips_cut"], back["work"]["sources_analyzed"]) == (2, 0)


FAILING = """
from collections.abc import Iterator

from curator.stage import ClipFrames, PixelStage, StageConfig


class Failing(PixelStage[StageConfig]):
    name, version = "failing", 1

    def process(self, unit: ClipFrames) -> Iterator[object]:
        raise KeyError("sky")
"""


def test_a_stage_that_fails_fails_the_run(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pins the exit code where no clip can be cut, and the place in the user's own file."""
    (tmp_path / "code").mkdir()
    file = tmp_path / "code" / "failing_stage.py"
    file.write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    assert run(sources, tmp_path / "out", "stages=[failing_stage:Failing]") == EXIT_FAILED
    error = capsys.readouterr().err.splitlines()[-1]
    assert "2 of 2 clips that the recipe keeps could not be cut" in error
    assert f"KeyError: 'sky'; raised at {file}:11 in process" in error


def test_a_stage_rejects_clips(sources: Path, tmp_path: Path) -> None:
    """Pins the reason in the table and in the counts."""
    stage = "stages=[{use: blocklist:Blocklist, config: {sources: [holiday.mp4]}}]"
    summary, clips = curated(sources, tmp_path / "out", stage)
    assert summary["counts"]["by_reason"] == {"on_blocklist": 1}
    (rejected,) = (clip for clip in clips if clip["decision"] == "rejected")
    assert rejected["source_uri"].endswith("holiday.mp4")
    assert (rejected["reason"], rejected["reason_detail"]) == ("on_blocklist", "holiday.mp4")
    assert main(["explain", str(tmp_path / "out"), rejected["clip_id"]]) == EXIT_OK
    assert main(["tune", str(tmp_path / "out"), "motion.min=0.0002"]) == EXIT_OK


BALANCED = '''
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from curator.stage import Corpus, CorpusStage, Decisions, Left, StageConfig, Work


class BalancedConfig(StageConfig):
    """The column whose values are the groups."""

    by: str


class Balanced(CorpusStage[BalancedConfig]):
    """Keeps as many clips of each group as the smallest one has, the first by id."""

    name, version, config_type = "balanced", 1, BalancedConfig
    needs_all = "the smallest group says how many"

    def decide(self, corpus: Corpus, work: Work) -> Iterator[Decisions | Left]:
        groups = corpus[self.config.by].to_pylist()
        least = min(Counter(groups).values(), default=0)
        seen = Counter()
        out = []
        for row in np.argsort(corpus["clip_id"].to_pylist()).tolist():
            seen[groups[row]] += 1
            if seen[groups[row]] > least:
                out.append(row)
        rows = np.sort(np.array(out, np.int64))
        columns = {
            "reason": ["group_too_large"] * len(rows),
            "reason_threshold": np.full(len(rows), float(least)),
        }
        yield Decisions(rows, pa.table(columns))
        yield Left("balanced", dict(seen))
'''


def test_a_stage_over_the_corpus_decides_in_a_run_and_in_tune(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pins a file outside the package, from the recipe to the report; its wait; and its errors."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "balance.py").write_text(BALANCED)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    frames = moving_texture(180, seed=9, width_px=160, height_px=120)
    write_video(sources / "long.mp4", frames, fps=Fraction(30))
    stage = "stages=[{use: balance:Balanced, after: select, config: {by: source_id}}]"
    more = ("propose.max_s=2", stage)
    summary, clips = curated(sources, tmp_path / "out", *more)
    kept = [clip["source_uri"] for clip in clips if clip["decision"] == "kept"]
    assert len(set(kept)) == len(kept) == 3
    (rejected,) = summary["counts"]["by_reason"].items()
    assert rejected == ("group_too_large", len(clips) - 3)
    assert len(clips) > 3
    out = [clip for clip in clips if clip["decision"] == "rejected"]
    assert {clip["reason_threshold"] for clip in out} == {1.0}
    assert all(clip["reasons"] == ["group_too_large"] for clip in out)
    assert sorted(summary["judged"]["balanced"].values()) == [1, 1, len(clips) - 2]
    assert "group_too_large" in (tmp_path / "out/report/index.html").read_text()
    capsys.readouterr()
    assert main(["tune", str(tmp_path / "out"), "motion.min=0.0002"]) == EXIT_OK
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "group_too_large" in one)
    assert line.split()[1:] == [str(len(out))] * 2
    assert main(["explain", str(tmp_path / "out"), out[0]["clip_id"]]) == EXIT_OK
    assert main(["graph", "--set", stage]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "every clip to be judged: the smallest group says how many" in shown
    wrong = stage.replace("source_id", "sauce_id")
    assert run(sources, tmp_path / "out", wrong) == EXIT_BROKEN_OFF
    error = capsys.readouterr().err.splitlines()[-1]
    assert "stage balanced of the recipe's `stages` fails: KeyError" in error
