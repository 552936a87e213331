"""The training loop of the README runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.made_shards import made_clips, write_shards

README = Path(__file__).parents[2] / "README.md"
pytest.importorskip("webdataset")


def test_the_readmes_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the section 'Train from it' against the code: shapes, ranges, and the saved state."""
    section = README.read_text().split("### Train from it")[1].split("\n### ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    write_shards(tmp_path / "out", [("48p_3-2_17f", "train", made_clips(tmp_path, 5))])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["video"].shape == (2, 3, 17, 256, 256)
    assert -1 <= names["video"].min() < 0 < names["video"].max() <= 1
    caption = names["caption"]
    assert caption.unique[caption.inverse[1]].startswith("Caption ")
    assert names["loader"].state_dict()["epoch"] == 2
    assert len(names["loader"]) == 2
