"""The client against a server process that fails in every way."""

import io
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest
from PIL import Image
from served import FakeServer, check_server
from vlm import marked_frames, marked_task, request_of

from curator.errors import RecipeError, ServerError
from curator.models import server_access
from curator.models.server_access import (
    error_in,
    retry_after_s,
    shown_url,
    with_status,
)
from curator.recipe import load_recipe
from curator.stages.caption.caption_records import Frames, Reply, Request, Turn, Unanswered
from curator.stages.caption.captioners.chat_server import ServerCaptioner, mp4_of, parse_answer
from curator.stages.caption.config import CaptionConfig, ModelConfig
from curator.stages.caption.stage import trial_frames

SCHEMA = {"type": "object", "properties": {"medium": {"type": "string"}}}
KEY = "sk-very/secret+0123456789"


def request_about(clip: int, **changes: Any) -> Request:  # noqa: ANN401
    words = f"What is in clip {clip}?"
    request = request_of(marked_task(clip), words, system="You describe.", max_tokens=64)
    return replace(request, **changes)


def asked(
    config: ModelConfig, requests: Sequence[Request], *, budget_s: float = 3600.0, **settings: float
) -> tuple[list[Reply], ServerCaptioner]:
    """Sends all requests at once; the budget of each request begins with its first try."""
    server = ServerCaptioner(config, **({"backoff_s": 0.02} | settings))

    def ask(request: Request) -> Reply:
        def deadline() -> float:
            return time.monotonic() + budget_s

        return server.answer_in_time(request, frames_of(request), deadline)

    server.setup()
    with closing(server), ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, requests)), server


def frames_of(request: Request) -> Frames:
    return marked_frames(int(request.task.clip_id.removeprefix("clip-")))


def asked_one(config: ModelConfig, request: Request | None = None, **settings: float) -> Reply:
    return asked(config, [request or request_about(1)], **settings)[0][0]


def seen(reply: Reply) -> dict[str, Any]:
    assert reply.failure is None, reply
    answer: dict[str, Any] = orjson.loads(reply.text)
    return answer


def test_the_server_sees_this_clips_frames_with_their_times_or_as_one_video(
    fake_server: FakeServer,
) -> None:
    fake_server.start()
    reply = asked_one(fake_server.config(), request_about(77))
    answer = seen(reply)
    assert answer["seen"] == [[77, 0], [77, 1]]
    assert answer["said"] == ["You describe.", "at 0 s", "at 0.5 s", "What is in clip 77?"]
    assert (reply.is_whole, reply.n_tries) == (True, 1)
    assert reply.tokens_in > 0
    assert reply.tokens_out == len(reply.text)
    # The frames come before the first user turn only.
    words: tuple[tuple[Any, str], ...] = (("user", "a"), ("assistant", "{b"), ("user", "mend"))
    turns = tuple(Turn(role=role, text=text) for role, text in words)
    answer = seen(asked_one(fake_server.config(), request_about(5, turns=turns)))
    assert answer["said"][1:] == ["at 0 s", "at 0.5 s", "a", "{b", "mend"]
    assert answer["seen"] == [[5, 0], [5, 1]]
    # Frames as one video, at the rate of the shown frames.
    import av

    fake_server.start()
    answer = seen(asked_one(fake_server.config(frames_as="video"), request_about(300)))
    assert answer["seen"] == [[300, 0], [300, 1]]
    assert "Frames of the video from 0 s to 0.5 s:" in answer["said"]
    with av.open(io.BytesIO(mp4_of(marked_frames(9, 8)))) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.frames) == (2, 8)
        times = [picture.time for picture in container.decode(stream)]
    assert times == [i / 2 for i in range(8)]


