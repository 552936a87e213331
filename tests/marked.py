"""Frames that say which clip they are of: a 4 x 4 bar code of black and white blocks."""

import io

import numpy as np
from marks import BLOCK_PX
from PIL import Image

from curator.stages.caption.caption_records import Frames, Task, Window


def marked_jpeg(clip: int, frame: int) -> bytes:
    """64 x 64 px: twelve bits of the clip's number, four of the frame's."""
    bits = [(clip << 4 | frame) >> i & 1 for i in range(16)]
    blocks = np.array(bits, np.uint8).reshape(4, 4) * 200 + 20
    grey = blocks.repeat(BLOCK_PX, 0).repeat(BLOCK_PX, 1)
    file = io.BytesIO()
    Image.fromarray(grey).convert("RGB").save(file, "JPEG", quality=85)
    return file.getvalue()


def marked_frames(clip: int, n_frames: int = 2) -> Frames:
    """Frames at 0, 0.5, 1 ... s."""
    jpegs = tuple(marked_jpeg(clip, i) for i in range(n_frames))
    return Frames(jpegs=jpegs, times_s=tuple(i / 2 for i in range(n_frames)))


def marked_task(clip: int, window: int = 0) -> Task:
    """The window of a clip that is shown `marked_frames`."""
    shown = Window(index=window, start_frame=0, end_frame=48, shown=(0, 12))
    return Task(clip_id=f"clip-{clip}", content=f"pixels-{clip}", window=shown, fps=24.0)
