"""Loads a vision-language model for the worker, or reports missing parts and the remedy.

Only safetensors weights are read. `trust_remote_code` is never set, so a model whose architecture
is not in transformers is refused.
"""

import importlib.util
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from curator.errors import ModelError, install_extra
from curator.models.cpu_arithmetic import has_fast_bfloat16
from curator.stages.caption.captioners.chat_tensors import Chat
from curator.stages.caption.config import ModelConfig

Device = Literal["auto", "cpu", "cuda"]

INSTALL = install_extra("captions-local")
LEAST_VERSION = (5, 23)
"""Processors of earlier versions work differently; the extra `mds` requires a version below 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model with its processor."""

    model: Any
    chat: Chat
    device: str
    context: int | None
    """Most tokens of prompt and answer; None if unknown."""


def check_model(config: ModelConfig) -> None:
    """Checks in milliseconds whether a model can be loaded, without importing or reading weights.

    Raises:
        ModelError: transformers or files are missing. A hub model that is not in the cache passes
            if the hub may be contacted.
    """
    _check_packages()
    name = str(config.model)
    if _is_folder(name):
        _check_folder(Path(name))
    elif _is_offline():
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(name, "config.json", revision=config.revision or "main")
        if not isinstance(path, str):
            raise ModelError(
                f"model {config.name} is not in the hub's cache, and HF_HUB_OFFLINE is set; "
                f"{_fetch(config)}, or name a folder"
            )


def load(config: ModelConfig, *, device: Device = "auto") -> Loaded:
    """Loads model and processor: bfloat16 on GPUs and on CPUs that multiply it, else float32.

    Raises:
        ModelError: Something of the model is missing, or transformers lacks the architecture.
    """
    check_model(config)
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from transformers.utils import logging

    logging.disable_progress_bar()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    is_short = device == "cuda" or has_fast_bfloat16()
    chat = _chat(AutoProcessor, config)
    try:
        model, info = AutoModelForImageTextToText.from_pretrained(
            str(config.model),
            revision=config.revision or "main",
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.bfloat16 if is_short else torch.float32,
            output_loading_info=True,
        )
    except Exception as error:
        raise _cannot(config, "weights", error) from error
    if lacking := sorted({*map(str, info["missing_keys"]), *map(str, info["mismatched_keys"])}):
        # transformers only logs that it fills these with random numbers.
        raise ModelError(
            f"model {config.name}: {len(lacking)} tensors are missing or of another shape, such as "
            f"{lacking[0]}; expected a complete model: {_fetch(config)}"
        )
    model = model.to(device).eval().requires_grad_(False)
    model.generation_config = _generation(model, chat)
    text = model.config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    return Loaded(model=model, chat=chat, device=device, context=context)


def _check_packages() -> None:
    for package in ("transformers", "torchvision"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"the captioner transformers needs {package}: {INSTALL}")
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise ModelError(f"transformers is {installed}; expected {least} or later: {INSTALL}")


def _is_folder(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or Path(name).is_dir()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(
            f"model folder {folder} does not exist; expected a folder with config.json, or the "
            "name of a repository at the hub, such as Qwen/Qwen3-VL-2B-Instruct"
        )
    wanted = {
        "config.json": "config.json",
        "weights as safetensors": "*.safetensors",
        "a tokenizer": "token*.json",
        "a processor": "*processor*.json",
    }
    lacking = [what for what, pattern in wanted.items() if not any(folder.glob(pattern))]
    if lacking:
        raise ModelError(
            f"model folder {folder} lacks {', '.join(lacking)}; expected all files of the model's "
            f"repository: `hf download REPOSITORY --local-dir {folder}`"
        )


def _is_offline() -> bool:
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def _chat(processors: Any, config: ModelConfig) -> Chat:  # noqa: ANN401
    try:
        processor = processors.from_pretrained(
            config.model, revision=config.revision or "main", trust_remote_code=False
        )
    except Exception as error:
        raise _cannot(config, "processor", error) from error
    if getattr(processor, "tokenizer", None) is None:
        raise ModelError(
            f"model {config.name} has {type(processor).__name__} and no processor of pictures and "
            "words; expected a vision-language model with its processor's files"
        )
    if not (getattr(processor, "chat_template", None) or processor.tokenizer.chat_template):
        raise ModelError(
            f"model {config.name} has no chat template; expected chat_template.jinja next to its "
            "processor: take the instruction-tuned model of the family"
        )
    has_video = getattr(processor, "video_processor", None) is not None
    if config.frames_as == "video" and not has_video:
        raise ModelError(
            f"model {config.name} takes no video ({type(processor).__name__}): set "
            "caption.frames_as=images"
        )
    return Chat(processor, config.frames_as)


def _generation(model: Any, chat: Chat) -> Any:  # noqa: ANN401
    """Sets how answers end and which tokens they exclude; each request sets the sampling.

    The authors' repetition penalty is left out, because it counts padding and would make an answer
    depend on its batch.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    ends = own.eos_token_id if own.eos_token_id is not None else []
    ends = list(ends) if isinstance(ends, list) else [ends]
    if not ends:
        ends = [chat.tokenizer.eos_token_id]
    return GenerationConfig(
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=chat.tokenizer.pad_token_id,
        bos_token_id=own.bos_token_id,
        suppress_tokens=own.suppress_tokens,
        bad_words_ids=own.bad_words_ids,
    )


def _cannot(config: ModelConfig, what: str, error: Exception) -> ModelError:
    line = " ".join(str(error).split())[:300]
    if any(word in line for word in ("custom code", "Unrecognized", "does not recognize")):
        remedy = "its code is not run; take a model that transformers has, or a newer transformers"
    elif isinstance(error, ImportError):
        remedy = f"install what it names, or {INSTALL}"
    elif _is_folder(str(config.model)):
        remedy = "expected all files of the model's repository, weights as safetensors"
    else:
        remedy = f"{_fetch(config)}, or name a folder with its files"
    return ModelError(f"model {config.name}: its {what} cannot be loaded: {line}; {remedy}")


def _fetch(config: ModelConfig) -> str:
    revision = f" --revision {config.revision}" if config.revision is not None else ""
    return f"fetch it with `hf download {config.model}{revision}`"
