"""The change of frames apart from the camera's motion and the light."""

from pathlib import Path

import cv2
import numpy as np
import torch
from film_makers import write_video
from film_shots import moving_texture
from numpy.typing import NDArray
from samples import analyzed

from curator.measures.local_change import LocalChange
from curator.stages.analyze.config import AnalyzeConfig

Frames = list[NDArray[np.uint8]]


def scene(n: int, *, shift_px: float = 0.0, gain: float = 0.0, body_px: float = 0.0) -> Frames:
    """Frames 48x27 of a texture; a shift, a gain and a body's motion per frame."""
    rng = np.random.default_rng(0)
    texture = cv2.GaussianBlur(rng.normal(size=(60, 120)), (0, 0), 3) * 250 + 110
    frames = []
    for k in range(n):
        moved = np.array([[1, 0, shift_px * k], [0, 1, 30 + 0.5 * shift_px * k]])
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        level = cv2.warpAffine(texture, moved, (48, 27), flags=flags) * (1 + gain * k)
        at = round(16 * (10 + body_px * k)), 16 * 12
        cv2.circle(level, at, 16 * 4, 230.0 * (1 + gain * k), -1, cv2.LINE_AA, 4)
        frames.append(np.repeat(np.clip(level, 0, 255).astype(np.uint8)[:, :, None], 3, axis=2))
    return frames


def change_of(frames: Frames) -> NDArray[np.float32]:
    measuring = LocalChange()
    for frame in frames:
        measuring.push(frame)
    return measuring.finish()


def test_a_body_counts_and_the_camera_and_the_light_do_not() -> None:
    body = change_of(scene(20, body_px=1.0))[1:].mean()
    light = change_of(scene(20, gain=0.02))[1:].mean()
    lit = np.stack(scene(20, gain=0.02)).astype(float) / 255
    plain = np.abs(np.diff(lit, axis=0)).mean()
    assert body > 8 * light
    assert plain > 3 * light
    # The body keeps its place while the picture shifts, so some change remains.
    assert change_of(scene(20, shift_px=0.3))[1:].mean() < body / 2


def test_the_first_frame_has_none_and_batches_change_nothing() -> None:
    frames = scene(150, body_px=0.2)
    whole = change_of(frames)
    assert whole.shape == (150,)
    assert whole.dtype == np.float32
    assert whole[0] == 0
    batched = LocalChange()
    for begin in range(0, 150, 37):
        batched.push_batch(torch.from_numpy(np.stack(frames[begin : begin + 37])))
    assert np.allclose(batched.finish(), whole, atol=1e-6)
    assert not len(LocalChange().finish())
    assert np.isfinite(change_of([np.zeros((27, 48, 3), np.uint8)] * 3)).all()


def test_the_analysis_measures_it_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    write_video(path, moving_texture(40))
    assert not len(analyzed(path).local_change)
    track = analyzed(path, config=AnalyzeConfig(activity=True))
    assert track.local_change.shape == (track.n_frames,)
    assert (track.local_change[1:] > 0).all()
