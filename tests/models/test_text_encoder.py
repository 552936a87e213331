"""Embeddings of captions against transformers' own models, with random weights."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_text import DIM, WORDS, text_folder

from curator.errors import ModelError
from curator.installation import install_extra
from curator.models.catalogue import ModelEntry
from curator.models.text_encoder import BATCH_TOKENS, Embedding, TextEncoder, text_hash
from curator.models.weight_store import ModelStore

TEXTS = ["the dog runs over wet sand", "a red car waits", "the cat", "a sea at the car at the sea"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    return ModelStore(str(text_folder(tmp_path_factory.mktemp("models"))))


def embed_captions(
    texts: list[str],
    entry: ModelEntry,
    store: ModelStore,
    **options: Any,  # noqa: ANN401
) -> dict[str, Embedding]:
    encoder = TextEncoder(entry, store.find(entry).parent, **options)
    distinct = sorted(set(texts))
    return dict(sorted((text_hash(distinct[i]), made) for i, made in encoder.each(distinct)))


def many(n: int) -> list[str]:
    random = np.random.default_rng(3)
    return [" ".join(random.choice(WORDS, random.integers(1, 36))) for _ in range(n)]


def ids_of(store: ModelStore, name: str, text: str) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(store.folder) / name / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids: list[int] = tokenizer.encode(text).ids
    return ids


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-bert", "tiny-cls"])
def test_embeddings_are_those_of_transformers(store: ModelStore, name: str) -> None:
    """Pins shape, type and values against the model called by itself, one text at a time."""
    # T5 gives its encoder's states without padding, sentence encoders unit vectors.
    from transformers import AutoModelForTextEncoding

    found = embed_captions(TEXTS, store.catalogue.find(name, "text"), store, device="cpu")
    assert list(found) == sorted(map(text_hash, TEXTS))
    model = AutoModelForTextEncoding.from_pretrained(Path(store.folder) / name).eval()
    for text in TEXTS:
        ids = torch.tensor([ids_of(store, name, text)])
        with torch.inference_mode():
            states = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].numpy()
        made = found[text_hash(text)]
        if name == "tiny-t5":
            # Each word, and the mark of the end.
            assert (made.dtype, made.shape) == (np.float16, (len(text.split()) + 1, DIM))
            assert np.abs(made.astype(np.float32) - states).max() < 2e-3
        else:
            expected = states.mean(0) if name == "tiny-bert" else states[0]
            assert (made.dtype, made.shape) == (np.float32, (DIM,))
            assert np.abs(made - expected / np.linalg.norm(expected)).max() < 1e-6


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-bert"])
def test_an_embedding_does_not_depend_on_the_others(store: ModelStore, name: str) -> None:
    """Pins that batches neither mix captions up nor move their values, in any order."""
    entry = store.catalogue.find(name, "text")
    texts = many(300)
    alone = embed_captions(texts[:5], entry, store, device="cpu")
    together = embed_captions(texts, entry, store, device="cpu")
    backwards = embed_captions(texts[::-1] + texts, entry, store, device="cpu")
    assert len(together) == len(set(texts))
    assert list(together) == list(backwards)
    for key, made in alone.items():
        assert made.shape == together[key].shape
        assert np.abs(made.astype(np.float32) - together[key]).max() < 2e-3
    assert all(np.array_equal(together[key], backwards[key]) for key in together)


def test_captions_are_cut_and_computed_in_bounded_batches(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the catalogue's bound of tokens, and not the one in the tokenizer's file."""
    sizes: list[tuple[int, int]] = []
    batch = TextEncoder._batch

    def watched(self: TextEncoder, ids: list[list[int]], length: int) -> object:
        sizes.append((len(ids), length))
        return batch(self, ids, length)

    monkeypatch.setattr(TextEncoder, "_batch", watched)
    texts = many(700)
    embed_captions(texts, store.catalogue.find("tiny-bert"), store, device="cpu")
    assert sizes.pop(0)[0] == 1, "a text that checks the model"
    assert sum(n for n, _ in sizes) == len(set(texts))
    assert {length for _, length in sizes} == {16, 32, 48}
    assert max(n * length for n, length in sizes) <= BATCH_TOKENS
    long, fits = " ".join(["dog"] * 60), " ".join(["dog"] * 39)
    found = embed_captions(
        [long, fits, TEXTS[0]], store.catalogue.find("tiny-t5"), store, device="cpu"
    )
    assert found[text_hash(long)].shape == (40, DIM)
    assert np.array_equal(found[text_hash(long)], found[text_hash(fits)])


