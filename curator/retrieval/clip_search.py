"""Finds clips of a finished run: opened once, asked many times.

Shape letters: Q queries, D dimensions, C clips.
"""
# ruff: noqa: N803, N806 - shape letters

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.matching.clip_footage import ClipFootage
from curator.retrieval.query_media import picture_vector, text_vector, video_spans
from curator.retrieval.shared_footage import PairsOfSpans, SharedFootage, verified_pairs
from curator.retrieval.vector_lookup import VectorBlock, VectorLookup
from curator.review.clip_explanation import find_clip
from curator.review.finished_run import Finished, open_finished
from curator.tables.clip_locations import KeyRows
from curator.tables.clip_vectors import StoredVectors, as_matrix
from curator.tables.disk_table import taken
from curator.tables.footage_store import block_vectors
from curator.tables.sql_condition import matching_clips
from curator.vectors.vector_index import SEARCH_PROBES

K = 20
PROBES = 256
"""Cells that a single query visits; of 16 frames that were made smaller, 32 of 3,000 cells find 13.
A video has several pictures, each of which may find a clip: benchmarks/results/search.md."""
_PER_PICTURE = 10
"""Clips that each picture of a video proposes."""
_PROPOSED = 100
"""Most clips that a span of a video is compared with; at some 30 CPU-ms each."""
Near = tuple[int, float, float | None]
"""A row of `clips`, its best cosine, and the second of the clip; None for a clip as a whole."""
_COLUMNS = (
    "clip_id", "source_uri", "start_s", "end_s", "caption", "decision", "shard", "key",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClip:
    """A clip that a search found.

    Attributes:
        rank: From 1.
        clip_id: Its id.
        score: Cosine of its nearest vector, -1 to 1.
        at_s: Second of the clip, from its first frame, at which it is like the query; None where
            clips are compared as a whole.
        source_uri: Address of its source.
        start_s: Where it begins in its source.
        end_s: Where it ends there.
        caption: None without one.
        decision: `kept` or `rejected`.
        shard: Tar that has it; None of a rejected clip.
        key: Of its sample there.
        shared: Of a video: the footage that both show, verified; else None.
    """

    rank: int
    clip_id: str
    score: float
    at_s: float | None
    source_uri: str
    start_s: float
    end_s: float
    caption: str | None
    decision: str
    shard: str | None
    key: str | None
    shared: SharedFootage | None = None


class ClipSearch:
    """The clips of a snapshot, to be searched. An index is built when it is first needed.

    Args:
        finished: The snapshot.
        rejected: Whether rejected clips are found too.
    """

    def __init__(self, finished: Finished, *, rejected: bool = False) -> None:
        self.finished = finished
        self._rows = KeyRows(finished.clips["clip_id"])
        self._is_searched = np.ones(finished.clips.num_rows, np.bool_)
        if not rejected:
            is_kept = pc.equal(finished.clips["decision"], "kept")
            self._is_searched = is_kept.to_numpy().astype(np.bool_)
        self._allowed_by: dict[str, NDArray[np.bool_]] = {}
        self._part = np.zeros(finished.clips.num_rows, np.int32)
        """Which part of footage a clip is in."""

    @classmethod
    def open(
        cls,
        out: str,
        snapshot: int | None = None,
        *,
        rejected: bool = False,
        memory_bytes: int | None = None,
    ) -> Self:
        """Opens a snapshot of OUT; arguments are those of `open_finished`."""
        finished = open_finished(out, snapshot, memory_bytes=memory_bytes)
        return cls(finished, rejected=rejected)

    BY = ("clip", "picture", "video", "text")
    """What a query may be."""

    def find(self, by: str, query: str, k: int = K, where: str | None = None) -> list[FoundClip]:
        """Finds the nearest clips to a query of one of the kinds `BY`."""
        found: list[FoundClip] = getattr(self, f"by_{by}")(query, k, where)
        return found

    def by_clip(self, clip: str, k: int = K, where: str | None = None) -> list[FoundClip]:
        """Finds the clips that mean the same as one, by the mean of its vectors.

        Args:
            clip: Its id, or a beginning that no other clip has.
            k: Most clips; the clip itself is not among them.
            where: SQL condition over columns of `clips`.

        Raises:
            UsageError: There is no such clip, or it has no vector; or an argument is wrong. So do
                all searches.
        """
        allowed = self._allowed(k, where)
        number = find_clip(self.finished, clip)
        id_ = self.finished.clips["clip_id"].slice(number, 1).combine_chunks()
        if not self._mean_vectors.known(id_)[0]:
            raise UsageError(
                f"clip {id_[0]} has no vector: its pictures show no structure, or analyze.scenes "
                "is false; use --picture with a picture of it"
            )
        vectors_ND = self._mean_vectors.matrix(id_)
        near = self._nearest(self._whole_clips, vectors_ND, k + 1, allowed)
        return self._found([one for one in near if one[0] != number][:k])

    def by_picture(
        self, file: str | os.PathLike[str], k: int = K, where: str | None = None
    ) -> list[FoundClip]:
        """Finds the clips with the pictures that are nearest to an image file."""
        return self.by_vector(picture_vector(file), k, where)

    def by_vector(
        self, vector_D: NDArray[np.float32], k: int = K, where: str | None = None
    ) -> list[FoundClip]:
        """Finds the clips with the pictures that are nearest to a vector of `SceneNetwork`."""
        allowed = self._allowed(k, where)
        return self._found(self._nearest(self._pictures, vector_D[np.newaxis], k, allowed))

    def by_text(self, text: str, k: int = K, where: str | None = None) -> list[FoundClip]:
        """Finds the clips that CLIP says a text describes."""
        allowed = self._allowed(k, where)
        described = self._described
        vector_D = text_vector(text, self.finished.recipe)
        return self._found(self._nearest(described, vector_D[np.newaxis], k, allowed))

    def by_video(
        self, place: str | os.PathLike[str], k: int = K, where: str | None = None
    ) -> list[FoundClip]:
        """Finds the clips that show footage of a video, then those whose pictures are near it."""
        allowed = self._allowed(k, where)
        spans = video_spans(place, self.finished.recipe.analyze)
        return self.by_footage(spans, k, allowed)

    def by_footage(
        self, spans: dict[float, ClipFootage], k: int = K, allowed: NDArray[np.bool_] | None = None
    ) -> list[FoundClip]:
        """Finds the clips that show footage of spans of a video, as `by_video` does.

        Args:
            spans: By the second of the video at which each begins.
            k: Most clips.
            allowed: bool [C]; None for all clips.
        """
        nearest: dict[int, Near] = {}
        pairs: PairsOfSpans = []
        for begin_s, footage in spans.items():
            if not len(footage.vectors_VD):
                continue
            per_picture = max(k, _PER_PICTURE)
            near = self._nearest(self._pictures, footage.vectors_VD, per_picture, allowed)
            near.sort(key=lambda one: (-one[1], one[0]))
            proposed = list(dict.fromkeys(row for row, _, _ in near))[:_PROPOSED]
            pairs += [(begin_s, footage, row) for row in proposed]
            for one in near:
                nearest[one[0]] = max(one, nearest.get(one[0], one), key=lambda near: near[1])
        if not any(len(footage.vectors_VD) for footage in spans.values()):
            raise UsageError("no picture of the video shows structure; expected more than black")
        shared = verified_pairs(pairs, self._footage({row for _, _, row in pairs}))

        def place(one: Near) -> tuple[float, float, int]:
            return -shared[one[0]].overlap_s if one[0] in shared else 0.0, -one[1], one[0]

        found = [
            (row, cosine, shared[row].at_s if row in shared else at_s)
            for row, cosine, at_s in sorted(nearest.values(), key=place)[:k]
        ]
        return [
            replace(clip, shared=shared.get(row))
            for clip, (row, _, _) in zip(self._found(found), found, strict=True)
        ]

    def _nearest(
        self,
        lookup: VectorLookup,
        queries_QD: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_] | None,
    ) -> list[Near]:
        """Returns the k nearest clips to each query, those of a query nearest first."""
        probes = PROBES if len(queries_QD) == 1 else SEARCH_PROBES
        found = lookup.index.search(queries_QD, k, allowed, probes=probes)
        is_found = found.owners >= 0
        seconds = lookup.seconds[found.numbers[is_found]].tolist()
        at_s = (None if isnan(second) else second for second in seconds)
        owners, cosines = found.owners[is_found].tolist(), found.cosines[is_found].tolist()
        return list(zip(owners, cosines, at_s, strict=True))

    def _found(self, rows: Sequence[Near]) -> list[FoundClip]:
        columns = self.finished.clips.select(_COLUMNS)
        clips = taken(columns, [row for row, _, _ in rows]).to_pylist()
        return [
            FoundClip(rank=rank, score=score, at_s=at_s, **clip)
            for rank, ((_, score, at_s), clip) in enumerate(zip(rows, clips, strict=True), 1)
        ]

    def _allowed(self, k: int, where: str | None) -> NDArray[np.bool_] | None:
        """Returns the clips that a condition allows, bool [C]; None without one."""
        if k < 1:
            raise UsageError(f"k is {k}; expected a whole number from 1")
        if where is None:
            return None
        if where not in self._allowed_by:
            named = matching_clips(
                self.finished.clips, where, example="motion > 0.3", instead="leave it out"
            )
            allowed = np.zeros(len(self._is_searched), np.bool_)
            allowed[self._rows.find_all(named)] = True
            # The last condition alone: many queries may have one each.
            self._allowed_by = {where: allowed & self._is_searched}
        return self._allowed_by[where]

    def _footage(self, rows: set[int]) -> dict[int, ClipFootage]:
        """Reads the footage of clips by row, from the parts that have them."""
        stored = self.finished.footage()
        parts = sorted({int(self._part[row]) for row in rows})
        some = replace(stored, parts=tuple(stored.parts[part] for part in parts))
        order = sorted(rows)
        names = taken(self.finished.clips.select(["clip_id"]), order)["clip_id"].to_pylist()
        row_of = dict(zip(names, order, strict=True))
        return {row_of[clip_id]: footage for clip_id, footage in some.clips(names).items()}

    @cached_property
    def _pictures(self) -> VectorLookup:
        lookup = VectorLookup.of(self._picture_blocks(), int(self._is_searched.sum()))
        if lookup is None:
            raise UsageError(
                f"{self.finished.store.uri} stores no vectors of pictures of its clips: "
                "analyze.scenes is false, or an older version made it; `curate run SOURCE... "
                f"{self.finished.store.uri} --set analyze.scenes=true` computes them"
            )
        return lookup

    def _picture_blocks(self) -> Iterator[VectorBlock]:
        for part, table in enumerate(self.finished.footage().blocks()):
            vectors_ND, row = block_vectors(table)
            owners = self._searched(table["clip_id"])
            self._part[owners[owners >= 0]] = part
            seconds = pc.list_flatten(table["second"]).to_numpy().astype(np.float32)
            yield VectorBlock(vectors_ND.astype(np.float16), owners[row], seconds)

    @cached_property
    def _mean_vectors(self) -> StoredVectors:
        return self.finished.vectors("embeddings")

    @cached_property
    def _whole_clips(self) -> VectorLookup:
        lookup = VectorLookup.of(self._clip_blocks(self._mean_vectors), len(self._rows))
        if lookup is None:
            raise UsageError(f"{self.finished.store.uri} has no vectors of clips to be searched")
        return lookup

    @cached_property
    def _described(self) -> VectorLookup:
        vectors = self.finished.vectors("clip_embeddings")
        name, uri = self.finished.recipe.analyze.clip, self.finished.store.uri
        lookup = None
        if name is not None:
            lookup = VectorLookup.of(self._clip_blocks(vectors), len(self._rows))
        if lookup is None:
            raise UsageError(
                f"--text needs CLIP embeddings, and {uri} has none: set analyze.clip, such as "
                "analyze.clip=openai-vit-b-32 (`curate models pull openai-vit-b-32` gets its "
                f"weights), and `curate run SOURCE... {uri} --set analyze.clip=openai-vit-b-32`"
            )
        return lookup

    def _clip_blocks(self, vectors: StoredVectors) -> Iterator[VectorBlock]:
        for table in vectors.blocks():
            owners = self._searched(table["clip_id"])
            vectors_ND = as_matrix(table["vector"].combine_chunks()).astype(np.float16)
            yield VectorBlock(vectors_ND, owners, np.full(len(owners), np.nan, np.float32))

    def _searched(self, ids: pa.ChunkedArray) -> NDArray[np.int64]:
        """Returns the rows of clips, int64 [N]; -1 for those that are not searched."""
        rows = self._rows.find_all(ids.to_pylist())
        rows[~self._is_searched[rows]] = -1
        return rows
