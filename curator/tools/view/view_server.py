"""The web server of `curate view`: checks requests, and answers from one run.

Each request needs the token of the process. The server refuses requests that name another host or
come from another page. Addresses hold no file paths, so the server can serve only the run.
"""

import asyncio
import hmac
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from curator.errors import CuratorError, RecipeError, UsageError
from curator.number_text import plain
from curator.tools.retrieval.clip_search import ClipSearch
from curator.tools.view.viewed_run import PAGE, ClipQuery, ViewedRun
from curator.value_errors import explain

ASSETS = {"view.js": "text/javascript", "view.css": "text/css"}
MAX_BODY_BYTES = 32 << 20
"""Maximum length of a picture to search by; other requests are far smaller."""
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
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Whole = Annotated[int, Field(ge=0, lt=1 << 40)]


class _Asked(BaseModel):
    """A request as JSON; an empty field counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _none_for_empty(cls, value: object) -> object:
        return None if value == "" else value


class _Changes(_Asked):
    changes: list[str] = Field([], max_length=MAX_CHANGES)
    scores: list[str] = Field([], max_length=MAX_SCORES)


class _Page(_Asked, ClipQuery):
    changes: list[str] = Field([], max_length=MAX_CHANGES)
    start: Whole = 0
    n: Whole = PAGE


class _Marked(_Asked):
    verdict: str | None = None
    label: str | None = None
    note: str | None = None
    caption: str | None = None
    query: _Page | None = None

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True, exclude={"query"})


class _Search(_Asked):
    k: Annotated[Whole, Field(strict=False)] = 20
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """Passes requests that name this host, come from its own page, and have the token.

    Attributes:
        app: Answers the requests that pass.
        token: First segment of each path. A cookie would reach all ports of the host.
        port: Port on which the server listens.
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

        token, slash, path = scope["path"].removeprefix("/").partition("/")
        is_known = slash and hmac.compare_digest(token.encode(), self.token.encode())
        scope = {**scope, "path": f"/{path}"}
        refusal = self._refusal(scope)
        if refusal is None and not is_known:
            refusal = 401, "this is not the address of the running `curate view`"
        if refusal is None:
            return await self.app(scope, receive, send_guarded)
        message = f"{refusal[1]}; open the address that `curate view` prints"
        answer: Response = _error(refusal[0], message)
        if "text/html" in Headers(scope=scope).get("accept", ""):
            # A person opened it, and no script of the page reads the answer.
            answer = PlainTextResponse(message, refusal[0])
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        if headers.get("host") not in hosts:
            return 421, "another host's name"
        origin = headers.get("origin")
        is_own = origin is None or origin in {f"http://{host}" for host in hosts}
        is_own = is_own and headers.get("sec-fetch-site") not in ("cross-site", "same-site")
        # Another page may link to the page itself.
        if not is_own and (scope["method"], scope["path"]) != ("GET", "/"):
            return 403, "a request of another page"
        return None


def make_app(run: ViewedRun, *, token: str, port: int) -> Guard:
    """Returns the ASGI application over a finished run."""
    pages = _Pages(run)
    routes = [
        Route("/", _asset("index.html", "text/html")),
        *(Route(f"/{name}", _asset(name, kind)) for name, kind in ASSETS.items()),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/clip/{clip_id}.mp4", pages.mp4),
        Route("/source/{clip_id}.mp4", pages.source_mp4),
        Route("/picture/{clip_id}/middle.jpg", pages.picture),
        Route("/picture/{clip_id}/{number:int}.jpg", pages.picture),
        Route("/api/overview", pages.overview),
        Route("/api/search/{by}", pages.search, methods=["POST"]),
        _post("/api/clips", _Page, lambda form: run.page(form, form.start, form.n)),
        _post(
            "/api/clip/{clip_id}", _Changes, lambda form, clip_id: run.clip(clip_id, form.changes)
        ),
        _post("/api/funnel", _Changes, lambda form: run.funnel_of(form.changes, form.scores)),
        _post("/api/exact", _Changes, lambda form: run.exactly(form.changes)),
        _post(
            "/api/mark/{clip_id}",
            _Marked,
            lambda form, clip_id: run.mark(clip_id, form.given(), form.query),
        ),
    ]
    wrong = (CuratorError, RecipeError, UsageError)
    handlers: Any = dict.fromkeys((*wrong, Exception), _failed)
    app = Starlette(routes=routes, exception_handlers=handlers)
    # A redirect would lose the token.
    app.router.redirect_slashes = False
    return Guard(app, token, port)


