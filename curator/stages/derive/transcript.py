"""The annotator `transcript`: words with times, by a server of OpenAI's protocol for audio."""

import io
import logging
import math
import secrets
import time
import wave
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import field_validator

from curator.errors import ServerError, UnreachableError
from curator.family import Columns, Family, Scope, Text, Value
from curator.json_bounds import load_bounded
from curator.models.server_access import (
    CONNECT_S,
    ServerAccess,
    backoff_s,
    is_out_of_money,
    retry_after_s,
    unended,
    with_status,
)
from curator.records.clips import WITH_SOUND
from curator.stage import Annotator, AudioRequest, ClipFacts, SampledClip, StageConfig, setting

logger = logging.getLogger(__name__)

ENDPOINT = "/audio/transcriptions"
RATE_HZ = 16_000
"""Rate of Whisper and of most other models of speech."""
_OF_CLIP = (400, 413, 415, 422)
"""Statuses with which a server refuses the audio of one clip."""
_PASSING = (408, 425, 429)
_LATE_S = 1.0
"""Longest time after the clip's end at which a word may end: models round, and pad audio."""


class TranscriptConfig(StageConfig):
    """A server for transcripts, such as vLLM or Speaches with Whisper."""

    url: str = setting(pattern=r"^https?://", unit="address")
    """base URL of the server, such as http://whisper:8000/v1"""
    model: str = setting(unit="name")
    """the model's name at the server"""
    # The key comes only from the environment, so no recipe, table or log can hold the key.
    key_from: str = setting("OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", unit="name")
    """environment variable with the server's key; unset for a server without a key"""
    language: str | None = setting(None, pattern=r"^[a-z]{2,3}$", unit="ISO 639 code")
    """language of the speech; null lets the model find it"""
    in_flight: int = setting(8, ge=1, le=256, unit="requests")
    """most concurrent requests of a worker"""
    timeout_s: float = setting(180.0, gt=0, unit="s")
    """longest wait for an answer"""
    tries: int = setting(6, ge=1, unit="tries")
    """most tries of a request that fails with 429, 5xx, a time-out or a broken connection"""

    @field_validator("url")
    @classmethod
    def _has_no_secret(cls, url: str) -> str:
        # A run writes the recipe to summary.json, config.json and the report.
        parts = urlsplit(url)
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "has a user, a password or a query, which a run would store with the recipe; "
                "expected only the address, and the key in the environment (key_from)"
            )
        return url


