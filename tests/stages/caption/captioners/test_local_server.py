"""The server that a worker starts: its command, its death, and the death of the worker."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from local_models import FakeVllm, stub_folder, wait
from served import FakeServer, Kept, annotations_of
from vlm import marked_frames, marked_task, request_of

from curator.errors import ModelError
from curator.stages.caption.caption_records import Annotation, Answer, Task
from curator.stages.caption.captioners import local_server
from curator.stages.caption.captioners.captioner_contract import captioners_of
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.window_dialog import Dialog

GONE_S = 8.0
"""Grace of the keeper, and some for a busy machine."""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeVllm:
    fake = FakeVllm(tmp_path / "bin")
    monkeypatch.setattr(local_server, "find_vllm", lambda: str(fake.program))
    # A proxy of the environment is not for this machine.
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stub_folder(tmp_path / "model")


def config_of(folder: Path, **more: Any) -> CaptionConfig:  # noqa: ANN401
    settings = {"captioner": "local", "model": str(folder), "server": "vllm", "in_flight": 6}
    return CaptionConfig.model_validate(settings | more)


def one_question(task: Task) -> Dialog:
    (reply,) = yield [request_of(task, "What is it?")]
    if reply.failure is not None:
        return Annotation(task=task, failure=reply.failure, detail=reply.detail)
    return Annotation(task=task, answer=Answer(medium=reply.text))


def runner_of(config: CaptionConfig) -> DialogRunner:
    return DialogRunner(one_question, captioners_of(config), budget_s=60)


def windows(n: int) -> list[Any]:
    return [(marked_task(clip), marked_frames(clip)) for clip in range(n)]


def test_vllm_gets_its_arguments_a_key_and_many_requests_at_a_time(
    vllm: FakeVllm, folder: Path
) -> None:
    vllm.install(service_s=0.1)
    config = config_of(folder, frames=3, max_tokens=100, server_args=["--seed", "1"])
    found = annotations_of(runner_of(config), windows(30))
    assert all(annotation.answer for annotation in found), found
    (call,) = vllm.calls()
    port = call["words"][5]
    assert call["words"] == [
        "serve", str(folder), "--host", "127.0.0.1", "--port", port,
        "--served-model-name", str(folder), "--load-format", "safetensors",
        "--limit-mm-per-prompt", '{"image": 3}', "--gpu-memory-utilization", "0.9", "--seed", "1",
    ]  # fmt: skip
    # The fake server refuses requests without the key.
    assert len(call["key"]) == 32
    assert call["offline"] == "1"
    steps = [1 if event.startswith("received") else -1 for event in vllm.journal()]
    assert max(accumulate(steps)) == 6
    wait("the end of the server", lambda: not vllm.processes(), GONE_S)


def test_a_judge_shares_the_model_or_the_memory(vllm: FakeVllm, folder: Path) -> None:
    """Pins also arguments for videos, and for a context that is longer than needed."""
    judge = {"captioner": "local", "model": str(folder), "server": "vllm"}
    same = captioners_of(config_of(folder, judge=judge))
    assert same["judge"] is same["captioner"]
    other = stub_folder(folder.with_name("other"))
    (other / "config.json").write_text('{"vision": 1, "max_position_embeddings": 131072}')
    vllm.install()
    judge |= {"model": str(other), "frames_as": "video"}
    runner = runner_of(config_of(folder, judge=judge, frames=3))
    runner.close()
    first, second = (call["words"] for call in vllm.calls())
    for words in (first, second):
        assert words[words.index("--gpu-memory-utilization") + 1] == "0.45"
    at = second.index("--media-io-kwargs")
    assert second[at : at + 6] == [
        "--media-io-kwargs", '{"video": {"num_frames": -1}}',
        "--limit-mm-per-prompt", '{"image": 1, "video": 1}',
        "--max-model-len", str(3 * 1152 + 4096 + 4 * 1024),
    ]  # fmt: skip


def test_a_server_that_is_killed_is_started_again_and_no_window_is_lost(
    vllm: FakeVllm, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.install(service_s=0.1)
    runner, kept = runner_of(config_of(folder)), Kept()
    killed = []

    def keep(key: str, reply: Any) -> None:  # noqa: ANN401
        if len(kept) == 5 and not killed:
            killed.append(vllm.calls()[0]["pid"])
            os.kill(killed[0], signal.SIGKILL)
        kept.keep(key, reply)

    found = annotations_of(runner, windows(30), kept, keep)
    assert all(annotation.answer for annotation in found), found
    assert len(vllm.calls()) == 2
    assert "ended with SIGKILL; it is started again" in caplog.text
    assert set(kept.times.values()) == {1}
    # The engine of the first server is gone too.
    wait("the end of the servers", lambda: not vllm.processes(), GONE_S)


def test_a_server_that_ends_is_an_error_with_its_last_lines(
    vllm: FakeVllm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.install(says=["loading", "torch.OutOfMemoryError: CUDA out of memory"], status=3)
    message = (
        r"model .*vllm serve on this machine, ended with status 3; .*OutOfMemoryError.*memory\?"
    )
    with pytest.raises(ModelError, match=message):
        runner_of(config_of(folder))


def test_another_process_at_the_port_gets_no_request(
    vllm: FakeVllm, folder: Path, monkeypatch: pytest.MonkeyPatch, fake_server: FakeServer
) -> None:
    """Pins that the server is started again, with another port."""
    fake_server.start()
    # Its journal outlives its process.
    before = fake_server.counts()
    vllm.install(says=["the port: Address already in use"], after_s=1.0, status=1)
    ports = []

    def wait_for(self: Any, server: Any, port: int) -> None:  # noqa: ANN401
        ports.append(port)
        # The first port is the foreign server's, which answers /health.
        waits(self, server, fake_server.port if len(ports) == 1 else port)
        vllm.install()

    waits = local_server.LocalCaptioner._wait
    monkeypatch.setattr(local_server.LocalCaptioner, "_wait", wait_for)
    found = annotations_of(runner_of(config_of(folder)), windows(3))
    assert all(annotation.answer for annotation in found), found
    assert fake_server.counts() == before
    assert [call["words"][5] for call in vllm.calls()] == list(map(str, ports))
    assert len(set(ports)) == 2


def test_another_protocol_at_the_port_is_no_answer(
    vllm: FakeVllm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the search for the end of a server whose port a server of mail, for example, has."""
    vllm.install(says=["the port: Address already in use"], after_s=1.0, status=1)
    asked: list[int] = []

    def greet(other: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = other.accept()
                with connection:
                    connection.sendall(b"220 mail.example.org ready\r\n")

    def wait_for(self: Any, server: Any, port: int) -> None:  # noqa: ANN401
        asked.append(other.getsockname()[1] if not asked else port)
        waits(self, server, asked[-1])
        vllm.install()

    waits = local_server.LocalCaptioner._wait
    monkeypatch.setattr(local_server.LocalCaptioner, "_wait", wait_for)
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=greet, args=(other,), daemon=True).start()
        runner_of(config_of(folder)).close()
    assert len(asked) == len(vllm.calls()) == 2


