"""One deadline over a whole exchange with a server that sends a byte at a time."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress

import pytest

from curator.errors import UnreachableError
from curator.models import server_access
from curator.models.server_access import ServerAccess
from curator.stages.caption.config import ModelConfig

LIMIT_S = 0.4
OK = b"HTTP/1.1 200 OK\r\n"
NEXT_REQUEST = b""
"""Stands among pieces where the server waits for another request."""


@pytest.fixture
def served() -> Iterator[Callable[[Iterable[bytes]], str]]:
    """Starts a server that reads one request and sends pieces, 20 ms apart, until it is cut off."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(pieces: Iterable[bytes]) -> None:
            with suppress(OSError):
                while True:
                    connected, _ = server.accept()
                    with connected, suppress(OSError):
                        connected.recv(1 << 16)
                        for piece in pieces:
                            if piece == NEXT_REQUEST:
                                connected.recv(1 << 16)
                            connected.sendall(piece)
                            time.sleep(0.02)

        def start(pieces: Iterable[bytes]) -> str:
            threading.Thread(target=serve, args=(pieces,), daemon=True).start()
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield start
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _byte_by_byte(text: bytes) -> list[bytes]:
    return [text[i : i + 1] for i in range(len(text))]


@pytest.mark.parametrize(
    "pieces",
    [
        _byte_by_byte(OK + b"Content-Length: 2\r\n\r\n{}"),
        [OK + b"Content-Length: 999\r\n\r\n", *itertools.repeat(b" ", 99)],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n", *itertools.repeat(b"1\r\n \r\n", 99)],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n", *itertools.repeat(b"0", 99)],
        [*itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n", 99)],
        [OK, *(b"X-%d: y\r\n" % i for i in range(99))],
        [b"HTTP/1.1 302 Found\r\nLocation: /", *itertools.repeat(b"x", 99)],
    ],
    ids=["headers", "body", "chunks", "chunk-length", "continue", "headers-2", "redirect"],
)
def test_a_request_ends_at_its_limit_whatever_the_server_drips(
    served: Callable[[Iterable[bytes]], str], pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the limit, and that no thread stays."""
    _ends_at_the_limit(f"http://{served(pieces)}/v1", monkeypatch)


def test_a_proxy_that_drips_ends_at_the_limit(
    served: Callable[[Iterable[bytes]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n", *itertools.repeat(b"x", 99)]
    monkeypatch.setenv("https_proxy", f"http://{served(pieces)}")
    _ends_at_the_limit("https://192.0.2.1/v1", monkeypatch)


def _ends_at_the_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_access, "_GRACE_S", 0.05)
    begun = time.monotonic()
    with closing(ServerAccess(ModelConfig(model="m", url=url), "caption")) as access:
        with pytest.raises(TimeoutError):
            access.send("POST", "/chat/completions", b"{}", LIMIT_S)
        assert time.monotonic() - begun < LIMIT_S + 1.0
    ends_s = time.monotonic() + 2
    while any(thread.name == "request" for thread in threading.enumerate()):
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_a_handshake_of_single_bytes_ends_at_the_limit(
    served: Callable[[Iterable[bytes]], str],
) -> None:
    address = served(_byte_by_byte(b"\x16\x03\x03\x40\x00" + b"\x02" * 99))
    begun = time.monotonic()
    with closing(ServerAccess(ModelConfig(model="m", url=f"https://{address}"), "caption")) as own:
        with pytest.raises((TimeoutError, OSError, UnreachableError)):
            own.send("GET", "/models", None, LIMIT_S)
        assert time.monotonic() - begun < LIMIT_S + 1.0


def test_a_connection_is_used_again_after_an_answer(
    served: Callable[[Iterable[bytes]], str],
) -> None:
    """Pins that the thread of a request does not break the connection for the next request."""
    answer = OK + b"Content-Length: 2\r\n\r\n{}"
    url = f"http://{served([answer, NEXT_REQUEST, answer])}/v1"
    with closing(ServerAccess(ModelConfig(model="m", url=url), "caption")) as access:
        for _ in range(2):
            assert access.send("GET", "/models", None, 5.0)[::2] == (200, b"{}")
