"""Turns requests into tensors for a vision-language model, by its own processor.

The processor gets frames as images or, if supported, as a video (`frames_as`), with their times:
Qwen's models and SmolVLM make timestamps of them. It does not sample frames.

The words of a request are plain text: anything like a control token of the model, such as
`<|im_end|>` or `<image>` read from a picture, gets a space after its first character.
(`sanitize_control_tokens` of transformers fails for Idefics3, which counts such words as pictures.)
"""

import io
import re
import threading
from collections.abc import Sequence
from typing import Any, Literal

from curator.stages.caption.caption_records import Frames, Request
from curator.stages.caption.captioners.dialog_batches import Size, SizedRequest


class Chat:
    """A processor of `AutoProcessor` with its chat template; its padding is set to the left."""

    def __init__(self, processor: Any, frames_as: Literal["images", "video"] = "images") -> None:  # noqa: ANN401
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.frames_as = frames_as
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._control = _control_tokens(processor)
        self._of_pictures: dict[tuple[Size, ...], int] = {}
        # A tokenizer's padding is its state, so two threads must not use it at once.
        self._lock = threading.Lock()
        self.has_system_role = self._renders_system()
        """If False, the system prompt goes before the user's first words."""

    def sized(self, request: Request, frames: Frames) -> SizedRequest:
        """Counts the tokens of a request; black pictures measure each set of sizes once.

        Raises:
            ValueError: The processor cannot take the pictures, or they are no JPEGs.
        """
        from PIL import Image

        sizes: tuple[Size, ...] = tuple(_opened(jpeg).size for jpeg in frames.jpegs)
        with self._lock:
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

        All requests of a batch have pictures, or none has; as video, their sizes are equal.
        """
        pictures = [[_decoded(jpeg) for jpeg in asked.frames.jpegs] for asked in batch]
        with self._lock:
            return self._inputs([asked.request for asked in batch], pictures)

    def decoded(self, tokens: Sequence[int]) -> str:
        """Returns the words of an answer."""
        with self._lock:
            text: str = self.tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text.strip()

    def _inputs(self, requests: Sequence[Request], pictures: list[list[Any]]) -> dict[str, Any]:
        settings: dict[str, Any] = {"padding": True}
        if any(pictures) and self.frames_as == "video":
            settings["video_metadata"] = [_metadata(request) for request in requests]
            settings["do_sample_frames"] = False
        conversations = [self._messages(*pair) for pair in zip(requests, pictures, strict=True)]
        return dict(
            self._rendered(
                conversations,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs=settings,
            )
        )

    def _rendered(self, messages: list[Any], **settings: Any) -> Any:  # noqa: ANN401
        from jinja2 import TemplateError

        try:
            return self.processor.apply_chat_template(
                messages, add_generation_prompt=True, **settings
            )
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses the turns: {error}") from error

    def _renders_system(self) -> bool:
        mark = "A system prompt."
        turns = [{"role": role, "content": [self._words(mark)]} for role in ("system", "user")]
        try:
            return bool(self._rendered(turns).count(mark) == 2)
        except ValueError:
            return False

    def _messages(self, request: Request, pictures: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns the conversation; pictures come before the first words of the user."""
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


def _metadata(request: Request) -> dict[str, Any]:
    """Returns data for timestamps and rates; times count from the clip's start."""
    window = request.task.window
    return {
        "total_num_frames": window.end_frame - window.start_frame,
        "fps": request.task.fps,
        "duration": window.end_frame / request.task.fps,
        "frames_indices": list(window.shown),
    }


def _opened(jpeg: bytes) -> Any:  # noqa: ANN401
    from PIL import Image

    try:
        return Image.open(io.BytesIO(jpeg), formats=("JPEG",))
    except OSError as error:
        raise ValueError(f"a frame of {len(jpeg)} bytes is no JPEG") from error


def _decoded(jpeg: bytes) -> Any:  # noqa: ANN401
    try:
        return _opened(jpeg).convert("RGB")
    except OSError as error:
        raise ValueError(f"a frame cannot be decoded: {error}") from error
