"""Pins the effects of the shot benchmarks: which part has which, what each shows at its ends."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HIGH, WIDE = 36, 64


@pytest.fixture
def effects(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1] / "benchmarks")])
    held_out = importlib.import_module("shot_effects_held_out")
    train = importlib.import_module("shot_effects").TRAIN
    return {"train": train, "tune": held_out.TUNE, "blind": held_out.BLIND}


def test_an_effect_is_in_one_part_alone(effects: dict[str, dict[str, Any]]) -> None:
    names = [name for part in effects.values() for name in part]
    drawn = [draw for part in effects.values() for draw in part.values()]
    assert len(set(names)) == len(names)
    assert len(set(drawn)) == len(drawn)
    assert {part: len(of) for part, of in effects.items()} == {"train": 19, "tune": 5, "blind": 16}


def test_each_effect_leads_from_the_first_picture_to_the_second(
    effects: dict[str, dict[str, Any]],
) -> None:
    """The labels of the films rely on this: only frames between the ends are of both pictures."""
    v, u = np.mgrid[0:HIGH, 0:WIDE].astype(np.float32)
    a = np.repeat((2 * u + 3 * v)[:, :, None], 3, axis=2)
    b = 255 - a
    b[:, :, 0] = 90
    for name, draw in {k: v for part in effects.values() for k, v in part.items()}.items():
        effect = draw(np.random.default_rng(3), HIGH, WIDE)
        near = [float(np.abs(effect(p, a, b) - of).mean()) for p, of in ((0.0, a), (1.0, b))]
        assert max(near) < 10, f"{name}: {near} levels from the pictures at its ends"
        between = [effect(p, a, b) for p in (0.3, 0.4, 0.5, 0.6, 0.7)]
        assert between[0].shape == a.shape
        far = [min(float(np.abs(shown - of).mean()) for of in (a, b)) for shown in between]
        assert max(far) > 8, f"{name}: {far} levels from the nearer picture in between"
