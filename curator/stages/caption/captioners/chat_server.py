"""A client of servers with OpenAI's chat completions: vLLM, SGLang, NIM, or a hosted one.

Transient failures are retried. A configuration error ends the run, so that no window fails because
of it. Requests, answers and the key are never logged. The `openai` package takes 5 to 7 times the
CPU per request: benchmarks/results/libraries_captioner.md.
"""

import asyncio
import io
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import TYPE_CHECKING, Self

from curator.errors import ServerError, UsageError
from curator.json_bounds import load_bounded
from curator.stages.caption.caption_records import (
    Frames,
    Reply,
    Request,
    Sampling,
    Task,
    Turn,
    Unanswered,
    Window,
)
from curator.stages.caption.captioners.captioner_contract import Captioner, Place
from curator.stages.caption.captioners.chat_wire import (
    MAX_ANSWER_BYTES,
    MalformedError,
    ServerAnswer,
    body_of,
    error_in,
    is_out_of_money,
    parse_answer,
    retry_after_s,
    shown_url,
)
from curator.stages.caption.captioners.request_slots import Backoff, RequestSlots
from curator.stages.caption.captioners.server_access import (
    key_of,
    misconfigured,
    proxy_of,
    unended,
    with_status,
    words_of,
)
from curator.stages.caption.config import ModelConfig

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

