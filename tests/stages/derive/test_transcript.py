"""The annotator `transcript`, against a server whose words are the beeps that it hears."""

import email
import io
import json
import threading
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from captioned import work_here
from place import Place
from pydantic import ValidationError
from sound import FPS, beeps, onsets_s, write_film
from synced_films import FLASHES, N_FRAMES, RECIPE, SIZE, film

from curator.errors import ServerError, UnreachableError
from curator.loading import ClipDataset
from curator.stage import ClipFacts, SampledClip
from curator.stages.derive.transcript import Transcript, TranscriptConfig, words_of

KEY = "TRANSCRIPT_TEST_KEY"


@dataclass
class Heard:
    """What the server was asked, and its next answers: a status with body and headers."""

    forms: list[dict[str, str]] = field(default_factory=list)
    faults: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    key: str = ""


@dataclass(frozen=True)
class Transcribed(Place):
    """A run that keeps all footage."""

    settings = ()
    recipe: str = ""


def answer_to(form: dict[str, bytes]) -> dict[str, Any]:
    """A word of 40 ms for each beep."""
    with wave.open(io.BytesIO(form["file"])) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        audio = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32767)
    at_s = onsets_s(audio[None].astype(np.float32), 16_000)
    words = [{"word": f" beep{n} ", "start": at, "end": at + 0.04} for n, at in enumerate(at_s)]
    text = " ".join(str(each["word"]).strip() for each in words)
    return {"text": f" {text}", "language": "english", "words": words}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """A server that runs during a test."""
    known = Heard()
    monkeypatch.delenv(KEY, raising=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self) -> None:
            is_known = self.headers.get("Authorization", "") == known.key
            self.reply(200 if is_known else 401, "{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if known.faults:
                return self.reply(*known.faults.pop(0))
            if self.path != "/v1/audio/transcriptions":
                return self.reply(404, "Not Found")
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            parts = email.message_from_bytes(head + body).get_payload()
            form = {
                str(part.get_param("name", header="content-disposition")): bytes(
                    part.get_payload(decode=True)
                )
                for part in parts
            }
            known.forms.append({k: v.decode() for k, v in form.items() if k != "file"})
            self.reply(200, json.dumps(answer_to(form)))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield known
    server.shutdown()
    server.server_close()


def stage_of(heard: Heard, **settings: object) -> Transcript:
    config = {"url": heard.url, "model": "whisper", "key_from": KEY} | settings
    stage = Transcript(TranscriptConfig.model_validate(config))
    stage._first_wait_s = 0.01
    stage.setup()
    return stage


def clip_of(at_s: tuple[float, ...]) -> SampledClip:
    facts = ClipFacts(
        clip_id="c", source_id="s", n_frames=60, fps=Fraction(FPS), width=2, height=2,
        columns={"audio": "aac"},
    )  # fmt: skip
    return SampledClip(facts=facts, requested=(), audio=beeps(at_s, 2.0, rate=16_000))


def test_words_go_from_the_sound_to_samples_and_tables(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins times of words by those of flashes, clips without sound, and that all is asked once."""
    work_here(monkeypatch)
    (tmp_path / "in").mkdir()
    film(tmp_path / "in" / "beeps.mp4")
    write_film(tmp_path / "in" / "mute.mp4", [], n_frames=N_FRAMES, size=SIZE)
    stage = {"use": "transcript", "config": {"url": heard.url, "model": "whisper"}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"cut": {"audio": "aac"}, "stages": [stage]}))

    place = Transcribed(tmp_path / "in", tmp_path / "out", recipe=str(recipe))
    place.run()
    heard_at = []
    for clip in place.clips():
        if clip["audio"] == "none":
            assert (clip["transcript"], clip["n_words"]) == (None, None)
            continue
        words = json.loads(place.sample(clip, "words.txt"))
        assert clip["n_words"] == len(words)
        assert clip["transcript"] == " ".join(word["word"] for word in words)
        assert clip["spoken_language"] == "english"
        heard_at += [clip["start_s"] + word["start_s"] for word in words]
    assert sorted(heard_at) == pytest.approx([each / FPS for each in FLASHES], abs=0.005)
    n_asked = len(heard.forms)
    assert n_asked == sum(clip["audio"] == "aac" for clip in place.clips())
    assert heard.forms[0] == {
        "model": "whisper", "response_format": "verbose_json", "temperature": "0",
        "timestamp_granularities[]": "word",
    }  # fmt: skip
    assert place.run()["work"].get("words_made", 0) == 0
    assert len(heard.forms) == n_asked
    # The words of a window's clip come with the window.
    for sample in ClipDataset(place.out, members=["words"], frames=24, audio=16_000):
        assert (sample["words"] is not None) == sample["has_audio"]


def test_failures_that_may_pass_are_repeated(heard: Heard) -> None:
    """Pins 429 with a wait, 503, and the order of the answers."""
    heard.faults += [(429, "later", {"Retry-After": "0.01"}), (503, "", {}), (500, "x", {})]
    stage = stage_of(heard, in_flight=2, language="en")
    values = stage.process([clip_of((0.5, 1.0)), clip_of((0.25,))])
    assert [value["transcript"]["n_words"] for value in values] == [2, 1]  # type: ignore[call-overload, index]
    assert {form["language"] for form in heard.forms} == {"en"}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ((401, '{"error": {"message": "who?"}}', {}), ServerError, f"401: who.*{KEY} is not set"),
        ((404, "no", {}), ServerError, "address before /audio/transcriptions.*'whisper'"),
        ((400, '{"error": "too long"}', {}), ValueError, "refuses the audio: 400: too long"),
        ((429, '{"error": {"code": "insufficient_quota"}}', {}), ServerError, "no credit"),
        ((200, "<html>", {}), ValueError, "is no JSON"),
        ((200, "[]", {}), ValueError, "is a list; expected an object"),
        ((200, '{"text": "hello"}', {}), ValueError, "text and no times of words"),
    ],
)
def test_failures_that_stay_name_the_remedy(
    fault: tuple[int, str, dict[str, str]], error: type[Exception], message: str, heard: Heard
) -> None:
    """Pins which failures end the run, and which only fail a clip."""
    heard.faults.append(fault)
    with pytest.raises(error, match=message):
        stage_of(heard).process([clip_of((0.5,))])
    assert not heard.faults
    assert not heard.forms


def test_a_failure_that_does_not_pass_ends_after_some_tries(heard: Heard) -> None:
    heard.faults += [(503, "busy", {})] * 3
    with pytest.raises(ValueError, match="gave no answer in 3 tries: 503: busy"):
        stage_of(heard, tries=3).process([clip_of((0.5,))])
    assert not heard.faults
    heard.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ServerError, match=r"could not be reached: .*start the server"):
        stage_of(heard, tries=2).process([clip_of((0.5,))])


def test_a_server_is_checked_before_the_work(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    stage_of(heard).preflight()
    heard.key = "Bearer secret"
    with pytest.raises(ServerError, match=f"{KEY} is not set"):
        stage_of(heard).preflight()
    monkeypatch.setenv(KEY, "secret")
    stage_of(heard).preflight()
    heard.url = "http://127.0.0.1:9/v1"
    with pytest.raises(UnreachableError, match=r"cannot be reached: .*'transcript'\.url"):
        stage_of(heard).preflight()
    with pytest.raises(ValidationError, match="a user, a password or a query"):
        TranscriptConfig(url="http://a:b@c/v1", model="m")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ({"word": "a", "start": 1.0, "end": 9.0}, "'a' lasts from 1 to 9 s of a clip of 2 s"),
        ({"word": "a", "start": 1.0, "end": 0.5}, "from 1 to 0.5 s"),
        ({"word": "a", "start": float("nan"), "end": 1.0}, "from nan to 1 s"),
        ({"word": "a", "start": 1.0}, "expected word, start and end"),
    ],
)
def test_times_that_no_clip_has_are_refused(word: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        words_of({"text": "a", "words": [word]}, 2.0)


def test_times_are_within_the_clip_and_silence_has_no_words() -> None:
    late = {"word": " a ", "start": 1.5, "end": 2.25}
    words = words_of({"text": "a", "words": [late]}, 2.0)
    assert words == [{"word": "a", "start_s": 1.5, "end_s": 2.0}]
    assert words_of({"text": " "}, 2.0) == []


def test_another_address_keeps_the_values_and_another_model_does_not(heard: Heard) -> None:
    def made(**settings: object) -> str:
        return stage_of(heard, **settings).versions()["words"].fingerprint

    assert made(in_flight=3, url="http://other/v1") == made()
    assert len({made(), made(model="other"), made(language="en")}) == 3
