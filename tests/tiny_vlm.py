"""Small vision-language models of the real architectures with random weights, made on the spot.

Tokens are bytes: a tokenizer needs no vocabulary then, and any answer can be decoded.
"""

from pathlib import Path
from typing import Any, Literal

Family = Literal["qwen2_5_vl", "qwen3_vl", "smolvlm", "idefics3", "llava"]

QWEN = {
    "pad": "<|endoftext|>",
    "end": "<|im_end|>",
    "others": ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
               "<|video_pad|>"],
}  # fmt: skip
IDEFICS = {
    "pad": "<|endoftext|>",
    "end": "<end_of_utterance>",
    "others": ["<|im_start|>", "<image>", "<video>", "<fake_token_around_image>", "<global-img>",
               *(f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2))],
}  # fmt: skip

_PARTS = (
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}IMAGE{%- elif part['type'] == 'video' -%}VIDEO"
    "{%- else -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}"
)
_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\n' }}"
    + _PARTS
    + "{{ 'END\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


def tokenizer_of(special: dict[str, Any]) -> Any:  # noqa: ANN401
    """A tokenizer whose tokens are bytes, and these."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [special["pad"], special["end"], *special["others"]]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=special["pad"], eos_token=special["end"]
    )


def template_of(special: dict[str, Any], image: str, video: str) -> str:
    """A chat template of the usual form."""
    text = _TEMPLATE.replace("IMAGE", image).replace("VIDEO", video)
    return text.replace("END", special["end"])


def tiny_folder(
    folder: Path,
    family: Family,
    *,
    seed: int = 0,
    sharper: float = 4.0,
    side_px: int = 84,
    **text: Any,  # noqa: ANN401
) -> Path:
    """Writes a model with its processor, as the hub has them.

    Args:
        folder: Where.
        family: Architecture.
        seed: Of the weights.
        sharper: Factor of the weights: as initialised, a model gives nearly the same answer to
            unlike pictures.
        side_px: Side of the largest square picture that a Qwen processor leaves as it is.
        text: Settings of the language model that are other than usual.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    model, processor = _made(family, seed, side_px, text)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and "embed_tokens" not in name:
            parameter.data *= sharper
    with torch.no_grad():
        model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _made(family: Family, seed: int, side_px: int, text: dict[str, Any]) -> tuple[Any, Any]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "llava":
            return _llava(text)
        if family in ("smolvlm", "idefics3"):
            return _idefics(family, text)
        return _qwen(family, side_px, text)


def _text(tokenizer: Any, special: dict[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 4096, "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(special["end"]),
        "pad_token_id": tokenizer.convert_tokens_to_ids(special["pad"]), **more,
    }  # fmt: skip


def _qwen(family: Family, side_px: int, more: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as hf

    tokenizer = tokenizer_of(QWEN)
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{word}|>")
        for name, word in (("image", "image_pad"), ("video", "video_pad"),
                           ("vision_start", "vision_start"), ("vision_end", "vision_end"))
    }  # fmt: skip
    text = _text(tokenizer, QWEN, **more)
    half = text["hidden_size"] // text["num_attention_heads"] // 2
    sections = [half // 4, 3 * half // 8, 3 * half // 8]
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    text["rope_parameters"] = rope
    vision = {"depth": 1, "num_heads": 2, "intermediate_size": 64, "hidden_size": 32,
              "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
              "out_hidden_size": text["hidden_size"]}  # fmt: skip
    size = {"shortest_edge": 28 * 28, "longest_edge": side_px**2}
    image = hf.Qwen2VLImageProcessor(size=size, patch_size=14, merge_size=2)
    if family == "qwen3_vl":
        text["head_dim"] = 16
        vision |= {"num_position_embeddings": 36, "deepstack_visual_indexes": [0]}
        config: Any = hf.Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
        model: Any = hf.Qwen3VLForConditionalGeneration(config)
        video: Any = hf.Qwen3VLVideoProcessor(
            size={"shortest_edge": 28 * 28 * 2, "longest_edge": side_px**2 * 8},
            patch_size=14, merge_size=2, temporal_patch_size=2,
        )  # fmt: skip
        make: Any = hf.Qwen3VLProcessor
    else:
        vision |= {"window_size": 56, "fullatt_block_indexes": [0]}
        config = hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
        model = hf.Qwen2_5_VLForConditionalGeneration(config)
        video = hf.Qwen2VLVideoProcessor(size=size, patch_size=14, merge_size=2)
        make = hf.Qwen2_5_VLProcessor
    template = template_of(
        QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        "<|video_pad|>" if family == "qwen3_vl" else "<|vision_start|><|video_pad|><|vision_end|>",
    )
    return model, make(image, tokenizer, video, chat_template=template)


def _idefics(family: Family, more: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as hf

    tokenizer = tokenizer_of(IDEFICS)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 32, "patch_size": 8}  # fmt: skip
    text = {"model_type": "llama", **_text(tokenizer, IDEFICS, **more)}
    ids = {"image_token_id": tokenizer.convert_tokens_to_ids("<image>")}
    sizes = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    template = template_of(IDEFICS, "<image>", "<video>")
    common = {"vision_config": vision, "text_config": text, "scale_factor": 2, **ids}
    if family == "idefics3":
        model: Any = hf.Idefics3ForConditionalGeneration(hf.Idefics3Config(**common))
        image: Any = hf.Idefics3ImageProcessor(**sizes)
        return model, hf.Idefics3Processor(
            image, tokenizer, image_seq_len=4, chat_template=template
        )
    model = hf.SmolVLMForConditionalGeneration(hf.SmolVLMConfig(**common))
    image = hf.SmolVLMImageProcessor(**sizes)
    video = hf.SmolVLMVideoProcessor(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 32}, num_frames=8, fps=1,
        video_sampling={"fps": 1, "max_frames": 8, "video_size": {"longest_edge": 32}},
    )  # fmt: skip
    return model, hf.SmolVLMProcessor(
        image, tokenizer, video, image_seq_len=4, chat_template=template
    )


def _llava(more: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as hf

    tokenizer = tokenizer_of(IDEFICS)
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
              "patch_size": 8, "projection_dim": 32}  # fmt: skip
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config={"model_type": "llama", **_text(tokenizer, IDEFICS, **more)},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    image = hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = hf.LlavaProcessor(
        image, tokenizer, patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=template_of(IDEFICS, "<image>\n", "<video>"),
    )  # fmt: skip
    return hf.LlavaForConditionalGeneration(config), processor
