"""Embeds each distinct caption once, stores the embeddings, and finds them for samples."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curator.executor.attempts import CpuClock
from curator.executor.engine import Engine
from curator.executor.worker import Step
from curator.fingerprints import fingerprint
from curator.models.catalogue import ModelEntry
from curator.models.text_encoder import each_caption, text_hash
from curator.models.weight_store import ModelStore
from curator.stage import Resources
from curator.storage import Store
from curator.tables.clip_rows import ClipRows
from curator.tables.clip_vectors import TextVector
from curator.tables.parts import Parts, rows_to_table

TEXT_EMBEDDINGS = "text_embeddings"
UNIT_CAPTIONS = 256
"""Captions per unit and part: 100 MB for T5-11B at 200 tokens each."""
ENCODER_BYTES = 4 << 30

TEXT_EMBEDDINGS_SCHEMA = pa.schema(
    [("text_hash", pa.string()), ("n_bytes", pa.int64()), ("npy", pa.binary())]
)
"""A row per distinct caption: SHA-256 of its text (32 hex digits), and its embedding as a NumPy
file: float32 [D] of unit length, or float16 [tokens, D]."""


def text_stamp(entry: ModelEntry, store: ModelStore) -> str:
    """Returns the fingerprint of a model's embeddings."""
    return fingerprint("text embeddings", store.fingerprint(entry), entry.pooling, entry.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A part that a worker wrote."""

    part: str
    cpu_s: Mapping[str, float]


class EmbedStep:
    """Embeds captions in this process; the first unit loads the model."""

    def __init__(self, *, store: Store, stamp: str, entry: ModelEntry, models: ModelStore) -> None:
        self._parts = Parts(store, TEXT_EMBEDDINGS, stamp)
        self._entry = entry
        self._models = models
        self._clock = CpuClock()

    def __call__(self, captions: Sequence[str]) -> Embedded:
        """Embeds captions, and stores them as one part."""
        spent = self._clock.begin()
        rows = []
        for name, vector in each_caption(captions, self._entry, self._models):
            npy = io.BytesIO()
            np.lib.format.write_array(npy, np.ascontiguousarray(vector), allow_pickle=False)
            data = npy.getvalue()
            rows.append({"text_hash": name, "n_bytes": len(data), "npy": data})
        table = rows_to_table(rows, TEXT_EMBEDDINGS_SCHEMA)
        keys = [str(row["text_hash"]) for row in rows]
        part = self._parts.write(table, keys, one_row_groups=True)
        return Embedded(part=part, cpu_s=self._clock.end(spent, rest="embed_captions"))


class TextVectors:
    """Embeddings of the captions of a run."""

    def __init__(self, store: Store, entry: ModelEntry, models: ModelStore, engine: Engine) -> None:
        self.stamp = text_stamp(entry, models)
        self._parts = Parts(store, TEXT_EMBEDDINGS, self.stamp)
        self._entry = entry
        self._models = models
        self._engine = engine
        self._known: dict[str, TextVector] = {}
        self.n_made = 0
        """Number of newly embedded captions."""
        self.cpu_s: Counter[str] = Counter()

    def make(self, captions: Iterable[str]) -> None:
        """Embeds the captions that no run has embedded yet."""
        for name in self._parts.names():
            self._know(name)
        wanted = {text_hash(text): text for text in captions if text.strip()}
        missing = [text for name, text in sorted(wanted.items()) if name not in self._known]
        self.n_made = len(missing)
        if not missing:
            return
        # Captions of similar length share a batch.
        missing.sort(key=lambda text: (len(text), text))
        starts = range(0, len(missing), UNIT_CAPTIONS)
        units = [missing[start : start + UNIT_CAPTIONS] for start in starts]
        engine = self._engine
        gpus = 1.0 if engine.n_gpus() >= 1 else 0.0
        step = Step(
            make=EmbedStep,
            settings={
                "store": self._parts.store,
                "stamp": self.stamp,
                "entry": self._entry,
                "models": self._models,
            },
            resources=Resources(cpus=1, gpus=gpus, memory_bytes=ENCODER_BYTES),
            keeps_state=True,
        )
        small = not gpus and engine.is_small(len(units), 0.0)
        for embedded in engine.run([step], units, small=small):
            self._know(embedded.part)
            self.cpu_s.update(embedded.cpu_s)

    def find(self, caption: str) -> TextVector | None:
        """Returns the location of a caption's embedding; None for an empty caption."""
        return self._known.get(text_hash(caption))

    def _know(self, part: str) -> None:
        rows: list[dict[str, Any]] = self._parts.read(part, ("text_hash", "n_bytes")).to_pylist()
        for number, row in enumerate(rows):
            self._known[row["text_hash"]] = TextVector(
                name=part,
                row=number,
                n_bytes=row["n_bytes"],
                n_dims=2 if self._entry.pooling == "tokens" else 1,
                digest=f"{self.stamp} {row['text_hash']}",
            )


def text_vectors_of(
    name: str | None,
    models: ModelStore,
    clips: ClipRows,
    store: Store,
    engine: Engine,
) -> TextVectors | None:
    """Embeds the captions of kept clips; `name` is the text encoder, None for no embeddings."""
    if name is None:
        return None
    vectors = TextVectors(store, models.catalogue.find(name, "text"), models, engine)
    decided = zip(clips.values("decision"), clips.values("caption"), strict=True)
    vectors.make(caption or "" for decision, caption in decided if decision == "kept")
    return vectors
