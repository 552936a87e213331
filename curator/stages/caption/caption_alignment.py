"""Measures how well captions fit their clips, by the CLIP embeddings that analyze stored.

The value is the cosine of the caption's and the clip's embedding. It compares captions of one clip,
or clips under captions of one kind, by one CLIP model. CLIP reads 77 tokens, so compare the short
caption: the unread end of a longer one has no effect.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.executor.engine import Engine
from curator.fingerprints import fingerprint
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import embed_texts
from curator.models.text_encoder import text_hash
from curator.models.weight_store import ModelStore
from curator.stage import Resources
from curator.stages.caption.caption_parts import make_parts
from curator.storage import Store
from curator.tables.clip_vectors import Vectors
from curator.tables.parts import Parts, rows_to_table

UNIT_CAPTIONS = 2048
_SCHEMA = pa.schema([("key", pa.string()), ("cosine", pa.float64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A caption, not blank, and the image embedding of its clip, float32 [D]."""

    key: str
    caption: str
    vector: NDArray[np.float32]


def cosines_table(
    compared: Sequence[Compared], *, entry: ModelEntry, models: ModelStore
) -> pa.Table:
    """Compares captions with the pictures of their clips, in this process, on its CPU.

    Returns:
        Columns `key` and `cosine` (-1 to 1; usually 0.2 to 0.35 for captions that fit), sorted by
        key, without pairs whose embedding has no direction.

    Raises:
        ModelError: The model cannot be loaded, or an embedding has another length.
    """
    for one in compared:
        if one.vector.shape != (entry.dim,):
            raise ModelError(
                f"the embedding of clip {one.key} has shape {one.vector.shape}; expected "
                f"({entry.dim},) of the model {entry.name}"
            )
    texts = {one.key: " ".join(one.caption.split()) for one in compared}
    distinct = sorted(set(texts.values()))
    embedded, _ = embed_texts(entry, models.find(entry), distinct)
    of_text = dict(zip(distinct, embedded.astype(np.float64), strict=True))
    rows = []
    for one in sorted(compared, key=lambda one: one.key):
        picture = one.vector.astype(np.float64)
        norm = float(np.linalg.norm(picture))
        if norm != 0 and np.isfinite(norm):
            rows.append({"key": one.key, "cosine": float(of_text[texts[one.key]] @ picture) / norm})
    return rows_to_table(rows, _SCHEMA)


class Alignments:
    """Alignments of captions, computed once per clip, caption and picture."""

    def __init__(self, store: Store, entry: ModelEntry, models: ModelStore, engine: Engine) -> None:
        stamp = fingerprint("alignment", models.fingerprint(entry))
        self._parts = Parts(store, "alignments", stamp)
        self._compute = partial(cosines_table, entry=entry, models=models)
        self._engine = engine
        self.cpu_s: Counter[str] = Counter()

    def of(self, captions: Mapping[str, str], vectors: Vectors) -> dict[str, float]:
        """Returns cosines of clips with caption and embedding, by id."""
        compared: dict[str, Compared] = {}
        for clip, caption in captions.items():
            vector = vectors.get(clip)
            if caption.strip() and vector is not None:
                # The analyze stage's frames and precision change the embedding of a clip.
                pixels = sha256(vector.tobytes()).hexdigest()
                key = fingerprint(clip, text_hash(caption), pixels)
                compared[clip] = Compared(key=key, caption=caption, vector=vector)
        known: dict[str, float] = {}
        for name in self._parts.names():
            self._read(name, known)
        missing = [one for one in compared.values() if one.key not in known]
        for made in make_parts(
            missing,
            self._compute,
            self._parts,
            self._engine,
            task="align",
            most=UNIT_CAPTIONS,
            resources=Resources(cpus=1),
        ):
            self._read(made.results, known)
            self.cpu_s.update(made.cpu_s)
        return {clip: known[one.key] for clip, one in compared.items() if one.key in known}

    def _read(self, part: str, known: dict[str, float]) -> None:
        table = self._parts.read(part)
        known.update(zip(table["key"].to_pylist(), table["cosine"].to_pylist(), strict=True))
