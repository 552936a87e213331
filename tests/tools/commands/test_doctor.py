"""`curate doctor`: what it prints and how it ends, on this machine and on others."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Curate

from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.doctor import examination
from curator.tools.doctor.diagnosis import CheckRow, Diagnosis, Group, State
from curator.tools.doctor.examination import examine
from curator.tools.doctor.machine_check import ASKED
from curator.tools.doctor.probe_process import ProbeResult, ask_all

ROW = CheckRow(group=Group.GPU, name="a [b]", state=State.OK, found="c [d]")


def test_this_machine_can_run_the_quickstart_and_imports_no_torch(tmp_path: Path) -> None:
    """Pins the whole command for real, and that it costs no seconds of import."""
    (tmp_path / "a.mp4").write_bytes(b"video")
    program = (
        "import sys\n"
        "from curator.cli import main\n"
        f"code = main(['doctor', {str(tmp_path)!r}, {str(tmp_path / 'out')!r}, '--json'])\n"
        "print(code, sorted({'open_clip', 'torch', 'ray', 'faiss'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    printed, last = done.stdout.rstrip().rsplit("\n", 1)
    assert last == f"{EXIT_OK} []"
    told = json.loads(printed)
    assert (told["recipe"], told["can_run"]) == ("quickstart", True)
    assert [check for check in told["checks"] if check["needed"] and check["state"] != "ok"] == []
    assert {check["group"] for check in told["checks"]} == {str(group) for group in Group}
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def answers() -> dict[str, ProbeResult]:
    """What the packages of this machine answer, asked once."""
    return ask_all(ASKED)


@pytest.fixture
def asked_once(
    answers: dict[str, ProbeResult], monkeypatch: pytest.MonkeyPatch
) -> dict[str, ProbeResult]:
    """Answers that the checks get; a test may change them."""
    own = dict(answers)
    monkeypatch.setattr(examination, "ask_all", lambda names: own)
    return own


@pytest.mark.usefixtures("asked_once")
def test_a_source_that_is_not_there_ends_with_2(tmp_path: Path, curate: Curate) -> None:
    missing = str(tmp_path / "none")
    printed = curate("doctor", missing, tmp_path, code=EXIT_USAGE)
    assert f"recipe quickstart cannot run here: source {missing}" in printed.splitlines()[-1]
    # The error names an unreadable recipe.
    found = examine(recipe="quikstart")
    places = [list(Group).index(row.group) for row in found.rows]
    assert places == sorted(places)
    (row,) = [row for row in found.rows if row.group is Group.RECIPE]
    assert row.stops
    assert row.remedy == "did you mean 'quickstart'?"


def test_with_a_broken_package_the_rest_is_still_told(asked_once: dict[str, ProbeResult]) -> None:
    """Pins that this process imports nothing that crashed in another."""
    asked_once["cv2"] = ProbeResult(error="the process died of SIGILL")
    found = examine(["a"], "s3://b/out", recipe="quickstart")
    assert not found.can_run
    assert [row.name for row in found.rows if row.stops] == ["OpenCV", "quickstart"]
    assert {Group.MACHINE, Group.GPU} <= {row.group for row in found.rows}


def test_what_is_not_needed_does_not_stop() -> None:
    bad = CheckRow(group=Group.GPU, name="x", state=State.BROKEN, found="f", remedy="r")
    found = Diagnosis(recipe="q", rows=(bad,))
    assert found.can_run
    assert found.verdict == "recipe q can run here; not needed, but faulty: x"
    with pytest.raises(ValueError, match="has no remedy"):
        CheckRow(group=Group.GPU, name="x", state=State.MISSING, found="f")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_is_plain_without_a_terminal() -> None:
    """Pins that brackets are no markup, and that no line is broken or padded."""
    sink = io.StringIO()
    long = CheckRow(group=Group.GPU, name="y", state=State.BROKEN, found="w " * 200, remedy="do")
    Diagnosis(recipe="q", rows=(ROW, long)).print(sink)
    lines = sink.getvalue().splitlines()
    assert lines[0] == "GPU"
    assert lines[1].split() == ["a", "[b]", "ok", "c", "[d]"]
    assert lines[2].count("w") == 200
    assert lines[3].strip() == "-> do"
    assert len(lines) == 5
    assert "\x1b" not in sink.getvalue()
    terminal = _Terminal()
    Diagnosis(recipe="q", rows=(ROW,)).print(terminal)
    assert "\x1b[32mok" in terminal.getvalue()
