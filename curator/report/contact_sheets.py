"""Contact sheets: a sample of the kept clips, and of those rejected for each reason."""

import base64
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from curator.records.clips import Reason
from curator.report.card_filters import Browsing
from curator.report.funnel import reason_order
from curator.report.rule_text import reason_words
from curator.report.score_distance import Nearness
from curator.tables.clip_rows import ClipRow, ClipRows

MAX_CARDS = 360
"""Most clips of all sheets together, so that the page stays below about 8 MB."""
KEPT = ""
"""Stands for the reason of clips that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The clips of one reason: their number, the sample shown, and the rule."""

    reason: str
    n_clips: int
    clips: Sequence[ClipRow]
    rule: str


@dataclass(frozen=True)
class Sheets:
    """Chooses the clips to show.

    Attributes:
        thumbnails: JPEG of a clip by its id.
        max_per_group: Most clips on a sheet; fewer where there are many reasons.
    """

    summary: Mapping[str, Any]
    clips: ClipRows
    thumbnails: Mapping[str, bytes]
    max_per_group: int

    def shown(self) -> list[str]:
        """Ids of the clips on any sheet."""
        shown = self._shown
        retained = [clip.duplicate_of for clip in shown if clip.duplicate_of]
        return [*(clip.clip_id for clip in shown), *retained]

    def picture(self, clip: ClipRow) -> str:
        """Returns a clip's thumbnail in base64; empty where it has none."""
        return base64.b64encode(self.thumbnails.get(clip.clip_id, b"")).decode()

    def retained(self, clip: ClipRow) -> ClipRow | None:
        """Returns the clip that a duplicate is a copy of; None where it is not in this run."""
        return self._by_id.get(clip.duplicate_of)

    @cached_property
    def sheets(self) -> list[Sheet]:
        """Returns the sheet of kept clips, and one for each reason."""
        return [
            Sheet(
                reason=reason,
                n_clips=len(numbers),
                clips=self._samples[reason],
                rule=self._captions() if reason == KEPT else reason_words(reason, self.summary),
            )
            for reason, numbers in self._groups.items()
        ]

    @cached_property
    def nearness(self) -> Nearness:
        """The bounds of the run."""
        return Nearness(self.summary, self.clips)

    @cached_property
    def browsing(self) -> Browsing:
        """Filters and orders of the cards."""
        groups = [(reason or "kept", len(numbers)) for reason, numbers in self._groups.items()]
        return Browsing(self._shown, groups, self.nearness)

    @property
    def _shown(self) -> list[ClipRow]:
        return [clip for sample in self._samples.values() for clip in sample]

    @cached_property
    def _groups(self) -> dict[str, list[int]]:
        """Returns numbers of clips by reason, in the order of precedence; kept clips first."""
        groups: dict[str, list[int]] = {KEPT: []}
        groups |= {reason: [] for reason in reason_order(self.summary)}
        found = zip(self.clips.values("decision"), self.clips.values("reason"), strict=True)
        for number, (decision, reason) in enumerate(found):
            groups.setdefault(KEPT if decision == "kept" else str(reason), []).append(number)
        return {reason: some for reason, some in groups.items() if some or reason == KEPT}

    @cached_property
    def _samples(self) -> dict[str, list[ClipRow]]:
        most = min(self.max_per_group, max(1, MAX_CARDS // len(self._groups)))
        ids = self.clips.values("clip_id")
        first = {
            reason: heapq.nsmallest(most, numbers, key=lambda number: str(ids[number]))
            for reason, numbers in self._groups.items()
        }
        shown = iter(self.clips.take([k for numbers in first.values() for k in numbers]))
        return {reason: list(islice(shown, len(numbers))) for reason, numbers in first.items()}

    @cached_property
    def _by_id(self) -> dict[str | None, ClipRow]:
        wanted = {clip.duplicate_of for clip in self._samples.get(Reason.DUPLICATE, ())}
        ids = enumerate(self.clips.values("clip_id")) if wanted else ()
        found = [number for number, name in ids if name in wanted]
        return {clip.clip_id: clip for clip in self.clips.take(found)}

    def _captions(self) -> str:
        columns = (self.clips.values(name) for name in ("decision", "caption_model"))
        models = {str(model) for decision, model in zip(*columns, strict=True)
                  if model and decision == "kept"}  # fmt: skip
        return f"captions by {', '.join(sorted(models))}" if models else "no captions"
