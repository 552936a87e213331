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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Self, TypeVar

from curator.errors import ServerError, UnreachableError, UsageError, install_extra
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
from curator.stages.caption.captioners.chat_wire import body_of, parse_answer
from curator.stages.caption.captioners.request_slots import RequestSlots, backoff_s
from curator.stages.caption.captioners.server_access import (
    ServerAccess,
    is_out_of_money,
    retry_after_s,
    unended,
    with_status,
)
from curator.stages.caption.config import ModelConfig

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 16 << 20
"""Longest body that is read; a server that sends more is broken."""
_REFUSED = (400, 413, 415, 422)
_PASSING = (408, 425)
# uvicorn, which serves vLLM and SGLang, closes an idle connection after 5 s. A connection that
# closes while a request is on its way looks like a server that died.
_KEEP_ALIVE_S = 2.0
_CONNECT_S = 30.0
_CHECK_TRIES = 3
# A try at a dead server costs nothing, and a restarted server should not idle.
_LONGEST_KNOCK_S = 5.0
_FINAL = (Unanswered.REFUSED_REQUEST, Unanswered.OVER_BUDGET)
_MET = {
    Unanswered.SERVER_ERROR: "met an error of the server",
    Unanswered.RATE_LIMITED: "was one too many for the server (429)",
    Unanswered.TIMED_OUT: "had no answer in time",
    Unanswered.OVER_BUDGET: "had no answer within the time of its clip (caption.budget_s)",
}


@dataclass(frozen=True, slots=True)
class _Failed:
    """A try without an answer."""

    failure: Unanswered
    """REFUSED_REQUEST and OVER_BUDGET are final; after others, another try may get an answer."""
    detail: str
    is_schema_suspect: bool = False
    """The server refuses the request, maybe because of its JSON Schema."""
    asked_s: float | None = None
    """Wait that the server asks for."""
    is_crowded: bool = False
    """The server takes fewer requests than are running, or is unreachable."""
    was_sent: bool = True


