"""Small text encoders of the real architectures with random weights, in a models folder."""

from pathlib import Path
from typing import Any

import yaml

WORDS = (
    "a", "the", "dog", "cat", "car", "runs", "waits", "over", "sand", "red", "wet", "at", "sea",
)  # fmt: skip
DIM = 32


def write_tokenizer(path: Path, marks: tuple[str, ...]) -> None:
    """A tokenizer of whole words that puts `marks` around, the last one behind."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "<unk>", *marks, *WORDS]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*marks[:-1], "$A", marks[-1]]),
        special_tokens=[(mark, vocabulary[mark]) for mark in marks],
    )
    # As published files have it, for some example: it must not be kept to.
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(path / "tokenizer.json"))


def _write(folder: Path, model: Any, marks: tuple[str, ...]) -> None:  # noqa: ANN401
    model.save_pretrained(folder)
    write_tokenizer(folder, marks)


def write_t5(folder: Path) -> None:
    """Writes a T5 with its decoder."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=32, d_model=DIM, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.1,
        decoder_start_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _write(folder, T5ForConditionalGeneration(config), ("</s>",))


def write_bert(folder: Path) -> None:
    """Writes a BERT."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=32, hidden_size=DIM, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _write(folder, BertModel(config), ("[CLS]", "[SEP]"))


def write_umt5(folder: Path) -> None:
    """Writes the encoder of a UMT5."""
    import torch
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=32, d_model=DIM, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _write(folder, UMT5EncoderModel(config), ("</s>",))


_OF_LANGUAGE: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": DIM, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "initializer_range": 0.3,
    "pad_token_id": 0,
}  # fmt: skip


def write_gemma(folder: Path) -> None:
    """Writes a Gemma 3 of texts, as a language model."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(**_OF_LANGUAGE, sliding_window=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _write(folder, Gemma3ForCausalLM(config), ("<bos>", "<eos>"))


def write_qwen(folder: Path) -> None:
    """Writes a Qwen 3, as a language model."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _write(folder, Qwen3ForCausalLM(Qwen3Config(**_OF_LANGUAGE)), ("<|im_start|>", "<|end|>"))


def text_folder(folder: Path) -> Path:
    """A models folder with `tiny-t5`, and `tiny-bert` by the mean and by its first token."""
    write_t5(folder / "tiny-t5")
    write_bert(folder / "tiny-bert")
    write_bert(folder / "tiny-cls")
    write_catalogue(folder)
    return folder


def write_catalogue(folder: Path) -> None:
    """Writes the entries of the models."""
    common = {
        "kind": "text", "about": "for tests", "dim": DIM, "max_tokens": 40, "licence": "none",
        "file": "model.safetensors", "also": [{"file": "config.json"}, {"file": "tokenizer.json"}],
    }  # fmt: skip
    entries = {
        "tiny-t5": common | {"pooling": "tokens"},
        "tiny-bert": common | {"pooling": "mean"},
        "tiny-cls": common | {"pooling": "cls"},
    }
    (folder / "catalogue.yaml").write_text(yaml.safe_dump(entries))