class Transcript(Annotator[TranscriptConfig]):
    """Transcribes the sound of each clip; clips without sound have no values.

    The member `words.txt` is JSON: a list of `{"word", "start_s", "end_s"}`, in seconds from the
    clip's first frame. The columns are the text, the number of words and the language.

    Source: https://platform.openai.com/docs/api-reference/audio/createTranscription
    """

    name = "transcript"
    version = 1
    config_type = TranscriptConfig
    results_ignore = frozenset({"url", "key_from", "in_flight", "timeout_s", "tries"})
    frames = ()
    audio = AudioRequest(RATE_HZ)
    columns = ("audio",)
    families = (
        Family("words", Scope.CLIP, Text(), member="words.txt"),
        Family(
            "transcript",
            Scope.CLIP,
            Columns({"transcript": "text", "n_words": "i32", "spoken_language": "text"}),
        ),
    )
    timeout_s = 3600.0
    """Each request has a limit of its own, and may be tried several times."""

    def __init__(self, config: TranscriptConfig) -> None:
        super().__init__(config)
        self.batch = config.in_flight
        self._first_wait_s = 1.0
        self._access: ServerAccess | None = None

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns the key of a clip with sound."""
        return super().key(facts, mp4_sha256) if facts.columns["audio"] in WITH_SOUND else None

    def preflight(self) -> None:
        """Checks that the server can be reached and takes the key.

        Raises:
            UnreachableError: The server does not answer.
            ServerError: The server refuses the key.
        """
        self.setup()
        access = self._server()
        try:
            limit_s = min(self.config.timeout_s, CONNECT_S)
            status, _, answer = access.send("GET", "/models", None, limit_s)
        except (UnreachableError, OSError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error
            raise UnreachableError(
                f"{access.shown_url} cannot be reached: {reason}; start the server, or set "
                f"{access.section}.url to its address"
            ) from None
        finally:
            access.close()
        # Not all servers have a list of models.
        if status in (401, 402, 403):
            raise access.misconfigured(status, answer)

    def setup(self) -> None:
        """Opens the pool of connections."""
        self._access = ServerAccess(self.config, "stages: 'transcript'", endpoint=ENDPOINT)

    def _server(self) -> ServerAccess:
        assert self._access is not None
        return self._access

    def process(self, unit: Sequence[SampledClip]) -> list[Mapping[str, Value]]:
        """Returns the words of each clip, and its columns."""
        with ThreadPoolExecutor(self.config.in_flight) as pool:
            return list(pool.map(self._transcribed, unit))

    def _transcribed(self, clip: SampledClip) -> Mapping[str, Value]:
        if clip.audio is None:
            raise ValueError(
                f"clip {clip.facts.clip_id} has no sound, and its column audio is "
                f"{clip.facts.columns['audio']!r}; `curate verify` lists all damage"
            )
        seconds = float(clip.facts.n_frames / clip.facts.fps)
        answer = self._answer(*form_of(clip.audio, self.config))
        words = words_of(answer, seconds)
        text, language = answer.get("text"), answer.get("language")
        return {
            "words": orjson.dumps(words).decode(),
            "transcript": {
                "transcript": text.strip() if isinstance(text, str) else "",
                "n_words": len(words),
                "spoken_language": language if isinstance(language, str) else None,
            },
        }

    def _answer(self, body: bytes, content_type: str) -> dict[str, Any]:
        """Sends a request, and repeats it after failures that may pass.

        Raises:
            ServerError: The server refuses key, model or address, or cannot be reached; this ends
                the run.
            ValueError: The server refuses the audio, or gives no valid answer.
        """
        access, config = self._server(), self.config
        for n_tries in range(1, config.tries + 1):
            asked_s, is_away = None, False
            try:
                status, headers, answer = access.send(
                    "POST", ENDPOINT, body, config.timeout_s, content_type=content_type
                )
            except UnreachableError as error:
                problem, is_away = str(error), True
            except TimeoutError:
                problem = f"no answer in {config.timeout_s:g} s"
            except OSError as error:
                problem = str(error)
            else:
                if status == 200:
                    return _parsed(answer)
                problem = unended(with_status(status, access.error_text(answer) or "nothing"))
                if status in _OF_CLIP:
                    raise ValueError(f"{access.shown_url} refuses the audio: {problem}")
                no_money = status == 429 and is_out_of_money(answer)
                if no_money or (status not in _PASSING and status < 500):
                    raise access.misconfigured(status, answer, headers.get("Location"))
                asked_s = retry_after_s(headers)
            if n_tries < config.tries:
                time.sleep(backoff_s(n_tries, asked_s, first_s=self._first_wait_s))
        if is_away:
            raise ServerError(
                f"{access.shown_url} could not be reached: {problem}; start the server and run "
                "again; stored transcripts are kept"
            )
        raise ValueError(f"{access.shown_url} gave no answer in {config.tries} tries: {problem}")


def form_of(audio_CN: NDArray[np.float32], config: TranscriptConfig) -> tuple[bytes, str]:  # noqa: N803
    """Returns the body of a request, as a form with a WAV of 16 bits, and its content type."""
    fields = {
        "model": config.model,
        "response_format": "verbose_json",
        "timestamp_granularities[]": "word",
        "temperature": "0",
    }
    if config.language is not None:
        fields["language"] = config.language
    mark = secrets.token_hex(16)
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    file = (
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="clip.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    body = b"".join([*parts, file.encode(), wav_of(audio_CN), f"\r\n--{mark}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={mark}"


def wav_of(audio_CN: NDArray[np.float32]) -> bytes:  # noqa: N803
    """Returns mono audio as a WAV of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(2)
        output.setframerate(RATE_HZ)
        output.writeframes(np.rint(audio_CN[0] * 32767).astype("<i2").tobytes())
    return file.getvalue()


def words_of(answer: Mapping[str, Any], seconds: float) -> list[dict[str, str | float]]:
    """Returns the words of an answer, with times within a clip that lasts `seconds`.

    Raises:
        ValueError: The answer has text without times of words, or times that no clip has.
    """
    given = answer.get("words")
    if not given:
        if not str(answer.get("text") or "").strip():
            return []
        raise ValueError(
            "the server's answer has text and no times of words; expected `words` as OpenAI's "
            "verbose_json has them: use a server and a model that give word timestamps"
        )
    words: list[dict[str, str | float]] = []
    for each in given:
        try:
            word, start_s, end_s = str(each["word"]), float(each["start"]), float(each["end"])
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"the server's answer has the word {each!r}; expected word, start and end"
            ) from error
        if not (math.isfinite(start_s) and -_LATE_S <= start_s <= end_s <= seconds + _LATE_S):
            raise ValueError(
                f"the server says that {word!r} lasts from {start_s:g} to {end_s:g} s of a clip "
                f"of {seconds:g} s"
            )
        within = [round(min(max(at, 0.0), seconds), 3) for at in (start_s, end_s)]
        words.append({"word": word.strip(), "start_s": within[0], "end_s": within[1]})
    return words


def _parsed(answer: bytes) -> dict[str, Any]:
    try:
        found = load_bounded(answer)
    except ValueError as error:
        raise ValueError(f"the server's answer is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the server's answer is a {type(found).__name__}; expected an object")
    return found
