"""A client of servers with OpenAI's chat completions API: vLLM, SGLang, NIM, or a hosted one.

The client retries transient failures. A wrong key, model or address ends the run, and fails no
window. Logs never hold requests, answers or the key. The choice of the HTTP client was measured:
benchmarks/results/libraries_captioner.md.
"""

import base64
import io
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import orjson

from curator.errors import ServerError, UnreachableError
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
from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered, trial_request
from curator.stages.caption.captioners.captioner_contract import Captioner, Place
from curator.stages.caption.config import ModelConfig

logger = logging.getLogger(__name__)

_REFUSED = (400, 413, 415, 422)
_PASSING = (408, 425)
_CHECK_TRIES = 3
# A failed connection costs little, and a restarted server should not idle.
_LONGEST_KNOCK_S = 5.0
_MAX_CHARACTERS = 1 << 18
"""Longest text of an answer; more is no caption, and rules on captions would take minutes."""
_FINAL = (Unanswered.REFUSED_REQUEST, Unanswered.OVER_BUDGET)


@dataclass(frozen=True, slots=True)
class Failed:
    """A try without an answer.

    Attributes:
        failure: REFUSED_REQUEST and OVER_BUDGET are final; other failures are retried.
        is_schema_suspect: The server refuses the request, maybe because of its JSON Schema.
        asked_s: Wait that the server names, in seconds.
        is_crowded: The limit on requests must fall: after a 429, or without a working connection.
        was_sent: The try counts; False if no connection was made.
    """

    failure: Unanswered
    detail: str
    is_schema_suspect: bool = False
    asked_s: float | None = None
    is_crowded: bool = False
    was_sent: bool = True


