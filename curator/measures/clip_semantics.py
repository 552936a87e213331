"""What clips show, read from the CLIP embeddings that analyze stored.

It knows no pixels: another aesthetic head, other prompts or other bounds are a rerun of seconds.
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


Need = Literal["clip", "aesthetic", "content", "safety"]  # what of the recipe a score comes from
NEEDS: dict[str, Need] = {
    "aesthetic": "aesthetic",
    "content_probability": "content",
    "nsfw": "safety",
    "consistency": "clip",
}
"""Scores that are absent unless the recipe names models."""
_REMEDY: dict[Need, str] = {
    "clip": "set analyze.clip, such as analyze.clip=openai-vit-b-32 (`curate models pull "
    "openai-vit-b-32`)",
    "aesthetic": "set analyze.clip=openai-vit-l-14 and semantic.aesthetic=laion-mlp-l-14 "
    "(`curate models pull openai-vit-l-14 laion-mlp-l-14`)",
}
_REMEDY["content"] = _REMEDY["safety"] = _REMEDY["clip"]


class SemanticConfig(StageConfig):
    """What is read from CLIP embeddings; nothing where `analyze.clip` is null."""

    aesthetic: str | None = setting(None, unit="name")
    """aesthetic head of `curate models list`, made for the model of analyze.clip; null for none"""
    content: bool = setting(True, unit="true or false")
    """tell the content type of each clip, by prompts"""
    safety: bool = setting(True, unit="true or false")
    """score what is not safe for work, by prompts"""
    prompts: str | None = setting(None, unit="path")
    """YAML file of content types and prompts; null for the packaged 26 types"""
    reject: tuple[str, ...] = setting((), unit="names")
    """content types whose clips are rejected; to have fewer of a type rather than none, balance by
    the column content_type"""
    # Half of the probability: more than all other types together.
    reject_from: float = setting(0.5, gt=0, le=1, unit="0 to 1")
    """probability of the type from which a clip of `reject` is rejected"""


class Semantics:
    """The models of one recipe, by name: checked before the work, read when they are needed."""

    def __init__(self, config: SemanticConfig, clip: str | None, store: ModelStore) -> None:
        self.config = config
        self.store = store
        self.clip = store.catalogue.find(clip, "clip") if clip is not None else None
        head = config.aesthetic
        self.aesthetic = store.catalogue.find(head, "aesthetic") if head is not None else None

    @property
    def weights_fingerprint(self) -> str | None:
        """What the embeddings depend on: the weights of the CLIP model; None without one."""
        return self.store.fingerprint(self.clip) if self.clip is not None else None

    @property
    def heads_fingerprint(self) -> str | None:
        """What `heads` depends on: weights, and prompts word by word; None where it gives None.

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
        """Checks that what a recipe asks for can be made.

        `asked` names the score of each rule that rejects clips, `columns` what is selected by.

        Raises:
            UsageError: A key or weights are missing; says which key to set, or what to pull.
        """
        self.check_keys(asked, columns)
        with raised_as(UsageError, ModelError):
            if self.clip is not None:
                check_open_clip()
                load_prompts(self.config.prompts)
                for entry in filter(None, (self.clip, self.aesthetic)):
                    self.store.find(entry)

    def check_keys(self, asked: Mapping[str, str], columns: Sequence[str] = ()) -> None:
        """The part of `check` that looks at the recipe alone, and at no weights."""
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
        """What reads the embeddings; None where the recipe asks for none.

        Raises:
            ModelError: Weights are missing or are not what they should be.
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
    """Checks that content types are told where the recipe goes by them, and are known.

    Types are asked for where the selection goes by that column, and by another `key` of the recipe.

    Raises:
        UsageError: Naming the key, and the remedy.
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
    """Unit means of the classes' prompts, float64 [K, D]."""
    ends = np.cumsum([len(some) for some in texts])
    means = [part.astype(np.float64).mean(0) for part in np.split(vectors_PD, ends[:-1])]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])


def _heads_of(clip: ClipView) -> Heads:
    """What reads the clip's embeddings; none where it has none."""
    return clip.heads if clip.heads is not None and len(clip.embeddings_ND) else Heads()


def _aesthetic(clip: ClipView) -> NDArray[np.float64] | None:
    head = _heads_of(clip).aesthetic
    return None if head is None else head.scores_N(clip.embeddings_ND)


def _nsfw(clip: ClipView) -> NDArray[np.float64] | None:
    heads = _heads_of(clip)
    return None if heads.safety is None else heads.unsafe_N(clip.embeddings_ND)


def content_of(clip: ClipView) -> tuple[str | None, float | None]:
    """Content type of a clip and its probability, the mean over its embeddings; None without."""
    content = _heads_of(clip).content
    if content is None:
        return None, None
    probabilities_K = content.probabilities_NK(clip.embeddings_ND).mean(axis=0)
    best = int(np.argmax(probabilities_K))
    return content.names[best], float(probabilities_K[best])


SCORES = {
    "aesthetic": ScoreSpec(
        unit="rating",
        range="about 1 to 10; 4.5 to 5 and above is pleasing (Open-Sora), below 3.5 is dropped by "
        "Cosmos",
        meaning="how much people like the picture: an aesthetic head on CLIP embeddings (LAION's "
        "are trained on ratings of 1 to 10)",
        of=_aesthetic,
        aggregate="mean",
    ),
    "content_probability": ScoreSpec(
        unit="0 to 1",
        range="1/types undecided to 1 sure",
        meaning="probability of the clip's content type, zero-shot by CLIP",
        outside="content_unclear",
        of=lambda clip: content_of(clip)[1],
    ),
    "nsfw": ScoreSpec(
        unit="0 to 1",
        range="0 safe to 1",
        meaning="probability that a sample is sexual or gory, zero-shot by CLIP, the highest of "
        "the clip",
        outside="not_safe_for_work",
        of=_nsfw,
        aggregate="max",
    ),
}
