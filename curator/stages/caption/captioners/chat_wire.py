"""Formats requests and parses answers of OpenAI-compatible servers, without sending anything."""

import base64
import io
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from fractions import Fraction
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import orjson

from curator.json_bounds import load_bounded
from curator.stages.caption.caption_records import Frames, Request
from curator.stages.caption.config import ModelConfig

MAX_ANSWER_BYTES = 16 << 20
"""Longest body that is read; a server that sends more is broken."""
_MAX_DETAIL = 300
# Servers that check with pydantic echo the request, including pictures.
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{80,}")

# OpenAI's codes for an empty account, https://platform.openai.com/docs/guides/error-codes.
_NO_CREDIT = {"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached"}


class MalformedError(Exception):
    """A reply that is no chat completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The parsed answer of a server."""

    text: str
    finish_reason: str | None
    tokens_in: int
    tokens_out: int


def body_of(request: Request, frames: Frames, config: ModelConfig, *, guided: bool) -> bytes:
    """Returns the JSON of a request; `guided` sends its schema, if it has one.

    The frames go before the text of the first user's turn: as JPEG images, each after its time, or
    as one MP4.

    Source: https://platform.openai.com/docs/api-reference/chat/create; `video_url` is an addition
    by vLLM and SGLang.
    """
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    shown = _parts(frames, config)
    for turn in request.turns:
        if turn.role == "user" and shown:
            parts = [*shown, {"type": "text", "text": turn.text}]
            messages.append({"role": "user", "content": parts})
            shown = []
        else:
            messages.append({"role": turn.role, "content": turn.text})
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": config.model,
        "messages": messages,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    if guided and request.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return orjson.dumps(body)


def _parts(frames: Frames, config: ModelConfig) -> list[dict[str, Any]]:
    if not frames.jpegs:
        return []
    if config.frames_as == "video":
        url = "data:video/mp4;base64," + base64.b64encode(mp4_of(frames)).decode()
        first_s, last_s = frames.times_s[0], frames.times_s[-1]
        text = f"Frames of the video from {_seconds(first_s)} to {_seconds(last_s)}:"
        return [
            {"type": "text", "text": text},
            {"type": "video_url", "video_url": {"url": url}},
        ]
    parts: list[dict[str, Any]] = []
    for jpeg, time_s in zip(frames.jpegs, frames.times_s, strict=True):
        parts.append({"type": "text", "text": f"at {_seconds(time_s)}"})
        url = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _seconds(time_s: float) -> str:
    return f"{round(time_s, 2):g} s"


def mp4_of(frames: Frames) -> bytes:
    """Encodes the frames as H.264 in MP4, at their mean rate in the clip.

    An odd last row or column is left out.
    """
    import av
    from PIL import Image

    rate = Fraction(1)
    span_s = frames.times_s[-1] - frames.times_s[0]
    if span_s > 0:
        rate = Fraction((len(frames.times_s) - 1) / span_s).limit_denominator(1000)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = None
        for i, jpeg in enumerate(frames.jpegs):
            with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
                rgb = image.convert("RGB")
            width, height = rgb.width // 2 * 2, rgb.height // 2 * 2
            if stream is None:
                options = {"crf": "18", "preset": "veryfast", "threads": "1", "bf": "0"}
                stream = container.add_stream("libx264", rate=rate, options=options)
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                context = stream.codec_context
                context.color_primaries = context.color_trc = context.colorspace = 1
                context.color_range = 1
            picture = av.VideoFrame.from_ndarray(
                np.asarray(rgb.crop((0, 0, width, height))), format="rgb24"
            )
            frame = picture.reformat(
                format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            frame.pts, frame.time_base = i, 1 / rate
            container.mux(stream.encode(frame))
        if stream is not None:
            container.mux(stream.encode())
    return file.getvalue()


def parse_answer(body: bytes) -> ServerAnswer:
    """Reads an answer.

    Raises:
        MalformedError: The body is no chat completion; the message quotes nothing of it.
    """
    try:
        answer = load_bounded(body)
    except ValueError:
        raise MalformedError(f"answer of {len(body)} bytes is no JSON") from None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MalformedError("answer has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise MalformedError("answer's first choice has no message")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if content is None:
        # OpenAI's own models put refusals into a field of their own.
        content = message.get("refusal") or ""
    if not isinstance(content, str):
        raise MalformedError("answer's content is no text")
    reason = choices[0].get("finish_reason")
    usage = answer.get("usage")
    return ServerAnswer(
        text=content,
        finish_reason=reason if isinstance(reason, str) else None,
        tokens_in=_count(usage, "prompt_tokens"),
        tokens_out=_count(usage, "completion_tokens"),
    )


def _count(usage: object, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0


def error_in(body: bytes, secret: str | None) -> str:
    """Returns the server's error message in one line that can be stored.

    Args:
        body: Has the message in `error.message`, `error`, `message` or `detail`, or is plain text.
        secret: Key to remove, in case the server echoes it.
    """
    text = body.decode("utf-8", "replace")
    try:
        answer = load_bounded(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or error
        text = error if isinstance(error, str) else orjson.dumps(error).decode()
    return shown(text, secret)


def shown(text: str, secret: str | None) -> str:
    """Shortens a text to one line without key and pictures."""
    # Before the cut, because half a key would not be found.
    if secret:
        for form in (secret, quote(secret, safe="")):
            text = text.replace(form, "***")
    text = " ".join(_BLOB.sub("...", text).split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 3] + "..."


def is_out_of_money(body: bytes) -> bool:
    """Returns whether a 429 means that no credit is left, so that waiting does not help."""
    try:
        error = load_bounded(body)["error"]
        return not _NO_CREDIT.isdisjoint((error.get("code"), error.get("type")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the wait of `Retry-After`, given in seconds or as a date; None without one."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def shown_url(url: str) -> str:
    """Returns an address without user, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
