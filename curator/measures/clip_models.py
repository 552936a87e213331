"""The CLIP model and the heads that a recipe names: checked before a run, loaded on first use."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, UsageError, raised_as
from curator.fingerprints import fingerprint
from curator.measures.clip_semantics import NEEDS, REMEDY, SemanticConfig, check_content
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

_HEADS_VERSION = 1


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
                raise UsageError(f"{asks} is not made; {REMEDY[need]}")
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


def _class_means(vectors_PD: NDArray[np.float32], texts: Sequence[Sequence[str]]) -> NDArray[Any]:
    """Returns the mean vector of each class's prompts, scaled to length 1, float64 [K, D]."""
    ends = np.cumsum([len(some) for some in texts])
    means = [part.astype(np.float64).mean(0) for part in np.split(vectors_PD, ends[:-1])]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])
