"""The score `suitability`: the probability that people keep a clip, learned from their marks.

`curate learn` writes a model as numbers in JSON: piecewise linear functions, each of a score or of
a direction of the scene vector. The sum of the functions is the logit of the probability.

Shape letters: N clips, D dimensions of a scene vector.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import StorageError, UsageError
from curator.measures.score_list import SUITABILITY
from curator.models.scene_network import SCENE_MODEL
from curator.storage import open_store

FORMAT = f"curate suitability 1, {SCENE_MODEL}"
_REMEDY = (
    "restore it from a backup, write it anew with `curate learn OUT`, or go on without the score: "
    "--set suitability.model=null, and no rule on suitability"
)
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedScore:
    """A model of the score."""

    intercept: float  # constant part of the logit
    noise: float  # share of random marks; probabilities are in [noise, 1 - noise]
    # Ascending values and their logits, by score or direction; constant beyond both ends.
    curves: Mapping[str, tuple[list[float], list[float]]]
    directions: Mapping[str, list[float]]  # an offset and D weights, by direction
    about: Mapping[str, Any]  # facts for people about training and accuracy

    def _numbers(self) -> dict[str, Any]:
        names = ("intercept", "noise", "curves", "directions")
        return {"format": FORMAT} | {name: getattr(self, name) for name in names}

    @property
    def fingerprint(self) -> str:
        """Digest of all numbers on which values depend."""
        return hashlib.sha256(json.dumps(self._numbers(), sort_keys=True).encode()).hexdigest()[:16]

    def is_sound(self) -> bool:
        """Returns whether all numbers are finite, shapes are valid, and values ascend.

        Raises:
            ValueError: Some entries are not numbers, or lists have different lengths.
            TypeError: Some entries have another type.
        """
        curves = [np.array(curve, np.float64) for curve in self.curves.values()]
        weights = np.array([*self.directions.values()] or [[0.0, 0.0]], np.float64)
        return (
            math.isfinite(self.intercept)
            and 0 <= self.noise < 0.5
            and bool(weights.ndim == 2 and weights.shape[1] > 1 and np.isfinite(weights).all())
            and all(
                c.ndim == 2 and len(c) == 2 and np.isfinite(c).all() and (np.diff(c[0]) > 0).all()
                for c in curves
            )
        )

    @property
    def scores(self) -> list[str]:
        """Names of the scores that the model uses."""
        return [name for name in self.curves if name not in self.directions]

    def to_json(self) -> bytes:
        """Returns the model as JSON with its fingerprint."""
        value = self._numbers() | {"about": self.about, "fingerprint": self.fingerprint}
        return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def read(cls, address: str) -> "LearnedScore":
        """Reads a model: a file, or an object such as `s3://bucket/prefix/suitability.json`.

        Raises:
            UsageError: The model cannot be read, was changed, or has another format.
        """
        folder, _, name = address.rpartition("/")
        try:
            value = json.loads(open_store(folder or ("/" if "/" in address else ".")).read(name))
            model = cls(**{name: value[name] for name in cls.__slots__})
            is_whole = value["fingerprint"] == model.fingerprint and model.is_sound()
        except (StorageError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"suitability.model {address!r} cannot be read: {error!r}; {_REMEDY}"
            ) from error
        if not is_whole:
            raise UsageError(
                f"suitability.model {address!r} was changed, is invalid, or has another version; "
                f"expected the format {FORMAT!r}, as `curate learn OUT` writes it; {_REMEDY}"
            )
        return model

    def values(self, score: Callable[[str], Values], vectors_ND: NDArray[np.float32]) -> Values:
        """Returns the probability of each clip, float64 [N]; NaN if a score or vector is missing.

        `score` returns the values of a score; `vectors_ND` are scene vectors. Both have NaN for
        missing values.
        """
        logit = np.full(len(vectors_ND), self.intercept)
        for name, (x, y) in self.curves.items():
            if name in self.directions:
                offset, *weights = self.directions[name]
                # BLAS is not used: its sums differ between machines.
                logit += np.interp((vectors_ND * np.array(weights)).sum(axis=1) + offset, x, y)
            else:
                logit += np.interp(score(name), x, y)
        probability: Values = np.round(0.5 + (0.5 - self.noise) * np.tanh(logit / 2), 6)
        return probability

    def with_score(self, clips: pa.Table, vectors: pa.Table) -> pa.Table:
        """Returns clips with the column `suitability` last; `vectors` are rows of `embeddings`."""
        n_dims = max((len(weights) - 1 for weights in self.directions.values()), default=0)
        vectors_ND = np.full((clips.num_rows, n_dims), np.nan, np.float32)
        if n_dims and vectors.num_rows and vectors["vector"].type.list_size == n_dims:
            stored = vectors["vector"].combine_chunks().flatten().to_numpy().reshape(-1, n_dims)
            rows = (
                pc.index_in(clips["clip_id"], value_set=vectors["clip_id"]).fill_null(-1).to_numpy()
            )
            vectors_ND[rows >= 0] = stored[rows[rows >= 0]]
        values = self.values(lambda name: clips[name].cast(pa.float64()).to_numpy(), vectors_ND)
        return clips.append_column(SUITABILITY, pa.array(values, mask=np.isnan(values)))