class ServerCaptioner(Captioner):
    """A model at a server with OpenAI's API.

    Args:
        config: Address, model and sampling.
        section: As for `Captioner`.
        backoff_s: Longest wait after the first try; doubles with each try, up to 60 s.
        give_up_s: Time after which an unreachable server ends the run. Failed connections do not
            count as tries, so a server may restart.
    """

    place = Place.SERVICE

    def __init__(
        self,
        config: ModelConfig,
        *,
        section: str = "caption",
        backoff_s: float = 1.0,
        give_up_s: float = 900.0,
    ) -> None:
        super().__init__(config, section=section)
        self.guided = config.guided
        """Whether requests still include the JSON Schema."""
        self._backoff_s = backoff_s
        self._give_up_s = give_up_s
        self._unreached_since: float | None = None
        self._reported: set[str] = set()
        """Events that the log holds already."""

    def setup(self) -> None:
        """Opens the pool of connections."""
        self._access = ServerAccess(self.config, self.section)

    def close(self) -> None:
        """Closes idle connections."""
        self._access.close()

    def cancel_requests(self) -> None:
        """Breaks the connections of running requests too."""
        super().cancel_requests()
        self._access.break_connections()

    def answer(self, request: Request, frames: Frames) -> Reply:
        """Answers one request without a deadline."""
        return self.answer_in_time(request, frames, lambda: inf)

    def answer_in_time(
        self, request: Request, frames: Frames, deadline: Callable[[], float]
    ) -> Reply:
        """As `Captioner.answer_in_time`; retries until an answer or a final failure.

        Raises also a `ServerError` if the server refuses key, model or address, or stays
        unreachable for `give_up_s`.
        """
        guided = self.guided and request.schema is not None
        body = self._body(request, frames, guided=guided)
        until = inf
        n_tries = n_waits = 0
        while True:
            if not self.request_limit.acquire(until):
                return _over_budget(n_tries, "no slot")
            try:
                began = time.monotonic()
                until = min(until, deadline())
                if began >= until:
                    return _over_budget(n_tries, "nothing sent")
                if guided and not self.guided:
                    guided, body = False, self._body(request, frames, guided=False)
                outcome = self._try(body, until)
                if guided and isinstance(outcome, Failed) and outcome.is_schema_suspect:
                    # Blame the schema only if the server answers the same request without it.
                    guided, body = False, self._body(request, frames, guided=False)
                    n_tries += 1
                    outcome = self._try(body, until)
                    if isinstance(outcome, Reply):
                        self.guided = False
                        self._report("refuses response_format; requests omit it from now on")
                seconds = time.monotonic() - began
                if isinstance(outcome, Reply):
                    self.request_limit.went_well()
                    return replace(outcome, n_tries=n_tries + 1, seconds=seconds)
                n_waits += 1
                wait_s = backoff_s(n_waits, outcome.asked_s, first_s=self._backoff_s)
                if not outcome.was_sent:
                    wait_s = min(wait_s, _LONGEST_KNOCK_S)
                if outcome.is_crowded:
                    self.request_limit.was_refused(wait_s)
            finally:
                self.request_limit.release()
            n_tries += outcome.was_sent
            failure, detail = outcome.failure, outcome.detail
            is_last = failure in _FINAL or n_tries >= self.config.tries
            if outcome.was_sent:
                then = "" if is_last else "; the request is tried again"
                self._report(f"does not answer a request: {failure}{then}")
            if is_last:
                return Reply(failure=failure, detail=detail, n_tries=n_tries, seconds=seconds)
            if time.monotonic() + wait_s >= until:
                return _over_budget(n_tries, detail)
            self.request_limit.sleep(wait_s)

    def check(self, trial: Frames | None) -> None:
        """Checks, before any work, that the server answers a short request with frames.

        Raises:
            ServerError: No answer; the message gives the remedy and the nearest model names.
        """
        if trial is None:
            return
        self.setup()
        with closing(self):
            near = self._nearest_models()
            request = trial_request(self.config.name)
            body = body_of(request, trial, self.config, guided=False)
            try:
                for n_tries in range(1, _CHECK_TRIES + 1):
                    outcome = self._try(body, inf)
                    if isinstance(outcome, Reply) or outcome.failure is not Unanswered.SERVER_ERROR:
                        break
                    self.request_limit.sleep(backoff_s(n_tries, None, first_s=self._backoff_s))
                else:
                    # Some servers answer 500 if their model takes no pictures.
                    blind = Frames(jpegs=(), times_s=())
                    alone = body_of(request, blind, self.config, guided=False)
                    if trial.jpegs and isinstance(self._try(alone, inf), Reply):
                        outcome = self._try(body, inf)
                        if isinstance(outcome, Failed):
                            outcome = replace(outcome, failure=Unanswered.REFUSED_REQUEST)
            except ServerError as error:
                raise ServerError(f"{error}{near}") from None
        if isinstance(outcome, Reply) or outcome.failure is Unanswered.RATE_LIMITED:
            return
        url, detail = self._access.shown_url, unended(outcome.detail)
        if outcome.failure is Unanswered.REFUSED_REQUEST:
            raise ServerError(
                f"{url} refuses a trial request to {self.config.model!r}: {detail}; expected a "
                f"model that takes {len(trial.jpegs)} pictures (vLLM: --limit-mm-per-prompt, "
                f"--max-model-len; llama.cpp: --mmproj){near}"
            )
        raise UnreachableError(
            f"{url} does not answer a trial request: {detail}; see the server's log"
        )

    def _nearest_models(self) -> str:
        """Returns the end of a message, with names of models at the server; empty without names."""
        access = self._access
        try:
            limit_s = min(self.config.timeout_s, CONNECT_S)
            status, _, body = access.send("GET", "/models", None, limit_s)
        except (UnreachableError, OSError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error
            raise UnreachableError(
                f"{access.shown_url} cannot be reached: {reason}; start the server, or set "
                f"{access.section}.url to its address"
            ) from None
        if status in (401, 402, 403):
            raise access.misconfigured(status, body)
        # Not decisive: some servers answer chat requests, but 500 to this one (`transformers serve`
        # without a cache of the hub).
        try:
            names = [str(model["id"]) for model in load_bounded(body)["data"]]
        except (ValueError, LookupError, TypeError):
            names = []
        if status != 200 or not names:
            return ""
        near = get_close_matches(str(self.config.model), names, n=3, cutoff=0.4) or names[:5]
        return f"; its models are {near}" if len(near) == len(names) else f"; nearest: {near}"

    def _body(self, request: Request, frames: Frames, *, guided: bool) -> bytes:
        return body_of(request, frames, self.config, guided=guided)

    def _try(self, body: bytes, until: float) -> Reply | Failed:
        limit_s = max(0.0, min(self.config.timeout_s, until - time.monotonic()))
        try:
            outcome = self._response(*self._access.send("POST", "/chat/completions", body, limit_s))
        except UnreachableError as error:
            outcome = self._unreached(str(error))
        except TimeoutError:
            is_all = limit_s == self.config.timeout_s
            failure = Unanswered.TIMED_OUT if is_all else Unanswered.OVER_BUDGET
            outcome = Failed(failure, f"no answer in {limit_s:.3g} s")
        except OSError as error:
            outcome = Failed(Unanswered.SERVER_ERROR, str(error), is_crowded=True)
        if isinstance(outcome, Reply) or outcome.was_sent:
            self._unreached_since = None
        if isinstance(outcome, Failed):
            # A cancelled request looks like a broken connection.
            self.request_limit.check_open()
        return outcome

    def _response(self, status: int, headers: Mapping[str, str], answer: bytes) -> Reply | Failed:
        if status == 200:
            try:
                return parse_answer(answer)
            except ValueError as error:
                return Failed(Unanswered.SERVER_ERROR, str(error))
        failure = Unanswered.SERVER_ERROR
        if status in _REFUSED:
            failure = Unanswered.REFUSED_REQUEST
        elif status == 429 and not is_out_of_money(answer):
            failure = Unanswered.RATE_LIMITED
        elif status not in _PASSING and status < 500:
            raise self._access.misconfigured(status, answer, headers.get("Location"))
        return Failed(
            failure,
            with_status(status, self._access.error_text(answer)),
            is_schema_suspect=status in (400, 422),
            asked_s=retry_after_s(headers),
            is_crowded=status == 429,
        )

    def _unreached(self, reason: str) -> Failed:
        now, url = time.monotonic(), self._access.shown_url
        if self._unreached_since is None:
            self._unreached_since = now
            then = f"the run stops if that lasts {self._give_up_s / 60:g} minutes"
            logger.warning("%s cannot be reached; %s", url, then)
        away_s = now - self._unreached_since
        if away_s >= self._give_up_s:
            raise ServerError(
                f"{url} could not be reached for {away_s:.0f} s: {reason}; start the server "
                "and run again; stored answers are kept"
            )
        return Failed(Unanswered.SERVER_ERROR, reason, is_crowded=True, was_sent=False)

    def _report(self, event: str) -> None:
        """Logs an event once, without the server's message, which may quote the request."""
        if event not in self._reported:
            self._reported.add(event)
            logger.warning("%s %s", self._access.shown_url, event)


def _over_budget(n_tries: int, detail: str) -> Reply:
    return Reply(failure=Unanswered.OVER_BUDGET, detail=detail, n_tries=n_tries)


def body_of(request: Request, frames: Frames, config: ModelConfig, *, guided: bool) -> bytes:
    """Returns the JSON of a request; `guided` adds the request's schema, if it has one.

    The frames come before the text of the first user turn: as JPEG images, each after its time, or
    as one MP4.

    Source: https://platform.openai.com/docs/api-reference/chat/create; `video_url` is an addition
    by vLLM and SGLang.
    """
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    shown = _shown(frames, config)
    for turn in request.turns:
        if turn.role == "user" and shown:
            messages.append({"role": "user", "content": [*shown, _text(turn.text)]})
            shown = []
        else:
            messages.append({"role": turn.role, "content": turn.text})
    body = {"model": config.model, "messages": messages, **asdict(request.sampling)}
    if guided and request.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return orjson.dumps(body)


def _shown(frames: Frames, config: ModelConfig) -> list[dict[str, Any]]:
    times = [f"{round(time_s, 2):g} s" for time_s in frames.times_s]
    # A single frame is a picture: servers refuse videos of one frame.
    if len(frames.jpegs) > 1 and config.frames_as == "video":
        words = f"Frames of the video from {times[0]} to {times[-1]}:"
        return [_text(words), _file("video", "video/mp4", mp4_of(frames))]
    return [
        part
        for jpeg, at in zip(frames.jpegs, times, strict=True)
        for part in (_text(f"at {at}"), _file("image", "image/jpeg", jpeg))
    ]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _file(kind: str, mime: str, data: bytes) -> dict[str, Any]:
    url = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def mp4_of(frames: Frames) -> bytes:
    """Encodes the frames as H.264 in MP4, at their mean rate in the clip.

    An odd last row or column is left out.
    """
    import av

    span_s = frames.times_s[-1] - frames.times_s[0]
    rate = Fraction((len(frames.times_s) - 1) / span_s if span_s > 0 else 1)
    fps, pictures, file = rate.limit_denominator(1000), frames.arrays(), io.BytesIO()
    height, width = (side // 2 * 2 for side in pictures[0].shape[:2])
    with av.open(file, "w", format="mp4") as container:
        options = {"crf": "18", "preset": "veryfast", "threads": "1", "bf": "0"}
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = 1
        context.color_range = 1
        for i, picture in enumerate(pictures):
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture[:height, :width]))
            yuv = rgb.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
            yuv.pts, yuv.time_base = i, 1 / fps
            container.mux(stream.encode(yuv))
        container.mux(stream.encode())
    return file.getvalue()


def parse_answer(body: bytes) -> Reply:
    """Reads the body of an answer.

    Raises:
        ValueError: The body is no chat completion; the message does not quote the body.
    """
    try:
        answer = load_bounded(body)
    except ValueError:
        raise ValueError(f"answer of {len(body)} bytes is no JSON") from None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("answer has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise ValueError("answer's first choice has no message")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if content is None:
        # OpenAI's models put refusals into a separate field.
        content = message.get("refusal") or ""
    if not isinstance(content, str):
        raise ValueError("answer's content is no text")
    is_filtered = choices[0].get("finish_reason") == "content_filter"
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    tokens_in, tokens_out = (
        count if isinstance(count := counts.get(name), int) and count >= 0 else 0
        for name in ("prompt_tokens", "completion_tokens")
    )
    return Reply(
        text="" if is_filtered else content[:_MAX_CHARACTERS],
        is_whole=len(content) <= _MAX_CHARACTERS and choices[0].get("finish_reason") != "length",
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        failure=Unanswered.REFUSAL if is_filtered else None,
        detail="content_filter" if is_filtered else "",
    )
