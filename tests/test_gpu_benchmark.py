"""The benchmark of the GPU path: a part that dies or hangs takes nothing along."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
import software_driver

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def sums(begin: Any, *terms: int) -> Iterator[int]:  # noqa: ANN401
    assert begin() <= time.time()
    yield sum(terms)


def dies(begin: Any, how: str) -> Iterator[str]:  # noqa: ANN401
    if how == "exit":
        os._exit(7)
    if how == "raise":
        raise ValueError("no such engine")
    if how == "later":
        yield "the first"
        os._exit(7)
    begin()
    time.sleep(60)
    yield how


def test_jobs_begin_together_and_answer_in_their_order(module: Any) -> None:  # noqa: ANN401
    assert module("processes").in_processes(sums, [(1, 2), (3, 4)]) == [3, 7]


@pytest.mark.parametrize(
    ("how", "message"), [("exit", "code 7"), ("raise", "no such engine"), ("hang", "not done in")]
)
def test_a_process_that_dies_ends_the_measurement_soon(
    how: str,
    message: str,
    module: Any,  # noqa: ANN401
) -> None:
    """Pins that the other one, which waits for it to begin, is not waited for."""
    processes = module("processes")
    begun = time.monotonic()
    with pytest.raises(processes.ProcessDiedError, match=message):
        processes.in_processes(dies, [("hang",), (how,)], limit_s=4 if how == "hang" else 40)
    assert time.monotonic() - begun < 20


def test_what_came_before_a_death_is_there(module: Any) -> None:  # noqa: ANN401
    processes = module("processes")
    some = processes.streamed(dies, [("later",)])
    assert next(some) == (0, "the first")
    with pytest.raises(processes.ProcessDiedError, match="code 7"):
        next(some)


CODE = """
import subprocess, sys, time
sys.path.insert(0, {benchmarks!r})
from pathlib import Path
from gpu_notes import Notes
Notes(Path({out!r})).add({name!r}, "first", {{"value": 1}})
print("said by {name}", flush=True)
if {name!r} == "probe":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path({out!r}, "child").write_text(str(child.pid))
    time.sleep(60)
if {name!r} == "limit":
    raise ValueError("broken")
"""


def test_each_part_has_its_time_and_keeps_what_it_found(
    tmp_path: Path,
    module: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pins the limit with all processes below it, a failure, and the budget."""
    gpu, notes = module("gpu"), module("gpu_notes").Notes(tmp_path)
    limits = gpu.LIMITS_S | {"probe": 3.0}
    monkeypatch.setattr(gpu, "LEAST_S", 1.0)
    commands = {}
    for name in ("probe", "limit", "analyze"):
        code = CODE.format(benchmarks=str(BENCHMARKS), out=str(tmp_path), name=name)
        commands[name] = [sys.executable, "-c", code]
    gpu.run_parts(commands, notes, tmp_path, 60.0, limits)
    found = notes.found()
    assert [part["first"] for part in found.values()] == [{"value": 1}] * 3
    assert found["probe"]["part"]["problem"] == "stopped after 3 s"
    assert found["limit"]["part"]["problem"] == "ended with code 1"
    assert found["limit"]["part"]["said"].startswith("said by limit")
    assert found["limit"]["part"]["said"].endswith("ValueError: broken")
    assert set(found["analyze"]["part"]) == {"took_s"}
    child = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"
    assert 'first: {"value": 1}' in capsys.readouterr().out
    gpu.run_parts(commands, notes, tmp_path, 0.5, limits)
    assert notes.found()["analyze"]["part"] == {"left out": "0 s were left"}
    table = (tmp_path / "results.md").read_text().splitlines()
    assert table[0] == "| part | what | found |"
    assert table[2] == "| probe | first | value 1 |"


def test_films_are_repeated_without_a_seam(
    tmp_path: Path,
    module: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins times of frames where packets with B-frames begin again."""
    from film_makers import write_video
    from film_shots import moving_texture

    films = module("gpu_films")
    monkeypatch.setattr(films, "_MADE_S", 2)
    shown = moving_texture(60, width_px=96, height_px=64)
    write_video(tmp_path / "h264.mp4", shown, gop=20, bframes=3)
    (found,) = films.made_films(tmp_path, 2, 6, ("h264",)).values()
    assert [path.name for path in found] == ["h264_3x_00.mp4", "h264_3x_01.mp4"]
    with av.open(str(found[1])) as container:
        video = container.streams.video[0]
        assert video.time_base is not None
        times = [float(frame.pts * video.time_base) for frame in container.decode(video)]
    assert times == pytest.approx([i / 30 for i in range(180)], abs=1e-4)


def test_parts_measure_films_and_compare_tracks(
    tmp_path: Path,
    module: Any,  # noqa: ANN401
) -> None:
    """Pins how the benchmark calls the analysis, which has changed without it."""
    from film_makers import write_video
    from film_shots import moving_texture

    films = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    for film in films:
        write_video(film, moving_texture(90, width_px=96, height_px=64))
    parts = module("gpu_parts")
    (found,) = parts._analyze_all(time.time, [*map(str, films)], "cpu", "dis", None)
    assert (found["rate"][0], found["n_sources"], found["notes"]) == (90, 1, [])
    (path, track) = next(parts._tracks(time.time, [str(films[0])], "cpu", "dis"))
    compared = parts._compared(path, track, track)
    assert compared["clips"] == compared["same_decisions"] == compared["same_tags"] == 1


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("PyNvVideoCodec") is None,
    reason="PyNvVideoCodec is not installed; it has no wheel for this platform",
)
@pytest.mark.skipif(software_driver.compiler() is None, reason="no C compiler")
def test_the_first_minutes_are_tried_whole_over_a_device_in_software(tmp_path: Path) -> None:
    """Pins that each part finds what it is for, so that time on hardware goes to measurements."""
    from film_makers import write_video
    from film_shots import moving_texture

    films, out = tmp_path / "films", tmp_path / "out"
    films.mkdir()
    for name in ("h264", "short"):
        shown = moving_texture(45, width_px=192, height_px=144)
        write_video(films / f"{name}.mp4", shown, gop=20, bframes=2)
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--only", "first", "--workers", "1"]
    command += ["--films", str(films), "--out", str(out), "--seconds", "9", "--n-films", "1"]
    environment = os.environ | {"GPU_SOFTWARE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == ["machine", "films", "probe", "same", "locked", "limit", "analyze"]
    problems = {
        (part, what): said
        for part, findings in found.items()
        for what, said in findings.items()
        if {"failed", "left out", "said"} & said.keys()
    }
    assert not problems
    assert len(found["probe"]["a decoder begins"]["ms"]) == 6
    same = found["same"]["gpu"]
    assert same["sources"] == 1
    assert same["same_decisions"] == same["clips"] > 0
    assert set(found["locked"]) == {"a locked process", "part"}
    # No film in HEVC is made here: that takes longer than all that is measured of it.
    assert set(found["limit"]) == {"h264, 1 processes", "part"}
    analyzed = found["analyze"]["h264, 1 processes"]
    assert analyzed["notes"] == []
    assert "overlay" in analyzed["of_them"]
    assert (out / "results.md").exists()
