"""Filters and orders of the cards: names, classes and ranks; `clips.html.j2` styles them."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from curator.number_text import count
from curator.report.clip_cards import clip_s
from curator.report.score_distance import Nearness
from curator.tables.clip_rows import ClipRow

MAX_TAGS = 40
"""Most tags to filter by: the commonest."""

_LAST = 99999


class Browsing:
    """Filters and orders of cards, and the ranks of the clips shown.

    Args:
        groups: Title and number of clips of each group, in the page's order; kept clips first.

    Attributes:
        groups: Key and title of each group.
        tags: Key and title of each tag.
        orders: Key, title and the CSS value by which cards are ordered.
    """

    def __init__(
        self, clips: Sequence[ClipRow], groups: Sequence[tuple[str, int]], nearness: Nearness
    ) -> None:
        self.groups = [(f"g{k}", f"{title} ({count(n)})") for k, (title, n) in enumerate(groups)]
        if len(groups) > 1:
            self.groups.insert(1, ("r", "rejected, all reasons"))
        numbers = Counter(str(tag) for clip in clips for tag in clip.tags or ())
        commonest = sorted(numbers, key=lambda tag: (-numbers[tag], tag))[:MAX_TAGS]
        self._key_of_tag = {tag: f"t{number}" for number, tag in enumerate(commonest)}
        self.tags = [
            (key, f"{tag} ({count(numbers[tag])})") for tag, key in sorted(self._key_of_tag.items())
        ]
        self.orders: list[tuple[str, str, str]] = []
        self._ranks: dict[str, dict[str, int]] = {}
        self._add("nearest to a bound first", "", "m", clips, nearness.margin)
        self._add("shortest first", "longest first", "s", clips, clip_s)
        self._add("by source and time", "", "u", clips, _place)
        for number, name in enumerate(nearness.scores):
            up, down = f"{name}, lowest first", f"{name}, highest first"
            self._add(up, down, f"x{number}", clips, _column(name))

    def css_of(self, clip: ClipRow) -> str:
        """Returns the CSS classes of a clip's card."""
        tags = (self._key_of_tag.get(str(tag)) for tag in clip.tags or ())
        return "".join(f" {key}" for key in tags if key is not None)

    def order_of(self, clip: ClipRow) -> str:
        """CSS properties of a clip's card."""
        ranks = self._ranks.get(clip.clip_id, {})
        return ";".join(f"--{key}:{rank}" for key, rank in ranks.items())

    def _add(
        self,
        up: str,
        down: str,
        key: str,
        clips: Sequence[ClipRow],
        value: Callable[[ClipRow], Any],
    ) -> None:
        """Adds an order, and its reverse if `down` has a title; clips without a value come last."""
        values = {clip.clip_id: value(clip) for clip in clips}
        known = {name: of for name, of in values.items() if of is not None}
        if len(set(known.values())) < 2:
            return
        for rank, name in enumerate(sorted(known, key=lambda name: (known[name], name))):
            self._ranks.setdefault(name, {})[key] = rank
        self.orders.append((key, up, f"var(--{key},{_LAST})"))
        if down:
            self.orders.append((f"{key}d", down, f"calc(-1*var(--{key},-{_LAST}))"))


def _column(name: str) -> Callable[[ClipRow], Any]:
    return lambda clip: clip.value(name)


def _place(clip: ClipRow) -> tuple[str, float]:
    return str(clip.source_uri or ""), float(clip.start_s or 0.0)
