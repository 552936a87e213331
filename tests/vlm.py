"""Requests and frames for tests of captioners."""

import io

import numpy as np
from marks import BLOCK_PX
from PIL import Image

from curator.stages.caption.caption_records import (
    Frames,
    Request,
    Role,
    Sampling,
    Task,
    Turn,
    Window,
)


def jpeg(seed: int, width: int = 64, height: int = 48) -> bytes:
    """A picture of coarse noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return _encoded(Image.fromarray(noise).resize((width, height), Image.Resampling.NEAREST))


def marked(mark: int, width: int = 56, height: int = 56) -> bytes:
    """A grey picture whose level tells a number from 0 to 24."""
    level = 10 * mark + 5
    return _encoded(Image.new("RGB", (width, height), (level, level, level)))


def _encoded(image: Image.Image, quality: int = 95) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def frames_of(*jpegs: bytes) -> Frames:
    """Frames at four tenths of a second from each other."""
    return Frames(jpegs=jpegs, times_s=tuple(0.4 * i for i in range(len(jpegs))))


def task_of(name: str, n_shown: int = 2) -> Task:
    """A window of a clip of ten frames per second."""
    shown = tuple(range(0, 4 * n_shown, 4))
    window = Window(index=0, start_frame=0, end_frame=4 * n_shown, shown=shown)
    return Task(clip_id=name, content=f"pixels of {name}", window=window, fps=10.0)


def request_of(
    task: Task,
    text: str = "Describe the clip.",
    *,
    role: Role = "captioner",
    system: str = "Be brief.",
    max_tokens: int = 16,
    temperature: float = 0.0,
    seed: int = 0,
    model: str = "tiny",
) -> Request:
    """A question of one turn."""
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, top_p=0.9, seed=seed)
    return Request(
        role=role, model=model, task=task, system=system,
        turns=(Turn(role="user", text=text),), sampling=sampling,
    )  # fmt: skip


def marked_jpeg(clip: int, frame: int) -> bytes:
    """64 x 64 px: twelve bits of the clip's number, four of the frame's."""
    bits = [(clip << 4 | frame) >> i & 1 for i in range(16)]
    blocks = np.array(bits, np.uint8).reshape(4, 4) * 200 + 20
    grey = blocks.repeat(BLOCK_PX, 0).repeat(BLOCK_PX, 1)
    return _encoded(Image.fromarray(grey).convert("RGB"), 85)


def marked_frames(clip: int, n_frames: int = 2) -> Frames:
    """Frames at 0, 0.5, 1 ... s."""
    jpegs = tuple(marked_jpeg(clip, i) for i in range(n_frames))
    return Frames(jpegs=jpegs, times_s=tuple(i / 2 for i in range(n_frames)))


def marked_task(clip: int, window: int = 0) -> Task:
    """The window of a clip that is shown `marked_frames`."""
    shown = Window(index=window, start_frame=0, end_frame=48, shown=(0, 12))
    return Task(clip_id=f"clip-{clip}", content=f"pixels-{clip}", window=shown, fps=24.0)
