"""Contact sheets: a sample of the clips that are kept, and of those of each reason."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from curator.records import Reason
from curator.report.card_filters import Browsing
from curator.report.clip_cards import card, kept_facts, pair_facts, rejected_facts
from curator.report.funnel import reason_order
from curator.report.markup import Markup, esc, joined
from curator.report.number_text import count, score
from curator.report.rule_text import reason_words
from curator.report.score_distance import Nearness
from curator.tables.clip_rows import some_rows, values

Clip = Mapping[str, Any]

MAX_CARDS = 360
"""Most clips of all sheets together, so that the page stays below about 8 MB."""
KEPT = ""
"""Stands for the reason of clips that are kept."""


@dataclass(frozen=True)
class Sheets:
    """Draws clips.

    Attributes:
        summary: What `summary.json` holds.
        clips: All rows of `clips`.
        thumbnails: JPEG of a clip by its id.
        max_per_group: Most clips on a sheet; fewer where there are many reasons.
    """

    summary: Mapping[str, Any]
    clips: Sequence[Clip]
    thumbnails: Mapping[str, bytes]
    max_per_group: int

    def section(self) -> Markup:
        """The lists to choose by, the sheet of kept clips, and one for each reason."""
        groups = self._groups
        n_rejected = sum(len(numbers) for reason, numbers in groups.items() if reason != KEPT)
        sheets = [self._kept(), *(self._reason(reason) for reason in groups if reason != KEPT)]
        if not n_rejected:
            sheets.append(Markup('<p class="none">No clip was rejected.</p>'))
        controls = self._browsing.controls() if self.clips else ""
        hint = (
            "Beside each score is the bound of its rule, those nearest to their bounds first; the "
            "gauge spans most clips of the run, its notch is the bound, its dark side is outside. "
            "<code>curate explain OUT ID</code> says what would have kept a clip."
        )
        return Markup(f'{controls}<p class="hint">{hint}</p>{joined(sheets)}')

    def shown(self) -> list[str]:
        """Ids of the clips on any sheet."""
        shown = [clip for clips in self._samples.values() for clip in clips]
        retained = [clip["duplicate_of"] for clip in shown if clip.get("duplicate_of")]
        return [*(str(clip.get("clip_id")) for clip in shown), *map(str, retained)]

    @cached_property
    def _groups(self) -> dict[str, list[int]]:
        """Numbers of clips by reason, in the order in which reasons count; those kept first."""
        groups: dict[str, list[int]] = {KEPT: []}
        groups |= {reason: [] for reason in reason_order(self.summary)}
        found = zip(values(self.clips, "decision"), values(self.clips, "reason"), strict=True)
        for number, (decision, reason) in enumerate(found):
            groups.setdefault(KEPT if decision == "kept" else str(reason), []).append(number)
        return {reason: some for reason, some in groups.items() if some or reason == KEPT}

    @cached_property
    def _samples(self) -> dict[str, list[Clip]]:
        most = min(self.max_per_group, max(1, MAX_CARDS // len(self._groups)))
        ids = values(self.clips, "clip_id")
        first = {
            reason: heapq.nsmallest(most, numbers, key=lambda number: str(ids[number]))
            for reason, numbers in self._groups.items()
        }
        shown = iter(some_rows(self.clips, [k for numbers in first.values() for k in numbers]))
        return {reason: list(islice(shown, len(numbers))) for reason, numbers in first.items()}

    @cached_property
    def _nearness(self) -> Nearness:
        return Nearness(self.summary, self.clips)

    @cached_property
    def _browsing(self) -> Browsing:
        clips = [clip for sample in self._samples.values() for clip in sample]
        groups = [(reason or "kept", len(numbers)) for reason, numbers in self._groups.items()]
        return Browsing(clips, groups, self._nearness)

    @cached_property
    def _by_id(self) -> dict[object, Clip]:
        wanted = {clip.get("duplicate_of") for clip in self._samples.get(Reason.DUPLICATE, ())}
        ids = enumerate(values(self.clips, "clip_id")) if wanted else ()
        found = [number for number, name in ids if name in wanted]
        return {clip["clip_id"]: clip for clip in some_rows(self.clips, found)}

    def _kept(self) -> Markup:
        shown, n_kept = self._samples[KEPT], len(self._groups[KEPT])
        if not n_kept:
            return Markup('<section class="group g0" id="kept"><h3>kept</h3>'
                          '<p class="none">No clip was kept.</p></section>')  # fmt: skip
        cards = joined(self._card(clip, kept_facts(clip, self._nearness)) for clip in shown)
        told = zip(values(self.clips, "decision"), values(self.clips, "caption_model"), strict=True)
        models = sorted({str(model) for decision, model in told if model and decision == "kept"})
        said = f"captions by {', '.join(models)}" if models else "no captions"
        return Markup(
            f'<section class="group g0" id="kept"><h3>kept {_of(len(shown), n_kept)}</h3>'
            f'<p class="rule">{esc(said)}</p><div class="sheet">{cards}</div></section>'
        )

    def _reason(self, reason: str) -> Markup:
        shown, n_clips = self._samples[reason], len(self._groups[reason])
        if reason == Reason.DUPLICATE:
            cards, kind = joined(self._pair(clip) for clip in shown), "sheet pairs"
        else:
            facts = ((clip, rejected_facts(clip, self._nearness)) for clip in shown)
            cards, kind = joined(self._card(clip, said) for clip, said in facts), "sheet"
        number = list(self._groups).index(reason)
        return Markup(
            f'<section class="group g{number}" id="{anchor(reason)}"><h3>{esc(reason)} '
            f'{_of(len(shown), n_clips)}</h3><p class="rule">'
            f'{esc(reason_words(reason, self.summary))}</p><div class="{kind}">{cards}</div>'
            "</section>"
        )

    def _pair(self, clip: Clip) -> Markup:
        said = Markup(
            f'<p class="why">similarity {score(clip.get("duplicate_similarity"))}, '
            f"duplicate from {score(clip.get('reason_threshold'))}</p>"
        )
        own = self._plain(clip, "rejected")
        retained = self._by_id.get(clip.get("duplicate_of"))
        if retained is None:
            other = Markup('<p class="none">The clip it duplicates is not in this run.</p>')
        else:
            kept = retained.get("decision") == "kept"
            other = self._plain(retained, "kept" if kept else "retained, rejected later")
        css, order = self._browsing.css_of(clip), self._browsing.order_of(clip)
        return Markup(f'<div class="pair card{css}" style="{order}">{said}{own}{other}</div>')

    def _card(self, clip: Clip, facts: Markup) -> Markup:
        css, order = self._browsing.css_of(clip), self._browsing.order_of(clip)
        return card(clip, facts, self._picture(clip), css=f" card{css}", order=order)

    def _plain(self, clip: Clip, role: str) -> Markup:
        return card(clip, pair_facts(clip, role), self._picture(clip))

    def _picture(self, clip: Clip) -> bytes | None:
        return self.thumbnails.get(str(clip.get("clip_id")))


def anchor(reason: str) -> Markup:
    """Name of a reason's sheet within the page."""
    return Markup("rejected-" + "".join(c if c.isalnum() else "-" for c in reason))


def _of(n_shown: int, n_all: int) -> Markup:
    said = f"{count(n_shown)} of {count(n_all)}" if n_shown < n_all else f"{count(n_all)}"
    return Markup(f'<span class="of">{said}</span>')
