"""A run with `edge_share.py` and `flicker.py` of `examples/`: decoded once, and gone again."""

import json
import tarfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture
from newest import earlier_objects

from curator.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = [
    "filters.short_side_px.min=60", "propose.min_s=1.0", "shard.resolutions=[64, 120]",
    "filters.motion.min=null",
]  # fmt: skip
MEASURE = "measures=[edge_share:EdgeShare, flicker:Flicker]"


@pytest.fixture
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{EXAMPLES.parent}")


def run(folder: Path, *changes: str) -> dict[str, Any]:
    settings = [word for change in (*SETTINGS, *changes) for word in ("--set", change)]
    out = str(folder / "out")
    assert main(["run", "--recipe", "quickstart", str(folder / "in"), out, *settings]) == 0
    summary: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
    return summary


def clips(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "out" / "clips").to_pylist()


def is_newest(folder: Path, path: Path) -> bool:
    return str(path.relative_to(folder / "out")) not in earlier_objects(folder / "out")


@pytest.mark.usefixtures("_on_path")
def test_a_run_measures_judges_and_writes_the_score_of_a_user(tmp_path: Path) -> None:
    """Pins columns, reason, JSON and report, reruns without a decode, and a run without it."""
    (tmp_path / "in").mkdir()
    frames = moving_texture(90, seed=1, width_px=160, height_px=120)
    write_video(tmp_path / "in" / "film.mp4", frames, fps=Fraction(30))
    first = run(tmp_path)
    assert "decode" in first["cpu_seconds"]
    run(tmp_path, MEASURE)
    (clip,) = clips(tmp_path)
    assert (clip["decision"], 0 <= clip["empty_share"] <= 1) == ("kept", True)
    assert 0 < clip["edge_share"] < 1
    assert 0 < clip["flicker"] < 0.1
    (tar,) = (path for path in (tmp_path / "out").rglob("*.tar") if is_newest(tmp_path, path))
    with tarfile.open(tar) as members:
        name = next(n for n in members.getnames() if n.endswith(".json"))
        sample = json.load(members.extractfile(name))  # type: ignore[arg-type]
    assert sample["scores"]["edge_share"] == pytest.approx(clip["edge_share"], rel=1e-3)
    report = (tmp_path / "out" / "report" / "index.html").read_text()
    assert "share of the picture that is edges, median over samples" in report
    assert "step of brightness between neighbouring pictures" in report

    again = run(tmp_path, MEASURE, "filters.edge_share.min=0.99", "scores.edge_share=max",
                "filters.flicker.max=0")  # fmt: skip
    assert "decode" not in again["cpu_seconds"]
    (clip,) = clips(tmp_path)
    assert (clip["decision"], clip["reason"]) == ("rejected", "edge_share_too_low")
    assert clip["reasons"][-1] == "flickers"
    assert main(["explain", str(tmp_path / "out"), clip["clip_id"][:8]]) == 0

    without = run(tmp_path)
    assert "decode" not in without["cpu_seconds"]
    assert "edge_share" not in clips(tmp_path)[0]