class ServerClient:
    """One model at one server, for one event loop: an asynchronous context manager.

    Args:
        config: The server, and how it is asked.
        backoff_s: Longest wait after the first try; it doubles with each, up to a minute.
        give_up_s: A server that stays unreachable for this time ends the run. Until then, failed
            connections do not count as tries, so that it may restart.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        backoff_s: float = 1.0,
        give_up_s: float = 900.0,
        section: str = "caption",
    ) -> None:
        self.config = config
        self.guided = config.guided
        """Whether the client still sends the JSON Schema."""
        self.slots = RequestSlots(config.in_flight)
        self.counts: Counter[str] = Counter()
        """Tries by their outcome: `answered`, or a failure."""
        self._access = ServerAccess(config, section)
        self._backoff_s = backoff_s
        self._give_up_s = give_up_s
        self._unreached_since: float | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        self._session = aiohttp.ClientSession(
            headers=self._access.headers(),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Not trust_env: that reads passwords from ~/.netrc too.
            proxy=self._access.proxy(),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, request: Request, frames: Frames, *, deadline: Callable[[], float] | None = None
    ) -> Reply:
        """As `Client.ask`: sends a request until the server answers or a failure is final.

        Raises:
            ServerError: The server refuses key, model or address, or stays unreachable for
                `give_up_s`.
        """
        guided = self.guided and request.schema is not None
        body = await self._body(request, frames, guided)
        until: float | None = None
        n_tries = n_waits = 0
        while True:
            try:
                async with asyncio.timeout(None if until is None else until - time.monotonic()):
                    await self.slots.take(is_again=n_tries + n_waits > 0)
            except TimeoutError:
                return _over_budget(n_tries, "no slot")
            try:
                began = time.monotonic()
                if until is None and deadline is not None:
                    until = deadline()
                if until is not None and began >= until:
                    return _over_budget(n_tries, "nothing sent")
                if guided and not self.guided:
                    guided = False
                    body = await self._body(request, frames, guided)
                came = await self._try(body, until)
                if guided and isinstance(came, _Failed) and came.is_schema_suspect:
                    # Blame the schema only if the server answers the same request without it.
                    guided, n_tries = False, n_tries + 1
                    body = await self._body(request, frames, guided)
                    came = await self._try(body, until)
                wait_s = 0.0
                if isinstance(came, _Failed):
                    n_waits += 1
                    wait_s = backoff_s(n_waits, came.asked_s, first_s=self._backoff_s)
                    if not came.was_sent:
                        wait_s = min(wait_s, _LONGEST_KNOCK_S)
                    if came.is_crowded:
                        self.slots.was_turned_away(wait_s)
            finally:
                self.slots.give_back()
            now = time.monotonic()
            if isinstance(came, Reply):
                if not guided and self.guided and request.schema is not None:
                    self.guided = False
                    self.counts["schema_refused"] += 1
                    then = "it is asked without the JSON Schema from now on"
                    logger.warning("%s refuses response_format; %s", self._access.shown_url, then)
                return replace(came, n_tries=n_tries + 1, seconds=now - began)
            n_tries += came.was_sent
            self._count(came)
            if came.failure in _FINAL or n_tries >= self.config.tries:
                return Reply(
                    failure=came.failure, detail=came.detail, n_tries=n_tries, seconds=now - began
                )
            if until is not None and now + wait_s >= until:
                return _over_budget(n_tries, came.detail)
            await asyncio.sleep(wait_s)

    async def check(self, trial: Frames) -> None:
        """Checks before any work that the server answers one short question about frames.

        Raises:
            ServerError: The server does not answer; with the remedy, and the nearest model names.
        """
        names = await self._models()
        body = await self._body(_trial_request(self.config), trial, guided=False)
        try:
            came = await self._try(body, None)
            for n_tries in range(1, _CHECK_TRIES):
                # uvicorn closes a connection after a 500 without announcing it.
                if isinstance(came, Reply) or came.failure is not Unanswered.SERVER_ERROR:
                    break
                await asyncio.sleep(backoff_s(n_tries, came.asked_s, first_s=self._backoff_s))
                came = await self._try(body, None)
        except ServerError as error:
            raise ServerError(f"{error}{self._near(names)}") from None
        if isinstance(came, Reply) or came.failure is Unanswered.RATE_LIMITED:
            return
        if came.failure is Unanswered.REFUSED_REQUEST:
            raise ServerError(
                f"{self._access.shown_url} refuses a first question to {self.config.model!r}: "
                f"{unended(came.detail)}; expected a model that takes {len(trial.jpegs)} pictures "
                f"(vLLM: --limit-mm-per-prompt, --max-model-len){self._near(names)}"
            )
        raise UnreachableError(
            f"{self._access.shown_url} does not answer a first question: {unended(came.detail)}; "
            "see the server's log"
        )

    async def _models(self) -> list[str] | None:
        import aiohttp

        access = self._access
        try:
            async with asyncio.timeout(min(self.config.timeout_s, _CONNECT_S)):
                status, _, body = await self._send("GET", "/models", None)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(
                f"{access.shown_url} cannot be reached: {access.why(error)}; start the server, or "
                f"set {access.section}.url to its address"
            ) from None
        if status in (401, 402, 403):
            raise access.misconfigured(status, body)
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

    async def _body(self, request: Request, frames: Frames, guided: bool) -> bytes:
        if self.config.frames_as == "video":
            return await asyncio.to_thread(body_of, request, frames, self.config, guided=guided)
        return body_of(request, frames, self.config, guided=guided)

    async def _try(self, body: bytes, until: float | None) -> Reply | _Failed:
        import aiohttp

        limit_s = self.config.timeout_s
        if until is not None:
            limit_s = min(limit_s, until - time.monotonic())
        access = self._access
        try:
            async with asyncio.timeout(limit_s):
                status, headers, answer = await self._send("POST", "/chat/completions", body)
            self._unreached_since = None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise ServerError(
                f"{access.shown_url} cannot be trusted: {access.why(error)}; set SSL_CERT_FILE to "
                f"its authority, or {access.section}.url to http:// if it has no TLS"
            ) from None
        except aiohttp.InvalidURL:
            said = f"{access.shown_url} is no address; set {access.section}.url"
            raise ServerError(said) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return self._unreached(error)
        except TimeoutError:
            self._unreached_since = None
            if limit_s < self.config.timeout_s:
                return _Failed(Unanswered.OVER_BUDGET, f"no answer in {limit_s:.1f} s")
            return _Failed(Unanswered.TIMED_OUT, f"no answer in {limit_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: undecodable bytes, such as a broken gzip body.
            return _Failed(Unanswered.SERVER_ERROR, access.why(error), is_crowded=True)
        return self._judged(status, headers, answer)

    def _judged(self, status: int, headers: Mapping[str, str], answer: bytes) -> Reply | _Failed:
        if status == 200:
            try:
                reply = parse_answer(answer)
            except ValueError as error:
                return _Failed(Unanswered.SERVER_ERROR, str(error))
            self.counts["answered"] += 1
            self.slots.went_well()
            return reply
        if status == 429 and is_out_of_money(answer):
            raise self._access.misconfigured(status, answer)
        if status in _REFUSED:
            failure = Unanswered.REFUSED_REQUEST
        elif status == 429:
            failure = Unanswered.RATE_LIMITED
        elif status in _PASSING or status >= 500:
            failure = Unanswered.SERVER_ERROR
        else:
            raise self._access.misconfigured(status, answer, headers.get("Location"))
        return _Failed(
            failure,
            with_status(status, self._access.said(answer)),
            is_schema_suspect=status in (400, 422),
            asked_s=retry_after_s(headers),
            is_crowded=status == 429,
        )

    async def _send(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        assert self._session is not None, "used outside of `async with`"
        # A file and not bytes: aiohttp sends it in pieces, and warns of bytes above 1 MiB.
        data = None if body is None else io.BytesIO(body)
        async with self._session.request(
            method, self._access.url + path, data=data, allow_redirects=False
        ) as response:
            answer = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                answer += piece
                if len(answer) > MAX_ANSWER_BYTES:
                    raise ValueError(f"answer of more than {MAX_ANSWER_BYTES} bytes")
            return response.status, response.headers, bytes(answer)

    def _unreached(self, error: Exception) -> _Failed:
        now, access = time.monotonic(), self._access
        if self._unreached_since is None:
            self._unreached_since = now
            then = f"and the run stops after {self._give_up_s / 60:g} minutes without it"
            logger.warning("%s cannot be reached; it is tried again, %s", access.shown_url, then)
        for_s = now - self._unreached_since
        if for_s >= self._give_up_s:
            raise ServerError(
                f"{access.shown_url} could not be reached for {for_s:.0f} s: {access.why(error)}; "
                "start the server and run again: what was answered is kept"
            ) from None
        detail = access.why(error)
        return _Failed(Unanswered.SERVER_ERROR, detail, is_crowded=True, was_sent=False)

    def _count(self, came: _Failed) -> None:
        self.counts[came.failure] += 1
        met = _MET.get(came.failure)
        if met is not None and self.counts[came.failure] == 1 and came.was_sent:
            # Without the server's words, which may quote the request.
            then = "" if came.failure in _FINAL else "; it is tried again"
            logger.warning("%s: a request %s%s", self._access.shown_url, met, then)


class ServerCaptioner(Captioner):
    """A server that speaks OpenAI's protocol."""

    place = Place.SERVICE

    def check(self, trial: Frames | None) -> None:
        """As `ServerClient.check` with a trial; else checks only that the package is installed."""
        try:
            import aiohttp  # noqa: F401 - is it there?
        except ImportError as error:
            raise UsageError(
                f"caption.captioner is openai, which needs the package {error.name}; "
                f"{install_extra('captions')}"
            ) from error
        if trial is not None:
            asyncio.run(self._run(lambda client: client.check(trial)))

    def answer(self, request: Request, frames: Frames) -> Reply:
        """Answers one request; `client` runs many at a time."""
        return asyncio.run(self._run(lambda client: client.ask(request, frames)))

    async def _run(self, task: Callable[[ServerClient], Awaitable[T]]) -> T:
        async with self.client() as client:
            return await task(client)

    def client(self) -> ServerClient:
        """Returns a client, for one event loop."""
        return ServerClient(self.config, section=self.section)


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
