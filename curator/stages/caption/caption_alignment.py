"""Measures how well captions fit their clips, by the CLIP embeddings that analyze stored.

The value is the cosine of the caption's and the clip's embedding; no picture is decoded and no
captioner runs. It compares captions of one clip, or clips under captions of one kind. Values of
different CLIP models are not comparable, and small changes of length also move the value. CLIP
reads 77 tokens, including two marks, so compare the short caption. The unread end of a longer
caption is returned and has no effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import clip_config, embed_texts

_CONTEXT_TOKENS = 77
_MARKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How well a caption fits its clip."""

    cosine: float
    """-1 to 1; usually 0.2 to 0.35 for captions that fit."""
    n_tokens: int
    """Tokens of the caption, including CLIP's two marks."""
    unread: str
    """The unread end of the caption, as CLIP's tokenizer writes it; empty if CLIP read all."""


def alignments(
    captions: Mapping[str, str],
    vectors: Mapping[str, NDArray[np.float32]],
    *,
    entry: ModelEntry,
    weights: Path,
) -> dict[str, Alignment]:
    """Compares captions with the pictures of their clips, in this process, on its CPU.

    Each distinct caption is embedded once. The whole CLIP model is loaded if any pair exists.

    Args:
        captions: Short captions by clip id.
        vectors: Image embeddings of `clip_embeddings` by clip id, float32 [D] each.
        entry: The CLIP model of the embeddings, `analyze.clip`.
        weights: File of the model.

    Returns:
        Alignments by clip id, sorted, without clips that lack an embedding or a non-blank caption.

    Raises:
        ModelError: open_clip is missing, the file holds no such model, or an embedding has another
            length.
    """
    asked = {
        clip: text
        for clip, caption in sorted(captions.items())
        if clip in vectors and (text := " ".join(caption.split()))
    }
    if not asked:
        return {}
    for clip in asked:
        if np.shape(vectors[clip]) != (entry.dim,):
            raise ModelError(
                f"the embedding of clip {clip} has shape {np.shape(vectors[clip])}; expected "
                f"({entry.dim},) of the model {entry.name}"
            )
    texts = sorted(set(asked.values()))
    embedded, _ = embed_texts(entry, weights, texts)
    of_text = dict(zip(texts, embedded, strict=True))
    read = dict(zip(texts, _readings(entry, texts), strict=True))
    found = {}
    for clip, text in asked.items():
        picture = np.asarray(vectors[clip], np.float64)
        norm = float(np.linalg.norm(picture))
        if norm == 0 or not np.isfinite(norm):
            continue
        cosine = float(of_text[text].astype(np.float64) @ picture) / norm
        n_tokens, unread = read[text]
        found[clip] = Alignment(cosine=cosine, n_tokens=n_tokens, unread=unread)
    return found


def _readings(entry: ModelEntry, texts: Sequence[str]) -> list[tuple[int, str]]:
    """Returns each text's token count and unread end."""
    from open_clip.tokenizer import SimpleTokenizer

    length = int(clip_config(entry)["text_cfg"].get("context_length", _CONTEXT_TOKENS))
    tokenizer = SimpleTokenizer()
    found = []
    for text in texts:
        tokens = tokenizer.encode(text)
        unread = tokenizer.decode(tokens[length - _MARKS :]).strip()
        found.append((len(tokens) + _MARKS, unread))
    return found
