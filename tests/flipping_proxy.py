"""A proxy in front of an S3 server that flips a bit in some bodies, as broken networks do."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Chooses = Callable[[str, int], int | None]
"""Takes what is sent (`GET` or `PUT`) and its number from 0; gives the byte to change, or None."""


class Flips:
    """What a proxy does, and did.

    Attributes:
        choose: Decides about the bodies of objects that are read, and of those that are written.
        n_flipped: Bodies that were changed.
    """

    def __init__(self) -> None:
        self.choose: Chooses = lambda kind, number: None
        self.n_flipped = 0
        self._counts = {"GET": 0, "PUT": 0}
        self._lock = threading.Lock()

    def changed(self, kind: str, body: bytes) -> bytes:
        with self._lock:
            at = self.choose(kind, self._counts[kind])
            self._counts[kind] += 1
            if at is None or not body:
                return body
            self.n_flipped += 1
        data = bytearray(body)
        data[at % len(data)] ^= 0x10
        return bytes(data)


@contextmanager
def flipping_proxy(endpoint: str) -> Iterator[tuple[str, Flips]]:
    """Gives the address of a proxy of an S3 server, and its settings."""
    flips = Flips()
    target = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            if self.headers.get("Expect"):
                self.send_response_only(100)
                self.end_headers()
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.command == "PUT" and body:
                body = flips.changed("PUT", body)
            server = http.client.HTTPConnection(target)
            headers = {name: value for name, value in self.headers.items() if name != "Expect"}
            server.request(self.command, self.path, body=body, headers=headers)
            answer = server.getresponse()
            data = answer.read()
            if self.command == "GET" and "?" not in self.path and answer.status in (200, 206):
                data = flips.changed("GET", data)
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            server.close()

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _forward  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", flips
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
