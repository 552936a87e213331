"""The stage that groups clips into clusters of similar meaning, and rejects semantic duplicates.

Shape letters: N clips, K clusters, D dimensions of a vector, W words.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.measures.clip_models import Semantics
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import text_embedder
from curator.models.weight_store import ModelStore
from curator.records.clips import PREFERENCES, Reason
from curator.run_config import RunConfig
from curator.stage import CarriedState, Corpus, CorpusStage, Decisions, StageReason, Work
from curator.stages.cluster.config import ClusterConfig
from curator.tables.clip_groups import AreViews, ClipGroups
from curator.tables.clip_rank import criterion, rank_order
from curator.tables.snapshot_store import CENTROIDS, CLUSTERS
from curator.tables.window_spans import WindowSpans
from curator.vectors.k_means import clusters

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
N_GALLERIES, N_NEAREST = 20, 8  # number of clusters with a list of clips; length of each list
N_WORDED = 5_000  # clusters that get words: a snapshot stores at most 8 MiB per stage
_BLOCK = 1024
_SLACK = 1e-6  # difference of a float32 product of vectors between machines

N_WORDS = 3  # largest number of words of a cluster
PROMPT = "a photo of {}"  # the general prompt of CLIP's authors for names of classes
_LEAST = 1e-3  # smallest difference of cosines from which a word describes a cluster
# Plain nouns: places, things, people, animals, activities, and kinds of pictures.
WORDS = tuple(
    word.strip()
    for word in """
