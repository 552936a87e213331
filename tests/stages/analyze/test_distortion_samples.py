"""Which samples get a distortion score, alike from a CPU and from a device, without borders."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
from fake_nvdec import fake_module
from film_makers import write_video
from film_shots import photograph

from curator.media.nvdec import Nvdec
from curator.models.distortion_network import DistortionNetwork
from curator.models.scene_network import SceneNetwork
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels

FPS, SECONDS = 10, 5


@pytest.fixture(scope="module")
def network() -> DistortionNetwork:
    return DistortionNetwork(SceneNetwork())


def tracked(film: Path, network: DistortionNetwork, nvdec: Nvdec | None = None) -> Track:
    families = {"frames", "distortion"} if nvdec is None else {"frames", "pictures", "distortion"}
    with film.open("rb") as reader:
        return analyze_source(
            reader, "film", source_id="s", n_bytes=film.stat().st_size,
            analysis_models=AnalysisModels(distortion=network, nvdec=nvdec),
            config=AnalyzeConfig(), decoder_threads=1, families=frozenset(families),
        )  # fmt: skip


def written(path: Path, *, border_px: int, noise: float) -> Path:
    """A pan over a photograph, 480x(272 + borders), with noise within the borders."""
    large = cv2.resize(photograph("coffee"), (560, 374), interpolation=cv2.INTER_AREA)
    rng = np.random.default_rng(0)

    def frames() -> Iterator[np.ndarray]:
        for n in range(FPS * SECONDS):
            part = large[40:312, n : n + 480] + rng.normal(0, noise, (272, 480, 1))
            shown = np.clip(part, 0, 255).astype(np.uint8)
            yield np.pad(shown, ((border_px, border_px), (0, 0), (0, 0)))

    write_video(path, frames(), fps=Fraction(FPS))
    return path


def test_a_sample_in_one_and_a_half_seconds_has_a_score(
    tmp_path: Path, network: DistortionNetwork
) -> None:
    """Pins the grid, what a device gives, that noise counts, and that borders do not."""
    tracks = {
        name: tracked(
            written(tmp_path / f"{name}.mp4", border_px=border, noise=noise), network
        )
        for name, border, noise in (("clean", 0, 0.0), ("noisy", 0, 25.0), ("boxed", 48, 0.0))
    }  # fmt: skip
    scored = {}
    for name, track in tracks.items():
        has_score = np.isfinite(track.signals["distortion"])
        assert track.sample_frame[has_score].tolist() == [0, 15, 30, 45]
        scored[name] = track.signals["distortion"][has_score]
    assert scored["clean"].max() < 0.25
    assert scored["noisy"].min() > 0.5
    # Black borders, were they read, would be flat crops.
    assert np.abs(scored["boxed"] - scored["clean"]).max() < 0.15
    on_device = tracked(
        tmp_path / "boxed.mp4", network, Nvdec(module=fake_module(), device="cpu")
    )  # fmt: skip
    found = on_device.signals["distortion"]
    np.testing.assert_allclose(found[np.isfinite(found)], scored["boxed"], atol=2e-3)
