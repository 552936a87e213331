"""Loads a vision-language model and its processor in the worker, or names the missing parts.

The worker reads only safetensors weights. `trust_remote_code` is never set, so transformers must
have the model's architecture.

The model's processor turns requests into tensors. The processor gets frames as images, or as a
video with the frames' times (`frames_as`), from which Qwen's models and SmolVLM make timestamps.
The processor samples no frames.

Control tokens in the text of a request, such as `<|im_end|>` or `<image>` read from a picture, get
a space after their first character, and so have no effect. (`sanitize_control_tokens` of
transformers fails for Idefics3, which counts such text as pictures.)
"""

import importlib.util
import io
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from curator.errors import ModelError
from curator.installation import install_extra
from curator.models.cpu_arithmetic import has_fast_bfloat16
from curator.stages.caption.caption_records import Frames, Request
from curator.stages.caption.captioners.captioner_contract import Size, SizedRequest
from curator.stages.caption.config import ModelConfig

Device = Literal["auto", "cpu", "cuda"]

EXTRA = "captions-local"
LEAST_VERSION = (5, 23)
"""Processors of earlier versions work differently. The extra `mds` needs a version below 5."""


class Chat:
    """A processor of `AutoProcessor` with its chat template; it pads on the left."""

    def __init__(self, processor: Any, frames_as: Literal["images", "video"] = "images") -> None:  # noqa: ANN401
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.frames_as = frames_as
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._control = _control_tokens(processor)
        self._of_pictures: dict[tuple[Size, ...], int] = {}
        mark = self._words("A system prompt.")
        turns = [{"role": role, "content": [mark]} for role in ("system", "user")]
        self.has_system_role = False
        """If False, the system prompt precedes the text of the first turn."""
        with suppress(ValueError):
            self.has_system_role = self._rendered(turns).count(mark["text"]) == 2

    def sized(self, request: Request, frames: Frames) -> SizedRequest:
        """Counts the tokens of a request; black pictures give the count for each set of sizes once.

        Raises:
            ValueError: The processor refuses the pictures, or a picture is no JPEG.
        """
        from PIL import Image

        sizes: tuple[Size, ...] = tuple(_opened(jpeg).size for jpeg in frames.jpegs)
        words = self._rendered(self._messages(request, []))
        n_tokens = len(self.tokenizer(words, add_special_tokens=False)["input_ids"])
        if sizes and sizes not in self._of_pictures:
            black = [Image.new("RGB", size) for size in sizes]
            shown = self._inputs([request], [black])
            self._of_pictures[sizes] = int(shown["input_ids"].shape[1]) - n_tokens
        n_tokens += self._of_pictures[sizes] if sizes else 0
        return SizedRequest(request=request, frames=frames, n_tokens=n_tokens, sizes=sizes)

    def inputs(self, batch: Sequence[SizedRequest]) -> dict[str, Any]:
        """Returns the tensors of a batch, padded on the left, on the CPU; raises as `sized`.

        Either all requests of a batch have pictures, or none has. Videos have equal sizes.
        """
        pictures = [[_opened(jpeg, decode=True) for jpeg in one.frames.jpegs] for one in batch]
        return self._inputs([asked.request for asked in batch], pictures)

    def decoded(self, tokens: Sequence[int]) -> str:
        """Returns the text of an answer."""
        text: str = self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text.strip()

    def _inputs(self, requests: Sequence[Request], pictures: list[list[Any]]) -> dict[str, Any]:
        settings: dict[str, Any] = {"padding": True}
        if any(pictures) and self.frames_as == "video":
            # For timestamps and rates; times are seconds from the clip's start.
            settings["video_metadata"] = [
                {
                    "total_num_frames": task.window.end_frame - task.window.start_frame,
                    "fps": task.fps,
                    "duration": task.window.end_frame / task.fps,
                    "frames_indices": list(task.window.shown),
                }
                for task in (request.task for request in requests)
            ]
            settings["do_sample_frames"] = False
        conversations = [self._messages(*pair) for pair in zip(requests, pictures, strict=True)]
        form = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
        return dict(self._rendered(conversations, **form, processor_kwargs=settings))

    def _rendered(self, messages: list[Any], **settings: Any) -> Any:  # noqa: ANN401
        from jinja2 import TemplateError

        try:
            return self.processor.apply_chat_template(
                messages, add_generation_prompt=True, **settings
            )
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses the turns: {error}") from error

    def _messages(self, request: Request, pictures: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns the conversation; pictures come before the text of the first user turn."""
        import numpy as np

        messages: list[dict[str, Any]] = []
        before = request.system
        if before and self.has_system_role:
            messages.append({"role": "system", "content": [self._words(before)]})
            before = ""
        shown = [{"type": "image", "image": picture} for picture in pictures]
        if pictures and self.frames_as == "video":
            frames = np.stack([np.asarray(picture) for picture in pictures])
            shown = [{"type": "video", "video": frames}]
        for turn in request.turns:
            content: list[dict[str, Any]] = []
            if turn.role == "user":
                content, shown = shown, []
            text = f"{before}\n\n{turn.text}" if before else turn.text
            before = ""
            messages.append({"role": turn.role, "content": [*content, self._words(text)]})
        return messages

    def _words(self, text: str) -> dict[str, str]:
        plain = self._control.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return {"type": "text", "text": plain}


def _control_tokens(processor: Any) -> re.Pattern[str]:  # noqa: ANN401
    added = processor.tokenizer.added_tokens_decoder.values()
    names = {token.content for token in added if token.special}
    names |= {getattr(processor, f"{kind}_token", None) or "" for kind in ("image", "video")}
    words = sorted((name for name in names if len(name.strip()) > 1), key=len, reverse=True)
    return re.compile("|".join(re.escape(word) for word in words) or r"(?!)")


def _opened(jpeg: bytes, *, decode: bool = False) -> Any:  # noqa: ANN401
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(jpeg), formats=("JPEG",))
        return picture.convert("RGB") if decode else picture
    except UnidentifiedImageError as error:
        raise ValueError(f"a frame of {len(jpeg)} bytes is no JPEG") from error
    except OSError as error:
        raise ValueError(f"a frame cannot be decoded: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model with its processor."""

    model: Any
    chat: Chat
    device: str
    context: int | None
    """Most tokens of prompt and answer; None if unknown."""


def check_model(config: ModelConfig) -> None:
    """Checks packages and files of a model in milliseconds; does not load transformers or weights.

    Raises:
        ModelError: transformers or files are missing. If the hub may be contacted, a model of the
            hub passes without a check of its files.
    """
    for package in ("transformers", "torchvision"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"the captioner transformers needs {package}: {install_extra(EXTRA)}")
    # A checkout of transformers has no version.
    with suppress(PackageNotFoundError):
        installed = version("transformers")
        if tuple(int(part) for part in installed.split(".")[:2] if part.isdigit()) < LEAST_VERSION:
            least = ".".join(map(str, LEAST_VERSION))
            raise ModelError(
                f"transformers is {installed}; expected {least} or later: {install_extra(EXTRA)}"
            )
    name = str(config.model)
    offline = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    if _is_folder(name):
        _check_folder(Path(name))
    elif any(value.upper() in ("1", "ON", "YES", "TRUE") for value in offline):
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(name, "config.json", revision=config.revision or "main")
        if not isinstance(path, str):
            raise ModelError(
                f"model {config.name} is not in the hub's cache, and HF_HUB_OFFLINE is set; "
                f"{_fetch(config)}, or name a folder"
            )


def load(config: ModelConfig, *, device: Device = "auto") -> Loaded:
    """Loads model and processor, in bfloat16 on GPUs and on CPUs with fast bfloat16, else float32.

    Raises:
        ModelError: Files or tensors are missing, or transformers lacks the architecture.
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
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return Loaded(model=model, chat=chat, device=device, context=context)


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


def _chat(processors: Any, config: ModelConfig) -> Chat:  # noqa: ANN401
    try:
        processor = processors.from_pretrained(
            config.model, revision=config.revision or "main", trust_remote_code=False
        )
    except Exception as error:
        raise _cannot(config, "processor", error) from error
    if getattr(processor, "tokenizer", None) is None:
        raise ModelError(
            f"model {config.name} has {type(processor).__name__}, which does not process both "
            "pictures and text; expected a vision-language model with its processor's files"
        )
    if not (getattr(processor, "chat_template", None) or processor.tokenizer.chat_template):
        raise ModelError(
            f"model {config.name} has no chat template; expected chat_template.jinja next to its "
            "processor: use the instruction-tuned model of the family"
        )
    has_video = getattr(processor, "video_processor", None) is not None
    if config.frames_as == "video" and not has_video:
        raise ModelError(
            f"model {config.name} takes no video ({type(processor).__name__}): set "
            "caption.frames_as=images"
        )
    return Chat(processor, config.frames_as)


def _generation(model: Any, chat: Chat) -> Any:  # noqa: ANN401
    """Returns settings of end tokens and excluded tokens; each request sets the sampling.

    The repetition penalty of the model's authors is left out: it counts padding, so an answer would
    depend on its batch.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    ends = own.eos_token_id
    if ends is None or ends == []:
        ends = chat.tokenizer.eos_token_id
    return GenerationConfig(
        do_sample=False,
        eos_token_id=ends if isinstance(ends, list) else [ends],
        pad_token_id=chat.tokenizer.pad_token_id,
        bos_token_id=own.bos_token_id,
        suppress_tokens=own.suppress_tokens,
        bad_words_ids=own.bad_words_ids,
    )


def _cannot(config: ModelConfig, what: str, error: Exception) -> ModelError:
    line = " ".join(str(error).split())[:300]
    if any(word in line for word in ("custom code", "Unrecognized", "does not recognize")):
        remedy = "its code is not run; use a model of transformers, or a newer transformers"
    elif isinstance(error, ImportError):
        remedy = f"install the missing package, or {install_extra(EXTRA)}"
    elif _is_folder(str(config.model)):
        remedy = "expected all files of the model's repository, weights as safetensors"
    else:
        remedy = f"{_fetch(config)}, or name a folder with its files"
    return ModelError(f"model {config.name}: its {what} cannot be loaded: {line}; {remedy}")


def _fetch(config: ModelConfig) -> str:
    revision = f" --revision {config.revision}" if config.revision is not None else ""
    return f"fetch it with `hf download {config.model}{revision}`"