def test_the_schema_is_sent_and_left_out_where_the_server_refuses_it(
    fake_server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    fake_server.start()
    requests = [request_about(i, schema=SCHEMA) for i in range(4)]
    replies, _ = asked(fake_server.config(), requests)
    assert all(seen(reply)["guided"] for reply in replies)
    fake_server.set(no_schema=True)
    with caplog.at_level(logging.WARNING):
        replies, _ = asked(fake_server.config(in_flight=1), requests)
    assert [seen(reply)["guided"] for reply in replies] == [False] * 4
    assert caplog.text.count("refuses response_format") == 1
    # Four requests with the schema, four without; only the first of these tried the schema.
    assert sum(fake_server.counts().values()) == 4 + 4 + 1
    # A 400 for another reason does not remove the schema.
    fake_server.start(faults=[{"status": 400, "body": "too long"}] * 2)
    replies, server = asked(fake_server.config(in_flight=1), requests[:2])
    refused, answered = sorted(replies, key=lambda reply: reply.failure is None)
    assert refused.failure is Unanswered.REFUSED_REQUEST
    assert seen(answered)["guided"]
    assert server.guided


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ({"status": 500, "body": "boom"}, Unanswered.SERVER_ERROR),
        ({"status": 503, "body": "<html>loading</html>"}, Unanswered.SERVER_ERROR),
        ({"status": 429, "body": "later"}, Unanswered.RATE_LIMITED),
        ({"status": 200, "body": "<html>a proxy's page</html>"}, Unanswered.SERVER_ERROR),
        ({"status": 200, "body": '{"choices": [{"mess'}, Unanswered.SERVER_ERROR),
        ({"cut": True}, Unanswered.SERVER_ERROR),
        ({"hang": 30}, Unanswered.TIMED_OUT),
    ],
    ids=lambda fault: str(fault),
)
def test_what_passes_is_tried_again_and_tries_end_with_the_reason(
    fake_server: FakeServer,
    caplog: pytest.LogCaptureFixture,
    fault: dict[str, Any],
    failure: Unanswered,
) -> None:
    fake_server.start(faults=[fault] * 4)
    # A busy machine may take longer than a short limit for any other answer.
    config = fake_server.config(tries=2, timeout_s=0.3 if "hang" in fault else 30)
    reply = asked_one(config)
    assert (reply.failure, reply.n_tries, reply.text) == (failure, 2, "")
    assert f"does not answer a request: {failure}; the request is tried again" in caplog.text
    reply = asked_one(config.model_copy(update={"tries": 9}))
    assert seen(reply)["seen"] == [[1, 0], [1, 1]]
    assert reply.n_tries == 3
    assert sum(fake_server.counts().values()) == 5


def test_an_answer_that_is_too_long_is_a_broken_server(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_access, "MAX_ANSWER_BYTES", 500)
    fake_server.start(faults=[{"status": 200, "body": "x" * 501}] * 2)
    reply = asked_one(fake_server.config(tries=2))
    assert reply.failure is Unanswered.SERVER_ERROR
    assert reply.detail == "answer of more than 500 bytes"


