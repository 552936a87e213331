"""Access to a server: its address, key and proxy, and what its errors mean.

No text from here holds the key, a user and password from an address, or pictures.
"""

import os
import re
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import orjson

from curator.errors import ServerError
from curator.json_bounds import load_bounded
from curator.stages.caption.config import ModelConfig

_MAX_DETAIL = 300
# Servers that check with pydantic echo the request, including pictures.
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{80,}")

# OpenAI's codes for an empty account, https://platform.openai.com/docs/guides/error-codes.
_NO_CREDIT = {"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached"}

_WORDS = {
    "ServerDisconnectedError": "the server closed the connection",
    "ConnectionTimeoutError": "no connection in time",
    "TimeoutError": "no answer in time",
    "ClientPayloadError": "the answer broke off",
}
"""Connection errors for which the operating system has no words, by class."""


class ServerAccess:
    """Address and key of the server of one section of the recipe."""

    def __init__(self, config: ModelConfig, section: str) -> None:
        if config.url is None or config.model is None:
            missing = "url" if config.url is None else "model"
            raise ServerError(f"{section}.{missing} is missing; expected those of a server")
        self._config = config
        self.section = section
        self.url = config.url.rstrip("/")
        self.shown_url = shown_url(config.url)
        self._key = os.environ.get(config.key_from, "").strip()
        # No quotes and backslashes either: servers escape them in many ways, so an echoed key would
        # not be found.
        if not re.fullmatch(r"[!#-&(-\[\]-~]*", self._key):
            raise ServerError(
                f"{config.key_from} holds spaces or letters that no key has; expected the key alone"
            )

    def headers(self) -> dict[str, str]:
        """Returns the headers of all requests."""
        key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return {"Content-Type": "application/json", **key}

    def proxy(self) -> str | None:
        """Returns the environment's proxy for the address (`HTTP_PROXY`, `NO_PROXY`)."""
        parts = urlsplit(self.url)
        return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)

    def said(self, answer: bytes) -> str:
        """Returns the server's error message in one line that can be stored."""
        return error_in(answer, self._key)

    def why(self, error: BaseException) -> str:
        """Describes a connection error without its address, which may hold a password."""
        reason = getattr(error, "os_error", None) or error
        text = getattr(reason, "strerror", None)
        if isinstance(reason, OSError) and (reason.errno or 0) > 0:
            text = os.strerror(reason.errno or 0)
        if text is None and isinstance(reason, ssl.SSLError | ValueError):
            text = str(reason)
        if text is None:
            text = _WORDS.get(type(error).__name__, type(error).__name__)
        return unended(_shown(text, self._key))

    def misconfigured(self, status: int, answer: bytes, location: str | None = None) -> ServerError:
        """Returns the error, with the remedy, for a status that no other try changes.

        `location` is the target of a redirection.
        """
        config, section = self._config, self.section
        if status in (401, 403):
            remedy = (
                f"set {config.key_from} to a key that the server takes"
                if self._key
                else f"{config.key_from} is not set: set it to the server's key"
            )
        elif status in (402, 429):
            remedy = (
                f"the account has no credit left: add some, or ask another server ({section}.url)"
            )
        elif 300 <= status < 400:
            there = _shown(shown_url(location or ""), self._key)
            remedy = f"set {section}.url to where it leads: {there}"
        else:
            remedy = (
                f"expected {section}.url to be the address before /chat/completions, such as "
                f"http://vlm:8000/v1, and {section}.model, {config.model!r}, to be a name at the "
                "server"
            )
        said = unended(with_status(status, self.said(answer) or "nothing"))
        return ServerError(f"{self.shown_url} answers {said}; {remedy}")


def with_status(status: int, said: str) -> str:
    """Puts the status before the server's words, unless these already have it."""
    return f"{status}: {re.sub(rf'^{status}(:|(?= [A-Z])) *', '', said)}"


def unended(said: str) -> str:
    """Removes the final punctuation, so that other words can follow."""
    return said.rstrip(" .;:")


def error_in(body: bytes, secret: str) -> str:
    """Returns the server's error message in one line that can be stored, without a secret.

    It is in `error.message`, `error`, `message` or `detail`, or is plain text.
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
    """Shortens a text to one line without key and pictures."""
    # Before the cut, because half a key would not be found.
    if secret:
        for form in (secret, quote(secret, safe="")):
            text = text.replace(form, "***")
    text = " ".join(_BLOB.sub("...", text).split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 3] + "..."


def is_out_of_money(body: bytes) -> bool:
    """Returns whether a 429 means that no credit is left, so that waiting does not help."""
    try:
        error = load_bounded(body)["error"]
        return not _NO_CREDIT.isdisjoint((error.get("code"), error.get("type")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the wait of `Retry-After`, given in seconds or as a date; None without one."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def shown_url(url: str) -> str:
    """Returns an address without user, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
