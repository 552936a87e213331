"""Scores of the meaning of clips, from the CLIP embeddings that `analyze` stored.

They need no pixels: a rerun with another aesthetic head, prompts or bounds takes seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, UsageError, raised_as, unknown_key
from curator.fingerprints import fingerprint
from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import check_open_clip, embed_texts
from curator.models.embedding_heads import (
    Heads,
    LinearHead,
    Prompts,
    ZeroShot,
    load_linear_head,
    load_prompts,
)
from curator.models.weight_store import ModelStore
from curator.stage import StageConfig, setting

_HEADS_VERSION = 1


Need = Literal["clip", "aesthetic", "content", "safety"]  # recipe keys on which a score depends
NEEDS: dict[str, Need] = {
    "aesthetic": "aesthetic",
    "content_probability": "content",
    "nsfw": "safety",
    "consistency": "clip",
}
"""Scores that need models which the recipe names."""
_REMEDY: dict[Need, str] = {
    "clip": "set analyze.clip, such as analyze.clip=openai-vit-b-32 (`curate models pull "
    "openai-vit-b-32`)",
    "aesthetic": "set analyze.clip=openai-vit-l-14 and semantic.aesthetic=laion-mlp-l-14 "
    "(`curate models pull openai-vit-l-14 laion-mlp-l-14`)",
}
_REMEDY["content"] = _REMEDY["safety"] = _REMEDY["clip"]


class SemanticConfig(StageConfig):
    """Settings of the scores from CLIP embeddings; without effect if `analyze.clip` is null."""

    aesthetic: str | None = setting(None, unit="name")
    """aesthetic head of `curate models list`, for the model of analyze.clip; null for none"""
    content: bool = setting(True, unit="true or false")
    """classify the content type of each clip, by prompts"""
    safety: bool = setting(True, unit="true or false")
    """compute the score nsfw (not safe for work), by prompts"""
    prompts: str | None = setting(None, unit="path")
    """YAML file of content types and prompts; null for the packaged 26 types"""
    reject: tuple[str, ...] = setting((), unit="names")
    """content types to reject; to keep some clips of a type, use select.by with the column
    content_type"""
    # At 0.5, the type is as probable as all other types together.
    reject_from: float = setting(0.5, gt=0, le=1, unit="0 to 1")
    """smallest probability of the content type at which `reject` rejects a clip"""


class Semantics:
    """The models that one recipe names: checked before a run, loaded on first use."""

    def __init__(self, config: SemanticConfig, clip: str | None, store: ModelStore) -> None:
        self.config = config
        self.store = store
        self.clip = store.catalogue.find(clip, "clip") if clip is not None else None
        head = config.aesthetic
        self.aesthetic = store.catalogue.find(head, "aesthetic") if head is not None else None

    @property
    def weights_fingerprint(self) -> str | None:
        """Fingerprint of the CLIP weights, on which embeddings depend; None without a model."""
        return self.store.fingerprint(self.clip) if self.clip is not None else None

    @property
    def heads_fingerprint(self) -> str | None:
        """Fingerprint of the weights and prompts of `heads`; None without a CLIP model.

        Raises:
            ModelError: The prompts cannot be read.
        """
        if self.clip is None:
            return None
        config, head, prompts = self.config, self.aesthetic, load_prompts(self.config.prompts)
        asked = {"content": config.content, "safety": config.safety}
        classes = {
            name: [(kind, prompts.texts(words)) for kind, words in getattr(prompts, name).items()]
            for name in filter(asked.get, asked)
        }
        return fingerprint(
            "heads",
            _HEADS_VERSION,
            self.weights_fingerprint,
            self.store.fingerprint(head) if head is not None else None,
            classes,
            prompts.unsafe if config.safety else None,
        )

    def check(self, asked: Mapping[str, str], columns: Sequence[str] = ()) -> None:
        """Checks that the models for the scores and columns of a recipe are available.

        `asked` maps each rejecting rule to its score. `columns` are the columns of `select.by`.

        Raises:
            UsageError: A key or weights are missing; the message names the key to set, or the
                models to pull.
        """
        self.check_keys(asked, columns)
        with raised_as(UsageError, ModelError):
            if self.clip is not None:
                check_open_clip()
                load_prompts(self.config.prompts)
                for entry in filter(None, (self.clip, self.aesthetic)):
                    self.store.find(entry)

    def check_keys(self, asked: Mapping[str, str], columns: Sequence[str] = ()) -> None:
        """Does the part of `check` that needs only the recipe, not the weights."""
        clip, head = self.clip, self.aesthetic
        name = clip.name if clip is not None else None
        for rule, score in asked.items():
            need = NEEDS.get(score)
            asks = f"filters.{rule} asks for a score that"
            if need is not None and (clip is None or (need == "aesthetic" and head is None)):
                raise UsageError(f"{asks} is not made; {_REMEDY[need]}")
            if need is not None and not getattr(self.config, need, True):
                raise UsageError(f"{asks} semantic.{need} switches off")
        if head is not None and (clip is None or head.reads != clip.name):
            raise UsageError(
                f"semantic.aesthetic is {head.name}, which reads embeddings of {head.reads}; "
                f"analyze.clip is {name}; set "
                f"analyze.clip={head.reads} (`curate models pull {head.reads}`)"
            )
        with raised_as(UsageError, ModelError):
            check_content(self.config, name, columns)

    def heads(self) -> Heads | None:
        """Returns the heads that compute scores from embeddings; None without a CLIP model.

        Raises:
            ModelError: Weights are missing, or differ from the catalogue.
        """
        if self.clip is None:
            return None
        config, prompts, clip = self.config, load_prompts(self.config.prompts), self.clip
        return Heads(
            aesthetic=self._aesthetic(self.aesthetic) if self.aesthetic is not None else None,
            content=self._classes(clip, prompts, prompts.content) if config.content else None,
            safety=self._classes(clip, prompts, prompts.safety) if config.safety else None,
            unsafe=tuple(prompts.unsafe),
        )

    def _aesthetic(self, entry: ModelEntry) -> LinearHead:
        key = fingerprint("aesthetic", _HEADS_VERSION, self.store.fingerprint(entry))
        kept = self.store.load_derived(key)
        if kept is not None:
            return LinearHead(kept["weight"].astype(np.float64), float(kept["bias"]))
        assert entry.dim is not None
        head = load_linear_head(self.store.find(entry), dim=entry.dim)
        self.store.keep_derived(key, {"weight": head.weight_D, "bias": np.array(head.bias)})
        return head

    def _classes(
        self, clip: ModelEntry, prompts: Prompts, classes: Mapping[str, list[str]]
    ) -> ZeroShot:
        texts = [prompts.texts(words) for words in classes.values()]
        key = fingerprint("texts", _HEADS_VERSION, self.store.fingerprint(clip), texts)
        kept = self.store.load_derived(key)
        if kept is None:
            flat = [text for some in texts for text in some]
            vectors, scale = embed_texts(clip, self.store.find(clip), flat)
            kept = {"class": _class_means(vectors, texts), "scale": np.array(scale)}
            self.store.keep_derived(key, kept)
        return ZeroShot(tuple(classes), kept["class"].astype(np.float64), float(kept["scale"]))


def check_content(
    config: SemanticConfig, clip: str | None, columns: Sequence[str] = (), *, key: str | None = None
) -> None:
    """Checks that content types are on if the recipe uses them, and that rejected types exist.

    `columns` are the columns of `select.by`. `key` is another recipe key that uses content types.

    Raises:
        UsageError: Content types are off, or a type is unknown; names the key and the remedy.
        ModelError: The prompts cannot be read.
    """
    asking = {"semantic.reject": config.reject, "select.by": "content_type" in columns, key: key}
    for name in (name for name, is_asking in asking.items() if is_asking):
        if clip is None:
            raise UsageError(f"{name} asks for content types; {_REMEDY['content']}")
        if not config.content:
            raise UsageError(f"{name} asks for content types, which semantic.content switches off")
    contents = load_prompts(config.prompts).content if config.reject else {}
    for name in config.reject:
        if name not in contents:
            raise UsageError(f"semantic.reject: {unknown_key(name, contents, 'content type')}")


def _class_means(vectors_PD: NDArray[np.float32], texts: Sequence[Sequence[str]]) -> NDArray[Any]:
    """Returns the mean vector of each class's prompts, scaled to length 1, float64 [K, D]."""
    ends = np.cumsum([len(some) for some in texts])
    means = [part.astype(np.float64).mean(0) for part in np.split(vectors_PD, ends[:-1])]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])


