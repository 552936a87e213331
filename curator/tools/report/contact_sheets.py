"""Contact sheets: samples of kept clips, of clips rejected for each reason, and of clusters.

The page filters and orders cards by CSS alone, with the classes and ranks of this module.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import methodcaller
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from curator.number_text import count
from curator.records.clips import BY_HAND, Reason
from curator.tables.clip_rows import ClipColumns, ClipRow
from curator.tables.source_table import value_counts
from curator.tools.report.funnel import reason_order
from curator.tools.report.page_templates import clip_s
from curator.tools.report.score_distance import Nearness

MAX_CARDS = 360
"""Most clips on all sheets together. With this limit the page stays below about 8 MB."""
KEPT = ""
"""Replaces the reason for kept clips."""
MAX_TAGS = 40
"""Most tags to filter by. The most frequent tags are used."""

_LAST = 99999


class Sheet(NamedTuple):
    """The clips with one reason: their number, and the sample that is shown."""

    reason: str
    n_clips: int
    clips: Sequence[ClipRow]


def sheets_of(summary: Mapping[str, Any], clips: ClipColumns, max_per_group: int) -> list[Sheet]:
    """Returns the sheet of kept clips, and one for each reason in the order of precedence.

    A sheet has at most `max_per_group` clips, and fewer where there are many reasons.
    """
    numbers = {reason: 0 for reason in (KEPT, *reason_order(summary))}
    samples: dict[str, list[tuple[str, int]]] = {reason: [] for reason in numbers}
    begin = 0
    for block in clips.blocks(("clip_id", "decision", "reason")):
        named = pc.fill_null(block["reason"], str(None))
        reasons = pc.if_else(pc.equal(block["decision"], "kept"), KEPT, named).combine_chunks()
        for reason, n_clips in value_counts(reasons).items():
            numbers[reason] = numbers.get(reason, 0) + n_clips
            rows = pc.indices_nonzero(pc.equal(reasons, reason))
            ids = pa.table({"id": block["clip_id"].take(rows), "row": rows})
            first = pc.select_k_unstable(ids, max_per_group, [("id", "ascending")])
            first_rows = ids.take(first).to_pylist()
            sample = samples.setdefault(reason, [])
            sample += [(str(row["id"]), begin + row["row"]) for row in first_rows]
            samples[reason] = sorted(sample)[:max_per_group]
        begin += block.num_rows
    groups = [reason for reason, n_clips in numbers.items() if n_clips or reason == KEPT]
    most = min(max_per_group, max(1, MAX_CARDS // len(groups)))
    chosen = [[number for _, number in samples[reason][:most]] for reason in groups]
    shown = iter(clips.take([number for group in chosen for number in group]))
    return [
        Sheet(reason, numbers[reason], list(islice(shown, len(group))))
        for reason, group in zip(groups, chosen, strict=True)
    ]


def originals_of(sheets: Iterable[Sheet], clips: ClipColumns) -> dict[str, ClipRow]:
    """Returns the originals of the shown duplicates by id, if they are clips of this run."""
    reasons = (Reason.DUPLICATE, Reason.DIVIDED)
    of = {c.duplicate_of for s in sheets if s.reason in reasons for c in s.clips}
    return clips_by_id(clips, filter(None, of))


def clips_by_id(clips: ClipColumns, ids: Iterable[str]) -> dict[str, ClipRow]:
    """Returns the clips of this run that have one of the ids, by id."""
    wanted = pa.array(sorted(ids), pa.string())
    if not len(wanted):
        return {}
    numbers: list[int] = []
    begin = 0
    for block in clips.blocks(("clip_id",)):
        is_wanted = pc.is_in(block["clip_id"], value_set=wanted)
        numbers += [begin + row for row in pc.indices_nonzero(is_wanted).to_pylist()]
        begin += block.num_rows
    return {clip.clip_id: clip for clip in clips.take(numbers)}


def caption_words(clips: ClipColumns) -> str:
    """Names the models that captioned the kept clips, and people if they wrote captions."""
    models: set[str] = set()
    for block in clips.blocks(("decision", "caption_model")):
        kept = block["caption_model"].filter(pc.equal(block["decision"], "kept"))
        models.update(filter(None, kept.unique().to_pylist()))
    names = [*sorted(models - {BY_HAND}), *(["people"] if BY_HAND in models else [])]
    return f"captions by {', '.join(names)}" if names else "no captions"


class Browsing:
    """Filters and orders of cards, and the ranks of the clips shown.

    Attributes:
        groups: Key and title of each group.
        tags: Key and title of each tag.
        orders: Key and title of each order, and the CSS value that sorts the cards.
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
            ("u", "by source and time", "", lambda c: (c.source_uri or "", c.start_s or 0.0)),
        ]
        for number, name in enumerate(nearness.scores):
            up, down = f"{name}, lowest first", f"{name}, highest first"
            orders.append((f"x{number}", up, down, methodcaller("value", name)))
        for key, up, down, value in orders:
            # Clips without a value come last.
            values = {clip.clip_id: of for clip in clips if (of := value(clip)) is not None}
            if len(set(values.values())) < 2:
                continue
            ranked = sorted((of, clip_id) for clip_id, of in values.items())
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
        """Returns the CSS properties of a clip's card."""
        ranks = self._ranks.get(clip.clip_id, {})
        return ";".join(f"--{key}:{rank}" for key, rank in ranks.items())


class Gallery(NamedTuple):
    """A cluster: its number, counts of kept and dropped clips, its words, and the shown clips."""

    cluster: int
    n_kept: int
    n_dropped: int
    words: str
    clips: list[ClipRow]


def galleries_of(summary: Mapping[str, Any], clips: ClipColumns) -> list[Gallery]:
    """Returns the clusters whose nearest clips the summary lists, in the summary's order."""
    listed = listed_clusters(summary)
    if not listed:
        return []
    names = ["cluster", "decision"]
    counts: Counter[tuple[int | None, str]] = Counter()
    for block in clips.blocks(names):
        for row in block.group_by(names).aggregate([([], "count_all")]).to_pylist():
            counts[row["cluster"], row["decision"]] += row["count_all"]
    by_id = clips_by_id(clips, [name for entry in listed for name in entry["nearest"]])
    return [
        Gallery(
            cluster=entry["cluster"],
            n_kept=counts[entry["cluster"], "kept"],
            n_dropped=counts[entry["cluster"], "rejected"],
            words=", ".join(entry.get("words", ())),
            clips=[by_id[name] for name in entry["nearest"] if name in by_id],
        )
        for entry in listed
    ]


def listed_clusters(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the clusters with nearest clips; empty without clusters."""
    clusters = (summary.get("decided_with") or {}).get("clusters") or ()
    return [entry for entry in clusters if entry.get("nearest")]
