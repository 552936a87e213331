"""Contact sheets: clips as pictures with what was measured, kept ones and those of each reason."""

import base64
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from curator.clip_rows import some_rows, values
from curator.records import Reason
from curator.stages.report.funnel import reason_order
from curator.stages.report.markup import Markup, esc, joined
from curator.stages.report.words import beside, clock, count, length, score
from curator.stages.scores import SCORES

Clip = Mapping[str, Any]

_SAID_ELSEWHERE = {"short_side_px", "aspect", "fps", "hdr"}
"""Scores that a clip's size and rate tell already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Clips of one sheet: how many there are, and those that are shown."""

    n: int
    shown: list[Clip]


@dataclass(frozen=True, kw_only=True)
class Sheets:
    """Draws clips.

    Attributes:
        clips: All rows of `clips`.
        thumbnails: JPEG of a clip by its id.
        max_per_group: Most clips on a sheet.
    """

    clips: Sequence[Clip]
    thumbnails: Mapping[str, bytes]
    max_per_group: int

    def kept(self) -> Markup:
        """Sheet of clips that are kept."""
        group = self._groups.get("")
        if group is None:
            return Markup('<p class="none">No clip was kept.</p>')
        cards = joined(self._card(clip, _kept_facts(clip)) for clip in group.shown)
        told = zip(values(self.clips, "decision"), values(self.clips, "caption_model"), strict=True)
        models = sorted({str(model) for decision, model in told if model and decision == "kept"})
        said = f"captions by {', '.join(models)}" if models else "no captions"
        return Markup(
            f'<p class="hint">{_of(len(group.shown), group.n)} kept; {esc(said)}</p>'
            f'<div class="sheet">{cards}</div>'
        )

    def rejected(self, summary: Mapping[str, Any]) -> Markup:
        """A sheet for each reason, in the order in which reasons count."""
        groups = {reason: group for reason, group in self._groups.items() if reason}
        order = dict.fromkeys([*reason_order(summary), *groups])
        sheets = [self._reason(reason, groups[reason]) for reason in order if reason in groups]
        return joined(sheets) if sheets else Markup('<p class="none">No clip was rejected.</p>')

    def shown(self) -> list[str]:
        """Ids of the clips on any sheet."""
        shown = [clip for group in self._groups.values() for clip in group.shown]
        retained = [clip["duplicate_of"] for clip in shown if clip.get("duplicate_of")]
        return [*(str(clip.get("clip_id")) for clip in shown), *map(str, retained)]

    @cached_property
    def _groups(self) -> dict[str, _Group]:
        """Clips by the first reason against them; kept ones under no reason."""
        numbers: dict[str, list[int]] = {}
        found = zip(values(self.clips, "decision"), values(self.clips, "reason"), strict=True)
        for number, (decision, reason) in enumerate(found):
            numbers.setdefault("" if decision == "kept" else str(reason), []).append(number)
        ids = values(self.clips, "clip_id")
        first = {
            reason: heapq.nsmallest(self.max_per_group, some, key=lambda k: str(ids[k]))
            for reason, some in numbers.items()
        }
        shown = iter(some_rows(self.clips, [k for some in first.values() for k in some]))
        return {
            reason: _Group(n=len(numbers[reason]), shown=list(islice(shown, len(some))))
            for reason, some in first.items()
        }

    def _reason(self, reason: str, group: _Group) -> Markup:
        if reason == Reason.DUPLICATE:
            wanted = {clip.get("duplicate_of") for clip in group.shown}
            ids = enumerate(values(self.clips, "clip_id"))
            found = [number for number, name in ids if name in wanted]
            by_id = {clip.get("clip_id"): clip for clip in some_rows(self.clips, found)}
            cards = joined(
                self._pair(clip, by_id.get(clip.get("duplicate_of"))) for clip in group.shown
            )
            kind = "sheet pairs"
        else:
            cards = joined(self._card(clip, _rejected_facts(clip)) for clip in group.shown)
            kind = "sheet"
        return Markup(
            f'<section class="reason" id="{anchor(reason)}"><h3>{esc(reason)} '
            f'{_of(len(group.shown), group.n)}</h3><div class="{kind}">{cards}</div></section>'
        )

    def _pair(self, clip: Clip, retained: Clip | None) -> Markup:
        said = Markup(
            f'<p class="why">similarity {score(clip.get("duplicate_similarity"))}, '
            f"duplicate from {score(clip.get('reason_threshold'))}</p>"
        )
        own = self._card(clip, Markup(f'<p class="role">rejected</p>{_quality(clip)}'))
        if retained is None:
            other = Markup('<p class="none">The clip it duplicates is not in this run.</p>')
        else:
            role = "kept" if retained.get("decision") == "kept" else "retained, rejected later"
            facts = Markup(f'<p class="role {role}">{role}</p>{_quality(retained)}')
            other = self._card(retained, facts)
        return Markup(f'<div class="pair">{said}{own}{other}</div>')

    def _card(self, clip: Clip, facts: Markup) -> Markup:
        return card(clip, facts, self.thumbnails.get(str(clip.get("clip_id"))))


