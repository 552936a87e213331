"""Runs and servers that are killed while clips are described: no finished request is made again."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from captioned import Captioned, assert_described
from local_models import FakeVllm, stub_folder, wait
from served import FakeServer

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK


def _wait(until: str, condition: Callable[[], bool], within_s: float = 300) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, until
        time.sleep(0.01)


def _n_stored(replies: Path) -> int:
    """Replies to requests: what was made of them is stored as one without a try."""
    found = 0
    for path in replies.glob("*.parquet"):
        with contextlib.suppress(FileNotFoundError):
            found += sum(map(bool, pq.read_table(path, columns=["n_tries"])["n_tries"].to_pylist()))
    return found


def _kill_all(process: "subprocess.Popen[bytes]") -> None:
    """As kill -9 of a run's process and all that it started."""
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid:
            os.kill(int(folder.name), signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("kills", [(5,), pytest.param((1, 4, 5), marks=pytest.mark.long)])
def test_kills_of_the_run_repeat_no_finished_request(
    described: Captioned, place: Captioned, kills: tuple[int, ...]
) -> None:
    """Pins that what was answered and stored is known, wherever the run ended."""
    place.forget("shards", "replies")
    (place.out / "summary.json").unlink()
    server = place.server
    command = [sys.executable, "-m", "curator.cli", *place.arguments()]
    stored, n_answered = place.out / "replies", 0
    for n_more in kills:
        n_answered += n_more
        server.set(hold_after=n_answered)
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        _wait("replies", lambda n=n_answered: _n_stored(stored) == n)
        _wait("notes", lambda n=n_answered: sum(server.counts("answered").values()) == n)
        assert process.poll() is None
        _kill_all(process)
    assert not (place.out / "summary.json").exists()
    server.set(hold_after=None)
    place.run()
    assert_described(place)
    n_windows = len(place.table("annotations"))
    assert n_windows > n_answered + 3
    assert place.summary()["work"]["caption_windows_asked"] == n_windows - n_answered
    assert set(server.counts("answered").values()) == {1}
    assert len(server.counts("answered")) == n_windows
    # Of what was under way, and no more, something was received again.
    assert place.n_asked() <= n_windows + 3 * len(kills)
    assert place.files() == described.files()


def test_a_server_that_dies_and_comes_back_loses_nothing(
    described: Captioned, place: Captioned
) -> None:
    place.forget("replies")
    server = place.server
    server.set(delay_s=[0.1, 0.2], hold_after=5)

    def kill_and_start() -> None:
        _wait("answers", lambda: sum(server.counts("answered").values()) == 5)
        server.kill()
        time.sleep(0.5)
        server.start(captions=True)

    killing = threading.Thread(target=kill_and_start)
    killing.start()
    summary = place.run()
    killing.join()
    assert_described(place)
    assert summary["work"]["caption_windows_asked"] == len(place.table("annotations"))
    assert place.files() == described.files()
    # A kill may come between an answer and its note; an answer that did not come is given again.
    assert max(server.counts("answered").values()) == 1


def test_a_server_that_is_not_there_is_told_and_only_missed_where_something_is_asked(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    place.server.kill()
    before = place.files()
    assert place.recaption_code() == EXIT_OK
    assert place.recaption_code("caption.frames=2") != EXIT_OK
    assert "cannot be reached" in capsys.readouterr().err
    assert place.files() == before
    place.server.start(captions=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "more"),
    [
        (signal.SIGKILL, ()),
        (signal.SIGINT, ()),
        (signal.SIGKILL, ("--workers", "2")),
        (signal.SIGINT, ("--workers", "2")),
    ],
)
def test_a_server_of_the_run_ends_with_the_run(
    described: Captioned,
    place: Captioned,
    tmp_path: Path,
    ending: signal.Signals,
    more: tuple[str, ...],
) -> None:
    """Pins that a kill of the run's process alone leaves no server, and loses no reply."""
    place.forget("shards", "replies")
    (place.out / "summary.json").unlink()
    vllm = FakeVllm(tmp_path / "bin").install(captions=True, hold_after=5)
    model = stub_folder(tmp_path / "model")
    settings = ("caption.captioner=local", "caption.server=vllm", f"caption.model={model}")
    environment = os.environ | {"PATH": f"{vllm.folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "curator.cli", *place.arguments(*settings), *more]
    # A shell's background jobs ignore SIGINT.
    listens = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment, preexec_fn=listens, text=True
    )
    _wait("replies", lambda: _n_stored(place.out / "replies") == 5)
    assert len(vllm.processes()) >= 3
    process.send_signal(ending)
    process.wait()
    wait("the end of the server", lambda: not vllm.processes(), 20 if more else 8)
    vllm.install(captions=True)
    (vllm.folder / "journal").unlink()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"model {model}, by {vllm.program} serve on this machine" in ended.stderr
    assert_described(place, captioner="local", model=str(model))
    n_answered = sum(line.startswith("answered") for line in vllm.journal())
    assert n_answered == len(place.table("annotations")) - 5
    assert {clip["caption_model"] for clip in place.clips()} == {str(model)}
    assert not vllm.processes()


@pytest.mark.long
def test_workers_ask_during_the_cut_and_a_kill_repeats_only_what_is_not_stored(
    described: Captioned, fake_server: FakeServer, tmp_path: Path
) -> None:
    """Pins that Ray's workers ask, each clip gets its own words, in the bytes of one process."""
    shutil.copytree(described.out, tmp_path / "out")
    fake_server.start(captions=True, hold_after=8)
    done = Captioned(described.sources, tmp_path / "out", fake_server)
    done.forget("shards", "replies")
    arguments = [*done.arguments(), "--workers", "2"]
    stored = done.out / "replies"

    process = subprocess.Popen(
        [sys.executable, "-m", "curator.cli", *arguments],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _wait("replies", lambda: _n_stored(stored) == 8)
    assert process.poll() is None
    _kill_all(process)
    # Ray's workers end when they miss the driver.
    _wait("the worker's end", lambda: sum(fake_server.counts("dropped").values()) == 3)
    fake_server.set(hold_after=None, delay_s=[0, 0.1])
    done.forget("cuts", "frames")
    assert main(arguments) == EXIT_OK
    assert_described(done)
    assert done.files() == described.files()
    assert set(fake_server.counts("answered").values()) == {1}
    assert done.summary()["work"]["caption_windows_asked"] == len(done.table("annotations")) - 8
    stages = {stage["stage"] for stage in done.summary()["unit_times"]}
    assert {"cut", "caption"} <= stages
    assert not list(stored.glob("*.json"))
    assert len(list(stored.iterdir())) <= 5
