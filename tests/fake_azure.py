"""Azure Blob Storage on this machine: the requests that `az://` makes, without authentication."""

import base64
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

DATE = "Wed, 01 Jan 2025 00:00:00 GMT"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    blobs: dict[str, bytes]
    blocks: dict[tuple[str, str], bytes]
    lock = threading.Lock()

    def do_PUT(self) -> None:
        key, query = self._asked()
        body = self._body()
        match query.get("comp"):
            case "block":
                self.blocks[key, query["blockid"]] = body
            case "blocklist":
                text = body.decode()
                names = [part.partition("<")[0] for part in text.split("<Uncommitted>")[1:]]
                self.blobs[key] = b"".join(self.blocks.pop((key, name)) for name in names)
            case _:
                with self.lock:
                    code = self._refusal(key)
                    if code is None:
                        self.blobs[key] = body
                if code is not None:
                    self._answer(code)
                    return
        self._answer(201, headers={"ETag": self._etag(self.blobs.get(key, b""))})

    def _refusal(self, key: str) -> int | None:
        """The code of a condition that does not hold."""
        there = self.blobs.get(key)
        if self.headers.get("If-None-Match") == "*" and there is not None:
            return 409
        wanted = self.headers.get("If-Match")
        return 412 if wanted and (there is None or self._etag(there) != wanted) else None

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_POST(self) -> None:
        """A batch of DELETE requests."""
        answers = ""
        for number, line in enumerate(re.findall(r"DELETE (\S+) HTTP", self._body().decode())):
            key = urllib.parse.unquote(urllib.parse.urlsplit(line).path).split("/", 2)[2]
            said = "404 NotFound" if self.blobs.pop(key, None) is None else "202 Accepted"
            answers += (
                f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {said}\r\nx-ms-version: 2018-11-09\r\n\r\n"
            )
        headers = {"Content-Type": "multipart/mixed; boundary=b"}
        self._answer(202, f"{answers}--b--\r\n".encode(), headers)

    def _get(self) -> None:
        key, query = self._asked()
        if query.get("comp") == "list":
            self._answer(200, self._listing(query.get("prefix", "")).encode())
            return
        data = self.blobs.get(key)
        if data is None:
            self._answer(404)
            return
        headers = {"ETag": self._etag(data), "Last-Modified": DATE, "x-ms-blob-type": "BlockBlob"}
        wanted = self.headers.get("Range") or self.headers.get("x-ms-range")
        if wanted is None:
            self._answer(200, data, headers)
            return
        first, last = (int(x) for x in wanted.removeprefix("bytes=").split("-"))
        if first >= len(data):
            self._answer(416)
            return
        last = min(last, len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], headers)

    def _listing(self, prefix: str) -> str:
        rows = (
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{DATE}</Last-Modified>"
            f"<Content-Length>{len(data)}</Content-Length><Etag>{self._etag(data)}</Etag>"
            "<Content-Type>x</Content-Type></Properties></Blob>"
            # Not in the order of the keys, as with a hierarchical namespace.
            for key, data in sorted(self.blobs.items(), reverse=True)
            if key.startswith(prefix)
        )
        return (
            f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{"".join(rows)}'
            "</Blobs><NextMarker/></EnumerationResults>"
        )

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        segments = urllib.parse.unquote(parts.path).split("/", 2)
        return (segments[2] if len(segments) > 2 else ""), query

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _etag(self, data: bytes) -> str:
        return f'"{base64.b16encode(md5(data).digest()).decode()}"'

    def _answer(self, code: int, body: bytes = b"", headers: dict[str, Any] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def azure_server() -> Iterator[str]:
    """A server with no blobs; gives its address."""
    handler = type("Handler", (_Handler,), {"blobs": {}, "blocks": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
