"""The web page of `curate view`: who may ask, and what is answered.

All requests need the token of the process. None is answered for another host's name or page, and
nothing but the run is served: there are no paths of files in addresses.
"""

import asyncio
import hmac
import re
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from curator.errors import CuratorError, RecipeError, UsageError
from curator.number_text import plain
from curator.retrieval.clip_search import ClipSearch
from curator.tables.mark_table import TEXT_LIMITS
from curator.view.viewed_run import PAGE, ClipQuery, Side, ViewedRun, read_span

ASSETS = {"view.js": "text/javascript", "view.css": "text/css"}
MAX_BODY_BYTES = 32 << 20
"""Of a picture that is searched by; other requests are far smaller."""
MAX_CHANGES, MAX_SCORES, MAX_FOUND = 100, 60, 200
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
Json = dict[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets requests pass that name this host, come from its own page, and have the token.

    Attributes:
        app: What answers them.
        token: The first address carries it; then a cookie does.
        port: Where the server listens.
    """

    app: Callable[..., Awaitable[None]]
    token: str
    port: int

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it; all answers have the headers of the policy."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refusal(scope) or self._sign_in(scope)
        await (answer or self.app)(scope, receive, send_guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> Response | None:
        headers = Headers(scope=scope)
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        if headers.get("host") not in hosts:
            return _error(421, "another host's name; open the address that `curate view` prints")
        origin = headers.get("origin")
        is_own = origin is None or origin in {f"http://{host}" for host in hosts}
        is_own = is_own and headers.get("sec-fetch-site") not in ("cross-site", "same-site")
        # Another page may link to the page itself, which asks for the token then.
        if not is_own and (scope["method"], scope["path"]) != ("GET", "/"):
            return _error(403, "a request of another page")
        return None

    def _sign_in(self, scope: MutableMapping[str, Any]) -> Response | None:
        """Returns what to do about the token; None where the request has it as a cookie."""
        cookie = f"curate_view_{self.port}"
        if self._is_token(Request(scope).cookies.get(cookie, "")):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._is_token(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, self.token, httponly=True, samesite="strict")
            return answer
        return _error(401, "no token; open the address that `curate view` prints")

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())


def make_app(run: ViewedRun, *, token: str, port: int) -> Guard:
    """Returns the ASGI application over a finished run."""
    pages = _Pages(run)
    routes = [
        Route("/", _asset("index.html", "text/html")),
        *(Route(f"/{name}", _asset(name, kind)) for name, kind in ASSETS.items()),
        Route("/favicon.ico", _nothing),
        Route("/clip/{clip_id}.mp4", pages.mp4),
        Route("/source/{clip_id}.mp4", pages.source_mp4),
        Route("/picture/{clip_id}/{number:int}.jpg", pages.picture),
        Route("/api/overview", pages.overview),
        Route("/api/clip/{clip_id}", pages.clip, methods=["POST"]),
        Route("/api/clips", pages.clips, methods=["POST"]),
        Route("/api/funnel", pages.funnel, methods=["POST"]),
        Route("/api/exact", pages.exact, methods=["POST"]),
        Route("/api/mark/{clip_id}", pages.mark, methods=["POST"]),
        Route("/api/search/{by}", pages.search, methods=["POST"]),
    ]
    handlers: Any = {CuratorError: _failed, RecipeError: _failed, UsageError: _failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)


class _Pages:
    def __init__(self, run: ViewedRun) -> None:
        self._run = run

    async def overview(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._run.overview))

    async def clips(self, request: Request) -> Response:
        asked = await _asked(request)
        start, n = _whole(asked.pop("start", 0)), _whole(asked.pop("n", PAGE))
        return _json(await run_in_threadpool(self._run.page, _query(asked), start, n))

    async def clip(self, request: Request) -> Response:
        changes = _texts(await _asked(request), "changes", MAX_CHANGES)
        return _json(
            await run_in_threadpool(self._run.clip, request.path_params["clip_id"], changes)
        )

    async def funnel(self, request: Request) -> Response:
        asked = await _asked(request)
        changes = _texts(asked, "changes", MAX_CHANGES)
        scores = _texts(asked, "scores", MAX_SCORES)
        return _json(await run_in_threadpool(self._run.funnel_of, changes, scores))

    async def exact(self, request: Request) -> Response:
        changes = _texts(await _asked(request), "changes", MAX_CHANGES)
        return _json({"lines": await run_in_threadpool(self._run.exactly, changes)})

    async def mark(self, request: Request) -> Response:
        asked = await _asked(request)
        names = ("verdict", *TEXT_LIMITS)
        strange = set(asked) - set(names)
        if strange or any(not isinstance(v, str | None) for v in asked.values()):
            raise UsageError(f"a mark has some of {', '.join(names)}, each a text or null")
        content = {name: value or None for name, value in asked.items()}
        clip_id = request.path_params["clip_id"]
        return _json(await run_in_threadpool(self._run.mark, clip_id, content))

    async def search(self, request: Request) -> Response:
        by, k = request.path_params["by"], _whole(request.query_params.get("k", "20"))
        where = request.query_params.get("where") or None
        if by not in ClipSearch.BY or by == "video":
            raise UsageError(f"search by {by[:40]!r}; expected clip, picture or text")
        body = await _body(request)
        with tempfile.TemporaryDirectory() as folder:
            query = body.decode("utf-8", "replace").strip()
            if by == "picture":
                path = Path(folder, "picture")
                await run_in_threadpool(path.write_bytes, body)
                query = str(path)
            found = await run_in_threadpool(self._run.search, by, query, min(k, MAX_FOUND), where)
        return _json({"n": len(found), "clips": found})

    async def picture(self, request: Request) -> Response:
        clip_id, number = request.path_params["clip_id"], request.path_params["number"]
        jpegs = await run_in_threadpool(self._run.pictures, clip_id)
        if not 0 <= number < len(jpegs):
            return _error(404, f"{len(jpegs)} pictures")
        return Response(jpegs[number], media_type="image/jpeg")

    async def source_mp4(self, request: Request) -> Response:
        mp4 = await run_in_threadpool(self._run.source_mp4, request.path_params["clip_id"])
        return Response(mp4, media_type="video/mp4")

    async def mp4(self, request: Request) -> Response:
        clip_id = request.path_params["clip_id"]
        _, _, n_bytes = await run_in_threadpool(self._run.mp4_of, clip_id)
        headers = {"Accept-Ranges": "bytes"}
        start, end = 0, n_bytes
        # Of several spans, or of other units, a server may send the whole.
        asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
        if asked is not None and asked.groups() != ("", ""):
            span = _span(asked[1], asked[2], n_bytes)
            if span is None:
                return Response(status_code=416, headers={"Content-Range": f"bytes */{n_bytes}"})
            start, end = span
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{n_bytes}"
        data = await run_in_threadpool(read_span, self._run, clip_id, start, end)
        status = 206 if "Content-Range" in headers else 200
        return Response(data, status, headers, media_type="video/mp4")


def _span(first: str, last: str, n_bytes: int) -> tuple[int, int] | None:
    """Returns the bytes that a header `Range` of one span asks for; None where it has none."""
    if not first:
        return (max(0, n_bytes - int(last)), n_bytes) if int(last) else None
    start, end = int(first), min(int(last) + 1, n_bytes) if last else n_bytes
    return (start, end) if start < end else None


def _query(asked: Json) -> ClipQuery:
    fields = ClipQuery.__dataclass_fields__
    if strange := set(asked) - set(fields):
        raise UsageError(f"{', '.join(sorted(strange))[:80]}; expected {', '.join(fields)}")
    changes = tuple(_texts(asked, "changes", MAX_CHANGES))
    given = {name: value for name, value in asked.items() if value not in (None, "", [])}
    kinds = {"cluster": int, "descending": bool}
    for name, value in given.items():
        if name != "changes" and type(value) is not kinds.get(name, str):
            raise UsageError(f"{name} is {str(value)[:80]!r}; expected {kinds.get(name, str)}")
    if given.get("side") not in (None, *get_args(Side)):
        raise UsageError(f"side is {given['side'][:80]!r}; expected {', '.join(get_args(Side))}")
    return ClipQuery(**given | {"changes": changes})


def _texts(asked: Json, name: str, most: int) -> list[str]:
    values = asked.get(name) or []
    is_list = isinstance(values, list) and all(isinstance(value, str) for value in values)
    if not is_list or len(values) > most:
        raise UsageError(f"{name}: expected a list of at most {most} texts")
    return list(values)


def _whole(value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 40:
        raise UsageError(f"{str(value)[:40]!r}; expected a whole number from 0")
    return number


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise UsageError(f"more than {MAX_BODY_BYTES >> 20} MiB; expected a picture")
    return bytes(body)


async def _asked(request: Request) -> Json:
    try:
        asked = orjson.loads(await _body(request) or b"{}")
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise UsageError("the request is no JSON object")
    return asked


def _json(value: Json) -> Response:
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": plain(message)}, status)


async def _failed(request: Request, error: Exception) -> Response:
    return _error(400 if isinstance(error, UsageError | RecipeError) else 502, str(error))


async def _nothing(request: Request) -> Response:
    return Response(status_code=204)


def _asset(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        data = resources.files("curator.view").joinpath("assets", name).read_bytes()
        return Response(data, media_type=kind)

    return answer


def serve(app: Guard, listener: Any) -> None:  # noqa: ANN401 - a socket
    """Answers until the process is interrupted."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
