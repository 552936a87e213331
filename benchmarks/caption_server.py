"""Runs a model server of known capacity for `captions.py`: slots, seconds per answer, counters.

    caption_server.py PORT SLOTS SERVICE_S

Every answer occupies a slot for SERVICE_S seconds; further requests queue. As in vLLM, a request
whose client disconnects frees its slot. Answers are JSON that fits the request's schema, and
different requests get different answers. GET /stats returns the number and times of requests and
answers. POST /reset (slots, service_s, bad) resets the counters; with `bad`, a quarter of the
windows get the answers of `BAD`, each a twentieth.
"""

import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from typing import Any

from aiohttp import web

MAX_BODY_BYTES = 1 << 28
BAD = ("broken", "types", "endless", "never", "once")
"""Answers of a server that does not do what it is asked: JSON that breaks off, wrong types, 10 MB,
none at all; and JSON that breaks off at first and is right when it is asked for again."""
NEVER_S = 3600.0
SENTENCE = (
    "A {name} with the number {tag} moves slowly across a wide green field from left to right."
)


class Server:
    """Answers requests, and counts them."""

    def __init__(self, slots: int, service_s: float) -> None:
        self.reset(slots, service_s)

    def reset(self, slots: int, service_s: float, *, bad: bool = False) -> None:
        self.bad = bad
        self.free = asyncio.Semaphore(slots)
        self.service_s = service_s
        self.received: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.times: list[float] = []
        self.first: float | None = None
        self.n_bytes = 0

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.read()
        asked = json.loads(body)
        if "response_format" not in asked:
            # The run's first request tests grey pictures, and is not part of the measurement.
            choice = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice]})
        key = hashlib.blake2b(body, digest_size=8).hexdigest()
        self.received[key] += 1
        self.n_bytes += len(body)
        self.first = self.first or time.time()
        async with self.free:
            await asyncio.sleep(self.service_s)
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError
        self.answered[key] += 1
        self.times.append(time.time())
        schema = asked["response_format"]["json_schema"]["schema"]
        text = json.dumps(filled(schema, "thing", key[:6]))
        fault = fault_of(asked) if self.bad else None
        if fault == "never":
            await asyncio.sleep(NEVER_S)
        elif fault is not None:
            text = spoilt(fault, text, schema)
        message = {"role": "assistant", "content": text}
        return web.json_response(
            {
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 2000, "completion_tokens": 300},
            }
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "timed"}]})

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "received": sum(self.received.values()),
                "answered": sum(self.answered.values()),
                "distinct": len(self.answered),
                "answered_again": sum(n - 1 for n in self.answered.values()),
                "first": self.first,
                "times": self.times,
                "bytes": self.n_bytes,
            }
        )

    async def begin_anew(self, request: web.Request) -> web.Response:
        options = await request.json()
        self.reset(options["slots"], options["service_s"], bad=options.get("bad", False))
        return web.json_response({})


def fault_of(asked: dict[str, Any]) -> str | None:
    """Returns the fault of the answers about the pictures of a request, or None."""
    turns = [turn for turn in asked["messages"] if turn["role"] != "system"]
    pictures = json.dumps(turns[0]["content"][:-1]).encode()
    number = int.from_bytes(hashlib.blake2b(pictures, digest_size=4).digest()) % 20
    fault = BAD[number] if number < len(BAD) else None
    return None if fault == "once" and len(turns) > 1 else fault


def spoilt(fault: str, text: str, schema: dict[str, Any]) -> str:
    if fault == "types":
        return json.dumps(dict.fromkeys(schema["properties"], 7))
    return "word " * 2_000_000 if fault == "endless" else text[: len(text) // 2]


def filled(schema: dict[str, Any], name: str, tag: str) -> Any:  # noqa: ANN401 - any JSON
    """Returns a value that fits a schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: filled(field, name, tag) for name, field in schema["properties"].items()}
    if schema["type"] == "array":
        return [filled(schema["items"], name, tag)]
    if schema["type"] == "boolean":
        return False
    if schema["type"] == "integer":
        return 2
    if "pattern" in schema:
        # The prompt cosmos3 has patterns for times only.
        return "0:00-0:01"
    return SENTENCE.format(name=name, tag=tag)


async def main() -> None:
    server = Server(int(sys.argv[2]), float(sys.argv[3]))
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.post("/v1/chat/completions", server.chat),
            web.get("/v1/models", server.models),
            web.get("/stats", server.stats),
            web.post("/reset", server.begin_anew),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1])).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
