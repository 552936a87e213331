"""Annotators of captions: how well captions fit their clips, and embeddings of captions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.family import Array, Columns, Family, Lifetime, Row, Scope
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import text_embedder
from curator.models.text_encoder import TextEncoder, text_hash, torch_refusal
from curator.models.weight_store import ModelStore
from curator.stage import (
    CLIP_EMBEDDING,
    SHORT_CAPTION,
    Annotator,
    ClipFacts,
    Resources,
    SampledClip,
)
from curator.stages.caption.config import CaptionConfig

NAME = COLUMN = "caption_clip_score"


class _OfCaptions(Annotator[CaptionConfig]):
    version = 1
    config_type = CaptionConfig
    sections = ("caption",)
    is_remade = True
    frames = ()

    def __init__(self, config: CaptionConfig, entry: ModelEntry, models: ModelStore) -> None:
        super().__init__(config)
        self._entry, self._models = entry, models

    def settings(self) -> dict[str, object]:
        """Returns no settings: values depend only on captions, pictures and the model."""
        return {}


class CaptionClipScore(_OfCaptions):
    """Measures how well captions fit their clips, with the CLIP vectors of analyze.

    The value is the cosine of the embeddings of short caption and clip, -1 to 1; captions that fit
    usually have 0.2 to 0.35. Compare values of one CLIP model only, for captions of one clip, or
    for captions of one kind. CLIP reads 77 tokens, so the end of a longer caption has no effect.
    """

    name = NAME
    columns = (SHORT_CAPTION, CLIP_EMBEDDING)
    batch = 2048
    families = (Family("caption_clip_scores", Scope.CLIP, Columns({COLUMN: "f64"})),)

    def __init__(self, config: CaptionConfig, entry: ModelEntry, models: ModelStore) -> None:
        super().__init__(config, entry, models)
        self._embed: Callable[[Sequence[str]], tuple[NDArray[np.float32], float]] | None = None

    def models(self) -> tuple[object, ...]:
        """Returns the fingerprint of the weights."""
        return (self._models.fingerprint(self._entry),)

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns a digest of clip, caption and vector; None if caption or vector is missing."""
        caption, vector = facts.columns[SHORT_CAPTION], facts.columns[CLIP_EMBEDDING]
        if vector is None or not (caption or "").strip():
            return None
        # The vector comes from the analyzed frames, so the MP4 does not matter.
        return super().key(facts, "")

    def process(self, unit: Sequence[SampledClip]) -> list[Row]:
        """Returns the cosine for each clip; None if the vector's length is 0 or not finite.

        Raises:
            ModelError: The model cannot be loaded, or a vector has another dimension.
        """
        entry = self._entry
        vectors: list[Any] = [clip.facts.columns[CLIP_EMBEDDING] for clip in unit]
        for clip, vector in zip(unit, vectors, strict=True):
            if vector.shape != (entry.dim,):
                raise ModelError(
                    f"the embedding of clip {clip.facts.clip_id} has shape {vector.shape}; "
                    f"expected ({entry.dim},) of the model {entry.name}"
                )
        self._embed = self._embed or text_embedder(entry, self._models.find(entry))
        texts = [" ".join(clip.facts.columns[SHORT_CAPTION].split()) for clip in unit]
        distinct = sorted(set(texts))
        embedded = self._embed(distinct)[0].astype(np.float64)
        of_text = dict(zip(distinct, embedded, strict=True))
        rows: list[Row] = []
        for text, vector in zip(texts, vectors, strict=True):
            picture = vector.astype(np.float64)
            norm = float(np.linalg.norm(picture))
            has_direction = norm != 0 and np.isfinite(norm)
            rows.append({COLUMN: float(of_text[text] @ picture) / norm if has_direction else None})
        return rows


ENCODER_BYTES = 4 << 30
FAMILY, MEMBER = "caption_embeddings", "text.npy"
"""Names of the family and of its member; readers decode a member by its suffix."""


class CaptionEmbeddings(_OfCaptions):
    """Embeds captions with a text encoder: float32 [D] of unit length, or float16 [tokens, D]."""

    name = "caption_embeddings"
    columns = ("caption",)
    batch = 256
    """Captions of a unit; the encoder batches captions of similar length."""
    kinds = (
        Resources(cpus=1, gpus=1, memory_bytes=ENCODER_BYTES),
        Resources(cpus=1, memory_bytes=ENCODER_BYTES),
    )

    def __init__(self, config: CaptionConfig, entry: ModelEntry, models: ModelStore) -> None:
        super().__init__(config, entry, models)
        self._encoder: TextEncoder | None = None
        is_of_tokens = entry.pooling == "tokens"
        content = Array("f16", ("tokens", "d")) if is_of_tokens else Array("f32", ("d",))
        self.families = (
            Family(FAMILY, Scope.CLIP, content, member=MEMBER, lifetime=Lifetime.CACHE),
        )

    def models(self) -> tuple[object, ...]:
        """Returns the fingerprint of the weights, the pooling, and the limit on tokens."""
        entry = self._entry
        return (self._models.fingerprint(entry), entry.pooling, entry.max_tokens)

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns the hash of the caption; None for a blank caption."""
        caption = facts.columns["caption"] or ""
        return text_hash(caption) if caption.strip() else None

    def node_refusal(self) -> str | None:
        """Returns why torch cannot use this node's GPU."""
        return torch_refusal()

    def process(self, unit: Sequence[SampledClip]) -> list[NDArray[np.generic]]:
        """Returns the embedding of each caption."""
        if self._encoder is None:
            folder = self._models.find(self._entry).parent
            self._encoder = TextEncoder(self._entry, folder)
        texts = [clip.facts.columns["caption"] for clip in unit]
        made: dict[int, Any] = dict(self._encoder.each(texts))
        return [made[number] for number in range(len(texts))]
