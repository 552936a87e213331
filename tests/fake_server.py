"""A server that speaks as much of OpenAI's protocol as is asked of it, and fails as it is told.

Run as `python fake_server.py PORT JOURNAL OPTIONS`; the journal is appended to, so that it outlives
a kill. Options (JSON), which POST /options changes while it runs, and /reset sets anew:

    delay_s       [least, most] seconds before an answer
    service_s     seconds that an answer takes in one of the slots
    slots         answers at a time; more wait, or get 429 with `crowded: true`
    faults        what becomes of the next requests, one after the other (null: an answer):
                  {"status", "headers", "body", "echo": send the request's Authorization back},
                  {"hang": seconds}, {"cut": true} in the middle of the body, {"finish": reason},
                  {"text": answer}
    by_source     what becomes of each request with pictures of a marked film, by its number
    hold_after    so many answers, and no more until this option is set anew; null: no end
    captions      answers are captions: JSON by the request's schema, with `film_marks` in the
                  text; without a schema the fields of the prompt `describe`
    yes           numbers of films about which a question of the schema is answered by yes, by
                  the question's name; the others get no
    key           the only key that is taken
    models        names at /models; null: there is no such address; 500: it answers that
    no_schema     response_format is answered by 400
    most_images   requests with more pictures are answered by 400
"""

import asyncio
import base64
import copy
import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marks import film_mark_in_jpeg, mark_in_jpeg, marks_in_mp4

DEFAULTS: dict[str, Any] = {
    "delay_s": [0, 0], "service_s": 0, "slots": 10**6, "crowded": False, "faults": [], "key": None,
    "models": ["tiny-vlm"], "no_schema": False, "most_images": 10**6, "by_source": {},
    "hold_after": None, "captions": False, "yes": {},
}  # fmt: skip
DESCRIBED = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("long", "medium", "short")},
}


class Server:
    """Answers, and notes what it was asked."""

    def __init__(self, journal: Path, options: dict[str, Any]) -> None:
        self.journal = journal.open("a")
        self.options = DEFAULTS | options
        self.busy = 0
        self.n_answered = 0
        self.free = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                raw = {line.split(": ", 1)[0].lower(): line for line in head[1:] if line}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = head[0].split(" ")
                await self.answer(reader, writer, method, path, raw, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        raw: dict[str, str],
        body: bytes,
    ) -> None:
        options = self.options
        sent_key = raw.get("authorization", "").removeprefix("Authorization: Bearer ")
        if path == "/reset":
            self.options = copy.deepcopy(DEFAULTS) | json.loads(body)
            self.n_answered = 0
            self.journal.truncate(0)
            return await send(writer, 200, {})
        if path == "/options":
            options |= json.loads(body)
            return await send(writer, 200, {})
        if path == "/health":
            return await send(writer, 200, {})
        if options["key"] is not None and sent_key != options["key"]:
            said = f"wrong key, the header is {raw.get('authorization')!r}"
            return await send(writer, 401, {"error": {"message": said}})
        if path == "/v1/models" and options["models"] == 500:
            return await send(writer, 500, "Internal Server Error")
        if path == "/v1/models" and method == "GET" and options["models"] is not None:
            data = [{"id": name, "object": "model"} for name in options["models"]]
            return await send(writer, 200, {"object": "list", "data": data})
        if path != "/v1/chat/completions":
            return await send(writer, 404, {"detail": "Not Found"})
        request = json.loads(body)
        if options["captions"] and is_trial(request):
            return await send(writer, 200, {"choices": [choice_of("yes")]})
        key = key_of(request)
        self.note("received", key)
        images, said = seen(request, is_film=options["captions"])
        fault = options["faults"].pop(0) if options["faults"] else None
        if fault is None and images:
            fault = options["by_source"].get(str(images[0][0]))
        if fault and "hang" in fault:
            await asyncio.sleep(fault["hang"])
        if fault and "status" in fault:
            text = fault.get("body", "")
            if fault.get("echo"):
                text = json.dumps({"error": {"message": f"bad request: {raw['authorization']}"}})
            return await send(writer, fault["status"], text, fault.get("headers", {}))
        if isinstance(options["models"], list) and request["model"] not in options["models"]:
            text = f"The model `{request['model']}` does not exist."
            return await send(writer, 404, {"error": {"message": text, "code": 404}})
        if options["no_schema"] and "response_format" in request:
            return await send(writer, 400, {"error": {"message": "no response_format here"}})
        if len(images) > options["most_images"]:
            return await send(writer, 400, {"error": {"message": "too many pictures"}})
        if options["crowded"] and self.busy >= options["slots"]:
            return await send(writer, 429, {"error": {"message": "later"}}, {"Retry-After": "0.05"})
        async with self.free:
            await self.free.wait_for(lambda: self.busy < options["slots"])
            self.busy += 1
        try:
            await asyncio.sleep(options["service_s"] + random.uniform(*options["delay_s"]))
            while self.n_answered == self.options["hold_after"] and not reader.at_eof():
                await asyncio.sleep(0.01)
            self.n_answered += not reader.at_eof()
        finally:
            self.busy -= 1
            async with self.free:
                self.free.notify()
        if reader.at_eof():
            # Whoever asked is gone, as servers notice too.
            self.note("dropped", key)
            raise ConnectionResetError
        shown = {"seen": images, "said": said, "guided": "response_format" in request, "key": key}
        text = json.dumps(shown)
        if options["captions"]:
            text = captions(request, images, options["yes"], "".join(said))
        fault = fault or {}
        text = fault.get("text", text)
        usage = {"prompt_tokens": len(body), "completion_tokens": len(text)}
        answer = {"choices": [choice_of(text, fault.get("finish", "stop"))], "usage": usage}
        if fault.get("cut"):
            return await send(writer, 200, answer, is_cut=True)
        # Written and noted in one go: who has the answer asks on at once.
        await send(writer, 200, answer, sent=lambda: self.note("answered", key))

    def note(self, what: str, key: str) -> None:
        self.journal.write(f"{what} {key}\n")
        self.journal.flush()


