"""Aesthetic heads and zero-shot classes: arithmetic on embeddings."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.models.embedding_heads import Heads, ZeroShot, load_linear_head
from curator.models.weight_store import ModelStore

PUBLISHED = {
    "laion-linear-b-32": "-1.47 0.27 1.99 3.61 5.09 6.39 7.67 8.92 9.92 11.01",
    "laion-linear-l-14": "-2.46 -0.14 1.90 3.58 5.10 6.47 7.79 9.05 10.23 11.30",
    "laion-mlp-l-14": "1.66 2.36 3.07 3.67 4.24 4.70 5.07 5.37 5.58 5.75",
}
"""Scores of the published embeddings of ratings 0 to 9."""


def units(n: int, dim: int) -> NDArray[np.float32]:
    vectors = np.random.default_rng(n).normal(size=(n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_heads_give_the_published_scores(name: str) -> None:
    """Pins LAION's files on the embeddings that were published with them."""
    beside = Path(__file__).parents[3] / "shared" / "weights"
    weights = Path(os.environ.get("CURATE_TEST_WEIGHTS") or beside)
    entry = ModelStore(str(weights)).catalogue.find(name, "aesthetic")
    if not (weights / entry.file).is_file():
        pytest.skip(f"no published heads in {weights}; CURATE_TEST_WEIGHTS names another folder")
    assert entry.dim is not None
    head = load_linear_head(weights / entry.file, dim=entry.dim)
    folder = weights / ("vit_b_32_embeddings" if entry.dim == 512 else "vit_l_14_embeddings")
    embeddings = np.concatenate([np.load(folder / f"rating{i}.npy") for i in range(10)])
    expected = [float(word) for word in PUBLISHED[name].split()]
    np.testing.assert_allclose(head.scores_N(embeddings), expected, atol=0.0051)


@pytest.mark.parametrize("prefix", ["layers", "scoring_head"])
def test_heads_are_read_multiplied_out_and_given_unit_length(tmp_path: Path, prefix: str) -> None:
    """Pins a made file of the MLP's form against torch's own layers, gaps in the numbers too."""
    torch.manual_seed(1)
    layers = torch.nn.Sequential(
        torch.nn.Linear(768, 1024), torch.nn.Dropout(0.2),
        torch.nn.Linear(1024, 128), torch.nn.Dropout(0.2),
        torch.nn.Linear(128, 64), torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 16), torch.nn.Linear(16, 1),
    ).eval()  # fmt: skip
    state = {f"{prefix}.{name}": tensor for name, tensor in layers.state_dict().items()}
    assert f"{prefix}.7.bias" in state
    torch.save(state, tmp_path / "mlp.pth")
    embeddings = units(20, 768)
    with torch.inference_mode():
        expected = layers(torch.from_numpy(embeddings))[:, 0].numpy()
    head = load_linear_head(tmp_path / "mlp.pth", dim=768)
    np.testing.assert_allclose(head.scores_N(embeddings), expected, atol=1e-5)
    # An embedding's length does not count.
    state = {"weight": torch.arange(4.0)[None], "bias": torch.tensor([0.5])}
    torch.save(state, tmp_path / "head.pth")
    head = load_linear_head(tmp_path / "head.pth", dim=4)
    rows = np.array([[0, 0, 0, 7.0], [0, 0.1, 0, 0], [0, 0, 0, 0]], np.float16)
    np.testing.assert_allclose(head.scores_N(rows), [3.5, 1.5, 0.5])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, "for embeddings of 4 dimensions"),
        ({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, "returns 2 numbers"),
        ({"layers.0.weight": torch.zeros(1, 4)}, "expected `weight` and `bias`"),
        ({"layers.0.weight": torch.zeros(1, 4), "relu": torch.zeros(1)}, "expected `weight`"),
        ({"weight": Path("code")}, "cannot be read as PyTorch tensors"),
        ([1], "holds no dictionary of tensors"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, state: object, words: str) -> None:
    torch.save(state, tmp_path / "head.pth")
    with pytest.raises(ModelError, match=words):
        load_linear_head(tmp_path / "head.pth", dim=4)


def test_zero_shot_probabilities_are_the_softmax_of_scaled_cosines() -> None:
    """Pins a case computed by hand: cosines 1 and 0 at scale 2; those of unsafe classes add up."""
    classes = ZeroShot(("a", "b"), np.eye(2), scale=2.0)
    found = classes.probabilities_NK(np.array([[5.0, 0], [0, 0.1], [1, 1]]))
    sure = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(found, [[sure, 1 - sure], [1 - sure, sure], [0.5, 0.5]])
    high = ZeroShot(("a", "b"), np.eye(2), scale=5000.0).probabilities_NK(np.eye(2))
    np.testing.assert_allclose(high, np.eye(2), atol=1e-9)
    safety = ZeroShot(("safe", "bad", "worse"), np.eye(3), scale=1.0)
    heads = Heads(safety=safety, unsafe=("bad", "worse"))
    expected = 1 - safety.probabilities_NK(np.eye(3))[:, 0]
    np.testing.assert_allclose(heads.unsafe_N(np.eye(3)), expected)
