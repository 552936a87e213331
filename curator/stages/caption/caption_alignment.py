"""The annotator that measures how well captions fit their clips, by the CLIP vectors of analyze.

The value is the cosine of the caption's and the clip's embedding. It compares captions of one clip,
or clips under captions of one kind, by one CLIP model. CLIP reads 77 tokens, so compare the short
caption: the unread end of a longer one has no effect.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.family import Columns, Family, Row, Scope
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import text_embedder
from curator.models.weight_store import ModelStore
from curator.stage import CLIP_EMBEDDING, SHORT_CAPTION, Annotator, ClipFacts, SampledClip
from curator.stages.caption.config import CaptionConfig

NAME = COLUMN = "caption_alignment"


class CaptionAlignment(Annotator[CaptionConfig]):
    """Writes the cosine of caption and picture: -1 to 1; usually 0.2 to 0.35 for those that fit.

    Args:
        entry: The CLIP model.
        models: Where its weights are.
    """

    name = NAME
    version = 1
    config_type = CaptionConfig
    frames = ()
    columns = (SHORT_CAPTION, CLIP_EMBEDDING)
    batch = 2048
    families = (Family("caption_alignments", Scope.CLIP, Columns({COLUMN: "f64"})),)

    def __init__(self, config: CaptionConfig, entry: ModelEntry, models: ModelStore) -> None:
        super().__init__(config)
        self._entry, self._models = entry, models
        self._embed: Callable[[Sequence[str]], tuple[NDArray[np.float32], float]] | None = None

    def settings(self) -> dict[str, object]:
        """Returns none: caption, picture and model alone make the value."""
        return {}

    def models(self) -> tuple[object, ...]:
        """Returns the weights."""
        return (self._models.fingerprint(self._entry),)

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns a digest of clip, caption and vector; None without either of these."""
        caption, vector = facts.columns[SHORT_CAPTION], facts.columns[CLIP_EMBEDDING]
        if vector is None or not (caption or "").strip():
            return None
        # The vector is of the analyzed frames, whatever the MP4 is.
        return super().key(facts, "")

    def process(self, unit: Sequence[SampledClip]) -> list[Row]:
        """Returns the cosine of each clip; None where its vector has no direction.

        Raises:
            ModelError: The model cannot be loaded, or a vector has another length.
        """
        entry = self._entry
        vectors: list[Any] = [clip.facts.columns[CLIP_EMBEDDING] for clip in unit]
        for clip, vector in zip(unit, vectors, strict=True):
            if vector.shape != (entry.dim,):
                raise ModelError(
                    f"the embedding of clip {clip.facts.clip_id} has shape {vector.shape}; "
                    f"expected ({entry.dim},) of the model {entry.name}"
                )
        if self._embed is None:
            self._embed = text_embedder(entry, self._models.find(entry))
        texts = [" ".join(clip.facts.columns[SHORT_CAPTION].split()) for clip in unit]
        distinct = sorted(set(texts))
        embedded, _ = self._embed(distinct)
        of_text = dict(zip(distinct, embedded.astype(np.float64), strict=True))
        rows: list[Row] = []
        for text, vector in zip(texts, vectors, strict=True):
            picture = vector.astype(np.float64)
            norm = float(np.linalg.norm(picture))
            has_direction = norm != 0 and np.isfinite(norm)
            rows.append({COLUMN: float(of_text[text] @ picture) / norm if has_direction else None})
        return rows