def choice_of(text: str, finish: str = "stop") -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "finish_reason": finish}


def key_of(request: dict[str, Any]) -> str:
    """What makes an answer: all but the schema."""
    rest = {name: value for name, value in request.items() if name != "response_format"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def captions(
    request: dict[str, Any], marks: list[list[int]], yes: dict[str, list[int]], said: str
) -> str:
    """A caption in JSON that tells the marks of what it describes; the owner's class is taken."""
    given = request.get("response_format", {}).get("json_schema", {}).get("schema", DESCRIBED)
    told = " and ".join(f"{source}:{frame}" for source, frame in marks)

    def filled(schema: dict[str, Any], name: str) -> Any:  # noqa: ANN401
        if "enum" in schema:
            own = [value for value in schema["enum"] if f"from its owner: {value}" in said]
            return own[0] if own else schema["enum"][-1 if schema["type"] == "integer" else 0]
        if schema["type"] == "object":
            return {name: filled(field, name) for name, field in schema["properties"].items()}
        if schema["type"] == "array":
            return [filled(schema["items"], name)]
        if schema["type"] == "boolean":
            return marks[0][0] in yes.get(name, [])
        return f"A board of blocks that reads {told} stands over a field, which is {name}."

    return json.dumps(filled(given, ""))


def is_trial(request: dict[str, Any]) -> bool:
    """Whether it is the first question that a run asks, about grey pictures."""
    content = request["messages"][-1]["content"]
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return parts[-1] == "Answer yes."


def seen(request: dict[str, Any], *, is_film: bool = False) -> tuple[list[list[int]], list[str]]:
    """Marks of the pictures, and the texts, in their order."""
    marks: list[list[int]] = []
    said: list[str] = []
    for message in request["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part["type"] == "text":
                said.append(part["text"])
            else:
                data = base64.b64decode(part[part["type"]]["url"].split(",", 1)[1])
                is_video = part["type"] == "video_url"
                if is_film:
                    marks.append(film_mark_in_jpeg(data))
                else:
                    marks += marks_in_mp4(data) if is_video else [mark_in_jpeg(data)]
    return marks, said


async def send(
    writer: asyncio.StreamWriter,
    status: int,
    body: object,
    headers: dict[str, str] | None = None,
    is_cut: bool = False,
    sent: Callable[[], None] | None = None,
) -> None:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    head = {"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {})
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in head.items())]
    writer.write(
        "\r\n".join([*lines, "", ""]).encode() + (data[: len(data) // 2] if is_cut else data)
    )
    if sent is not None:
        sent()
    await writer.drain()
    if is_cut:
        writer.close()
        raise ConnectionResetError


async def main() -> None:
    server = Server(Path(sys.argv[2]), json.loads(sys.argv[3]))
    listening = await asyncio.start_server(
        server.serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 24, backlog=1024
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
