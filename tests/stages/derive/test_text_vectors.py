"""The annotator `text_vectors`: vectors of transformers' own call, each text once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import tiny_text
import torch
from captioned import work_here
from place import QVGA, SHORT, Place, write_films
from tiny_text import DIM, write_tokenizer

from curator.errors import ModelError, RecipeError, UsageError
from curator.loading import ClipDataset
from curator.models.saved_text_model import text_vectors_facts
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.stage import ClipFacts, SampledClip
from curator.stages.derive.text_vectors import TextVectors, TextVectorsConfig

TEXTS = ["the dog runs over wet sand", "a red car waits", "the cat " + "waits " * 20]
MODELS = {
    "t5": ("T5EncoderModel", tiny_text.write_t5),
    "umt5": ("UMT5EncoderModel", tiny_text.write_umt5),
    "gemma": ("Gemma3TextModel", tiny_text.write_gemma),
    "qwen": ("Qwen3Model", tiny_text.write_qwen),
}
"""The class whose output is expected, and what writes the folder."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("texts")

    def folder(name: str) -> Path:
        path = root / name
        if not path.is_dir():
            MODELS[name][1](path)
        return path

    return folder


def encoded(model: Path, texts: list[str], **settings: object) -> list[torch.Tensor]:
    """The values that the annotator makes of some clips."""
    config = TextVectorsConfig.model_validate({"model": str(model), "compute": "f32"} | settings)
    stage = TextVectors(config)
    stage.setup()
    facts: Any = {"source_id": "", "n_frames": 1, "fps": Fraction(1), "width": 2, "height": 2}
    clips = [
        SampledClip(facts=ClipFacts(clip_id="", columns={"caption": text}, **facts), requested=())
        for text in texts
    ]
    values = [torch.as_tensor(value) for value in stage.process(clips)]
    for value in values:
        stage.families[0].encode(value)
    return values


def expected(model: Path, name: str, text: str, layer: int = -1) -> torch.Tensor:
    """The vectors of the model called by itself, with one text."""
    import transformers
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(20)
    ids = torch.tensor([tokenizer.encode(text).ids])
    own = getattr(transformers, MODELS[name][0]).from_pretrained(model).eval()
    with torch.inference_mode():
        return own(input_ids=ids, output_hidden_states=True).hidden_states[layer][0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layer", [-1, -2])
def test_vectors_are_those_of_transformers(
    name: str, layer: int, folders: Callable[[str], Path]
) -> None:
    """Pins each token's vector, without padding, of texts that are batched together."""
    model = folders(name)
    values = encoded(model, TEXTS, dtype="f32", max_tokens=20, layer=layer)
    for text, value in zip(TEXTS, values, strict=True):
        known = expected(model, name, text, layer)
        assert (value.dtype, value.shape) == (torch.float32, known.shape)
        torch.testing.assert_close(value, known, rtol=1e-4, atol=1e-5)
    assert len(values[2]) == 20, "a longer text is truncated"
    (half,) = encoded(model, TEXTS[:1], max_tokens=20, layer=layer)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), values[0], rtol=1e-2, atol=1e-2)


def test_a_template_is_read_and_its_vectors_are_left_out(folders: Callable[[str], Path]) -> None:
    whole = "the red " + TEXTS[1]
    (known,) = encoded(folders("qwen"), [whole], dtype="f32")
    (value,) = encoded(
        folders("qwen"), [TEXTS[1]], dtype="f32", template="the red {text}", skip=3
    )  # fmt: skip
    assert torch.equal(value, known[3:]), "the mark of the beginning, and two words"


def test_a_pipeline_folder_has_the_same_facts_as_its_parts(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    shutil.copytree(folders("umt5"), tmp_path / "text_encoder")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "text_encoder" / "tokenizer.json").rename(tmp_path / "tokenizer" / "tokenizer.json")
    assert text_vectors_facts(tmp_path) == text_vectors_facts(folders("umt5"))
    assert torch.equal(encoded(tmp_path, TEXTS)[0], encoded(folders("umt5"), TEXTS)[0])


