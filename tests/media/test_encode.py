"""The encoder: the same bytes whatever memory held before."""

import os
import subprocess
import sys

ENCODE = """
import hashlib
from fractions import Fraction
import av
from film_shots import moving_texture
from curator.media.encode import EncodeSettings, encode_mp4

frames = moving_texture(60, width_px=432, height_px=240, seed=3)
rgb = (av.VideoFrame.from_ndarray(frame, format="rgb24") for frame in frames)
pictures = (frame.reformat(format="yuv420p") for frame in rgb)
settings = EncodeSettings(crf=30, preset="veryfast")
mp4, _ = encode_mp4(pictures, width=432, height=240, fps=Fraction(25), settings=settings)
print(hashlib.sha256(mp4).hexdigest())
"""


def encoded(memory: str) -> str:
    """Hash of a clip encoded where new memory holds a byte; glibc alone heeds it."""
    done = subprocess.run(
        [sys.executable, "-c", ENCODE],
        env=os.environ | {"MALLOC_PERTURB_": memory, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_bytes_do_not_depend_on_what_memory_held_before() -> None:
    """x264's AVX-512 code reads memory that it never wrote, at widths such as this one."""
    # So only a CPU with AVX-512 can fail.
    assert encoded("1") == encoded("170")
