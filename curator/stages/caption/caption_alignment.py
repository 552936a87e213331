"""How well captions fit their clips, by the CLIP embeddings that analyze stored.

The cosine of a caption's text embedding and the clip's image embedding: no picture is decoded and
no captioner is asked. It compares captions of one clip, or clips under captions of one kind; values
of different CLIP models are not comparable, and a few tokens more or less move it too. CLIP reads
77 tokens, two of them marks, so the short caption is the one to compare; the end of a
longer one that CLIP did not read is returned, and has no part in the value.
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
    """-1 to 1; of captions that fit usually 0.2 to 0.35."""
    n_tokens: int
    """Of the caption, with CLIP's two marks."""
    unread: str
    """The end of the caption that CLIP did not read, as its tokenizer writes it; empty for none."""


def alignments(
    captions: Mapping[str, str],
    vectors: Mapping[str, NDArray[np.float32]],
    *,
    entry: ModelEntry,
    weights: Path,
) -> dict[str, Alignment]:
    """Compares captions with the pictures of their clips, in this process, on its CPU.

    Each distinct caption is embedded once. The whole CLIP model is loaded, where there is anything
    to compare.

    Args:
        captions: By clip id; the short one is meant.
        vectors: Image embeddings by clip id, float32 [D] each, of `clip_embeddings`.
        entry: The CLIP model that made them, `analyze.clip`.
        weights: Its file.

    Returns:
        By clip id, sorted; clips without a caption, of nothing but spaces too, or without an
        embedding are not in it.

    Raises:
        ModelError: open_clip is missing, the file holds no such model, or an embedding is of
            another length.
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
    """Tokens of each text, and what of it does not fit."""
    from open_clip.tokenizer import SimpleTokenizer

    length = int(clip_config(entry)["text_cfg"].get("context_length", _CONTEXT_TOKENS))
    tokenizer = SimpleTokenizer()
    found = []
    for text in texts:
        tokens = tokenizer.encode(text)
        unread = tokenizer.decode(tokens[length - _MARKS :]).strip()
        found.append((len(tokens) + _MARKS, unread))
    return found