def test_folders_and_settings_that_cannot_be_are_refused(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    model = str(folders("t5"))
    for settings, words in (
        ({"model": str(tmp_path / "none")}, "'text_vectors': model .*none': no such folder"),
        ({"model": str(tmp_path)}, r"neither .* nor its folder text_encoder has config.json"),
        ({"template": "a {caption}"}, r"template 'a \{caption\}'; expected a text with \{text\}"),
        ({"skip": 512}, "skip 512 of max_tokens 512; expected fewer"),
    ):
        with pytest.raises(RecipeError, match=words):
            TextVectors(TextVectorsConfig.model_validate({"model": model} | settings))
    copy = shutil.copytree(folders("t5"), tmp_path / "copy")
    planned = TextVectors(TextVectorsConfig(model=str(copy)))
    write_tokenizer(copy, ("<s>", "</s>"))
    with pytest.raises(ModelError, match=r"the tokenizer of .* which the run was planned with"):
        planned.setup()
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"there is no tokenizer.json in"):
        text_vectors_facts(copy)


DIFFUSERS = '{"_class_name": "AutoencoderKLWan"}'
PICTURES = '{"architectures": ["ViTModel"], "hidden_size": 32}'
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "neither .* nor its folder text_encoder has config.json"),
        ("config.json", "", "config.json cannot be read as JSON .*again, as `save_pretrained`"),
        ("config.json", "[]", "config.json holds list, no JSON object; copy or download"),
        ("config.json", "{}", "config.json names no class; expected a text encoder"),
        ("config.json", '{"architectures": "T5"}', "config.json names no class; expected"),
        ("config.json", DIFFUSERS, "'AutoencoderKLWan' of diffusers; expected a text encoder"),
        ("config.json", PICTURES, "'ViTModel', which reads no texts.*; expected a text encoder"),
        (
            "config.json",
            '{"model_type": "t5", "vocab_size": 9, "text_config": null}',
            "'t5', and has no length of a vector, hidden_size or d_model; expected a text",
        ),
        ("tokenizer.json", None, "no tokenizer.json in .*save_pretrained"),
        ("tokenizer.json", "<html>", "tokenizer.json cannot be read as JSON .*again, as `save_pre"),
        ("tokenizer.json", '{"a": 1}', "is no file of the package tokenizers; .*save_pretrained"),
        ("model.safetensors", None, "model.safetensors does not exist; expected weights in safe"),
        ("model.safetensors", LFS, "is no whole file in safetensors: .*; copy or download"),
        ("model.safetensors", "", "is no whole file in safetensors: its 0 bytes have no header"),
        (INDEX, "[]", "index.json holds list, no JSON object"),
        (INDEX, '{"weight_map": {"a": 5}}', "index.json has no weight_map from tensors to names"),
        (INDEX, '{"weight_map": {"a": "b"}}', "b does not exist; expected weights in safetensors"),
    ],
)
def test_a_folder_of_something_else_is_refused_before_any_work(
    name: str, content: str | None, words: str, tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    """Pins the value, what was expected and the remedy, from the recipe and from a trainer."""
    copy = Path(shutil.copytree(folders("umt5"), tmp_path / "copy"))
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text(content)
    recipe = [f"stages=[{{use: text_vectors, config: {{model: {copy}}}}}]"]
    with pytest.raises(RecipeError, match=f"'text_vectors': .*{copy}.*{words}"):
        graph_of(load_recipe("quickstart", recipe))
    with pytest.raises(ModelError, match=words):
        text_vectors_facts(copy)


def test_weights_that_broke_off_are_refused(tmp_path: Path, folders: Callable[[str], Path]) -> None:
    weights = Path(shutil.copytree(folders("t5"), tmp_path / "copy")) / "model.safetensors"
    text_vectors_facts(weights.parent)
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    with pytest.raises(ModelError, match=f"it has {size - 1} bytes, and its header names {size}"):
        text_vectors_facts(weights.parent)


def test_a_model_that_reads_no_texts_ends_the_run_when_it_is_loaded(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    """Pins a model of sound, whose settings name a vocabulary, and a layer that a model lacks."""
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=32, d_model=DIM, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    WhisperModel(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, ("</s>",))
    for settings in ({"model": str(tmp_path)}, {"model": str(folders("t5")), "layer": -9}):
        stage = TextVectors(TextVectorsConfig.model_validate(settings))
        words = f"model {settings['model']}: .* gives no vectors of a text .*; expected a text enc"
        with pytest.raises(ModelError, match=words):
            stage.setup()


def test_a_trainer_needs_no_transformers_for_facts(folders: Callable[[str], Path]) -> None:
    code = (
        "import sys; from curator.models.saved_text_model import text_vectors_facts; "
        f"facts = text_vectors_facts({str(folders('gemma'))!r}); print(facts['encoder'], "
        "{'ray', 'pydantic', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Gemma3ForCausalLM set()\n"


@dataclass(frozen=True)
class Prompted(Place):
    """Three films with prompts in a manifest."""

    settings = (*SHORT, "shard.lengths=[17]", "shard.val_share=0")

    def prompts(self, *texts: str) -> None:
        rows = "".join(f"{number}.mp4,{text}\n" for number, text in enumerate(texts))
        self.sources.write_text(f"uri,prompt\n{rows}")

    def values(self, **options: object) -> dict[str, torch.Tensor | None]:
        """The vectors by prompt."""
        settings: Any = {"members": ["text_vectors"]} | options
        dataset = ClipDataset(str(self.out), video=False, batch_size=3, **settings)
        (batch,) = dataset
        texts = [facts["meta"].get("prompt") for facts in batch["json"]]
        return dict(zip(texts, batch["text_vectors"], strict=True))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.mark.usefixtures("here")
def test_a_text_is_computed_once_and_again_only_where_it_changes(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    """Pins that equal texts share a value, and what a training gets and refuses."""
    model = folders("umt5")
    folder = write_films(tmp_path / "in", (60, 60, 60), fps=30, **QVGA)
    place = Prompted(folder / "films.csv", tmp_path / "out")
    stage = (
        f"stages=[{{use: text_vectors, config: {{model: {model}, column: meta.prompt, "
        "compute: f32, dtype: f32}}]"
    )
    place.prompts("a red car", "the wet dog", "a red car")
    summary = place.run(stage, "--replace")
    assert (summary["counts"]["kept"], summary["work"]["text_vectors_made"]) == (3, 2)
    before = place.values()
    assert {text: len(value) for text, value in before.items()} == {
        "a red car": 4, "the wet dog": 4,
    }  # fmt: skip

    place.prompts("a red car", "the wet dog at sea", "a red car")
    work = place.run(stage, "--replace")["work"]
    assert (work["text_vectors_made"], work["clips_cut"], work["sources_analyzed"]) == (1, 0, 0)
    after = place.values()
    assert torch.equal(after["a red car"], before["a red car"])
    assert after["the wet dog at sea"].shape == (6, DIM)

    facts = text_vectors_facts(model, column="meta.prompt", dtype="f32")
    place.values(members={"text_vectors": facts})
    for wrong, words in (
        (text_vectors_facts(folders("t5"), column="meta.prompt", dtype="f32"), "encoder = 'UMT5"),
        (facts | {"layer": -2}, "layer = -1, and this training expects -2"),
        (facts | {"max_tokens": 226}, "max_tokens = 512, and this training expects 226"),
    ):
        with pytest.raises(UsageError, match=words):
            place.values(members={"text_vectors": wrong})
    place.prompts("a red car", "", "a red car")
    place.run(stage, "--replace")
    assert place.values()[None] is None, "a clip without a text has no value"