a beach, the sea, a river, a lake, a waterfall, mountains, a forest, a desert, a field, a garden,
a park, flowers, trees, grass, snow, rain, clouds, the sky, a sunset, the night, stars, fire, smoke,
rocks, a cave, an island, a harbour, a city, a skyline, a street, a crossroads, a motorway,
a bridge, a tunnel, a car park, a building, a house, a church, a castle, ruins, a tower, a factory,
a farm, a construction site, an airport, a railway station, a shop, a market, a restaurant, a bar,
a kitchen, a bathroom, a bedroom, a living room, an office, a classroom, a library, a laboratory,
a hospital, a gym, a stadium, a swimming pool, a playground, a stage, a theatre, a museum,
a cinema, a corridor, stairs, a workshop, a warehouse, a studio, a car, a bus, a lorry, a train,
a tram, a bicycle, a motorcycle, an aeroplane, a helicopter, a drone, a ship, a boat, a rocket,
a tractor, a robot, a machine, a computer, a telephone, a camera, a screen, a keyboard, a book,
paper, a map, a clock, money, clothes, shoes, jewellery, a bottle, a cup, a plate, food, fruit,
vegetables, bread, meat, fish, a cake, coffee, a table, a chair, a bed, a door, a window, a lamp,
a mirror, a toy, a ball, a tool, a knife, a weapon, a flag, a statue, a painting, a musical
instrument, a guitar, a piano, drums, a microphone, a man, a woman, a child, a baby, a face, eyes,
hands, feet, hair, a couple, a family, a crowd, a soldier, a police officer, a doctor, a cook,
a worker, an athlete, a musician, a speaker, an animal, a dog, a cat, a horse, a cow, sheep, a bird,
chickens, an elephant, a lion, a bear, a monkey, a snake, an insect, a butterfly, a whale,
people walking, running, dancing, singing, people talking, an interview, a meeting, a speech,
a wedding, a party, a concert, a parade, a protest, cooking, eating, drinking, shopping, cleaning,
reading, writing, drawing, painting a wall, sewing, repairing, gardening, driving, cycling, sailing,
surfing, swimming, diving, skiing, skating, climbing, hiking, fishing, riding, football,
basketball, tennis, golf, boxing, gymnastics, yoga, a race, a video game, a cartoon, an animation,
a drawing, a diagram, a chart, a slide, text, a title, credits, a logo, a web page, a news
programme, an advertisement, an old film, a black and white picture, a view from above, a close-up,
a time lapse, slow motion, darkness, a blurred picture, an abstract pattern
""".replace("\n", " ").split(",")
)


class ClusterStage(CorpusStage[ClusterConfig]):
    """Groups clips into clusters, and rejects semantic duplicates.

    The vectors are embeddings of the model `clip`; without `clip`, vectors of the scene network.
    With `is_growing`, later generations keep the clusters of the first generation.
    """

    name = "cluster"
    version = 3
    reads = ("clips", "embeddings")
    config_type = ClusterConfig
    needs_all = "clusters are made of all clips"
    needs_earlier = " of the first generation, and stay"

    def __init__(
        self,
        config: ClusterConfig,
        *,
        clip: ModelEntry | None = None,
        models: ModelStore | None = None,
        is_growing: bool = False,
    ) -> None:
        super().__init__(config)
        self._clip, self._models, self._is_growing = clip, models, is_growing
        self._family = "embeddings" if clip is None else "clip_embeddings"

    @classmethod
    def of(cls, config: ClusterConfig, semantics: Semantics, run: RunConfig) -> Self:
        """Returns the stage of a recipe."""
        is_growing = run.mode == "growing"
        return cls(config, clip=semantics.clip, models=semantics.store, is_growing=is_growing)

    @property
    def compares_clips(self) -> bool:
        """Whether semantic duplicates are rejected."""
        return self.config.similarity is not None

    def remedies(
        self,
        reason: str,
        clip: Any,  # noqa: ANN401 - a row
        /,
    ) -> Iterator[dict[str, str | float]]:
        """Yields a similarity above that of a semantic duplicate, and no comparison."""
        if reason == Reason.SEMANTIC_DUPLICATE:
            if (similarity := clip.duplicate_similarity or 1.0) < 1 - _SLACK:
                yield {"cluster.similarity": similarity}
            yield {"cluster.similarity": "null"}

    def models(self) -> tuple[object, ...]:
        """Returns the name of the vectors' family, and whether clusters stay."""
        return (self._family, self._is_growing and self.is_on)

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reason of semantic duplicates, if clips are compared."""
        if self.config.similarity is not None:
            yield StageReason(name=Reason.SEMANTIC_DUPLICATE)

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | CarriedState | str]:
        """Sets the cluster of each clip that has a vector, and rejects semantic duplicates."""
        del work
        config = self.config
        if config.n is None:
            return
        before, packed = corpus.carried(CLUSTERS) or [], corpus.carried(CENTROIDS)
        vectors, ids = corpus.vectors(self._family), corpus["clip_id"].combine_chunks()
        rows = np.flatnonzero(vectors.known(ids))
        if not len(rows):
            if packed:
                yield from (CarriedState(CLUSTERS, before), CarriedState(CENTROIDS, packed))
            return
        ids = ids.take(pa.array(rows))
        vectors_ND = vectors.matrix(ids)
        if packed:
            flat = np.frombuffer(b64decode(packed), np.float16).astype(np.float32)
            centroids_KD = flat.reshape(-1, vectors_ND.shape[1])
            starts = range(0, len(vectors_ND), _BLOCK)
            near = [(vectors_ND[at : at + _BLOCK] @ centroids_KD.T).argmax(1) for at in starts]
            cluster = np.concatenate(near)
        else:
            centroids_KD, cluster = clusters(vectors_ND, min(config.n, len(rows)), seed=config.seed)
            try:
                before = self._words(vectors_ND, centroids_KD)
            except ModelError as error:
                yield f"clusters get no words: {error}"
        yield CarriedState(CLUSTERS, _described(ids, vectors_ND, centroids_KD, cluster, before))
        if self._is_growing:
            packed = packed or b64encode(centroids_KD.astype(np.float16).tobytes()).decode()
            yield CarriedState(CENTROIDS, packed)
        of = np.arange(len(rows))
        if config.similarity is not None:
            is_marked = corpus.marked("keep", corpus["clip_id"])[rows].astype(np.float64)
            order = rank_order([is_marked, *(criterion(corpus, n)[rows] for n in PREFERENCES)])
            views = [
                found.at(rows).are_views
                for found in (WindowSpans.of(corpus), ClipGroups.of(corpus))
                if found is not None
            ]
            of = semantic_duplicates(vectors_ND, cluster, order, config.similarity, views)
        yield self._decided(rows, ids, cluster, of, vectors_ND)

    def _words(self, vectors_ND: Floats, centroids_KD: Floats) -> list[dict[str, object]]:
        """Returns the words of the first clusters; an empty list without CLIP."""
        if self._clip is None or self._models is None:
            return []
        mean_D = vectors_ND.mean(0, dtype=np.float64)
        mean_D = (mean_D / np.linalg.norm(mean_D).clip(1e-12)).astype(np.float32)
        words = cluster_words(centroids_KD[:N_WORDED], mean_D, self._clip, self._models)
        return [{"words": own} for own in words]

    def _decided(
        self, rows: Numbers, ids: pa.Array, cluster: Numbers, of: Numbers, vectors_ND: Floats
    ) -> Decisions:
        is_copy = of != np.arange(len(of))
        absent = pa.array(~is_copy)
        cosines = np.zeros(len(of))
        copies = np.flatnonzero(is_copy)
        pairs = (vectors_ND[copies].astype(np.float64), vectors_ND[of[copies]].astype(np.float64))
        cosines[copies] = np.round(np.einsum("nd,nd->n", *pairs), 6)
        similarity = pa.array(cosines, mask=~is_copy)
        reason = str(Reason.SEMANTIC_DUPLICATE)
        least = self.config.similarity or 0.0
        named = ids.take(pa.array(of))
        nothing = pa.nulls(len(of), pa.string())
        columns = {
            "reason": pa.array([reason] * len(of), pa.string(), mask=~is_copy),
            "reason_score": similarity,
            "reason_threshold": pa.array(np.full(len(of), least), mask=~is_copy),
            "duplicate_of": pc.if_else(absent, nothing, named),
            "duplicate_similarity": similarity,
            "cluster": pa.array(cluster.astype(np.int32)),
        }
        return Decisions(rows, pa.table(columns))


def semantic_duplicates(
    vectors_ND: Floats,
    cluster: Numbers,
    order: Numbers,
    similarity: float,
    views: Sequence[AreViews] = (),
) -> Numbers:
    """Returns by clip the most similar clip that replaces it, int64 [N]; itself if it stays.

    Only clips of the same cluster are compared, and none that `views` says show the same on
    purpose: two windows of one take or of two sizes, cameras of one group. If their cosine is at
    least `similarity`, the worse clip is dropped. Vectors are L2-normalised; `order` has the clips
    from best to worst.
    """
    of = np.arange(len(order))
    rank = np.argsort(order)
    by_cluster = np.lexsort((rank, cluster))
    starts = np.flatnonzero(np.append(True, np.diff(cluster[by_cluster]) > 0))
    for members in np.split(by_cluster, starts[1:]):
        _within(vectors_ND, members, similarity - _SLACK, of, views)
    return of


def _within(
    vectors_ND: Floats, members: Numbers, least: float, of: Numbers, views: Sequence[AreViews]
) -> None:
    """Visits the clips of a cluster from best to worst; only clips that stay drop others."""
    retained = members[:0]
    for start in range(0, len(members), _BLOCK):
        block = members[start : start + _BLOCK]
        others = np.concatenate([retained, block])
        cosines = vectors_ND[block] @ vectors_ND[others].T
        for are_views in views:
            cosines[are_views(block[:, None], others[None])] = -1.0
        is_retained = np.ones(len(others), np.bool_)
        for row, clip in enumerate(block.tolist()):
            at = len(retained) + row
            before = np.where(is_retained[:at], cosines[row, :at], -1.0)
            best = int(np.argmax(before)) if at else 0
            if at and before[best] >= least:
                of[clip], is_retained[at] = others[best], False
        retained = others[is_retained]


def _described(
    ids: pa.Array,
    vectors_ND: Floats,
    centroids_KD: Floats,
    cluster: Numbers,
    before: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns an entry per cluster: adds clip count, medoid and nearest clips to `before`."""
    nearness = np.einsum("nd,nd->n", vectors_ND, centroids_KD[cluster])
    by_cluster = np.lexsort((-nearness, cluster))
    ends = np.cumsum(np.bincount(cluster, minlength=len(centroids_KD)))
    described = []
    for number, members in enumerate(np.split(by_cluster, ends[:-1])):
        entry = dict(before[number]) if number < len(before) else {}
        names = ids.take(pa.array(members[:N_NEAREST], pa.int64())).to_pylist()
        medoid = entry.get("medoid") or next(iter(names), None)
        n_clips = entry.get("n_clips", 0) + len(members)
        entry |= {"cluster": number, "n_clips": n_clips, "medoid": medoid}
        if number < N_GALLERIES:
            entry["nearest"] = names or entry.get("nearest", [])
        described.append(entry)
    return described


def cluster_words(
    centroids_KD: Floats, mean_D: Floats, clip: ModelEntry, models: ModelStore
) -> list[list[str]]:
    """Returns the words of each cluster, the best first; omits words that fit all clips as well.

    The centroids are mean embeddings of clusters. `mean_D` is the mean embedding of all clips, of
    unit length. `clip` is the model that embedded the clips; its weights are in `models`.

    Raises:
        ModelError: The weights or open_clip are missing.
    """
    vectors_WD, _ = text_embedder(clip, models.find(clip))([PROMPT.format(word) for word in WORDS])
    gains_KW = (centroids_KD - mean_D) @ vectors_WD.T
    best_KW = np.argsort(-gains_KW, axis=1, kind="stable")[:, :N_WORDS]
    return [
        [WORDS[word] for word in best.tolist() if gains[word] > _LEAST]
        for best, gains in zip(best_KW, gains_KW, strict=True)
    ]