@pytest.mark.parametrize("scheme", ["http://user:hidden@", ""])
def test_the_proxy_of_the_environment_is_asked(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Pins that the proxy gets the whole address, and that no message has its password."""
    fake_server.start()
    monkeypatch.setenv("HTTP_PROXY", f"{scheme}127.0.0.1:{fake_server.port}")
    config = ModelConfig(model="tiny-vlm", url="http://far.example/v1")
    with pytest.raises(ServerError, match=r"far\.example/v1 answers 404: Not Found"):
        asked_one(config)
    fake_server.kill()
    with pytest.raises(ServerError, match="could not be reached") as caught:
        asked_one(config, give_up_s=0.0)
    assert "hidden" not in str(caught.value)


def test_retry_after_is_obeyed_and_waiting_for_a_first_slot_costs_no_budget(
    fake_server: FakeServer,
) -> None:
    fake_server.start(faults=[{"status": 429, "headers": {"Retry-After": "0.6"}}], service_s=0.3)
    began = time.monotonic()
    assert asked_one(fake_server.config()).n_tries == 2
    assert time.monotonic() - began >= 0.6
    requests = [request_about(i) for i in range(3)]
    replies, _ = asked(fake_server.config(in_flight=1), requests, budget_s=0.5)
    assert [reply.failure for reply in replies] == [None] * 3


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        ({"status": 429, "headers": {"Retry-After": "60"}}, "429"),
        ({"hang": 30}, "no answer in 0.4 s"),
        ({"status": 500}, "500"),
    ],
)
def test_nothing_goes_beyond_the_budget(
    fake_server: FakeServer, fault: dict[str, Any], detail: str
) -> None:
    fake_server.start(faults=[fault] * 50)
    began = time.monotonic()
    reply = asked_one(fake_server.config(tries=1000), budget_s=0.4)
    assert time.monotonic() - began < 1.5
    assert reply.failure is Unanswered.OVER_BUDGET
    assert detail in reply.detail


def test_a_crowded_server_gets_no_more_than_it_takes(fake_server: FakeServer) -> None:
    fake_server.start(slots=4, crowded=True, service_s=0.03)
    requests = [request_about(i) for i in range(80)]
    replies, server = asked(fake_server.config(in_flight=24), requests)
    assert [seen(reply)["seen"][0][0] for reply in replies] == list(range(80))
    assert server.request_limit.limit < 8
    # A burst of 20 finds the capacity; later refusals are single.
    assert sum(fake_server.counts().values()) - 80 < 60


def test_what_no_other_try_changes_is_not_tried_again(fake_server: FakeServer) -> None:
    """Pins refused requests, answers of `max_tokens`, and filtered answers."""
    body, statuses = '{"error": {"message": "5000 tokens > 4096"}}', (400, 413, 415, 422)
    refusals: list[object] = [{"status": status, "body": body} for status in statuses]
    fake_server.start(faults=[*refusals, {"finish": "length"}, {"finish": "content_filter"}])
    for status in statuses:
        reply = asked_one(fake_server.config())
        assert (reply.failure, reply.n_tries) == (Unanswered.REFUSED_REQUEST, 1)
        assert reply.detail == f"{status}: 5000 tokens > 4096"
    assert not asked_one(fake_server.config()).is_whole
    assert asked_one(fake_server.config()).failure is Unanswered.REFUSAL


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ({"status": 401}, r"127\.0\.0\.1:\d+/v1 answers 401.*OPENAI_API_KEY is not set"),
        ({"status": 403}, "answers 403.*OPENAI_API_KEY is not set"),
        ({"status": 404}, "answers 404.*'tiny-vlm'"),
        ({"status": 402}, "credit"),
        ({"status": 429, "body": '{"error": {"code": "insufficient_quota"}}'}, "credit"),
        ({"status": 308, "headers": {"Location": "https://a:b@there/v1"}}, "https://there/v1"),
        (
            {"status": 308, "headers": {"Location": "/v1/again"}},
            r"redirect: http://127\.0\.0\.1:\d+/v1/again",
        ),
    ],
)
def test_what_the_configuration_is_to_blame_for_stops(
    fake_server: FakeServer, fault: dict[str, Any], match: str
) -> None:
    fake_server.start(faults=[fault])
    with pytest.raises(ServerError, match=match) as caught:
        asked_one(fake_server.config())
    assert "a:b" not in str(caught.value)


def test_the_key_is_sent_and_told_nowhere(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("VLM_KEY", KEY)
    config_of = fake_server.start(key=KEY).config
    assert asked_one(config_of(key_from="VLM_KEY")).failure is None
    echo = {"status": 400, "echo": True}
    fake_server.set(faults=[echo, echo | {"status": 500}, echo | {"status": 401}])
    refused = asked_one(config_of(key_from="VLM_KEY"))
    failed = asked_one(config_of(key_from="VLM_KEY", tries=1))
    with pytest.raises(ServerError) as caught:
        asked_one(config_of(key_from="VLM_KEY"))
    monkeypatch.setenv("VLM_KEY", KEY[:-1] + "x")
    with pytest.raises(ServerError) as wrong:
        check_server(config_of(key_from="VLM_KEY"))
    told = [refused.detail, failed.detail, str(caught.value), str(wrong.value), caplog.text]
    assert all("***" in text for text in told[:4])
    assert not any("secret" in text for text in told)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("key", ["secret\nX-Other: 1", "sec ret", "secret\\1", 'secret"', "secrét"])
def test_a_key_that_no_header_can_hold(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ServerError, match="OPENAI_API_KEY holds") as caught:
        ServerCaptioner(ModelConfig(model="m", url="http://h/v1")).setup()
    assert "secret" not in str(caught.value)


def test_a_server_that_stays_away_ends_the_run(
    fake_server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = fake_server.start().config()
    fake_server.kill()
    with pytest.raises(ServerError, match=r"could not be reached for .* start the server"):
        asked(config, [request_about(i) for i in range(3)], give_up_s=0.3)
    assert "cannot be reached; the run stops if that lasts 0.005 minutes" in caplog.text
    assert caplog.text.count("\n") == 1


def test_check_passes_where_a_question_can_be_asked_and_else_names_the_remedy(
    fake_server: FakeServer,
) -> None:
    fake_server.start()
    check_server(fake_server.config(), marked_frames(1, 8))
    assert sum(fake_server.counts().values()) == 1
    # A server without /models, a busy server, and a server that fails only at /models.
    fake_server.set(models=None, faults=[None, {"status": 429}, {"cut": True}])
    for _ in range(3):
        check_server(fake_server.config())
    fake_server.set(models=500)
    check_server(fake_server.config())
    # The check names the nearest models, and too large a number of pictures.
    fake_server.start(models=["tiny-vlm", "other/large", "tiny-vlm-2"], most_images=1)
    with pytest.raises(ServerError, match=r"404.*nearest: \['tiny-vlm', 'tiny-vlm-2'\]"):
        check_server(fake_server.config(model="tinyvlm"))
    with pytest.raises(ServerError, match=r"too many pictures.*takes 8 pictures.*limit-mm-per"):
        check_server(fake_server.config(), marked_frames(1, 8))
    fake_server.start(models=None, faults=[{"status": 500}] * 3)
    with pytest.raises(ServerError, match="does not answer"):
        check_server(fake_server.config())


def test_the_trial_is_as_large_as_the_largest_window() -> None:
    def shape(**settings: float) -> tuple[int, tuple[int, int]]:
        frames = trial_frames(CaptionConfig.model_validate(settings))
        assert len(frames.times_s) == len(frames.jpegs)
        return len(frames.jpegs), Image.open(io.BytesIO(frames.jpegs[0])).size

    assert shape() == (8, (448, 252))
    assert shape(frames=100, frame_px=640) == (64, (640, 360))
    assert shape(frames_per_s=2, max_frames=20)[0] == 20


def test_answers_errors_and_waits_are_read_in_every_form() -> None:
    messages = {'"content": null': "", '"content": null, "refusal": "I cannot."': "I cannot.",
                '"content": [{"type": "text", "text": "a"}]': "a"}  # fmt: skip
    for message, text in messages.items():
        said = parse_answer(f'{{"choices": [{{"message": {{{message}}}}}]}}'.encode())
        assert (said.text, said.tokens_in, said.is_whole) == (text, 0, True)
    for body in ("", "[]", "null", '{"choices": [null]}', '{"choices": []}', '{"error": "memory"}',
                 '{"choices": [{"message": {"content": 3}}]}'):  # fmt: skip
        with pytest.raises(ValueError, match="answer"):
            parse_answer(body.encode())
    # An endless answer is cut off, whatever the server says; nothing reads or stores 10 MB.
    body = orjson.dumps({"choices": [{"message": {"content": "x" * 10_000_000}}]})
    endless = parse_answer(body)
    assert (len(endless.text), endless.is_whole) == (1 << 18, False)
    # Errors are short, and do not quote the request.
    picture = "/9j/" + "A" * 5000
    body = orjson.dumps({"detail": [{"msg": "not a picture", "input": picture}]})
    assert error_in(body, "") == '[{"msg":"not a picture","input":"..."}]'
    assert len(error_in(b"word " * 5000, "")) == 300
    assert shown_url("https://user:pass@host:8000/v1/?key=1") == "https://host:8000/v1"
    # The key would cross the end of the cut text.
    assert "sk-9" not in error_in(b"w " * 147 + b"sk-987654321", "sk-987654321")
    # Retry-After in seconds and as a date.
    assert retry_after_s({"Retry-After": "1.5"}) == 1.5
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    wait_s = retry_after_s({"Retry-After": at})
    assert wait_s is not None
    assert 28 < wait_s <= 30
    for nothing in ({}, {"Retry-After": "soon"}, {"Retry-After": "-1"}):
        assert retry_after_s(nothing) is None


@pytest.mark.parametrize("url", ["http://user:hidden@host/v1", "https://host/v1?key=hidden"])
@pytest.mark.parametrize("section", ["caption", "caption.judge"])
def test_no_recipe_takes_a_secret_in_an_address(url: str, section: str) -> None:
    """Pins the refusal, because `summary.json` holds the recipe, and others read it."""
    changes = ["caption.captioner=openai", "caption.model=m", "caption.url=http://host/v1"]
    changes += ["caption.judge={model: m, url: 'http://host/v1'}", f"{section}.url={url}"]
    with pytest.raises(RecipeError, match="the key in the environment") as caught:
        load_recipe("quickstart", changes)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("section", ["caption", "caption.judge"])
def test_checks_name_the_keys_of_the_recipe(fake_server: FakeServer, section: str) -> None:
    """Pins which address a message blames, and that messages of servers fit into sentences."""
    missing = {"status": 404, "body": '{"error": {"message": "`m` does not exist."}}'}
    fake_server.start(faults=[missing, {"status": 404, "body": "404: Not Found"}], models=None)
    config = fake_server.config()

    def told() -> str:
        with pytest.raises(ServerError) as caught:
            check_server(config, section=section)
        return str(caught.value)

    first = told()
    assert f"404: `m` does not exist; expected {section}.url to be" in first
    assert f"{section}.model, 'tiny-vlm', to be a name" in first
    assert f"404: Not Found; expected {section}.url to be" in told()
    fake_server.kill()
    away = "cannot be reached: Connection refused; start the server, or set"
    assert f"{away} {section}.url" in told()


def test_a_status_is_said_once() -> None:
    told = {"404: Not Found": "404: Not Found", "404 Not Found": "404: Not Found",
            "4040 tokens": "404: 4040 tokens", "404 tokens": "404: 404 tokens"}  # fmt: skip
    assert {said: with_status(404, said) for said in told} == told