@pytest.mark.parametrize("words", [["--port", "80"], ["--host=0.0.0.0"], ["--uds", "/tmp/x"]])
def test_the_address_of_the_server_is_not_given(folder: Path, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"free port of 127\.0\.0\.1"):
        config_of(folder, server_args=words)


def test_a_server_that_ends_again_and_again_ends_the_run(vllm: FakeVllm, folder: Path) -> None:
    vllm.install(faults=[{"hang": 60}] * 99)
    runner = runner_of(config_of(folder, in_flight=1))
    n_killed = [0]

    def kill() -> bool:
        calls = vllm.calls()
        if len(calls) > n_killed[0] and any(map(_is_received, vllm.journal())):
            n_killed[0] = len(calls)
            (vllm.folder / "journal").write_text("")
            os.kill(calls[-1]["pid"], signal.SIGKILL)
        return n_killed[0] == 1 + local_server.MAX_ENDS

    thread = threading.Thread(target=wait, args=("kills", kill))
    thread.start()
    with pytest.raises(ModelError, match=r"ended with SIGKILL; .*is there enough memory"):
        annotations_of(runner, windows(3))
    thread.join()


def _is_received(line: str) -> bool:
    return line.startswith("received")


def test_a_server_that_is_silent_and_not_ready_is_ended(
    vllm: FakeVllm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.install(says=["compiling"], after_s=600)
    # Long enough for the program to start on a busy machine, and to say its line.
    monkeypatch.setattr(local_server, "SILENCE_S", 5.0)
    with pytest.raises(ModelError, match=r"not ready, and silent for 5 s; its last lines: compil"):
        runner_of(config_of(folder))
    wait("the end of the server", lambda: not vllm.processes(), GONE_S)


SCRIPT = """
import sys, time
sys.path[:0] = {paths!r}
from test_local_server import *
local_server.find_vllm = lambda: {program!r}
runner = runner_of(config_of(Path({folder!r})))
time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_worker(
    vllm: FakeVllm, folder: Path, ending: signal.Signals
) -> None:
    vllm.install()
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[3])]
    script = SCRIPT.format(paths=paths, program=str(vllm.program), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script])
    # Keeper, program and engine.
    wait("the server", lambda: len(vllm.processes()) >= 3 and process.poll() is None)
    process.send_signal(ending)
    process.wait()
    begun_s = time.monotonic()
    wait("the end of the server", lambda: not vllm.processes(), GONE_S)
    assert time.monotonic() - begun_s < GONE_S
