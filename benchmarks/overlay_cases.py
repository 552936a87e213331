"""Lists clips with and without insets, divided pictures, title cards and drawn boxes.

`overlay_accuracy.py` scores the clips.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import tests_path  # noqa: F401
from box_cases import detections
from card_cases import cards
from drawn_over import CHANGES, LAYOUTS, joined, placed
from overlays import with_inset
from recorded_clips import NOTHING, Case, Footage, Maker, Part, enlarged, footage
from straight_scenes import scenes


def over(one: Footage, others: list[Footage]) -> dict[str, Maker]:
    """Returns makers of clips of each group over one recording."""
    frames, truth = enlarged(one.frames), {**NOTHING, "card": one.truth["card"]}

    def inset(rng: random.Random) -> Case:
        other = rng.choice(others).frames
        shown = list(with_inset(frames, other, placed(rng, frames[0].shape)))
        kept = {**truth, "inset": True, "split": None, "card": None}
        return Case(kind="inset", of=one.name, frames=shown, truth=kept)

    def change(rng: random.Random) -> Case:
        kind = rng.choice(sorted(CHANGES))
        return Case(kind=kind, of=one.name, frames=CHANGES[kind](frames, rng), truth=truth)

    def layout(rng: random.Random) -> Case:
        kind = rng.choice(sorted(LAYOUTS))
        boxes = LAYOUTS[kind](rng.choice((0.5, 0.5, rng.uniform(0.35, 0.65))))
        parts = [one.frames, *(other.frames for other in rng.sample(others, len(boxes) - 1))]
        shown = joined(parts, boxes, rng.choice((0, 0, 2, 4, 8)), rng.choice((0, 0, 255, 128)))
        kept = {"split": True, "inset": None, "card": None, "boxes": False}
        return Case(kind=kind, of=one.name, frames=shown, truth=kept)

    def boxes(rng: random.Random) -> Case:
        width = rng.choice((640, 640, 1280))
        shown = detections(enlarged(one.frames, width), rng)
        kept = {**truth, "boxes": True, "card": None}
        return Case(kind=f"boxes at {width} px", of=one.name, frames=shown, truth=kept)

    return {"inset": inset, "change": change, "layout": layout, "boxes": boxes}


N_CLIPS = {"recording": 48, "scene": 35, "change": 32, "inset": 24, "layout": 12, "boxes": 14,
           "card": 24}  # fmt: skip
"""Largest number of clips of each group, in the order in which they are made."""


def cases(folder: Path, media: Path, part: Part, seed: int) -> Iterator[Case]:
    """Yields the clips of a part: of each group `N_CLIPS`, spread evenly.

    A clip's draws depend on its group and place alone, so that other numbers change no other clip.
    """
    found = list(footage(folder, media, part))
    single = [one for one in found if one.is_single]
    groups: dict[str, list[Maker]] = {
        "recording": [partial(_as_it_is, one=one) for one in found],
        "scene": list(scenes(part).values()), "card": list(cards(part, single, 3).values()),
    }  # fmt: skip
    for group in ("change", "inset", "layout", "boxes"):
        groups[group] = [partial(_over, group=group, one=one, single=single) for one in single]
    for group, most in N_CLIPS.items():
        makers = groups[group]
        n = min(most, len(makers))
        for at in sorted({i * len(makers) // n for i in range(n)}):
            yield makers[at](random.Random(f"{part} {seed} {group} {at}"))


def _as_it_is(_rng: random.Random, one: Footage) -> Case:
    return Case(kind="recording", of=one.name, frames=one.frames, truth=one.truth)


def _over(rng: random.Random, group: str, one: Footage, single: list[Footage]) -> Case:
    others = [other for other in single if other.name[:3] != one.name[:3]]
    return over(one, others)[group](rng)
