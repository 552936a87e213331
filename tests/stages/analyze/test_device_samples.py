"""Measurements on a device do not depend on how its frames are put together in batches."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_nvdec import fake_module
from film_makers import write_video
from film_shots import moving_texture
from samples import analyzed
from software_cuda import installed
from sweeps import sampled

from curator.errors import DeviceMemoryError
from curator.media.device_frames import DeviceScaler, Form
from curator.media.nvdec import Nvdec, NvdecReader
from curator.records.tracks import Track
from curator.stages.analyze import decode_source
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.sampling_grid import Role, SamplePlan

CONFIG = AnalyzeConfig(text=False)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds, of which the last have borders, so that samples of a batch differ in them."""
    path = tmp_path_factory.mktemp("device_samples") / "film.mp4"

    def frames() -> Iterator[np.ndarray]:
        for number, frame in enumerate(moving_texture(90, width_px=320, height_px=240)):
            if number >= 40:
                frame[:, :40] = frame[:, -40:] = 0
            yield frame

    write_video(path, frames(), bframes=2)
    return path


def track(film: Path, nvdec: Nvdec | None = None) -> Track:
    return analyzed(film, config=CONFIG, nvdec=nvdec or Nvdec(module=fake_module(), device="cpu"))


def assert_alike(found: Track, expected: Track) -> None:
    for field in fields(Track):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "signals":
            assert a.keys() == b.keys()
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)
        elif isinstance(a, np.ndarray) and a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=1e-4, err_msg=field.name)
        elif isinstance(a, np.ndarray):
            assert np.array_equal(a, b), field.name
        else:
            assert a == b, field.name


@pytest.mark.parametrize("batch", sampled([1, 7, 90], [7]))
def test_batches_change_no_track(batch: int, film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = track(film)
    assert len(set(expected.signals["border_left"])) > 1
    monkeypatch.setattr(decode_source, "NvdecReader", partial(NvdecReader, batch=batch))
    assert_alike(track(film), expected)


@pytest.fixture
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")
def test_graphs_change_no_track(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins all that is computed of samples as graphs, with batches of one to five samples."""
    tracks, n_graphs = [], []
    monkeypatch.setattr(decode_source, "NvdecReader", partial(NvdecReader, batch=20))
    monkeypatch.setattr("curator.media.device_graphs._WARM_UPS", 1)
    for n_uses in (10**6, 0):
        monkeypatch.setattr("curator.media.device_graphs._USES", n_uses)
        with installed() as device:
            tracks.append(track(film, Nvdec(module=fake_module(), device="cuda")))
            n_graphs.append(device.n_replays)
    assert n_graphs[0] == 0
    assert n_graphs[1] > 30
    assert_alike(tracks[1], tracks[0])


Scale = Callable[[DeviceScaler, torch.Tensor, Form], tuple[torch.Tensor, torch.Tensor]]


def scaling_up_to(most: int, scale: Scale) -> Scale:
    def limited(
        self: DeviceScaler, planes: torch.Tensor, form: Form
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(planes) > most:
            raise torch.OutOfMemoryError("made by the test")
        return scale(self, planes, form)

    return limited


@pytest.mark.long
def test_a_batch_that_does_not_fit_is_halved(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = track(film)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(DeviceScaler, "scaled", scaling_up_to(5, DeviceScaler.scaled))
    nvdec = Nvdec(module=fake_module(), device="cpu")
    assert_alike(track(film, nvdec), expected)
    assert nvdec.n_halved > 3
    # Where not one frame fits the device is at fault.
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(DeviceScaler, "scaled", scaling_up_to(0, DeviceScaler.scaled))
    with pytest.raises(DeviceMemoryError, match="pictures of one frame"):
        track(film)


def test_samples_and_pairs_follow_from_timestamps() -> None:
    # Pins a grid of 0.5 s from the anchor, pairs 0.1 s behind, and frames that come late.
    plan = SamplePlan(AnalyzeConfig(), Fraction(1, 100), anchor_pts=0, first_pts=7)
    roles = {pts: plan.role(pts) for pts in (7, 49, 50, 55, 63, 64, 170, 171, 180, 200)}
    nothing = Role()
    assert roles == {
        7: nothing, 49: nothing, 50: Role(step=1), 55: nothing, 63: Role(ends_pair=True),
        64: nothing, 170: Role(step=3), 171: nothing, 180: Role(ends_pair=True),
        200: Role(step=4),
    }  # fmt: skip
    # A frame may end a pair and begin a sample.
    plan = SamplePlan(AnalyzeConfig(), Fraction(1, 100), anchor_pts=0, first_pts=0)
    assert [plan.role(pts) for pts in (0, 60, 61)] == [
        Role(step=0), Role(step=1, ends_pair=True), Role(),
    ]  # fmt: skip
