"""Readers at any moment of a commit find one consistent set, and `verify` says what is under way.

The objects that a run writes and removes are recorded, and replayed one by one: each state is that
of a driver killed there. Fails where indexes change before anything says that a commit is under
way, so that `verify` ends with 3. The same with processes that are killed, and a rerun after each:
`benchmarks/kill_points.py`.
"""

import re
import shutil
from pathlib import Path

import pytest
from index_readers import check_readers
from recorded_runs import Journal, replay

from curator.cli import main
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE


@pytest.mark.parametrize(
    "name",
    [
        "first run",
        *(
            pytest.param(n, marks=pytest.mark.long)
            for n in ("growth", "changed recipe", "recaption")
        ),
    ],
)
def test_readers_and_verify_at_each_mutation(
    journals: dict[str, Journal], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = journals[name]
    out = shutil.copytree(journal.begun, tmp_path / "out")
    (committed,) = [n for n, (key, _) in enumerate(journal.steps) if key.startswith("snapshots/0")]
    for number, (key, data) in enumerate(journal.steps):
        replay(out, key, data)
        where = f"{name}, step {number}: {'removes' if data is None else 'writes'} {key}"
        try:
            check_readers(out)
        except (AssertionError, OSError, KeyError) as error:
            raise AssertionError(f"{where}: {error!r}") from error
        code = main(["verify", str(out), "--frames", "none"])
        said = capsys.readouterr().out
        is_visible = any((out / "snapshots").glob("0*.json"))
        assert code == (EXIT_OK if is_visible else EXIT_USAGE), f"{where}: {said}"
        is_under_way = committed <= number < len(journal.steps) - 1
        assert ("warning interrupted" in said) == is_under_way, f"{where}: {said}"
        # Tars that wait for their commit are the only other objects with a finding.
        others = re.findall(r"^(?:warning|wrong) (?!interrupted)(.*)", said, re.MULTILINE)
        assert not others or (number < committed and {w[:8] for w in others} == {"unnamed:"}), where
        assert "delete" not in said, f"{where}: {said}"
    assert "warning" not in said
    written = [key for key, data in journal.steps if data is not None]
    assert written.index("shards/manifest.next.json") < written.index("shards/dataset.parquet")
    assert written.index("shards/manifest.json") < written.index("summary.json")
    assert written[-1] == "summary.json"
    assert not (out / "shards/manifest.next.json").exists()


@pytest.mark.parametrize("harmed", ["shards/dataset.parquet", "shards/wids-train.json", ".tar"])
def test_verify_still_finds_damage_while_a_commit_is_under_way(
    journals: dict[str, Journal], harmed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = journals["changed recipe"]
    out = shutil.copytree(journal.begun, tmp_path / "out")
    for key, data in journal.steps:
        replay(out, key, data)
        if key == "shards/wids-train.json":
            break
    new = [key for key, data in journal.steps if data is not None and key.endswith(harmed)]
    path = out / new[0]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(["verify", str(out), "--frames", "none"]) == EXIT_FAILED
    entry = rf"^wrong [a-z_, ]*hash[a-z_, ]*: {re.escape(str(path))}"
    assert re.search(entry, capsys.readouterr().out)