def test_bfloat16_moves_embeddings_little_and_loading_is_quiet(
    store: ModelStore, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = store.catalogue.find("tiny-bert")
    exact = embed_captions(TEXTS, entry, store, device="cpu")
    rough = embed_captions(TEXTS, entry, store, device="cpu", precision="bfloat16")
    assert all(exact[key] @ rough[key] > 0.999 for key in exact)
    # Nothing is printed into a run's progress.
    from transformers.utils import logging as told

    before = told.get_verbosity(), told.is_progress_bar_enabled()
    entry = store.catalogue.find("tiny-t5")
    capfd.readouterr()
    TextEncoder(entry, store.find(entry).parent, device="cpu")
    assert "".join(capfd.readouterr()) == ""
    assert before == (told.get_verbosity(), told.is_progress_bar_enabled())


@pytest.mark.needs_gpu
@pytest.mark.parametrize("name", ["tiny-t5", "tiny-bert"])
def test_a_gpu_gives_nearly_the_same(store: ModelStore, name: str) -> None:
    entry, texts = store.catalogue.find(name), many(100)
    exact = embed_captions(texts, entry, store, device="cpu")
    single = embed_captions(texts, entry, store, device="cuda", precision="float32")
    half = embed_captions(texts, entry, store)
    for key, made in exact.items():
        assert np.abs(single[key].astype(np.float32) - made).max() < 1e-2
        a, b = half[key].astype(np.float32).ravel(), made.astype(np.float32).ravel()
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.999


def test_weights_that_lack_tensors_are_refused(store: ModelStore, tmp_path: Path) -> None:
    """Pins that nothing is drawn at random in place of what is missing, and the seed stays."""
    from safetensors.torch import load_file, save_file

    entry = store.catalogue.find("tiny-bert")
    source = Path(store.folder) / "tiny-bert"
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    tensors = load_file(source / "model.safetensors")
    dropped = next(name for name in sorted(tensors) if "layer.1" in name)
    kept = {name: tensor for name, tensor in tensors.items() if name != dropped}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    seed = torch.get_rng_state()
    with pytest.raises(ModelError, match=f"lacks 1 tensors, such as {dropped}"):
        TextEncoder(entry, tmp_path, device="cpu")
    assert torch.equal(seed, torch.get_rng_state())
    (tmp_path / "model.safetensors").write_bytes(b"spoilt")
    with pytest.raises(ModelError, match=r"tiny-bert: .* cannot be loaded"):
        TextEncoder(entry, tmp_path, device="cpu")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer.json cannot be read"):
        TextEncoder(entry, tmp_path, device="cpu")
    wrong = entry.model_copy(update={"dim": 16})
    with pytest.raises(ModelError, match="have 32 values; expected 16"):
        TextEncoder(wrong, source, device="cpu")


def test_a_missing_package_is_named_with_the_remedy_and_importing_costs_nothing(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curator.models.text_encoder.importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=re.escape(install_extra("text"))):
        embed_captions(TEXTS, store.catalogue.find("tiny-t5"), store)
    program = (
        "import sys, curator.models.text_encoder\n"
        "print({'transformers', 'torch', 'tokenizers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"set()\n"


def test_all_files_of_a_model_are_pulled_and_verified(store: ModelStore, tmp_path: Path) -> None:
    """Pins pulls from a mirror and from a folder of the model itself, and what is missing."""
    text = (Path(store.folder) / "catalogue.yaml").read_text()
    for source in (store.folder, f"{store.folder}/tiny-t5"):
        here = tmp_path / Path(source).name
        here.mkdir()
        (here / "catalogue.yaml").write_text(text)
        mine = ModelStore(str(here))
        entry = mine.catalogue.find("tiny-t5")
        assert mine.state(entry) == mine.quick_state(entry) == "missing"
        path = mine.pull(entry, source)
        assert sorted(p.name for p in path.parent.iterdir() if "verified" not in p.name) == [
            "config.json", "model.safetensors", "tokenizer.json",
        ]  # fmt: skip
        assert mine.find(entry) == path
        assert mine.state(entry) == mine.quick_state(entry) == "verified"
        assert len(mine.fingerprint(entry)) == 16
        before = mine.fingerprint(entry)
        tokenizer = path.with_name("tokenizer.json")
        words = json.loads(tokenizer.read_text())
        tokenizer.write_text(json.dumps(words | {"version": "2.0"}))
        assert mine.state(entry) == "differs"
        with pytest.raises(ModelError, match=r"tokenizer.json is not the file"):
            mine.find(entry)
        tokenizer.unlink()
        with pytest.raises(ModelError, match=r"tokenizer.json does not exist; `curate models pull"):
            mine.find(entry)
        assert mine.pull(entry, source) == path
        assert mine.fingerprint(entry) == before
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "model.safetensors").write_bytes(b"")
    # A mirror fills up what is missing.
    mirrored = ModelStore(str(tmp_path / "mirrored"), store.folder)
    entry = mirrored.catalogue.find("tiny-t5")
    path = mirrored.find(entry)
    path.with_name("config.json").unlink()
    assert mirrored.find(entry) == path
    assert mirrored.state(entry) == "verified"
    other = ModelStore(str(tmp_path / "other"))
    with pytest.raises(ModelError, match=r"neither tiny-t5/model.safetensors, tiny-t5/config.json"):
        other.pull(entry, str(tmp_path / "half"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pooling": None}, "needs dim, pooling and max_tokens"),
        ({"also": [{"file": "config.json"}]}, "config.json and tokenizer.json in `also`"),
        ({"also": [{"file": "../config.json"}]}, "without folders"),
        ({"also": [{"file": "model.safetensors"}]}, "expected different files"),
        ({"pooling": "max"}, "pooling"),
    ],
)
def test_entries_of_another_form_are_refused(
    store: ModelStore, change: dict[str, object], words: str
) -> None:
    entry = store.catalogue.find("tiny-t5").model_dump() | change
    with pytest.raises(ValueError, match=words):
        ModelEntry.model_validate(entry)
