"""Finds the files of a vision-language model that a server on this machine loads.

Files are checked in milliseconds, before a server starts. Weights are safetensors alone, and no
file with code leaves the hub.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from curator.errors import ModelError
from curator.stages.caption.config import ModelConfig

_FETCHED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_COPIES = ("original/*", "consolidated*")
"""The same weights in the form of their authors."""
_PARTS = {
    "config.json": "config.json",
    "weights as safetensors": "model*.safetensors",
    "a tokenizer": "token*.json",
    "a processor": "*processor*.json",
}
_PICTURES = re.compile(r'"\w*(vision|visual|image|img|vit)\w*"\s*:')
_TEMPLATE, _VIDEO = re.compile(r'"chat_template"\s*:'), re.compile(r'"video_processor"\s*:')


def check_name(config: ModelConfig) -> None:
    """Checks a folder, or that the hub may be reached or has a copy here; fetches nothing.

    Raises:
        ModelError: The model cannot be used; the message gives the remedy.
    """
    if _is_folder(config) or _is_offline():
        model_folder(config)


def model_folder(config: ModelConfig) -> Path:
    """Returns the folder with the model's files, fetched from the hub if it is not here.

    Raises:
        ModelError: The files cannot be had, or are no vision-language model with a chat template.
    """
    if _is_folder(config):
        folder = Path(str(config.model)).expanduser().absolute()
        if not folder.is_dir():
            raise ModelError(
                f"model folder {folder} does not exist; expected a folder with config.json, or the "
                "name of a repository at the hub, such as Qwen/Qwen3-VL-2B-Instruct"
            )
    else:
        folder = _fetched(config)
    _check(folder, config)
    return folder


def context_of(folder: Path) -> int | None:
    """Returns the most tokens of prompt and answer; None if `config.json` does not say."""
    config = json.loads((folder / "config.json").read_bytes())
    found = {**config, **config.get("text_config", {})}.get("max_position_embeddings")
    return found if isinstance(found, int) else None


def fetch_command(config: ModelConfig) -> str:
    """Returns the remedy for files that are missing."""
    if _is_folder(config):
        return f"`hf download REPOSITORY --local-dir {config.model}`"
    revision = f" --revision {config.revision}" if config.revision is not None else ""
    return f"fetch it with `hf download {config.model}{revision}`, or name a folder with its files"


def _fetched(config: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        return Path(
            snapshot_download(
                str(config.model),
                revision=config.revision,
                allow_patterns=list(_FETCHED),
                ignore_patterns=list(_COPIES),
                local_files_only=_is_offline(),
            )
        )
    except Exception as error:
        why = "is not in the hub's cache, and HF_HUB_OFFLINE is set"
        if not _is_offline():
            why = f"cannot be fetched: {' '.join(str(error).split())[:300]}"
        raise ModelError(f"model {config.name} {why}; {fetch_command(config)}") from error


def _check(folder: Path, config: ModelConfig) -> None:
    lacking = [what for what, pattern in _PARTS.items() if not any(folder.glob(pattern))]
    if lacking:
        raise ModelError(
            f"model folder {folder} lacks {', '.join(lacking)}; expected all files of the model's "
            f"repository: {fetch_command(config)}"
        )
    texts = {}
    for name in ("config.json", "processor_config.json", "tokenizer_config.json"):
        with suppress(FileNotFoundError):
            texts[name] = (folder / name).read_text("utf-8", "replace")
    if not _PICTURES.search(texts["config.json"]):
        raise ModelError(
            f"model {config.name} processes text alone, by its config.json; expected a "
            "vision-language model"
        )
    if not (any(folder.glob("chat_template*")) or any(map(_TEMPLATE.search, texts.values()))):
        raise ModelError(
            f"model {config.name} has no chat template; expected chat_template.jinja next to its "
            "processor: use the instruction-tuned model of the family"
        )
    has_video = any(folder.glob("video_preprocessor*")) or any(map(_VIDEO.search, texts.values()))
    if config.frames_as == "video" and not has_video:
        raise ModelError(
            f"model {config.name} takes no video, by its processor's files: set "
            "caption.frames_as=images"
        )


def _is_folder(config: ModelConfig) -> bool:
    name = str(config.model)
    return name.startswith(("/", "./", "../", "~")) or Path(name).is_dir()


def _is_offline() -> bool:
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)