_REFUSED = (400, 413, 415, 422)
_PASSING = (408, 425, 429)
# uvicorn, which serves vLLM and SGLang, closes an idle connection after 5 s. A connection that
# closes while a request is on its way looks like a server that died.
_KEEP_ALIVE_S = 2.0
_CONNECT_S = 30.0
_CHECK_TRIES = 3
# A try at a dead server costs nothing, and a restarted server should not idle.
_LONGEST_KNOCK_S = 5.0
_MET = {
    Unanswered.SERVER_ERROR: "met an error of the server",
    Unanswered.RATE_LIMITED: "was one too many for the server (429)",
    Unanswered.TIMED_OUT: "had no answer in time",
    Unanswered.OVER_BUDGET: "had no answer within the time of its clip (caption.budget_s)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """The server cannot take this request, now or later."""

    status: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passing:
    """The server gave no answer, but another try may get one."""

    failure: Unanswered
    detail: str
    asked_s: float | None = None
    is_crowded: bool = False
    """The server takes fewer requests than are running, or is unreachable."""
    was_sent: bool = True


class ServerClient:
    """One model at one server, for one event loop: an asynchronous context manager.

    Args:
        config: `url`, `model`, `key_from`, `in_flight`, `timeout_s`, `tries`, `frames_as` and
            `guided` are used.
        backoff_s: Longest wait after the first try; it doubles with each, up to a minute.
        give_up_s: A server that stays unreachable for this time ends the run. Until then, failed
            connections do not count as tries, so that it may restart.
        section: Section of the recipe, for messages.

    Raises:
        ServerError: The key's environment variable holds characters that no HTTP header can.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        backoff_s: float = 1.0,
        give_up_s: float = 900.0,
        section: str = "caption",
    ) -> None:
        if config.url is None or config.model is None:
            missing = "url" if config.url is None else "model"
            raise ServerError(f"{section}.{missing} is missing; expected those of a server")
        self._section = section
        self.config = config
        self.guided = config.guided
        """Whether the client still sends the JSON Schema."""
        self.slots = RequestSlots(config.in_flight)
        self.counts: Counter[str] = Counter()
        """Tries by their outcome: `answered`, or a failure."""
        self._url = config.url.rstrip("/")
        self._shown_url = shown_url(config.url)
        self._key = key_of(config)
        self._backoff = Backoff(backoff_s)
        self._give_up_s = give_up_s
        self._unreached_since: float | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Not trust_env: that reads passwords from ~/.netrc too.
            proxy=proxy_of(self._url),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        request: Request,
        frames: Frames,
        *,
        deadline: float | Callable[[], float] | None = None,
    ) -> Reply:
        """Sends a request until the server answers or a failure is final.

        Args:
            request: Goes to `config.model`, whatever model it names.
            frames: Frames of its window.
            deadline: Limit for tries and waits, on `time.monotonic` in seconds. A function is
                called when the request first gets a slot.

        Raises:
            ServerError: The server refuses key, model or address, or stays unreachable for
                `give_up_s`.
        """
        guided = self.guided and request.schema is not None
        body = await self._body(request, frames, guided)
        until: float | None = None
        n_tries = n_waits = 0
        while True:
            if not await self._slot(until, is_again=n_tries + n_waits > 0):
                return _over_budget(n_tries, "no slot")
            try:
                began = time.monotonic()
                if until is None and deadline is not None:
                    until = deadline() if callable(deadline) else deadline
                if until is not None and began >= until:
                    return _over_budget(n_tries, "nothing sent")
                if guided and not self.guided:
                    guided = False
                    body = await self._body(request, frames, guided)
                came = await self._try(body, until)
                if guided and isinstance(came, _Refused) and came.status in (400, 422):
                    # Blame the schema only if the server answers the same request without it.
                    guided, n_tries = False, n_tries + 1
                    body = await self._body(request, frames, guided)
                    came = await self._try(body, until)
                wait_s = 0.0
                if isinstance(came, _Passing):
                    n_waits += 1
                    wait_s = self._backoff.wait_s(n_waits, came.asked_s)
                    if not came.was_sent:
                        wait_s = min(wait_s, _LONGEST_KNOCK_S)
                    if came.is_crowded:
                        self.slots.was_turned_away(wait_s)
            finally:
                self.slots.give_back()
            now = time.monotonic()
            if isinstance(came, _Passing):
                n_tries += came.was_sent
                self._count(came)
                if came.failure is Unanswered.OVER_BUDGET or n_tries >= self.config.tries:
                    return Reply(
                        failure=came.failure,
                        detail=came.detail,
                        n_tries=n_tries,
                        seconds=now - began,
                    )
                if until is not None and now + wait_s >= until:
                    return _over_budget(n_tries, came.detail)
                await asyncio.sleep(wait_s)
                continue
            n_tries += 1
            if isinstance(came, ServerAnswer):
                if not guided and self.guided and request.schema is not None:
                    self._without_schema()
                return _reply(came, n_tries, now - began)
            self.counts[Unanswered.REFUSED_REQUEST] += 1
            return Reply(
                failure=Unanswered.REFUSED_REQUEST,
                detail=with_status(came.status, came.detail),
                n_tries=n_tries,
                seconds=now - began,
            )

    async def check(self, trial: Frames | None = None) -> None:
        """Checks before any work that the server answers.

        Args:
            trial: Frames for one short question, because servers limit number and size of pictures.
                With None, a question is sent only if `/models` lacks the model, because names may
                have aliases.

        Raises:
            ServerError: The server does not answer; with the remedy, and the nearest model names.
        """
        names = await self._models()
        if trial is None and names is not None and self.config.model in names:
            return
        request = _trial_request(self.config)
        body = await self._body(request, trial or Frames(jpegs=(), times_s=()), guided=False)
        try:
            came = await self._try(body, None)
            for n_tries in range(1, _CHECK_TRIES):
                # uvicorn closes a connection after a 500 without announcing it.
                if not isinstance(came, _Passing) or came.failure is not Unanswered.SERVER_ERROR:
                    break
                await asyncio.sleep(self._backoff.wait_s(n_tries, came.asked_s))
                came = await self._try(body, None)
        except ServerError as error:
            raise ServerError(f"{error}{self._near(names)}") from None
        if isinstance(came, _Refused):
            raise ServerError(
                f"{self._shown_url} refuses a first question to {self.config.model!r}: "
                f"{unended(with_status(came.status, came.detail))}; expected a model that takes "
                f"{0 if trial is None else len(trial.jpegs)} pictures (vLLM: "
                f"--limit-mm-per-prompt, --max-model-len){self._near(names)}"
            )
        if isinstance(came, _Passing) and came.failure is not Unanswered.RATE_LIMITED:
            raise ServerError(
                f"{self._shown_url} does not answer a first question: {unended(came.detail)}; "
                "see the server's log"
            )

    async def _models(self) -> list[str] | None:
        import aiohttp

        try:
            async with asyncio.timeout(min(self.config.timeout_s, _CONNECT_S)):
                status, _, body = await self._send("GET", "/models", None)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServerError(
                f"{self._shown_url} cannot be reached: {self._why(error)}; start the server, or "
                f"set {self._section}.url to its address"
            ) from None
        if status in (401, 402, 403):
            raise self._misconfigured(status, body)
        # Some servers answer questions although they answer 500 here (`transformers serve` without
        # a cache of the hub), so only a question can decide.
        if status != 200:
            return None
        try:
            names = [str(model["id"]) for model in load_bounded(body)["data"]]
        except (ValueError, LookupError, TypeError):
            return None
        return names or None

    def _near(self, names: list[str] | None) -> str:
        if names is None:
            return ""
        near = get_close_matches(str(self.config.model), names, n=3, cutoff=0.4) or names[:5]
        return f"; its models are {near}" if len(near) == len(names) else f"; nearest: {near}"

    async def _slot(self, until: float | None, *, is_again: bool) -> bool:
        left_s = None if until is None else until - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                await self.slots.take(is_again=is_again)
        except TimeoutError:
            return False
        return True

    async def _body(self, request: Request, frames: Frames, guided: bool) -> bytes:
        if self.config.frames_as == "video":
            return await asyncio.to_thread(body_of, request, frames, self.config, guided=guided)
        return body_of(request, frames, self.config, guided=guided)

    async def _try(self, body: bytes, until: float | None) -> ServerAnswer | _Refused | _Passing:
        import aiohttp

        limit_s = self.config.timeout_s
        if until is not None:
            limit_s = min(limit_s, until - time.monotonic())
        try:
            async with asyncio.timeout(limit_s):
                status, headers, answer = await self._send("POST", "/chat/completions", body)
            self._unreached_since = None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise ServerError(
                f"{self._shown_url} cannot be trusted: {self._why(error)}; set SSL_CERT_FILE to "
                f"its authority, or {self._section}.url to http:// if it has no TLS"
            ) from None
        except aiohttp.InvalidURL:
            raise ServerError(f"{self._shown_url} is no address; set {self._section}.url") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return self._unreached(error)
        except TimeoutError:
            self._unreached_since = None
            if limit_s < self.config.timeout_s:
                return _Passing(
                    failure=Unanswered.OVER_BUDGET, detail=f"no answer in {limit_s:.1f} s"
                )
            return _Passing(failure=Unanswered.TIMED_OUT, detail=f"no answer in {limit_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: undecodable bytes, such as a broken gzip body.
            return _Passing(
                failure=Unanswered.SERVER_ERROR, detail=self._why(error), is_crowded=True
            )
        return self._judged(status, headers, answer)

    def _judged(
        self, status: int, headers: dict[str, str], answer: bytes
    ) -> ServerAnswer | _Refused | _Passing:
        if status == 200:
            try:
                said = parse_answer(answer)
            except MalformedError as error:
                return _Passing(failure=Unanswered.SERVER_ERROR, detail=str(error))
            self.counts["answered"] += 1
            self.slots.went_well()
            return said
        if status in _REFUSED:
            return _Refused(status=status, detail=error_in(answer, self._key))
        if status == 429 and is_out_of_money(answer):
            raise self._misconfigured(status, answer)
        if status in _PASSING or status >= 500:
            is_429 = status == 429
            return _Passing(
                failure=Unanswered.RATE_LIMITED if is_429 else Unanswered.SERVER_ERROR,
                detail=with_status(status, error_in(answer, self._key)),
                asked_s=retry_after_s(headers),
                is_crowded=is_429,
            )
        raise self._misconfigured(status, answer, headers.get("Location"))

    async def _send(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, dict[str, str], bytes]:
        if self._session is None:
            raise RuntimeError(
                "ServerClient is an asynchronous context manager; expected `async with`"
            )
        # A file and not bytes: aiohttp sends it in pieces, and warns of bytes above 1 MiB.
        data = None if body is None else io.BytesIO(body)
        async with self._session.request(
            method, self._url + path, data=data, allow_redirects=False
        ) as response:
            answer = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                answer += piece
                if len(answer) > MAX_ANSWER_BYTES:
                    raise ValueError(f"answer of more than {MAX_ANSWER_BYTES} bytes")
            headers = {
                name: response.headers[name]
                for name in ("Retry-After", "Location")
                if name in response.headers
            }
            return response.status, headers, bytes(answer)

    def _unreached(self, error: Exception) -> _Passing:
        now = time.monotonic()
        if self._unreached_since is None:
            self._unreached_since = now
            then = f"and the run stops after {self._give_up_s / 60:g} minutes without it"
            logger.warning("%s cannot be reached; it is tried again, %s", self._shown_url, then)
        for_s = now - self._unreached_since
        if for_s >= self._give_up_s:
            raise ServerError(
                f"{self._shown_url} could not be reached for {for_s:.0f} s: {self._why(error)}; "
                "start the server and run again: what was answered is kept"
            ) from None
        return _Passing(
            failure=Unanswered.SERVER_ERROR,
            detail=self._why(error),
            is_crowded=True,
            was_sent=False,
        )

    def _misconfigured(
        self, status: int, answer: bytes, location: str | None = None
    ) -> ServerError:
        return misconfigured(
            self.config, self._key, status, answer, location, section=self._section
        )

    def _why(self, error: BaseException) -> str:
        return words_of(error, self._key)

    def _count(self, came: _Passing) -> None:
        self.counts[came.failure] += 1
        if self.counts[came.failure] == 1 and came.was_sent:
            # Without the server's words, which may quote the request.
            then = "" if came.failure is Unanswered.OVER_BUDGET else "; it is tried again"
            logger.warning("%s: a request %s%s", self._shown_url, _MET[came.failure], then)

    def _without_schema(self) -> None:
        self.guided = False
        self.counts["schema_refused"] += 1
        logger.warning(
            "%s refuses response_format; it is asked without the JSON Schema from now on",
            self._shown_url,
        )


class ServerCaptioner(Captioner):
    """A server that speaks OpenAI's protocol."""

    place = Place.DRIVER

    def check(self, trial: Frames | None) -> None:
        """As `ServerClient.check` with a trial; else checks only that the package is installed.

        Raises:
            ServerError: The server cannot be used.
            UsageError: A package is missing.
        """
        try:
            import aiohttp  # noqa: F401 - is it there?
        except ImportError as error:
            raise UsageError(
                f"caption.captioner is openai, which needs the package {error.name}; "
                "`pip install 'curate-video[captions]'`"
            ) from error
        if trial is not None:
            asyncio.run(self._check(trial))

    async def _check(self, trial: Frames) -> None:
        async with self.client() as client:
            await client.check(trial)

    def answer(self, request: Request, frames: Frames) -> Reply:
        """Answers one request; `client` runs many at a time."""
        return asyncio.run(self._answer(request, frames))

    async def _answer(self, request: Request, frames: Frames) -> Reply:
        async with self.client() as client:
            return await client.ask(request, frames)

    def client(self) -> ServerClient:
        """Returns a client, for one event loop."""
        return ServerClient(self.config, section=self.section)


def _reply(said: ServerAnswer, n_tries: int, seconds: float) -> Reply:
    is_filtered = said.finish_reason == "content_filter"
    return Reply(
        text="" if is_filtered else said.text,
        is_whole=said.finish_reason != "length",
        tokens_in=said.tokens_in,
        tokens_out=said.tokens_out,
        seconds=seconds,
        n_tries=n_tries,
        failure=Unanswered.REFUSAL if is_filtered else None,
        detail="content_filter" if is_filtered else "",
    )


def _over_budget(n_tries: int, detail: str) -> Reply:
    return Reply(failure=Unanswered.OVER_BUDGET, detail=detail, n_tries=n_tries)


def _trial_request(config: ModelConfig) -> Request:
    window = Window(index=0, start_frame=0, end_frame=1, shown=(0,))
    return Request(
        role="captioner",
        model=config.name,
        task=Task(clip_id="check", content="check", window=window, fps=1.0),
        system="",
        turns=(Turn(role="user", text="Answer yes."),),
        sampling=Sampling(max_tokens=16, temperature=0.0, top_p=1.0, seed=config.seed),
    )
