"""Filters and orders of the cards, by style sheet alone: the page runs no script.

What is chosen in a list is seen by `:has(option:checked)`. A card has a class for each of its
tags, and for each order a CSS property with its rank; browsers without `:has` show all clips, in
the first order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from curator.report.markup import Markup, esc, joined
from curator.report.number_text import count
from curator.report.score_distance import Nearness

MAX_TAGS = 40
"""Most tags to filter by: the commonest."""

Clip = Mapping[str, Any]
_LAST = 99999


class Browsing:
    """Names of groups, tags and orders, and the ranks of the clips that are shown.

    Args:
        clips: The clips on the sheets.
        groups: Title and number of clips of each group, in the page's order; the first is of
            those that are kept.
        nearness: Bounds of the run.
    """

    def __init__(
        self, clips: Sequence[Clip], groups: Sequence[tuple[str, int]], nearness: Nearness
    ) -> None:
        self._groups = groups
        tags = Counter(str(tag) for clip in clips for tag in clip.get("tags") or ())
        commonest = sorted(tags.items(), key=lambda item: (-item[1], item[0]))[:MAX_TAGS]
        self._tags = {tag: (f"t{n}", number) for n, (tag, number) in enumerate(commonest)}
        self._orders: list[tuple[str, str, str]] = []
        self._ranks: dict[str, dict[str, int]] = {}
        self._add("nearest to a bound first", "", "m", clips, nearness.margin)
        self._add("shortest first", "longest first", "s", clips, _seconds)
        self._add("by source and time", "", "u", clips, _place)
        for number, name in enumerate(nearness.scores):
            up, down = f"{name}, lowest first", f"{name}, highest first"
            self._add(up, down, f"x{number}", clips, _column(name))

    def css_of(self, clip: Clip) -> str:
        """Classes of a clip's card."""
        tags = (self._tags.get(str(tag)) for tag in clip.get("tags") or ())
        return "".join(f" {tag[0]}" for tag in tags if tag is not None)

    def order_of(self, clip: Clip) -> str:
        """CSS properties of a clip's card."""
        ranks = self._ranks.get(str(clip.get("clip_id")), {})
        return ";".join(f"--{key}:{rank}" for key, rank in ranks.items())

    def controls(self) -> Markup:
        """The lists, and the rules that make them work."""
        groups = [(f"g{n}", f"{title} ({count(n_clips)})")
                  for n, (title, n_clips) in enumerate(self._groups)]  # fmt: skip
        if len(groups) > 1:
            groups.insert(1, ("r", "rejected, all reasons"))
        tags = [(key, f"{tag} ({count(n)})") for tag, (key, n) in sorted(self._tags.items())]
        orders = [(key, title) for title, key, _ in self._orders]
        lists = [
            _select("show", "Show", "all clips", groups),
            _select("tag", "Tag", "any", tags),
            _select("order", "Order", "by id, a fair sample", orders),
        ]
        return Markup(f'<style>{self._style()}</style><div class="browse">{joined(lists)}</div>')

    def _style(self) -> Markup:
        rules = ["body:has(#show>[value=r]:checked) .group.g0{display:none}"]
        for number in range(len(self._groups)):
            rules.append(
                f"body:has(#show>[value=g{number}]:checked) .group:not(.g{number}){{display:none}}"
            )
        for key, _ in self._tags.values():
            here = f"body:has(#tag>[value={key}]:checked) "
            rules.append(f"{here}.card:not(.{key}),{here}.group:not(:has(.{key})){{display:none}}")
        rules += [
            f"body:has(#order>[value={key}]:checked) .card{{order:{rank}}}"
            for _, key, rank in self._orders
        ]
        return Markup("\n".join(rules))

    def _add(
        self, up: str, down: str, key: str, clips: Sequence[Clip], value: Callable[[Clip], Any]
    ) -> None:
        """Adds an order, and the opposite one if it has a title; what has no value is last."""
        values = {str(clip.get("clip_id")): value(clip) for clip in clips}
        known = {name: of for name, of in values.items() if of is not None}
        if len(set(known.values())) < 2:
            return
        for rank, name in enumerate(sorted(known, key=lambda name: (known[name], name))):
            self._ranks.setdefault(name, {})[key] = rank
        self._orders.append((up, key, f"var(--{key},{_LAST})"))
        if down:
            self._orders.append((down, f"{key}d", f"calc(-1*var(--{key},-{_LAST}))"))


def _select(name: str, label: str, first: str, options: Iterable[tuple[str, str]]) -> Markup:
    # Without autocomplete=off a reload would keep the choice, and hide clips unasked.
    choices = joined(
        Markup(f'<option value="{key}">{esc(title)}</option>') for key, title in options
    )
    return Markup(
        f'<label>{label} <select id="{name}" autocomplete="off">'
        f'<option value="">{esc(first)}</option>{choices}</select></label>'
    )


def _column(name: str) -> Callable[[Clip], Any]:
    return lambda clip: clip.get(name)


def _seconds(clip: Clip) -> float | None:
    start_s, end_s = clip.get("start_s"), clip.get("end_s")
    return end_s - start_s if start_s is not None and end_s is not None else None


def _place(clip: Clip) -> tuple[str, float]:
    return str(clip.get("source_uri") or ""), float(clip.get("start_s") or 0.0)
