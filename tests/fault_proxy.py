"""A proxy between a client and an S3 server that fails, delays and damages a share of the answers.

Each connection is one request; the head is passed on as it is, so that signatures stay valid.
"""

import asyncio
import base64
import hashlib
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape
from typing import Self
from urllib.parse import unquote, urlsplit

KINDS = ("error", "reset", "lost", "cut", "slow", "flip")
"""500 or 503; a reset before the server has the request; one after; a body that ends early or
waits in the middle; one bit of what a GET gets, or of what a PUT sends."""

Refusal = Callable[[int, str, str], str | None]
"""Of number, method and path of a request: the code of S3 under which it is refused with 403."""


Unlisted = Callable[[int, str], bool]
"""Of the number of a listing, from 1, and a key: whether the answer leaves the key out."""


Chooses = Callable[[str, int], int | None]
"""Takes what is sent (`GET` or `PUT`) and its number from 0; gives the byte to change, or None."""


def refuse_nothing(number: int, method: str, path: str) -> None:
    """The `Refusal` of nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        return _header(self.head, name)


@dataclass(kw_only=True)
class FaultProxy:
    """Serves in a thread, from `with` on.

    Attributes:
        server: Address of the S3 server.
        share: Of the requests that get a fault.
        kinds: Of faults; `flip` changes a bit of what is sent, which a server finds.
        seed: Of the choice, which also depends on the order of requests.
        checks: Whether the proxy compares what is sent with its MD5 or SHA-256, for a server that
            does not.
        refuse: See `Refusal`; without counting, because it is no fault of the network.
        unlisted: Makes listings stale; see `Unlisted`.
        choose: Decides about the bodies of objects that are read, and of those that are written.
        slow_s: How long a slow body waits.
        delay_s: How long each request waits before it is passed on.
        counts: Requests, faults by kind, and refusals.
    """

    server: str
    share: float = 0.05
    kinds: tuple[str, ...] = KINDS
    seed: int = 0
    checks: bool = False
    refuse: Refusal = refuse_nothing
    unlisted: Unlisted | None = None
    choose: Chooses = lambda kind, number: None
    slow_s: float = 2.0
    delay_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> Self:
        self._draw = random.Random(self.seed)
        self._loop = asyncio.new_event_loop()
        begun = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(begun)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()

    @property
    def url(self) -> str:
        """For `AWS_ENDPOINT_URL`."""
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    @property
    def n_faults(self) -> int:
        """Faults of all kinds."""
        return sum(self.counts[kind] for kind in KINDS)

    def changed(self, kind: str, body: bytes) -> bytes:
        """Changes the byte that is chosen of a body, and counts it as `chosen`."""
        at = self.choose(kind, self.counts[kind])
        self.counts[kind] += 1
        if at is None or not body:
            return body
        self.counts["chosen"] += 1
        data = bytearray(body)
        data[at % len(data)] ^= 0x10
        return bytes(data)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _received(reader, writer)
            answer = await self._answer(request, writer)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> bytes | None:
        """Returns what is still to be sent; None after a reset."""
        self.counts["requests"] += 1
        await asyncio.sleep(self.delay_s)
        refusal = self.refuse(self.counts["requests"], request.method, request.path)
        if refusal is not None:
            self.counts["refused"] += 1
            return _failure(403, refusal)
        kind = self._draw.choice(self.kinds) if self._draw.random() < self.share else None
        body = request.body
        if request.method == "PUT" and body:
            body = self.changed("PUT", body)
        if kind == "flip" and request.method == "PUT" and body:
            self.counts[kind] += 1
            body = self._flipped(body)
        if self.checks and not _is_as_sent(request, body):
            return _failure(400, "BadDigest")
        if kind == "error":
            self.counts[kind] += 1
            return _failure(*self._draw.choice([(500, "InternalError"), (503, "SlowDown")]))
        if kind == "reset":
            return self._reset(kind, writer)
        head, answered = await self._asked(request.head, body)
        if request.method == "GET" and "?" not in request.path and head[9:12] in (b"200", b"206"):
            answered = self.changed("GET", answered)
        if request.method == "GET" and "list-type=2" in request.path:
            head, answered = self._listing(head, answered)
        if kind == "lost":
            return self._reset(kind, writer)
        if request.method != "GET" or not answered or kind not in ("cut", "slow"):
            return head + answered
        self.counts[kind] += 1
        at = self._draw.randrange(len(answered))
        writer.write(head + answered[:at])
        await writer.drain()
        if kind == "cut":
            return b""
        await asyncio.sleep(self.slow_s)
        return answered[at:]

    async def _asked(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Passes a request on; returns head and body of the answer."""
        parts = urlsplit(self.server)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            passed = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head[:-4])
            writer.write(passed + b"\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
            data = await reader.read(-1)
        finally:
            writer.close()
        answer, _, answered = data.partition(b"\r\n\r\n")
        if _header(answer, "transfer-encoding"):
            answer = re.sub(rb"(?i)\r\n(transfer-encoding|content-length):[^\r]*", b"", answer)
            answered = _joined(answered)
            answer += f"\r\nContent-Length: {len(answered)}".encode()
        return re.sub(rb"^HTTP/1.0", b"HTTP/1.1", answer) + b"\r\n\r\n", answered

    def _listing(self, head: bytes, answered: bytes) -> tuple[bytes, bytes]:
        self.counts["LIST"] += 1
        unlisted, number = self.unlisted, self.counts["LIST"]
        if unlisted is None:
            return head, answered

        def entry(match: re.Match[bytes]) -> bytes:
            return b"" if unlisted(number, unescape(unquote(match[1].decode()))) else match[0]

        pattern = rb"<Contents>(?:(?!</Contents>).)*?<Key>([^<]*)</Key>.*?</Contents>"
        answered = re.sub(pattern, entry, answered, flags=re.DOTALL)
        length = f"\r\nContent-Length: {len(answered)}".encode()
        return re.sub(rb"(?i)\r\ncontent-length:[^\r]*", length, head), answered

    def _flipped(self, data: bytes) -> bytes:
        at = self._draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._draw.randrange(8)]) + data[at + 1 :]

    def _reset(self, kind: str, writer: asyncio.StreamWriter) -> None:
        self.counts[kind] += 1
        writer.transport.abort()


async def _received(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Request:
    head = await reader.readuntil(b"\r\n\r\n")
    if _header(head, "expect"):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head)
    body = await reader.readexactly(int(_header(head, "content-length") or 0))
    method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    return _Request(method=method, path=path, head=head, body=body)


def _header(head: bytes, name: str) -> str:
    found = re.search(rf"(?im)^{name}:\s*([^\r]*)".encode(), head)
    return found[1].decode() if found else ""


def _joined(chunked: bytes) -> bytes:
    """Returns the body that came in chunks, each after its length."""
    body, at = b"", 0
    while n_bytes := int(chunked[at : (begin := chunked.index(b"\r\n", at) + 2)], 16):
        body += chunked[begin : begin + n_bytes]
        at = begin + n_bytes + 2
    return body


def _is_as_sent(request: _Request, body: bytes) -> bool:
    md5, sha256 = request.header("content-md5"), request.header("x-amz-content-sha256")
    if md5 and base64.b64decode(md5) != hashlib.md5(body, usedforsecurity=False).digest():
        return False
    return len(sha256) != 64 or sha256 == hashlib.sha256(body).hexdigest()


def _failure(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>made by the proxy</Message></Error>".encode()
    return (
        f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body
