"""Access to a server: its key, its proxy, and what to do where it refuses.

No text that is made here holds the key, or a user and password from an address.
"""

import os
import re
import ssl
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from curator.errors import ServerError
from curator.stages.caption.captioners.chat_wire import error_in, shown, shown_url
from curator.stages.caption.config import ModelConfig

_WORDS = {
    "ServerDisconnectedError": "the server closed the connection",
    "ConnectionTimeoutError": "no connection in time",
    "TimeoutError": "no answer in time",
    "ClientPayloadError": "the answer broke off",
}
"""Errors of the connection that have no words of the operating system, by their class."""


def key_of(config: ModelConfig) -> str | None:
    """The server's key from the environment; None for no key.

    Raises:
        ServerError: The variable holds what no HTTP header can.
    """
    key = os.environ.get(config.key_from, "").strip()
    if not key:
        return None
    # No quotes and backslashes either: they are written in many ways, in which a key that a server
    # sends back would not be found.
    if not re.fullmatch(r"[!#-&(-\[\]-~]+", key):
        raise ServerError(
            f"{config.key_from} holds spaces or letters that no key has; expected the key alone"
        )
    return key


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address (`HTTP_PROXY`, `NO_PROXY`)."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


def misconfigured(
    config: ModelConfig,
    key: str | None,
    status: int,
    answer: bytes,
    location: str | None = None,
    *,
    section: str = "caption",
) -> ServerError:
    """The error for a status that no other try changes, with the remedy.

    Args:
        config: `url`, `model` and `key_from` are named.
        key: Is not named.
        status: Of the answer.
        answer: Its body.
        location: Where a redirection leads.
        section: Of the recipe that has the configuration: `caption` or `caption.judge`.
    """
    if status in (401, 403):
        remedy = (
            f"{config.key_from} is not set: set it to the server's key"
            if key is None
            else f"set {config.key_from} to a key that the server takes"
        )
    elif status in (402, 429):
        remedy = f"the account has no credit left: add some, or ask another server ({section}.url)"
    elif 300 <= status < 400:
        remedy = f"set {section}.url to where it leads: {shown(shown_url(location or ''), key)}"
    else:
        remedy = (
            f"expected {section}.url to be the address before /chat/completions, such as "
            f"http://vlm:8000/v1, and {section}.model, {config.model!r}, to be a name at the server"
        )
    said = unended(with_status(status, error_in(answer, key) or "nothing"))
    return ServerError(f"{shown_url(str(config.url))} answers {said}; {remedy}")


def with_status(status: int, said: str) -> str:
    """What a server said after its status, which many say themselves."""
    return f"{status}: {re.sub(rf'^{status}(:|(?= [A-Z])) *', '', said)}"


def unended(said: str) -> str:
    """Words without their end, so that others can follow."""
    return said.rstrip(" .;:")


def words_of(error: BaseException, key: str | None) -> str:
    """An error of the connection without its address, which may hold a password."""
    reason = getattr(error, "os_error", None) or error
    text = getattr(reason, "strerror", None)
    if isinstance(reason, OSError) and (reason.errno or 0) > 0:
        text = os.strerror(reason.errno or 0)
    if text is None and isinstance(reason, ssl.SSLError | ValueError):
        text = str(reason)
    if text is None:
        text = _WORDS.get(type(error).__name__, type(error).__name__)
    return unended(shown(text, key))