@contextmanager
def _told_fields(form: type[_Asked]) -> Iterator[None]:
    """Turns a validation error into a `UsageError` that names the fault and the valid fields."""
    try:
        yield
    except ValidationError as error:
        location, problem = explain(error, form)
        where = ".".join(location) or "the request"
        fields = ", ".join(form.model_fields)
        raise UsageError(f"{where}: {problem} (fields: {fields})") from error


def _post(path: str, form: type[_Asked], answer: Callable[..., Any]) -> Route:
    """Answers a form with JSON; `answer` gets the form and the parameters of the path."""

    async def handle(request: Request) -> Response:
        data = await _body(request) or b"{}"
        with _told_fields(form):
            asked = form.model_validate_json(data)
        return _json(await run_in_threadpool(answer, asked, **request.path_params))

    return Route(path, handle, methods=["POST"])


class _Pages:
    def __init__(self, run: ViewedRun) -> None:
        self._run = run

    async def overview(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._run.overview))

    async def search(self, request: Request) -> Response:
        by = request.path_params["by"]
        with _told_fields(_Search):
            asked = _Search.model_validate(dict(request.query_params))
        if by not in ClipSearch.BY or by == "video":
            raise UsageError(f"search by {by[:40]!r}; expected clip, picture or text")
        body = await _body(request)
        with tempfile.TemporaryDirectory() as folder:
            query = body.decode("utf-8", "replace").strip()
            if by == "picture":
                path = Path(folder, "picture")
                await run_in_threadpool(path.write_bytes, body)
                query = str(path)
            k = min(asked.k, MAX_FOUND)
            clips = await run_in_threadpool(self._run.search, by, query, k, asked.where)
        return _json({"n": len(clips), "clips": clips})

    async def picture(self, request: Request) -> Response:
        jpegs = await run_in_threadpool(self._run.pictures, request.path_params["clip_id"])
        number = request.path_params.get("number", len(jpegs) // 2)
        if not 0 <= number < len(jpegs):
            return _error(404, f"{len(jpegs)} pictures")
        return Response(jpegs[number], media_type="image/jpeg")

    async def source_mp4(self, request: Request) -> Response:
        mp4 = await run_in_threadpool(self._run.source_mp4, request.path_params["clip_id"])
        return Response(mp4, media_type="video/mp4")

    async def mp4(self, request: Request) -> Response:
        clip_id, store = request.path_params["clip_id"], self._run.finished.store
        shard, offset, n_bytes, kind = await run_in_threadpool(self._run.mp4_of, clip_id)
        headers = {"Accept-Ranges": "bytes"}
        start, end = 0, n_bytes
        # For several spans, or other units, a server may send the whole MP4.
        asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
        if asked is not None and asked.groups() != ("", ""):
            span = _span(asked[1], asked[2], n_bytes)
            if span is None:
                return Response(status_code=416, headers={"Content-Range": f"bytes */{n_bytes}"})
            start, end = span
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{n_bytes}"
        data = await run_in_threadpool(store.read_range, shard, offset + start, offset + end)
        status = 206 if "Content-Range" in headers else 200
        return Response(data, status, headers, media_type=kind)


def _span(first: str, last: str, n_bytes: int) -> tuple[int, int] | None:
    """Returns the bytes that a `Range` header of one span requests; None for an empty span."""
    if not first:
        return (max(0, n_bytes - int(last)), n_bytes) if int(last) else None
    start, end = int(first), min(int(last) + 1, n_bytes) if last else n_bytes
    return (start, end) if start < end else None


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise UsageError(f"more than {MAX_BODY_BYTES >> 20} MiB; expected a picture")
    return bytes(body)


def _json(value: object) -> Response:
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": plain(message)}, status)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, UsageError | RecipeError):
        return _error(400, str(error))
    if isinstance(error, CuratorError):
        again = "if OUT changed since `curate view` opened it, start `curate view` again"
        return _error(502, f"{error}; {again}")
    why = f"{type(error).__name__}: {error}"
    return _error(500, f"{why}; the terminal of `curate view` has the traceback")


def _asset(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        data = resources.files("curator.tools.view").joinpath("assets", name).read_bytes()
        return Response(data, media_type=kind)

    return answer


def serve(app: Guard, listener: Any) -> None:  # noqa: ANN401 - a socket
    """Answers until the process is interrupted."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
