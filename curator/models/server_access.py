"""Access to a server: address, key, proxy, connections, and the meaning of errors.

No message of this module holds the key, pictures, or the user and password of an address.
"""

import os
import random
import re
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import orjson

from curator.errors import ServerError, UnreachableError
from curator.json_bounds import load_bounded

if TYPE_CHECKING:
    from urllib3 import PoolManager

MAX_ANSWER_BYTES = 16 << 20
"""Longest body that the client reads; a server that sends more is broken."""
CONNECT_S = 10.0
_OWN_HOSTS = ("127.0.0.1", "::1", "localhost")
_GRACE_S = 0.2
"""Time after a request's limit in which the request may give a reason of its own."""
_MAX_DETAIL = 300
# Servers that validate with pydantic echo the request, including pictures.
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{80,}")

# OpenAI's codes for an empty account, https://platform.openai.com/docs/guides/error-codes.
_NO_CREDIT = {"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached"}


_LONGEST_BACKOFF_S = 60.0
# Without the recipe's seed, because two runs must not retry in step.
_RANDOM = random.Random()


class ServerSettings(Protocol):
    """Settings of a server that speaks OpenAI's protocol.

    Attributes:
        model: The model's name at the server.
        url: Base URL of the server.
        key_from: Environment variable with the server's key; unset for a server without a key.
        in_flight: Most concurrent requests.
    """

    @property
    def model(self) -> str | None: ...  # noqa: D102
    @property
    def url(self) -> str | None: ...  # noqa: D102
    @property
    def key_from(self) -> str: ...  # noqa: D102
    @property
    def in_flight(self) -> int: ...  # noqa: D102


