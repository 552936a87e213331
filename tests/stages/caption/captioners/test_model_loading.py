"""The error for a model that cannot be loaded names the model, the problem and the remedy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_vlm import tiny_folder

from curator.errors import ModelError
from curator.stages.caption.captioners import model_loading as weights
from curator.stages.caption.captioners.model_loading import check_model, load
from curator.stages.caption.config import ModelConfig


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("whole"), "idefics3")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def config_of(model: object, **more: object) -> ModelConfig:
    return ModelConfig.model_validate({"model": str(model), **more})


def test_arithmetic_is_bfloat16_where_the_cpu_multiplies_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_it, name in ((True, "torch.bfloat16"), (False, "torch.float32")):
        monkeypatch.setattr(weights, "has_fast_bfloat16", lambda has_it=has_it: has_it)
        loaded = load(config_of(folder), device="cpu")
        assert str(loaded.model.dtype) == name
        assert not loaded.model.training
        assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
        assert loaded.chat.tokenizer.padding_side == "left"
        assert loaded.context == 4096


def test_settings_of_the_authors_that_depend_on_padding_are_left_out(folder: Path) -> None:
    path = folder / "generation_config.json"
    own = json.loads(path.read_text()) | {
        "repetition_penalty": 1.05, "no_repeat_ngram_size": 3, "top_k": 1,
        "eos_token_id": [256, 257], "suppress_tokens": [5],
    }  # fmt: skip
    path.write_text(json.dumps(own))
    found = load(config_of(folder), device="cpu").model.generation_config
    assert found.eos_token_id == [256, 257]
    assert found.suppress_tokens == [5]
    assert found.repetition_penalty in (None, 1.0)
    assert not found.no_repeat_ngram_size
    assert not found.do_sample


def test_a_folder_that_is_not_there_or_lacks_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere does not exist; .* name of a repository"):
        check_model(config_of(tmp_path / "nowhere"))
    check_model(config_of(folder))
    lacking = []
    for pattern, what in (
        ("config.json", "config.json"),
        ("*.safetensors", "weights as safetensors"),
        ("token*.json", "a tokenizer"),
        ("*processor*.json", "a processor"),
    ):
        for path in folder.glob(pattern):
            path.unlink()
        lacking.append(what)
        message = rf"{folder} lacks {', '.join(lacking)}; .*hf download"
        with pytest.raises(ModelError, match=message):
            check_model(config_of(folder))


def test_tensors_that_are_missing_are_not_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "q_proj" in name)
    del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 tensors are missing .*q_proj"):
        load(config_of(folder), device="cpu")


def test_an_unknown_architecture_is_refused_and_its_code_not_run(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForImageTextToText": "code.Model"},
    }
    path.write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(ModelError, match="its code is not run"):
        load(config_of(folder), device="cpu")
    assert not (folder / "ran").exists()


def test_models_of_another_kind(folder: Path) -> None:
    """Pins video input, tensors of another shape, models of text alone, and chat templates."""

    def refused(message: str, **more: object) -> None:
        with pytest.raises(ModelError, match=message):
            load(config_of(folder, **more), device="cpu")

    refused(r"takes no video \(Idefics3Processor\): set .*=images", frames_as="video")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["intermediate_size"] = 96
    path.write_text(json.dumps(config))
    refused(r"model .*: ")
    path.write_text(json.dumps(config["text_config"] | {"model_type": "llama"}))
    refused(r"model .*: its weights cannot be loaded")
    (folder / "chat_template.jinja").unlink()
    refused(r"no chat template; .*instruction-tuned")


def test_offline_without_a_copy_and_another_transformers(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = r"some/model@abc is not in the hub's cache.*hf download some/model --revision abc"
    with pytest.raises(ModelError, match=message):
        check_model(config_of("some/model", revision="abc"))
    monkeypatch.setattr(weights, "version", lambda _: "4.57.1")
    with pytest.raises(
        ModelError, match=r"transformers is 4\.57\.1; expected 5\.23 .*captions-loc"
    ):
        check_model(config_of(folder))


def test_nothing_heavy_is_imported_before_a_model_is_asked(folder: Path) -> None:
    """Pins that checks of a model, a service and annotators of captions are cheap."""
    code = (
        "import sys\n"
        "import curator.stages.caption.caption_annotators\n"
        "import curator.stages.caption.captioners.chat_server\n"
        "import curator.stages.caption.captioners.dialog_runner\n"
        "from curator.stages.caption.config import ModelConfig\n"
        "from curator.stages.caption.captioners.model_loading import check_model\n"
        f"check_model(ModelConfig(model={str(folder)!r}))\n"
        "heavy = {'torch', 'transformers', 'torchvision', 'PIL', 'urllib3', 'av', 'open_clip'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
