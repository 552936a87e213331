"""Noise that fills the picture is noise in a track, and a fast pan over fine texture is not."""

from pathlib import Path

import numpy as np
from film_makers import write_video
from film_shots import pan, photograph
from samples import analyzed

from curator.footage.scenes import render_shot
from curator.stages.analyze.config import AnalyzeConfig

CONFIG = AnalyzeConfig(text=False, audio=False)


def test_static_is_noise_and_a_fast_pan_over_grass_is_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = (rng.integers(0, 256, (180, 320, 1), np.uint8).repeat(3, 2) for _ in range(45))
    write_video(tmp_path / "static.mp4", frames, options={"crf": "20"})
    noise = analyzed(tmp_path / "static.mp4", config=CONFIG).signals["noise"]
    assert noise.min() > 8
    # A fast pan over grass is not.
    shot = pan(photograph("grass"), 60, span=0.7, start=(0.9, 0.7), end=(0.5, 0.4), seed=12)
    write_video(tmp_path / "grass.mp4", render_shot(shot, width_px=640, height_px=360))
    noise = analyzed(tmp_path / "grass.mp4", config=CONFIG).signals["noise"]
    assert np.fmax(noise, 0).max() < 4
