"""The error for a model whose files do not do names the model, the problem and the remedy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from local_models import stub_folder

from curator.errors import ModelError
from curator.stages.caption.captioners import local_server
from curator.stages.caption.captioners.local_server import LocalCaptioner
from curator.stages.caption.captioners.model_files import context_of
from curator.stages.caption.config import ModelConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stub_folder(tmp_path / "model")


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "find_vllm", lambda: None)


def check(model: object, **more: object) -> None:
    config = ModelConfig.model_validate({"model": str(model), **more})
    LocalCaptioner(config).check(None)


def test_a_folder_that_is_not_there_or_lacks_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere does not exist; .* name of a repository"):
        check(tmp_path / "nowhere")
    check(folder)
    assert context_of(folder) == 4096
    lacking = []
    for pattern, what in (
        ("config.json", "config.json"),
        # PyTorch's own files may hold code.
        ("*.safetensors", "weights as safetensors"),
        ("token*.json", "a tokenizer"),
        ("*processor*.json", "a processor"),
    ):
        for path in folder.glob(pattern):
            path.unlink()
        (folder / "pytorch_model.bin").touch()
        lacking.append(what)
        with pytest.raises(ModelError, match=rf"{folder} lacks {', '.join(lacking)}; .*hf downlo"):
            check(folder)


def test_models_of_another_kind(folder: Path) -> None:
    """Pins video input, chat templates, and models of text alone."""
    with pytest.raises(ModelError, match=r"serve takes no video; set caption.frames_as=images"):
        check(folder, frames_as="video")
    (folder / "chat_template.jinja").rename(folder / "template")
    with pytest.raises(ModelError, match=r"no chat template; .*instruction-tuned"):
        check(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    check(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"text alone, by its config.json; expected a vision"):
        check(folder)


def test_offline_without_a_copy_and_another_transformers(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = r"some/model@abc is not in the hub's cache.*hf download some/model --revision abc"
    with pytest.raises(ModelError, match=message):
        check("some/model", revision="abc")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    check("some/model")
    with pytest.raises(ModelError, match=r"caption.server is vllm, and there is no program vllm"):
        check(folder, server="vllm")
    monkeypatch.setattr(local_server, "version", lambda _: "4.57.1")
    with pytest.raises(ModelError, match=r"is 4\.57\.1; expected 5\.23 .*captions-local"):
        check(folder)


def test_a_copy_of_the_hub_has_neither_code_nor_pickles(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """Pins which files are fetched, and that a revision is."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    from curator.stages.caption.captioners.model_files import model_folder

    names = ["config.json", "model.safetensors", "modeling_own.py", "pytorch_model.bin", "a.pkl",
             "original/consolidated.safetensors"]  # fmt: skip

    def download(name: str, *, revision: str, local_files_only: bool, **patterns: list[str]) -> str:
        assert (name, revision, local_files_only) == ("some/model", "abc", False)
        kept = list(filter_repo_objects(names, **patterns))
        assert kept == ["config.json", "model.safetensors"]
        return str(shutil.copytree(folder, tmp_path / "snapshot"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    config = ModelConfig(model="some/model", revision="abc")
    assert model_folder(config) == tmp_path / "snapshot"


def test_nothing_heavy_is_imported_before_a_server_starts(folder: Path) -> None:
    """Pins that checks of a model, a service and annotators of captions are cheap."""
    code = (
        "import sys\n"
        "import curator.stages.caption.caption_annotators\n"
        "import curator.stages.caption.captioners.dialog_runner\n"
        "from curator.stages.caption.config import ModelConfig\n"
        "from curator.stages.caption.captioners.local_server import LocalCaptioner\n"
        f"LocalCaptioner(ModelConfig(model={str(folder)!r})).check(None)\n"
        "heavy = {'torch', 'transformers', 'torchvision', 'PIL', 'urllib3', 'av', 'open_clip'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
