"""Access to a server: its key, its proxy, and remedies for refusals.

No text from here holds the key, or a user and password from an address.
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
"""Connection errors for which the operating system has no words, by class."""


def key_of(config: ModelConfig) -> str | None:
    """Returns the server's key from the environment, or None.

    Raises:
        ServerError: The variable holds characters that no HTTP header can.
    """
    key = os.environ.get(config.key_from, "").strip()
    if not key:
        return None
    # No quotes and backslashes either: servers escape them in many ways, so an echoed key would not
    # be found.
    if not re.fullmatch(r"[!#-&(-\[\]-~]+", key):
        raise ServerError(
            f"{config.key_from} holds spaces or letters that no key has; expected the key alone"
        )
    return key


def proxy_of(url: str) -> str | None:
    """Returns the environment's proxy for an address (`HTTP_PROXY`, `NO_PROXY`)."""
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
    """Returns the error, with the remedy, for a status that no other try changes.

    The message names `url`, `model`, `key_from`, and the recipe's section, but never the key.
    `location` is the target of a redirection.
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
    """Puts the status before the server's words, unless these already have it."""
    return f"{status}: {re.sub(rf'^{status}(:|(?= [A-Z])) *', '', said)}"


def unended(said: str) -> str:
    """Removes the final punctuation, so that other words can follow."""
    return said.rstrip(" .;:")


def words_of(error: BaseException, key: str | None) -> str:
    """Describes a connection error without its address, which may hold a password."""
    reason = getattr(error, "os_error", None) or error
    text = getattr(reason, "strerror", None)
    if isinstance(reason, OSError) and (reason.errno or 0) > 0:
        text = os.strerror(reason.errno or 0)
    if text is None and isinstance(reason, ssl.SSLError | ValueError):
        text = str(reason)
    if text is None:
        text = _WORDS.get(type(error).__name__, type(error).__name__)
    return unended(shown(text, key))
