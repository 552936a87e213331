"""Digests of the results of stages on fixed inputs, by the version under which they hold.

A digest has some numbers of each column: how many entries, and for numbers their mean, extremes and
a mean weighted by position. Floats are compared within a tolerance, not hashed: another model of
CPU, or another number of threads in a library, moves their last digits, and a hash of rounded
values would still change where a value is near the edge of a rounding step.

`WRITE_STAGE_DIGESTS=1 pytest tests/test_stage_versions.py` writes digests of versions that are not
known yet. It never replaces one: a result that changes asks for another version.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STORED = Path(__file__).with_name("stage_digests.json")
TOLERANCE = 2e-3
"""Of the largest value in a column. A change of an algorithm moves more; CPUs differ by 1e-4."""

Digest = dict[str, list[float] | str]


def digest_of(columns: Mapping[str, Any]) -> Digest:
    """A digest of columns: arrays and lists of numbers, of which None is left out; else text."""
    return {name: _of(values) for name, values in sorted(columns.items())}


def _of(values: Any) -> list[float] | str:  # noqa: ANN401
    try:
        array = np.asarray(values, np.float64).ravel()
    except (TypeError, ValueError):
        return hashlib.sha256(repr(values).encode()).hexdigest()[:16]
    known = np.flatnonzero(np.isfinite(array))
    if not len(known):
        return [float(len(array)), 0.0]
    found = array[known]
    place = (known + 1) / len(array)
    numbers = [found.mean(), found.min(), found.max(), (found * place).sum() / place.sum()]
    return [float(len(array)), float(len(known)), *(float(f"{number:.6g}") for number in numbers)]


def check_digest(name: str, version: int, columns: Mapping[str, Any]) -> None:
    """Fails where the result of a stage changed and its version did not.

    Args:
        name: Of the stage, or of a family of it.
        version: Its version.
        columns: What it made of the fixed input.
    """
    stored: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    digest = digest_of(columns)
    key = f"{name} {version}"
    if key not in stored:
        if "WRITE_STAGE_DIGESTS" not in os.environ:
            pytest.fail(f"no digest of {key}; run with WRITE_STAGE_DIGESTS=1 to write it")
        kept = {k: v for k, v in stored.items() if k.rpartition(" ")[0] != name}
        lines = [
            f" {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted((kept | {key: digest}).items())
        ]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    known: Digest = stored[key]
    changed = sorted(known.keys() ^ digest.keys())
    changed += [n for n in known.keys() & digest.keys() if not _alike(known[n], digest[n])]
    details = {n: (known.get(n), digest.get(n)) for n in changed[:5]}
    assert not changed, (
        f"the result of {name} changed and its version is still {version}: {details}; raise the "
        "version if that is meant, and run with WRITE_STAGE_DIGESTS=1"
    )


def _alike(one: list[float] | str, other: list[float] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    if one[:2] != other[:2]:
        return False
    scale = max(map(abs, one[2:]), default=0.0)
    return np.allclose(one[2:], other[2:], rtol=0, atol=TOLERANCE * scale)
