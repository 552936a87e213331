"""Stores how well captions fit their clips, computed once per clip and caption."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.executor.attempts import CpuClock
from curator.executor.engine import Engine
from curator.executor.worker import Step
from curator.fingerprints import fingerprint
from curator.models.catalogue import ModelEntry
from curator.models.text_encoder import text_hash
from curator.models.weight_store import ModelStore
from curator.stage import Resources
from curator.stages.caption.caption_alignment import alignments
from curator.storage import Store
from curator.tables.clip_vectors import Vectors
from curator.tables.parts import Parts, rows_to_table, table_rows

ALIGNMENTS = "alignments"
UNIT_CAPTIONS = 2048
_SCHEMA = pa.schema([("key", pa.string()), ("cosine", pa.float64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A caption and the image embedding of its clip."""

    key: str
    caption: str
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Alignments that a worker computed, by key."""

    cosines: Mapping[str, float]
    cpu_s: Mapping[str, float]


class AlignStep:
    """Compares captions with stored embeddings, in this process."""

    def __init__(self, *, store: Store, stamp: str, entry: ModelEntry, models: ModelStore) -> None:
        self._parts = Parts(store, ALIGNMENTS, stamp)
        self._entry = entry
        self._models = models
        self._clock = CpuClock()

    def __call__(self, unit: Sequence[Compared]) -> Aligned:
        """Compares captions, and stores the alignments as one part."""
        spent = self._clock.begin()
        found = alignments(
            {one.key: one.caption for one in unit},
            {one.key: one.vector for one in unit},
            entry=self._entry,
            weights=self._models.find(self._entry),
        )
        cosines = {key: alignment.cosine for key, alignment in found.items()}
        rows = [{"key": key, "cosine": cosine} for key, cosine in cosines.items()]
        self._parts.write(rows_to_table(rows, _SCHEMA), list(cosines))
        return Aligned(cosines=cosines, cpu_s=self._clock.end(spent, rest="align"))


class Alignments:
    """Alignments of the captions of a run."""

    def __init__(self, store: Store, entry: ModelEntry, models: ModelStore, engine: Engine) -> None:
        self.stamp = fingerprint("alignment", models.fingerprint(entry))
        self._parts = Parts(store, ALIGNMENTS, self.stamp)
        self._entry = entry
        self._models = models
        self._engine = engine
        self.cpu_s: Counter[str] = Counter()

    def of(self, captions: Mapping[str, str], vectors: Vectors) -> dict[str, float]:
        """Returns cosines of clips with caption and embedding, by id; CLIP reads 75 tokens."""
        shown = {
            clip: vector
            for clip, text in captions.items()
            if text.strip() and (vector := vectors.get(clip)) is not None
        }
        # The analyze stage's frames and precision change the embedding of a clip.
        keys = {
            clip: fingerprint(clip, text_hash(captions[clip]), sha256(vector.tobytes()).hexdigest())
            for clip, vector in shown.items()
        }
        known: dict[str, float] = {}
        for name in self._parts.names():
            known.update((row["key"], row["cosine"]) for row in table_rows(self._parts.read(name)))
        compared = [
            Compared(key=keys[clip], caption=captions[clip], vector=vector)
            for clip, vector in shown.items()
            if keys[clip] not in known
        ]
        if compared:
            starts = range(0, len(compared), UNIT_CAPTIONS)
            units = [compared[start : start + UNIT_CAPTIONS] for start in starts]
            step = Step(
                make=AlignStep,
                settings={
                    "store": self._parts.store,
                    "stamp": self.stamp,
                    "entry": self._entry,
                    "models": self._models,
                },
                resources=Resources(cpus=1),
                keeps_state=True,
            )
            small = self._engine.is_small(len(units), 0.0)
            for aligned in self._engine.run([step], units, small=small):
                known.update(aligned.cosines)
                self.cpu_s.update(aligned.cpu_s)
        return {clip: known[key] for clip, key in keys.items() if key in known}