def _heads_of(clip: ClipView) -> Heads:
    """Returns the heads for the clip's embeddings; empty heads without embeddings."""
    return clip.heads if clip.heads is not None and len(clip.embeddings_ND) else Heads()


def _aesthetic(clip: ClipView) -> NDArray[np.float64] | None:
    head = _heads_of(clip).aesthetic
    return None if head is None else head.scores_N(clip.embeddings_ND)


def _nsfw(clip: ClipView) -> NDArray[np.float64] | None:
    heads = _heads_of(clip)
    return None if heads.safety is None else heads.unsafe_N(clip.embeddings_ND)


def content_of(clip: ClipView) -> tuple[str | None, float | None]:
    """Returns the content type and its mean probability over embeddings; None without types."""
    content = _heads_of(clip).content
    if content is None:
        return None, None
    probabilities_K = content.probabilities_NK(clip.embeddings_ND).mean(axis=0)
    best = int(np.argmax(probabilities_K))
    return content.names[best], float(probabilities_K[best])


SCORES = {
    "aesthetic": ScoreSpec(
        unit="rating",
        range="about 1 to 10; 4.5 to 5 and above is pleasing (Open-Sora); Cosmos drops clips below "
        "3.5",
        meaning="rating of the picture that an aesthetic head predicts from CLIP embeddings "
        "(LAION's heads are trained on ratings of 1 to 10)",
        of=_aesthetic,
        aggregate="mean",
    ),
    "content_probability": ScoreSpec(
        unit="0 to 1",
        range="from 1 / number of types (undecided) to 1 (certain)",
        meaning="probability of the clip's content type, zero-shot by CLIP",
        outside="content_unclear",
        of=lambda clip: content_of(clip)[1],
    ),
    "nsfw": ScoreSpec(
        unit="0 to 1",
        range="0 safe to 1",
        meaning="highest probability that a sample of the clip is sexual or gory, zero-shot by "
        "CLIP",
        outside="not_safe_for_work",
        of=_nsfw,
        aggregate="max",
    ),
}
