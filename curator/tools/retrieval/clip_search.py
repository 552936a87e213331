"""Finds clips of a finished run; one `ClipSearch` answers many queries.

Shape letters: Q queries, D dimensions, C clips, O owners of vectors.
"""
# ruff: noqa: N803, N806 - shape letters

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import ModelError, UsageError, raised_as
from curator.executor.corpus_work import CorpusWork
from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import verify_pair
from curator.models.weight_store import ModelStore
from curator.runs.caption_vectors import CaptionVectors, caption_vectors
from curator.runs.query_media import picture_vector, text_vector, video_spans
from curator.tables.clip_locations import KeyIndex
from curator.tables.clip_vectors import StoredVectors, as_matrix
from curator.tables.disk_table import taken
from curator.tables.footage_index import FootageIndex
from curator.tables.sql_condition import matching_clips
from curator.tools.retrieval.text_search import TextSearch, query_words
from curator.tools.review.clip_explanation import find_clip
from curator.tools.review.finished_run import Finished, open_finished
from curator.vectors.vector_index import SEARCH_PROBES, VectorIndex

K = 20
PROBES = 256
"""Index cells that a query with one vector visits: with 32 of 3,000 cells, only 13 of 16 downscaled
frames were found. Videos need fewer cells, because each of their pictures may find a clip. Source:
benchmarks/results/search.md."""
_PER_PICTURE = 10
"""Minimum number of clips that each picture of a video proposes."""
_PROPOSED = 100
"""Maximum number of clips to compare with a span of a video, at about 30 CPU-ms each."""
SAME_OFFSET_S = 0.5
"""Largest difference of offsets at which two spans of a video show the same part of a clip."""
TextMatch = Literal["captions", "words", "pictures"]
"""With what a text is compared: the words of captions, tags and names, and the captions' meaning;
only the words; the clips' CLIP embeddings."""
Near = tuple[int, float, float | None]
"""A row of `clips`, its best cosine, and the second in the clip; None for the whole clip."""
_COLUMNS = (
    "clip_id", "source_uri", "start_s", "end_s", "caption", "decision", "shard", "key",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFootage:
    """Footage that a video and a clip both show: `time_clip = speed * time_video + offset_s`.

    Attributes:
        query_s: Second of the video at which the shared footage begins.
        at_s: Second of the clip at which the shared footage begins.
        overlap_s: Length of the shared footage, in seconds of the video.
        offset_s: Time in the clip at second 0 of the video; negative if the clip begins later.
        speed: Seconds of the clip per second of the video; 0.8 if the clip is 1.25 times as fast.
        mirrored: Whether one of the two is a mirror image.
    """

    query_s: float
    at_s: float
    overlap_s: float
    offset_s: float
    speed: float
    mirrored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClip:
    """A clip that a search found.

    Attributes:
        rank: Position among the results, from 1.
        score: Cosine of the clip's nearest vector, -1 to 1; of texts, see `TextSearch.scores`.
        at_s: Seconds from the clip's first frame to the matching picture; None if the search
            compares whole clips.
        start_s: Second of the source at which the clip begins; the clip ends at `end_s`.
        decision: `kept` or `rejected`.
        shard: Tar with the clip, as sample `key`; None for a rejected clip.
        shared: Verified footage that the clip shares with a query video; None otherwise.
        words: Words of a query text that the clip's caption, tags or source's name have.
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
    words: tuple[str, ...] = ()


class ClipSearch:
    """Searches the clips of a snapshot; rejected clips only if `rejected` is set.

    The first search builds the index.
    """

    def __init__(self, finished: Finished, *, rejected: bool = False) -> None:
        self.finished = finished
        self._rows = KeyIndex(finished.clips["clip_id"])
        is_kept = pc.equal(finished.clips["decision"], "kept").to_numpy().astype(np.bool_)
        self._is_searched = is_kept | rejected
        self._allowed_by: dict[str, NDArray[np.bool_]] = {}

    @classmethod
    def open(
        cls,
        out: str,
        snapshot: int | None = None,
        *,
        rejected: bool = False,
        memory_bytes: int | None = None,
    ) -> Self:
        """Opens a snapshot of OUT; other arguments are those of `open_finished`."""
        finished = open_finished(out, snapshot, memory_bytes=memory_bytes)
        return cls(finished, rejected=rejected)

    BY = ("clip", "picture", "video", "text")
    """Kinds of queries."""

    def find(
        self,
        by: str,
        query: str,
        k: int = K,
        where: str | None = None,
        match: TextMatch | None = None,
    ) -> list[FoundClip]:
        """Finds the clips nearest to a query of a kind in `BY`; `match` is that of `by_text`."""
        options = {"match": match} if by == "text" else {}
        clips: list[FoundClip] = getattr(self, f"by_{by}")(query, k, where, **options)
        return clips

    def by_clip(self, clip: str, k: int = K, where: str | None = None) -> list[FoundClip]:
        """Finds the `k` clips nearest to the mean vector of another clip.

        `clip` is an id or a unique prefix of an id. `where` is an SQL condition over columns of
        `clips`.

        Raises:
            UsageError: No clip or several clips match, the clip has no vector, or an argument is
                wrong. All searches raise this for wrong arguments.
        """
        allowed = self._allowed(k, where)
        number = find_clip(self.finished, clip)
        footage = self._footage({number}).get(number)
        if footage is None or not len(footage.vectors_VD):
            raise UsageError(
                f"clip {self.finished.clips['clip_id'][number]} has no vector: its pictures show "
                "no structure, or analyze.scenes is false; use --picture with a picture of it"
            )
        mean_D = footage.vectors_VD.mean(axis=0)
        mean_D /= np.linalg.norm(mean_D)
        near = self._nearest_pictures(mean_D[np.newaxis], k + 1, allowed)
        return self._located([hit for hit in near if hit[0] != number][:k])

    def by_picture(
        self, file: str | os.PathLike[str], k: int = K, where: str | None = None
    ) -> list[FoundClip]:
        """Finds the clips with the pictures nearest to an image, given as a file or address."""
        return self.by_vector(picture_vector(file), k, where)

    def by_vector(
        self, vector_D: NDArray[np.float32], k: int = K, where: str | None = None
    ) -> list[FoundClip]:
        """Finds the clips with the pictures nearest to a vector of `SceneNetwork`, float32 [D]."""
        allowed = self._allowed(k, where)
        return self._located(self._nearest_pictures(vector_D[np.newaxis], k, allowed))

    def by_text(
        self, text: str, k: int = K, where: str | None = None, match: TextMatch | None = None
    ) -> list[FoundClip]:
        """Finds the clips that best match a text.

        Args:
            text: Words, or a description.
            k: Maximum of clips.
            where: SQL condition over columns of `clips`.
            match: With what the text is compared; None for `default_match`.

        Raises:
            UsageError: Also if `match` needs what the output or this installation lacks.
        """
        allowed = self._allowed(k, where)
        if not text.strip():
            raise UsageError("--text is empty; expected what the clips show, such as 'a red car'")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UsageError(f"--text is {text!r}, which is no UTF-8; expected a text in UTF-8")
        match = match or self.default_match
        if match == "pictures":
            return self._by_pictures_of(text, k, allowed)
        if match == "captions" and self._vectors is None:
            with raised_as(UsageError, ModelError, of="--match captions: "):
                CaptionVectors(self._models, self.finished.store.uri)
        if not (words := query_words(text)) and match == "words":
            raise UsageError(f"--text is {text!r}, without letters and digits; expected words")
        scores_C, has = self._by_caption[match].scores(text)
        is_found = (self._is_searched if allowed is None else allowed) & (scores_C > 0)
        found = np.flatnonzero(is_found)
        rows = found[np.lexsort((found, -scores_C[found]))][:k]
        clips = self._located([(int(row), float(scores_C[row]), None) for row in rows])
        return [
            replace(clip, words=tuple(itertools.compress(words, has[row])))
            for clip, row in zip(clips, rows, strict=True)
        ]

    def _by_pictures_of(
        self, text: str, k: int, allowed: NDArray[np.bool_] | None
    ) -> list[FoundClip]:
        index = self._described
        vector_D = text_vector(text, self.finished.recipe)
        k = min(k, len(self._is_searched))
        hits = index.search(vector_D[np.newaxis], k, allowed, probes=PROBES)
        is_found = hits.owners[0] >= 0
        rows, cosines = hits.owners[0, is_found], hits.cosines[0, is_found]
        near = zip(rows.tolist(), cosines.tolist(), strict=True)
        return self._located([(row, cosine, None) for row, cosine in near])

    @cached_property
    def default_match(self) -> TextMatch:
        """`pictures` if the output has CLIP embeddings; else `captions`, or `words` without it."""
        if self.finished.recipe.analyze.clip is not None:
            return "pictures"
        return "words" if self._vectors is None else "captions"

    @cached_property
    def _models(self) -> ModelStore:
        return ModelStore.at(self.finished.recipe.models)

    @cached_property
    def _vectors(self) -> CaptionVectors | None:
        return caption_vectors(self._models, self.finished.store.uri)

    @cached_property
    def _by_caption(self) -> dict[TextMatch, TextSearch]:
        clips = self.finished.clips
        return {
            "words": TextSearch(clips, None),
            "captions": TextSearch(clips, self._vectors),
        }

    def by_video(
        self, place: str | os.PathLike[str], k: int = K, where: str | None = None
    ) -> list[FoundClip]:
        """Finds clips that share footage with a video, longest first; then similar clips."""
        allowed = self._allowed(k, where)
        spans = video_spans(place, self.finished.recipe.analyze)
        nearest: dict[int, Near] = {}
        pairs: list[tuple[float, ClipFootage, int]] = []
        shown = {at_s: footage for at_s, footage in spans.items() if len(footage.vectors_VD)}
        if not shown:
            raise UsageError("no picture of the video shows structure; expected more than black")
        for begin_s, footage in shown.items():
            near = self._nearest_pictures(footage.vectors_VD, max(k, _PER_PICTURE), allowed)
            near.sort(key=lambda hit: (-hit[1], hit[0]))
            proposed = list(dict.fromkeys(row for row, _, _ in near))[:_PROPOSED]
            pairs += [(begin_s, footage, row) for row in proposed]
            for hit in near:
                nearest[hit[0]] = max(hit, nearest.get(hit[0], hit), key=lambda near: near[1])
        shared = self._verified(pairs)

        def order(hit: Near) -> tuple[float, float, int]:
            return -shared[hit[0]].overlap_s if hit[0] in shared else 0.0, -hit[1], hit[0]

        hits = sorted(nearest.values(), key=order)[:k]
        clips = self._located(hits)
        return [
            replace(clip, shared=shared[row], at_s=shared[row].at_s) if row in shared else clip
            for clip, (row, _, _) in zip(clips, hits, strict=True)
        ]

    def _verified(
        self, pairs: Sequence[tuple[float, ClipFootage, int]]
    ) -> dict[int, SharedFootage]:
        """Returns row of a clip -> footage that the clip shares with a video.

        Each of `pairs` has the begin of a span, in seconds of the video, its footage, and a row.
        """
        footage = self._footage({row for _, _, row in pairs})
        by_row: dict[int, list[SharedFootage]] = {}
        for begin_s, span, row in pairs:
            match = verify_pair(span, footage[row]) if row in footage else None
            if match is not None:
                shared = SharedFootage(
                    query_s=begin_s + max(0.0, -match.offset_s / match.speed),
                    at_s=max(0.0, match.offset_s),
                    overlap_s=match.overlap_s,
                    offset_s=match.offset_s - match.speed * begin_s,
                    speed=match.speed,
                    mirrored=match.mirrored,
                )
                by_row.setdefault(row, []).append(shared)
        joined = {row: joined_spans(some) for row, some in by_row.items()}
        return {
            row: replace(span, overlap_s=min(span.overlap_s, footage[row].duration_s / span.speed))
            for row, span in joined.items()
        }

    def _nearest_pictures(
        self, queries_QD: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None
    ) -> list[Near]:
        """Returns the `k` clips with the pictures nearest to each query, nearest first."""
        index = self._pictures.index
        assert index is not None, "`_pictures` raises without an index"
        probes = PROBES if len(queries_QD) == 1 else SEARCH_PROBES
        is_allowed = (self._is_searched if allowed is None else allowed)[self._rows_of]
        k = min(k, len(self._is_searched))
        hits = index.search(queries_QD, k, is_allowed & (self._rows_of >= 0), probes=probes)
        is_found = hits.owners >= 0
        at_s = self._pictures.seconds(hits.numbers[is_found]).tolist()
        rows = self._rows_of[hits.owners[is_found]].tolist()
        return list(zip(rows, hits.cosines[is_found].tolist(), at_s, strict=True))

    def _located(self, rows: Sequence[Near]) -> list[FoundClip]:
        columns = self.finished.clips.select(_COLUMNS)
        clips = taken(columns, [row for row, _, _ in rows]).to_pylist()
        return [
            FoundClip(rank=rank, score=score, at_s=at_s, **clip)
            for rank, ((_, score, at_s), clip) in enumerate(zip(rows, clips, strict=True), 1)
        ]

    def _allowed(self, k: int, where: str | None) -> NDArray[np.bool_] | None:
        """Returns the searched clips that match a condition, bool [C]; None without a condition."""
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
            # Only the last condition is cached: every query may have its own.
            self._allowed_by = {where: allowed & self._is_searched}
        return self._allowed_by[where]

    def _footage(self, rows: set[int]) -> dict[int, ClipFootage]:
        """Returns row -> footage of clips; reads only parts with these clips."""
        order = sorted(rows)
        is_wanted = np.isin(self._rows_of, order)
        parts = [part.facts.name for part in self._pictures.parts if is_wanted[part.owners].any()]
        stored = replace(self.finished.footage(), parts=tuple(parts))
        names = taken(self.finished.clips.select(["clip_id"]), order)["clip_id"].to_pylist()
        row_of = dict(zip(names, order, strict=True))
        return {row_of[clip_id]: footage for clip_id, footage in stored.clips(names).items()}

    @cached_property
    def _pictures(self) -> FootageIndex:
        uri, n_clips = self.finished.store.uri, len(self._is_searched)
        index = FootageIndex([self.finished.footage()], CorpusWork("search"), n_clips=n_clips)
        if index.index is None:
            raise UsageError(
                f"{uri} stores no vectors of pictures of its clips: analyze.scenes is false; "
                f"`curate run SOURCE... {uri} --set analyze.scenes=true` "
                "computes them"
            )
        return index

    @cached_property
    def _rows_of(self) -> NDArray[np.int64]:
        """The row of each owner in `_pictures`, int64 [O]; -1 for clips outside the snapshot."""
        rows = np.full(self._pictures.n_owners, -1, np.int64)
        for part in self._pictures.parts:
            rows[part.owners] = self._rows.find_all(part.ids.to_pylist())
        return rows

    @cached_property
    def _described(self) -> VectorIndex:
        vectors = self.finished.vectors("clip_embeddings")
        name, uri = self.finished.recipe.analyze.clip, self.finished.store.uri
        if name is not None and (index := self._of_clips(vectors)) is not None:
            return index
        raise UsageError(
            f"--match pictures needs CLIP embeddings, and {uri} has none: set analyze.clip, such "
            "as analyze.clip=openai-vit-b-32 (`curate models pull openai-vit-b-32` gets its "
            f"weights), and `curate run SOURCE... {uri} --set analyze.clip=openai-vit-b-32`"
        )

    def _of_clips(self, vectors: StoredVectors) -> VectorIndex | None:
        """Returns an index with one vector per searched clip; None without vectors."""
        index: VectorIndex | None = None
        for table in vectors.blocks():
            rows = self._rows.find_all(table["clip_id"].to_pylist())
            is_own = rows >= 0
            is_own[is_own] = self._is_searched[rows[is_own]]
            vectors_ND = as_matrix(table["vector"].combine_chunks())[is_own].astype(np.float16)
            if not len(vectors_ND):
                continue
            if index is None:
                share = len(vectors_ND) / table.num_rows
                index = VectorIndex.trained(vectors_ND, round(share * len(self._rows)))
            index.add(vectors_ND, rows[is_own])
        return index


def joined_spans(some: Sequence[SharedFootage]) -> SharedFootage:
    """Joins the longest span with the other spans of the same mirroring and offset."""
    longest = max(some, key=lambda span: span.overlap_s)
    same = [
        span
        for span in some
        if span.mirrored == longest.mirrored
        and abs(span.at_s - span.query_s * longest.speed - longest.offset_s) <= SAME_OFFSET_S
    ]
    first = min(same, key=lambda span: span.query_s)
    overlap_s = sum(span.overlap_s for span in same)
    return replace(longest, query_s=first.query_s, at_s=first.at_s, overlap_s=overlap_s)
