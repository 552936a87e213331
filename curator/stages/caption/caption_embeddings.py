"""The annotator that embeds captions: each distinct one once, whatever clips have it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.family import Array, Family, Lifetime, Scope
from curator.models.catalogue import ModelEntry
from curator.models.text_encoder import TextEncoder, text_hash, torch_refusal
from curator.models.weight_store import ModelStore
from curator.stage import Annotator, ClipFacts, Resources, SampledClip
from curator.stages.caption.config import CaptionConfig

ENCODER_BYTES = 4 << 30
FAMILY, MEMBER = "caption_embeddings", "text.npy"
"""Name of the family, and its member: readers decode by what follows the last dot."""


class CaptionEmbeddings(Annotator[CaptionConfig]):
    """Embeds captions by a text encoder: float32 [D] of unit length, or float16 [tokens, D].

    Args:
        entry: The model.
        models: Where its weights are.
    """

    name = "caption_embeddings"
    version = 1
    config_type = CaptionConfig
    frames = ()
    columns = ("caption",)
    batch = 256
    """Captions at a time: those of similar length share a batch of the encoder."""
    kinds = (
        Resources(cpus=1, gpus=1, memory_bytes=ENCODER_BYTES),
        Resources(cpus=1, memory_bytes=ENCODER_BYTES),
    )

    def __init__(self, config: CaptionConfig, entry: ModelEntry, models: ModelStore) -> None:
        super().__init__(config)
        self._entry, self._models = entry, models
        self._encoder: TextEncoder | None = None
        is_of_tokens = entry.pooling == "tokens"
        content = Array("f16", ("tokens", "d")) if is_of_tokens else Array("f32", ("d",))
        self.families = (
            Family(FAMILY, Scope.CLIP, content, member=MEMBER, lifetime=Lifetime.CACHE),
        )

    def settings(self) -> dict[str, object]:
        """Returns none: the model alone makes the value."""
        return {}

    def models(self) -> tuple[object, ...]:
        """Returns the weights, and how they are used."""
        entry = self._entry
        return (self._models.fingerprint(entry), entry.pooling, entry.max_tokens)

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns the hash of the caption; None for one of nothing but spaces."""
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