def card(clip: Clip, facts: Markup, jpeg: bytes | None) -> Markup:
    """One clip: its picture and length, what is said of it, its tags and where it is from."""
    if jpeg:
        data = base64.b64encode(jpeg).decode()
        picture = f'<img alt="" decoding="async" src="data:image/jpeg;base64,{data}">'
    else:
        picture = "<span>no picture</span>"
    return Markup(
        f'<figure class="clip"><div class="picture">{picture}<b>{length(_clip_s(clip))}</b></div>'
        f"<figcaption>{facts}{_tags(clip)}{_origin(clip)}</figcaption></figure>"
    )


def anchor(reason: str) -> Markup:
    """Name of a reason's sheet within the page."""
    return Markup("rejected-" + "".join(c if c.isalnum() else "-" for c in reason))


def _of(n_shown: int, n_all: int) -> Markup:
    said = f"{count(n_shown)} of {count(n_all)}" if n_shown < n_all else f"{count(n_all)}"
    return Markup(f'<span class="of">{said}</span>')


def _why_none(clip: Clip) -> Markup:
    failure = clip.get("caption_failure")
    return Markup(f": {esc(failure)}") if failure else Markup("")


def _kept_facts(clip: Clip) -> Markup:
    caption = clip.get("caption")
    text = (
        Markup(f'<p class="caption" title="{esc(caption)}">{esc(caption)}</p>')
        if caption
        else Markup(f'<p class="caption none">no caption{_why_none(clip)}</p>')
    )
    scores = joined(
        (
            Markup(f"<div><dt>{esc(name)}</dt> <dd>{score(clip.get(name))}</dd></div>")
            for name in SCORES
            if name not in _SAID_ELSEWHERE
        ),
        " ",
    )
    return Markup(f'{text}{_format(clip)}<dl class="scores">{scores}</dl>')


def _rejected_facts(clip: Clip) -> Markup:
    reason = clip.get("reason")
    others = [str(other) for other in clip.get("reasons") or () if other != reason]
    parts = [Markup(f'<p class="why">{esc(_why(clip))}</p>')]
    if detail := clip.get("reason_detail"):
        parts.append(Markup(f"<p>{esc(detail)}</p>"))
    if others:
        parts.append(Markup(f'<p class="also">also {esc(", ".join(others))}</p>'))
    return joined([*parts, _format(clip)])


def _clip_s(clip: Clip) -> float | None:
    start_s, end_s = clip.get("start_s"), clip.get("end_s")
    return end_s - start_s if start_s is not None and end_s is not None else None


def _format(clip: Clip) -> Markup:
    width, height, fps = clip.get("width"), clip.get("height"), clip.get("fps")
    size = f"{width}\N{MULTIPLICATION SIGN}{height}" if width and height else "size unknown"
    rate = f"{fps:.4g} fps" if fps is not None else "rate unknown"
    return Markup(f'<p class="format">{esc(size)} \N{MIDDLE DOT} {esc(rate)}</p>')


def _quality(clip: Clip) -> Markup:
    """What decides which of two clips is retained: size first, then bits per pixel."""
    bits = score(clip.get("bits_per_pixel"))
    return Markup(f'{_format(clip)}<p class="format">{bits} bits per pixel</p>')


def _tags(clip: Clip) -> Markup:
    tags = joined(Markup(f'<span class="tag">{esc(tag)}</span>') for tag in clip.get("tags") or ())
    return Markup(f"<p>{tags}</p>") if tags else tags


def _origin(clip: Clip) -> Markup:
    uri = str(clip.get("source_uri") or "")
    name = uri.rstrip("/").rsplit("/", 1)[-1] or "unknown source"
    at = f" at {clock(clip['start_s'])}" if clip.get("start_s") is not None else ""
    return Markup(
        f'<p class="origin"><bdi title="{esc(uri)}">{esc(name)}</bdi>{at}'
        f"<code>{esc(clip.get('clip_id'))}</code></p>"
    )


def _why(clip: Clip) -> str:
    """The first reason against a clip: its score and the bound it misses."""
    reason, value = str(clip.get("reason")), clip.get("reason_score")
    bound = clip.get("reason_threshold")
    if reason == Reason.NOT_MEASURED:
        return f"not measured: {', '.join(n for n in SCORES if clip.get(n) is None)}"
    if value is None or bound is None or reason == Reason.NOT_SELECTED:
        return reason.replace("_", " ")
    return f"{_score_of(reason)} {beside(value, bound)}"


def _score_of(reason: str) -> str:
    """Name of the score that a reason is about."""
    if reason == Reason.TOO_SHORT:
        return "seconds"
    if reason == Reason.CONTENT_TYPE_UNWANTED:
        return "content_probability"
    if reason == Reason.NO_ASPECT_CLASS:
        return "share of the picture"
    names = (name for name, spec in SCORES.items() if reason in (spec.low, spec.high))
    return next(names, "size or frames" if reason == Reason.NO_BUCKET else "score")
