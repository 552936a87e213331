"""Converts stored values of samples to the values of a batch."""

import io
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

from curator.errors import ShardError


class Repeated(NamedTuple):
    """Values of a batch without repetition: sample `b` has `unique[inverse[b]]`.

    For example, a trainer encodes each distinct caption once.

    Attributes:
        unique: Distinct values, in the order of their first samples.
        inverse: Index into `unique` for each sample, int64 [B].
    """

    unique: Any
    inverse: torch.Tensor


def repeated(values: Sequence[Hashable]) -> Repeated:
    """Groups equal values."""
    places: dict[Hashable, int] = {}
    inverse = [places.setdefault(value, len(places)) for value in values]
    return Repeated(list(places), torch.tensor(inverse))


def as_unit(video: torch.Tensor) -> torch.Tensor:
    """Maps uint8 [0, 255] linearly to float32 [-1, 1], on the tensor's device."""
    return video.float().div_(127.5).sub_(1.0)


def facts_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Parses a sample's JSON.

    Raises:
        ShardError: The JSON is invalid, or lacks `n_frames` or `fps`.
    """
    where = f"clip {sample['__key__']} of {sample['__url__']}"
    try:
        facts: dict[str, Any] = orjson.loads(sample["json"])
        int(facts["n_frames"]), float(facts["fps"])
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(
            f"{where} has no JSON with n_frames and fps ({error!r}); expected a sample that "
            "`curate run` wrote"
        ) from error
    return facts


def rate_of(facts: Mapping[str, Any]) -> Fraction:
    """Returns frames/s: `fps_fraction`, else the fraction up to /1001 that is nearest to `fps`."""
    if "fps_fraction" in facts:
        return Fraction(facts["fps_fraction"])
    return Fraction(facts["fps"]).limit_denominator(1001)


def embeddings(stored: Sequence[bytes]) -> Repeated:
    """Returns the distinct embeddings of a batch, float32 [U, D]."""
    order = caption_embeddings(stored)
    return Repeated(torch.stack(order.unique).float(), order.inverse)


def caption_embeddings(stored: Sequence[bytes | None]) -> Repeated:
    """Returns the distinct caption embeddings of a batch, in their stored types.

    `unique` is a list, because embeddings of tokens differ in length; None stays None.
    """
    order = repeated(stored)
    load = partial(np.load, allow_pickle=False)
    unique = [None if data is None else load(io.BytesIO(data)) for data in order.unique]
    tensors = [None if array is None else torch.from_numpy(array) for array in unique]
    return Repeated(tensors, order.inverse)