class _Exchange:
    """The connections of one request, which another thread may end."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._is_over = False
        self._lock = threading.Lock()

    def use(self, connected: socket.socket) -> None:
        """Adds a connection; raises `OSError` if the time is over."""
        with self._lock:
            self._sockets.append(connected)
            if self._is_over:
                raise OSError("cancelled")

    def end(self) -> None:
        """Breaks the connections."""
        with self._lock:
            self._is_over = True
            for connected in self._sockets:
                shut_down(connected)


class _OfThread(threading.local):
    """The exchange of the thread that connects and reads."""

    exchange: _Exchange


def shut_down(connected: socket.socket) -> None:
    """Ends a connection for the thread that waits for it."""
    with suppress(OSError):
        # SSLSocket.shutdown would drop state that the reading thread needs.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class ServerAccess:
    """Keep-alive connections to the server of one section of the recipe; threads share them.

    Args:
        config: Settings of the server.
        section: Name of the section, for messages.
        endpoint: Path after the base URL to which requests go, for messages.
        key: Key of the server, in place of the variable that the settings name.

    Raises:
        ServerError: Address, key or proxy is unusable.
    """

    def __init__(
        self,
        config: ServerSettings,
        section: str,
        *,
        endpoint: str = "/chat/completions",
        key: str | None = None,
    ) -> None:
        # The recipe requires these keys only for built-in captioners, not for their subclasses.
        if config.url is None or config.model is None:
            missing = "url" if config.url is None else "model"
            raise ServerError(f"{section}.{missing} is missing; a server needs url and model")
        self._config = config
        self._endpoint = endpoint
        self.section = section
        self.url = config.url.rstrip("/")
        self.shown_url = shown_url(self.url)
        self._key = os.environ.get(config.key_from, "").strip() if key is None else key
        # Quotes and backslashes are refused too: servers escape them in many ways, so an echoed
        # key would not be found.
        if not re.fullmatch(r"[!#-&(-\[\]-~]*", self._key):
            raise ServerError(
                f"{config.key_from} holds characters that no key has; expected only the key"
            )
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._is_broken = False
        self._of_thread = _OfThread()
        self._pools = self._pool_manager()

    def _pool_manager(self) -> "PoolManager":
        from urllib3 import PoolManager, make_headers, proxy_from_url
        from urllib3.exceptions import LocationValueError

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        parts, n = urlsplit(self.url), self._config.in_flight
        # Uses HTTP_PROXY and NO_PROXY, but not ~/.netrc, which has passwords.
        host = parts.hostname or ""
        # No proxy reaches this machine's own addresses.
        is_near = host in _OWN_HOSTS or proxy_bypass(host)
        proxy = None if is_near else getproxies().get(parts.scheme)
        try:
            if proxy is None:
                pools = PoolManager(headers=headers, maxsize=n)
            else:
                proxy = proxy if "://" in proxy else f"http://{proxy}"
                user, at, _ = urlsplit(proxy).netloc.rpartition("@")
                login = make_headers(proxy_basic_auth=unquote(user)) if at else None
                pools = proxy_from_url(proxy, headers=headers, maxsize=n, proxy_headers=login)
            pool = pools.connection_from_url(self.url)
        except LocationValueError:
            raise self._no_address() from None
        access, made_by_pool = self, pool.ConnectionCls

        class Tracked(made_by_pool):  # type: ignore[misc, valid-type]
            def _new_conn(self) -> socket.socket:
                connected: socket.socket = super()._new_conn()
                access._of_thread.exchange.use(connected)
                return connected

            def connect(self) -> None:
                super().connect()
                # With TLS, this is another object than the new connection.
                access._of_thread.exchange.use(self.sock)
                access._sockets.add(self.sock)
                if access._is_broken:
                    raise OSError("cancelled")

            def request(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
                if self.sock is not None:
                    access._of_thread.exchange.use(self.sock)
                super().request(*args, **options)

        pool.ConnectionCls = Tracked
        return pools

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        limit_s: float,
        *,
        content_type: str = "application/json",
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a request; returns the status, headers and body of the answer.

        A thread exchanges request and answer, because the time limits of sockets hold for a single
        system call: a server that sends a byte at a time would keep them for ever. At the end of
        the limit, the connection is broken, whatever the thread waits for.

        Raises:
            UnreachableError: There is no connection; the message gives only the reason.
            TimeoutError: No answer came within `limit_s`.
            OSError: The connection broke, or the answer is too long or cannot be decoded.
            ServerError: Address or certificate is wrong; the message gives the remedy.
        """
        # urllib3 refuses a time limit of 0.
        limit_s = max(limit_s, 1e-3)
        exchange = _Exchange()
        outcome: Future[tuple[int, Mapping[str, str], bytes]] = Future()

        def work() -> None:
            self._of_thread.exchange = exchange
            try:
                outcome.set_result(self._exchanged(method, path, body, limit_s, content_type))
            except BaseException as error:  # noqa: BLE001 - raised by `result`
                outcome.set_exception(error)

        threading.Thread(target=work, name="request", daemon=True).start()
        try:
            # The limits of connecting give a better reason, so they come first.
            return outcome.result(limit_s + _GRACE_S)
        finally:
            if not outcome.done():
                exchange.end()

    def _exchanged(
        self, method: str, path: str, body: bytes | None, limit_s: float, content_type: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a request as `send`, with a limit for each wait of the network."""
        from urllib3 import Timeout
        from urllib3 import exceptions as refused

        until = time.monotonic() + limit_s
        answer = bytearray()
        try:
            response = self._pools.urlopen(
                method,
                self.url + path,
                body=body,
                headers={**self._pools.headers, "Content-Type": content_type},
                timeout=Timeout(connect=min(CONNECT_S, limit_s), read=limit_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            with closing(response):
                while piece := response.read1(1 << 16):
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise OSError(f"answer of more than {MAX_ANSWER_BYTES} bytes")
                    if time.monotonic() > until:
                        raise TimeoutError
        except refused.LocationValueError:
            raise self._no_address() from None
        except (refused.ConnectTimeoutError, refused.ProxyError) as error:
            raise UnreachableError(self._reason(error)) from None
        except (refused.ReadTimeoutError, TimeoutError):
            raise TimeoutError from None
        except (refused.HTTPError, OSError) as error:
            reason = self._reason(error)
            if isinstance(error, refused.SSLError) and "EOF" not in reason:
                raise ServerError(
                    f"{self.shown_url} cannot be trusted: {reason}; set SSL_CERT_FILE to the "
                    "certificate of its authority, or start "
                    f"{self.section}.url with http:// if the server has no TLS"
                ) from None
            raise OSError(reason) from None
        return response.status, response.headers, bytes(answer)

    def break_connections(self) -> None:
        """Breaks all connections, so that running requests fail; any thread may call it."""
        self._is_broken = True
        for connected in list(self._sockets):
            shut_down(connected)

    def close(self) -> None:
        """Closes idle connections."""
        self._pools.clear()

    def _no_address(self) -> ServerError:
        return ServerError(f"{self.shown_url} is no valid address; correct {self.section}.url")

    def error_text(self, answer: bytes) -> str:
        """Returns the server's error message as one line, without the key."""
        return error_in(answer, self._key)

    def _reason(self, error: BaseException) -> str:
        """Describes a connection error by its innermost cause, without the key."""
        causes = [error, *error.args, error.__cause__]
        inner = next((e for e in reversed(causes) if isinstance(e, BaseException)), error)
        if inner is not error:
            return self._reason(inner)
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return unended(_shown(text, self._key))

    def misconfigured(self, status: int, answer: bytes, location: str | None = None) -> ServerError:
        """Returns the error, with a remedy, for a status that another try would not change."""
        config, section = self._config, self.section
        if status in (401, 403):
            remedy = f"{config.key_from} is not set: set it to the server's key"
            if self._key:
                remedy = f"set {config.key_from} to a key that the server accepts"
        elif status in (402, 429):
            remedy = f"the account has no credit: add credit, or set another {section}.url"
        elif 300 <= status < 400:
            there = _shown(shown_url(urljoin(config.url or "", location or "")), self._key)
            remedy = f"set {section}.url to the target of the redirect: {there}"
        else:
            remedy = (
                f"expected {section}.url to be the address before {self._endpoint}, such as "
                f"http://vlm:8000/v1, and {section}.model, {config.model!r}, to be a name at the "
                "server"
            )
        message = unended(with_status(status, self.error_text(answer) or "nothing"))
        return ServerError(f"{self.shown_url} answers {message}; {remedy}")


def with_status(status: int, message: str) -> str:
    """Puts the status before the server's message, without repeating a status in the message."""
    return f"{status}: {re.sub(rf'^{status}(:|(?= [A-Z])) *', '', message)}"


def unended(message: str) -> str:
    """Removes final punctuation, so that more text can follow."""
    return message.rstrip(" .;:")


def error_in(body: bytes, secret: str) -> str:
    """Returns the server's error message as one line, without the secret.

    Servers send the message as `error.message`, `error`, `message`, `detail` or plain text.
    """
    text = body.decode("utf-8", "replace")
    try:
        answer = load_bounded(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or error
        text = error if isinstance(error, str) else orjson.dumps(error).decode()
    return _shown(text, secret)


def _shown(text: str, secret: str) -> str:
    """Shortens a text to one line, without the secret and pictures."""
    # Before the text is cut, because half a key would not be found.
    for form in (secret, quote(secret, safe="")) if secret else ():
        text = text.replace(form, "***")
    text = " ".join(_BLOB.sub("...", text).split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 3] + "..."


def is_out_of_money(body: bytes) -> bool:
    """Returns whether a 429 means that the account has no credit, so waiting does not help."""
    try:
        error = load_bounded(body)["error"]
        return not _NO_CREDIT.isdisjoint((error.get("code"), error.get("type")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the wait of `Retry-After`, which has seconds or a date; None without the header."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def backoff_s(n_tries: int, asked_s: float | None, *, first_s: float = 1.0) -> float:
    """Returns the wait in seconds after `n_tries` tries; `asked_s` is the wait that a server names.

    Without `asked_s`, the longest wait doubles each time. A random part keeps clients out of step.
    """
    if asked_s is not None:
        return asked_s + _RANDOM.uniform(0, min(1.0, 0.1 * asked_s))
    longest = min(_LONGEST_BACKOFF_S, first_s * 2.0 ** min(n_tries - 1, 30))
    return _RANDOM.uniform(longest / 2, longest)


def shown_url(url: str) -> str:
    """Returns an address without user, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
