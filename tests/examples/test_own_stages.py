"""The examples of stages, in a whole run: one changes pixels, one rejects clips."""

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from place import QVGA, SHORT, Place, write_films

from curator.cli import main
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_OK
from curator.tools.report.funnel import reason_order

EXAMPLES = Path(__file__).parents[2] / "examples"


class Own(Place):
    """Two films, which are kept whole."""

    settings = (*SHORT, "shard.lengths=[17]")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return Own(write_films(tmp_path / "in", (60, 60), fps=30, **QVGA), tmp_path / "out")


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


def test_a_stage_changes_pixels_before_the_encoder(place: Own, tmp_path: Path) -> None:
    """Pins that the region is blurred, the rest is not, nothing is copied, and origin is named."""
    place.run()
    before = first_frame(place.out, place.clips()[0], tmp_path)
    stage = "stages=[{use: blur_regions:BlurRegions, config: {regions: [[0, 0, 1, 0.5]]}}]"
    summary, clips = place.run(stage), place.clips()
    assert {clip["cut_mode"] for clip in clips} == {"encode"}
    assert summary["cut"]["not_copied"] == {"pixels_changed": 2}
    (extension,) = summary["extensions"]
    assert extension["class"] == "blur_regions:BlurRegions"
    assert (extension["kind"], extension["version"]) == ("stages", "1")
    after = first_frame(place.out, clips[0], tmp_path)
    assert roughness(after[:50]) < 0.3 * roughness(before[:50])
    assert roughness(after[70:]) > 0.8 * roughness(before[70:])
    assert np.abs(after.mean() - before.mean()) < 3
    assert place.run(stage)["work"]["clips_cut"] == 0
    back = place.run()["work"]
    assert (back["clips_cut"], back["sources_analyzed"]) == (2, 0)


FAILING = """
from collections.abc import Iterator

from curator.stage import ClipFrames, PixelStage, StageConfig


class Failing(PixelStage[StageConfig]):
    name, version = "failing", 1

    def process(self, unit: ClipFrames) -> Iterator[object]:
        raise KeyError("sky")
"""


def test_a_stage_that_fails_fails_the_run(
    place: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the exit code where no clip can be cut, and the place in the user's own file."""
    (tmp_path / "code").mkdir()
    file = tmp_path / "code" / "failing_stage.py"
    file.write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    assert place.code("stages=[failing_stage:Failing]") == EXIT_FAILED
    error = capsys.readouterr().err.splitlines()[-1]
    assert "2 of 2 clips that the recipe keeps could not be cut" in error
    assert f"KeyError: 'sky'; raised at {file}:11 in process" in error


def test_a_stage_rejects_clips(place: Own) -> None:
    """Pins the reason in the table and in the counts."""
    summary = place.run("stages=[{use: blocklist:Blocklist, config: {sources: [1.mp4]}}]")
    assert summary["counts"]["by_reason"] == {"on_blocklist": 1}
    (rejected,) = place.clips("rejected")
    assert rejected["source_uri"].endswith("1.mp4")
    assert (rejected["reason"], rejected["reason_detail"]) == ("on_blocklist", "1.mp4")
    assert main(["explain", str(place.out), rejected["clip_id"]]) == EXIT_OK
    assert main(["tune", str(place.out), "motion.min=0.0002"]) == EXIT_OK


BALANCED = '''
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from curator.stage import (
    Corpus, CorpusStage, Decisions, CarriedState, StageConfig, StageReason, Work,
)


class BalancedConfig(StageConfig):
    """The column whose values are the groups."""

    by: str


class Balanced(CorpusStage[BalancedConfig]):
    """Keeps as many clips of each group as the smallest one has, the first by id."""

    name, version, config_type = "balanced", 1, BalancedConfig
    needs_all = "the smallest group says how many"
    noun, time_share = "group", 3.0

    def reasons(self) -> Iterator[StageReason]:
        yield StageReason(name="group_too_large", words=f"beyond the smallest {self.config.by}")
        yield StageReason(name="group_too_odd", is_listed=False)

    def decide(self, corpus: Corpus, work: Work) -> Iterator[Decisions | CarriedState]:
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
        yield CarriedState("balanced", dict(seen))
'''


@pytest.mark.long
def test_a_stage_over_the_corpus_decides_in_a_run_and_in_tune(
    place: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins a file outside the package, from the recipe to the report; its wait; and its errors."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "balance.py").write_text(BALANCED)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    write_films(place.sources, (60, 60, 180), fps=30, **QVGA)
    stage = "stages=[{use: balance:Balanced, after: select, config: {by: source_id}}]"
    summary, out = place.run("propose.max_s=2", stage), place.clips("rejected")
    kept = [clip["source_uri"] for clip in place.clips()]
    assert len(set(kept)) == len(kept) == 3
    assert len(out) > 0
    assert summary["counts"]["by_reason"] == {"group_too_large": len(out)}
    assert {clip["reason_threshold"] for clip in out} == {1.0}
    assert all(clip["reasons"] == ["group_too_large"] for clip in out)
    assert sorted(summary["decided_with"]["balanced"].values()) == [1, 1, len(out) + 1]
    page = (place.out / "report/index.html").read_text()
    assert "beyond the smallest source_id" in page
    assert "group_too_odd" not in page
    # People see it as they see a built-in stage: lines of progress, times, the funnel, its order.
    assert any(line.endswith(" balanced") for line in capsys.readouterr().err.splitlines())
    assert "balanced" in summary["stage_seconds"]
    order = reason_order(summary)
    assert order.index("too_short") < order.index("group_too_large")
    assert "group_too_odd" not in order
    steps = graph_of(Recipe.model_validate(summary["recipe"])).steps()
    names = [step.name for step in steps]
    assert names[names.index("select") + 1] == "balanced"
    assert next(step for step in steps if step.name == "balanced").time_share == 3.0
    assert main(["tune", str(place.out), "motion.min=0.0002"]) == EXIT_OK
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "group_too_large" in one)
    assert line.split()[1:] == [str(len(out))] * 2
    assert main(["explain", str(place.out), out[0]["clip_id"]]) == EXIT_OK
    assert main(["graph", "--set", stage]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "every clip to be filtered: the smallest group says how many" in shown
    assert place.code(stage.replace("source_id", "sauce_id")) == EXIT_BROKEN_OFF
    error = capsys.readouterr().err.splitlines()[-1]
    assert "stage balanced of the recipe's `stages` fails: KeyError" in error
