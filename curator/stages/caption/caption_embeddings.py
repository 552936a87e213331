"""Embeds each distinct caption once, stores the embeddings, and finds them for samples."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from curator.executor.engine import Engine
from curator.family import Array, Family, FamilyVersion, Lifetime, Scope
from curator.fingerprints import fingerprint
from curator.models.catalogue import ModelEntry
from curator.models.text_encoder import each_caption, text_hash
from curator.models.weight_store import ModelStore
from curator.records.clips import Clip
from curator.stage import Resources
from curator.stages.caption.caption_parts import make_parts
from curator.storage import Store
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows
from curator.tables.parts import Parts, rows_to_table
from curator.tables.sample_members import StoredMember

UNIT_CAPTIONS = 256
"""Captions per unit and part: 100 MB for T5-11B at 200 tokens each."""
ENCODER_BYTES = 4 << 30
FAMILY, MEMBER = "caption_embeddings", "text.npy"
"""Name of the family, and its member: readers decode by what follows the last dot."""

TEXT_EMBEDDINGS_SCHEMA = pa.schema(
    [("text_hash", pa.string()), ("n_bytes", pa.int64()), ("npy", pa.binary())]
)
"""A row per distinct caption: SHA-256 of its text (32 hex digits), and its embedding as a NumPy
file: float32 [D] of unit length, or float16 [tokens, D]."""


def embeddings_table(captions: Sequence[str], *, entry: ModelEntry, models: ModelStore) -> pa.Table:
    """Returns the embeddings of captions, as `TEXT_EMBEDDINGS_SCHEMA`."""
    rows = []
    for name, vector in each_caption(captions, entry, models):
        npy = io.BytesIO()
        np.lib.format.write_array(npy, np.ascontiguousarray(vector), allow_pickle=False)
        data = npy.getvalue()
        rows.append({"text_hash": name, "n_bytes": len(data), "npy": data})
    return rows_to_table(rows, TEXT_EMBEDDINGS_SCHEMA)


def embeddings_stamp(entry: ModelEntry, models: ModelStore) -> str:
    """Returns the fingerprint of the embeddings of captions by a text encoder."""
    made_by = (models.fingerprint(entry), entry.pooling, entry.max_tokens)
    return fingerprint("text embeddings", *made_by)


def family_of(entry: ModelEntry) -> Family:
    """Returns the family of the embeddings of captions by a text encoder."""
    content = Array("f16", ("tokens", "d")) if entry.pooling == "tokens" else Array("f32", ("d",))
    return Family(FAMILY, Scope.CLIP, content, member=MEMBER, lifetime=Lifetime.CACHE)


class TextVectors:
    """Embeddings of the captions of a run."""

    def __init__(self, store: Store, entry: ModelEntry, models: ModelStore, engine: Engine) -> None:
        self._parts = Parts(store, "text_embeddings", embeddings_stamp(entry, models))
        self._compute = partial(embeddings_table, entry=entry, models=models)
        self._version = FamilyVersion(family_of(entry), self._parts.stamp)
        self._engine = engine
        self._known: dict[str, StoredMember] = {}
        self.n_made = 0
        """Number of newly embedded captions."""
        self.cpu_s: Counter[str] = Counter()

    def make(self, captions: Iterable[str]) -> None:
        """Embeds the captions that no run has embedded yet."""
        for name in self._parts.names():
            self._know(name)
        missing = {text for text in captions if text.strip() and self.find(text) is None}
        self.n_made = len(missing)
        gpus = 1.0 if missing and self._engine.n_gpus() >= 1 else 0.0
        for made in make_parts(
            # Captions of similar length share a batch.
            sorted(missing, key=lambda text: (len(text), text)),
            self._compute,
            self._parts,
            self._engine,
            task="embed_captions",
            most=UNIT_CAPTIONS,
            resources=Resources(cpus=1, gpus=gpus, memory_bytes=ENCODER_BYTES),
        ):
            self._know(made.results)
            self.cpu_s.update(made.cpu_s)

    def find(self, caption: str) -> StoredMember | None:
        """Returns the location of a caption's embedding; None for an empty caption."""
        return self._known.get(text_hash(caption))

    def members(self, clip: Clip) -> tuple[StoredMember, ...]:
        """Returns the embedding of a clip's caption; none for an empty caption."""
        found = self.find(clip.caption or "")
        return () if found is None else (found,)

    def _know(self, part: str) -> None:
        rows = self._parts.read_columns(part, ("text_hash", "n_bytes")).to_pylist()
        for number, row in enumerate(rows):
            where = Location(name=part, row=number, n_bytes=row["n_bytes"], column="npy")
            self._known[row["text_hash"]] = StoredMember(
                version=self._version, key=row["text_hash"], where=where
            )


def text_vectors_of(
    name: str | None, models: ModelStore, clips: ClipRows, store: Store, engine: Engine
) -> TextVectors | None:
    """Embeds the captions of kept clips; `name` is the text encoder, None for no embeddings."""
    if name is None:
        return None
    vectors = TextVectors(store, models.catalogue.find(name, "text"), models, engine)
    decided = zip(clips.values("decision"), clips.values("caption"), strict=True)
    vectors.make(caption or "" for decision, caption in decided if decision == "kept")
    return vectors
