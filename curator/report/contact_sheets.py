"""Contact sheets: a sample of the kept clips, and of those rejected for each reason.

Cards are filtered and ordered by style alone: `clips.html.j2` uses the classes and ranks made here.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import methodcaller
from typing import Any, NamedTuple

from curator.number_text import count
from curator.records.clips import Reason
from curator.report.clip_cards import clip_s
from curator.report.funnel import reason_order
from curator.report.score_distance import Nearness
from curator.tables.clip_rows import ClipRow, ClipRows

MAX_CARDS = 360
"""Most clips of all sheets together, so that the page stays below about 8 MB."""
KEPT = ""
"""Stands for the reason of clips that are kept."""
MAX_TAGS = 40
"""Most tags to filter by: the commonest."""

_LAST = 99999


class Sheet(NamedTuple):
    """The clips of one reason: their number, and the sample shown."""

    reason: str
    n_clips: int
    clips: Sequence[ClipRow]


def sheets_of(summary: Mapping[str, Any], clips: ClipRows, max_per_group: int) -> list[Sheet]:
    """Returns the sheet of kept clips, and one for each reason in the order of precedence.

    A sheet has at most `max_per_group` clips, and fewer where there are many reasons.
    """
    groups: dict[str, list[int]] = {reason: [] for reason in (KEPT, *reason_order(summary))}
    found = zip(clips.values("decision"), clips.values("reason"), strict=True)
    for number, (decision, reason) in enumerate(found):
        groups.setdefault(KEPT if decision == "kept" else str(reason), []).append(number)
    groups = {reason: some for reason, some in groups.items() if some or reason == KEPT}
    most = min(max_per_group, max(1, MAX_CARDS // len(groups)))
    ids = clips.values("clip_id")
    first = [
        heapq.nsmallest(most, numbers, key=lambda number: str(ids[number]))
        for numbers in groups.values()
    ]
    shown = iter(clips.take([number for numbers in first for number in numbers]))
    return [
        Sheet(reason, len(numbers), list(islice(shown, len(sample))))
        for (reason, numbers), sample in zip(groups.items(), first, strict=True)
    ]


def originals_of(sheets: Iterable[Sheet], clips: ClipRows) -> dict[str, ClipRow]:
    """Returns the clips that shown duplicates are copies of, by id; those that are in this run."""
    wanted = {c.duplicate_of for s in sheets if s.reason == Reason.DUPLICATE for c in s.clips}
    ids = enumerate(clips.values("clip_id")) if wanted else ()
    return {clip.clip_id: clip for clip in clips.take([n for n, name in ids if name in wanted])}


def caption_words(clips: ClipRows) -> str:
    """Describes which models captioned the kept clips."""
    columns = (clips.values(name) for name in ("decision", "caption_model"))
    models = {str(model) for decision, model in zip(*columns, strict=True)
              if model and decision == "kept"}  # fmt: skip
    return f"captions by {', '.join(sorted(models))}" if models else "no captions"


class Browsing:
    """Filters and orders of cards, and the ranks of the clips shown.

    Attributes:
        groups: Key and title of each group.
        tags: Key and title of each tag.
        orders: Key, title and the CSS value by which cards are ordered.
    """

    def __init__(self, sheets: Sequence[Sheet], nearness: Nearness) -> None:
        clips = [clip for sheet in sheets for clip in sheet.clips]
        self.groups = [
            (f"g{k}", f"{reason or 'kept'} ({count(n)})") for k, (reason, n, _) in enumerate(sheets)
        ]
        if len(sheets) > 1:
            self.groups.insert(1, ("r", "rejected, all reasons"))
        numbers = Counter(str(tag) for clip in clips for tag in clip.tags or ())
        commonest = sorted(numbers, key=lambda tag: (-numbers[tag], tag))[:MAX_TAGS]
        self._key_of_tag = {tag: f"t{number}" for number, tag in enumerate(commonest)}
        self.tags = [
            (key, f"{tag} ({count(numbers[tag])})") for tag, key in sorted(self._key_of_tag.items())
        ]
        self.orders: list[tuple[str, str, str]] = []
        self._ranks: dict[str, dict[str, int]] = {}
        orders: list[tuple[str, str, str, Callable[[ClipRow], Any]]] = [
            ("m", "nearest to a bound first", "", nearness.margin),
            ("s", "shortest first", "longest first", clip_s),
            ("u", "by source and time", "", _place),
        ]
        for number, name in enumerate(nearness.scores):
            up, down = f"{name}, lowest first", f"{name}, highest first"
            orders.append((f"x{number}", up, down, methodcaller("value", name)))
        for key, up, down, value in orders:
            # Clips without a value come last.
            known = {clip.clip_id: of for clip in clips if (of := value(clip)) is not None}
            if len(set(known.values())) < 2:
                continue
            ranked = sorted((of, clip_id) for clip_id, of in known.items())
            for rank, (_, clip_id) in enumerate(ranked):
                self._ranks.setdefault(clip_id, {})[key] = rank
            self.orders.append((key, up, f"var(--{key},{_LAST})"))
            if down:
                self.orders.append((f"{key}d", down, f"calc(-1*var(--{key},-{_LAST}))"))

    def css_of(self, clip: ClipRow) -> str:
        """Returns the CSS classes of a clip's card."""
        tags = (self._key_of_tag.get(str(tag)) for tag in clip.tags or ())
        return "".join(f" {key}" for key in tags if key is not None)

    def order_of(self, clip: ClipRow) -> str:
        """CSS properties of a clip's card."""
        ranks = self._ranks.get(clip.clip_id, {})
        return ";".join(f"--{key}:{rank}" for key, rank in ranks.items())


def _place(clip: ClipRow) -> tuple[str, float]:
    return str(clip.source_uri or ""), float(clip.start_s or 0.0)
