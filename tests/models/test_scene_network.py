"""What a picture's scene vector is, what leaves it alone, and what it tells apart."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from film_shots import photograph
from numpy.typing import NDArray

from curator.models import scene_network
from curator.models.catalogue import load_catalogue
from curator.models.scene_network import (
    SCENE_DIM,
    SCENE_WEIGHTS,
    SIDE_PX,
    SceneNetwork,
    scene_picture,
)

Picture = NDArray[np.uint8]

NAMES = ("astronaut", "camera", "cat", "coffee", "coins", "hubble", "ihc", "motorcycle", "rocket")


def frame(name: str) -> Picture:
    """The middle of a photograph at the size of a stored thumbnail."""
    picture = photograph(name)
    height = min(picture.shape[0], picture.shape[1] * 9 // 16)
    top = (picture.shape[0] - height) // 2
    return cv2.resize(picture[top : top + height], (320, 180), interpolation=cv2.INTER_AREA)


def cropped(picture: Picture) -> Picture:
    return np.ascontiguousarray(picture[20:146, 40:264])


def inset(picture: Picture) -> Picture:
    """The picture in a corner of another, as of a presenter."""
    around = frame("coffee").copy()
    around[54:, 96:] = cv2.resize(picture, (224, 126), interpolation=cv2.INTER_AREA)
    return around


def letterboxed(picture: Picture) -> Picture:
    return np.pad(picture, ((30, 30), (0, 0), (0, 0)))


@pytest.fixture(scope="module")
def network() -> SceneNetwork:
    return SceneNetwork()


@pytest.fixture(scope="module")
def vectors(network: SceneNetwork) -> NDArray[np.float32]:
    return network.embed([scene_picture(frame(name)) for name in NAMES])


def test_features_are_those_of_another_implementation(
    network: SceneNetwork, vectors: NDArray[np.float32]
) -> None:
    """Pins padding, activations and folding: timm's network with the same weights."""
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    state = torch.load(SCENE_WEIGHTS.path(), weights_only=True)
    # Both list their layers in the order of the network.
    given = zip(model.state_dict(), state.values(), strict=True)
    model.load_state_dict(dict(given))
    pictures = torch.from_numpy(np.stack([scene_picture(frame(name)) for name in NAMES]))
    with torch.inference_mode():
        maps = model.forward_features((pictures.permute(0, 3, 1, 2).float() - 127) / 128)
        expected = torch.nn.functional.normalize(maps.mean((2, 3)), dim=-1).numpy()
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("shape", [(16, 16), (15, 22)])
def test_a_kernel_that_begins_with_zeros_pads_as_tensorflow_does(
    side: int, shape: tuple[int, int]
) -> None:
    torch = pytest.importorskip("torch")
    draw = torch.Generator().manual_seed(side)
    picture = torch.randn(1, 8, *shape, generator=draw)
    weight = torch.randn(8, 1, side, side, generator=draw)
    padded = scene_network._Convolution(weight, torch.zeros(8), 2, 8, is_activated=False)
    wide = padded._replace(weight=torch.nn.functional.pad(weight, (1, 0, 1, 0)))
    found = [scene_network._convolved(picture, layer) for layer in (wide, padded)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("edit", [cropped, np.fliplr, inset, letterboxed])
def test_copies_are_nearer_than_others(
    edit: Callable[[Picture], Picture], network: SceneNetwork, vectors: NDArray[np.float32]
) -> None:
    """Pins that the own picture comes first for edits that move the whole picture."""
    names = [name for name in NAMES if name != "coffee"]
    copies = network.embed([scene_picture(edit(frame(name))) for name in names])
    kept = [NAMES.index(name) for name in names]
    assert (copies @ vectors[kept].T).argmax(axis=1).tolist() == list(range(len(names)))


def test_a_vector_depends_on_neither_bars_nor_the_others(
    network: SceneNetwork, vectors: NDArray[np.float32]
) -> None:
    picture = frame("cat")
    assert scene_picture(picture).shape == (SIDE_PX, SIDE_PX, 3)
    np.testing.assert_array_equal(scene_picture(letterboxed(picture)), scene_picture(picture))
    # A picture without structure has the zero vector.
    black, grey = (np.full((180, 320, 3), level, np.uint8) for level in (0, 128))
    shown = [scene_picture(one) for one in (black, frame("cat"), grey)]
    lengths = np.linalg.norm(network.embed(shown), axis=1)
    assert lengths.tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert network.embed([]).shape == (0, SCENE_DIM)
    # Segments of a source give the vectors of the whole.
    (alone,) = network.embed([scene_picture(frame(NAMES[3]))])
    np.testing.assert_array_equal(alone, vectors[3])


@pytest.mark.needs_gpu
def test_a_gpu_gives_the_vectors_of_a_cpu(vectors: NDArray[np.float32]) -> None:
    pictures = [scene_picture(frame(name)) for name in NAMES]
    on_gpu = SceneNetwork(device="cuda").embed(pictures)
    np.testing.assert_allclose(on_gpu, vectors, atol=2e-3)


def test_the_catalogue_names_the_same_weights() -> None:
    entry = load_catalogue().find("efficientnet-lite0", "scenes")
    assert (entry.sha256, entry.dim) == (SCENE_WEIGHTS.sha256, SCENE_DIM)
    assert str(SCENE_WEIGHTS.path()).endswith(entry.file)
