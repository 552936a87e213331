"""The client against `transformers serve`, with a model that is made here."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from served import Kept, annotations_of, check_server
from tiny_vlm import tiny_folder
from vlm import marked_frames, marked_task, request_of

from curator.errors import ServerError
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Reply,
    Request,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.chat_server import ServerCaptioner
from curator.stages.caption.captioners.dialog_runner import ServiceDialogs
from curator.stages.caption.config import ModelConfig
from curator.stages.caption.dialogs.window_dialog import Dialog

# Not imported: each process that collects these tests would wait for the imports.
_PACKAGES = ("transformers", "fastapi", "uvicorn", "openai", "accelerate")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not all(map(find_spec, _PACKAGES)), reason="needs transformers[serving]"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelConfig]:
    """Settings for a tiny model behind `transformers serve`, on the CPU."""
    folder = tiny_folder(tmp_path_factory.mktemp("llava"), "llava")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)],
        env=environment,
        stdout=log,
        stderr=log,
    )
    config = ModelConfig(model=str(folder), url=f"http://127.0.0.1:{port}/v1")
    try:
        until = time.monotonic() + 120
        while True:
            assert process.poll() is None, "transformers serve has ended"
            assert time.monotonic() < until, "transformers serve does not listen after 120 s"
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield config
    finally:
        process.kill()
        process.wait()
        log.close()


def request_about(task: Task) -> Request:
    return request_of(task, f"Clip {task.clip_id}?")


def one_question(task: Task) -> Dialog:
    (reply,) = yield [request_about(task)]
    if reply.failure is not None:
        return Annotation(task=task, failure=reply.failure, detail=reply.detail)
    return Annotation(task=task, answer=Answer(medium=reply.text), tokens_in=reply.tokens_in)


def runner_of(server: ServerCaptioner) -> ServiceDialogs:
    return ServiceDialogs(one_question, {"captioner": server}, budget_s=60)


def answers_of(config: ModelConfig, n_clips: int, n_frames: int) -> list[tuple[Annotation, Reply]]:
    """Requests answers about clips of marked frames; returns the answer about each clip."""
    kept = Kept()
    windows = [(marked_task(clip), marked_frames(clip, n_frames)) for clip in range(n_clips)]
    found = annotations_of(runner_of(ServerCaptioner(config)), windows, kept)
    return [(each, kept[request_about(each.task).key]) for each in found]


def test_a_real_server_takes_the_trial_and_what_it_refuses_has_a_reason(
    served: ModelConfig,
) -> None:
    check_server(served, marked_frames(1, 8))
    with pytest.raises(ServerError, match=r"400.*pinned to"):
        check_server(served.model_copy(update={"model": "another/model"}))
    # Refusals of a real server become reasons.
    broken = marked_frames(1, 1)
    broken = type(broken)(jpegs=(b"no picture",), times_s=broken.times_s)
    server = ServerCaptioner(served.model_copy(update={"tries": 2}), backoff_s=0.05)
    (annotation,) = annotations_of(runner_of(server), [(marked_task(1), broken)])
    # The server answers 500 instead of 400 to an unreadable picture.
    assert annotation.failure is Unanswered.SERVER_ERROR


def test_a_real_server_answers_each_clip_by_every_one_of_its_frames(served: ModelConfig) -> None:
    together = answers_of(served, 6, 2)
    alone = answers_of(served.model_copy(update={"in_flight": 1}), 6, 2)
    assert [each.task.clip_id for each, _ in together] == [f"clip-{i}" for i in range(6)]
    texts = [reply.text for _, reply in together]
    assert texts == [reply.text for _, reply in alone]
    assert len(set(texts)) > 1
    for annotation, reply in together:
        assert annotation.failure is None
        # Random weights rarely end an answer: it is cut off after sixteen tokens.
        assert reply.tokens_out <= 16
        assert reply.is_whole == (reply.tokens_out < 16)
    # A real server sees every frame.
    tokens = [answers_of(served, 1, n_frames)[0][0].tokens_in for n_frames in (1, 2, 3)]
    # A picture has 16 tokens, and its time, such as "at 0.5 s", one token per letter.
    assert tokens[1] - tokens[0] == 16 + len("at 0.5 s")
    assert tokens[2] - tokens[1] == 16 + len("at 1 s")
