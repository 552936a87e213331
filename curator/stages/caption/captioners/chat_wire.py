"""Formats requests and parses answers of OpenAI-compatible servers, without sending anything."""

import base64
import io
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
import orjson

from curator.json_bounds import load_bounded
from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered
from curator.stages.caption.config import ModelConfig


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
            messages.append({"role": "user", "content": [*shown, _text(turn.text)]})
            shown = []
        else:
            messages.append({"role": turn.role, "content": turn.text})
    body = {"model": config.model, "messages": messages, **asdict(request.sampling)}
    if guided and request.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return orjson.dumps(body)


def _parts(frames: Frames, config: ModelConfig) -> list[dict[str, Any]]:
    if not frames.jpegs:
        return []
    if config.frames_as == "video":
        first, last = _seconds(frames.times_s[0]), _seconds(frames.times_s[-1])
        video = _file("video", "video/mp4", mp4_of(frames))
        return [_text(f"Frames of the video from {first} to {last}:"), video]
    parts = []
    for jpeg, time_s in zip(frames.jpegs, frames.times_s, strict=True):
        parts += [_text(f"at {_seconds(time_s)}"), _file("image", "image/jpeg", jpeg)]
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _file(kind: str, mime: str, data: bytes) -> dict[str, Any]:
    url = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


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
        options = {"crf": "18", "preset": "veryfast", "threads": "1", "bf": "0"}
        stream = container.add_stream("libx264", rate=rate, options=options)
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = 1
        context.color_range = 1
        for i, jpeg in enumerate(frames.jpegs):
            rgb = Image.open(io.BytesIO(jpeg), formats=["JPEG"]).convert("RGB")
            if i == 0:
                stream.width, stream.height = rgb.width // 2 * 2, rgb.height // 2 * 2
            pixels = np.asarray(rgb.crop((0, 0, stream.width, stream.height)))
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
                format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            frame.pts, frame.time_base = i, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def parse_answer(body: bytes) -> Reply:
    """Reads an answer.

    Raises:
        ValueError: The body is no chat completion; the message quotes nothing of it.
    """
    try:
        answer = load_bounded(body)
    except ValueError:
        raise ValueError(f"answer of {len(body)} bytes is no JSON") from None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("answer has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise ValueError("answer's first choice has no message")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if content is None:
        # OpenAI's own models put refusals into a field of their own.
        content = message.get("refusal") or ""
    if not isinstance(content, str):
        raise ValueError("answer's content is no text")
    reason, usage = choices[0].get("finish_reason"), answer.get("usage")
    is_filtered = reason == "content_filter"
    return Reply(
        text="" if is_filtered else content,
        is_whole=reason != "length",
        tokens_in=_count(usage, "prompt_tokens"),
        tokens_out=_count(usage, "completion_tokens"),
        failure=Unanswered.REFUSAL if is_filtered else None,
        detail="content_filter" if is_filtered else "",
    )


def _count(usage: object, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0
