"""One clip as a card: picture, outcome, caption, the scores that matter, the others folded away."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from curator.measures.families import FAMILIES
from curator.measures.scores import SCORES
from curator.records import Reason
from curator.report.markup import Markup, esc, joined
from curator.report.number_text import amount, beside, clock, length, score
from curator.report.score_distance import Beside, Nearness

MAX_TEXT = 1200
"""Most letters of a caption or a detail; the rest is in the table."""

Clip = Mapping[str, Any]


def card(
    clip: Clip, facts: Markup, jpeg: bytes | None, *, css: str = "", order: str = ""
) -> Markup:
    """One clip: its picture and length, what is said of it, its tags and where it is from.

    Args:
        clip: A row of `clips`.
        facts: What is said of it.
        jpeg: Its picture.
        css: Further classes, by which it is filtered.
        order: CSS properties by which it is sorted.
    """
    if jpeg:
        data = base64.b64encode(jpeg).decode()
        picture = f'<img alt="" decoding="async" src="data:image/jpeg;base64,{data}">'
    else:
        picture = "<span>no picture</span>"
    style = f' style="{order}"' if order else ""
    return Markup(
        f'<figure class="clip{css}"{style}>'
        f'<div class="picture">{picture}<b>{length(clip_s(clip))}</b></div>'
        f"<figcaption>{facts}{_tags(clip)}{_origin(clip)}</figcaption></figure>"
    )


def kept_facts(clip: Clip, nearness: Nearness) -> Markup:
    """What is said of a clip that is kept."""
    return joined([_outcome("kept", ""), _caption(clip), measured(clip, nearness)])


def rejected_facts(clip: Clip, nearness: Nearness) -> Markup:
    """What is said of a clip that is rejected: by how much first."""
    reason = clip.get("reason")
    others = [str(other) for other in clip.get("reasons") or () if other != reason]
    parts = [_outcome(str(reason), _why(clip, nearness))]
    if detail := clip.get("reason_detail"):
        parts.append(Markup(f'<p class="detail">{esc(_short(detail))}</p>'))
    if others:
        parts.append(Markup(f'<p class="also">also {esc(", ".join(others))}</p>'))
    if clip.get("caption"):
        parts.append(_caption(clip))
    return joined([*parts, measured(clip, nearness)])


def pair_facts(clip: Clip, role: str) -> Markup:
    """What is said of a clip beside the one that it is alike to: what decides which is retained."""
    bits = score(clip.get("bits_per_pixel"))
    css = " kept" if role == "kept" else ""
    return Markup(
        f'<p class="role{css}">{esc(role)}</p><p class="format">{_format(clip)} '
        f"\N{MIDDLE DOT} {bits} bits per pixel</p>{all_scores(clip)}"
    )


def measured(clip: Clip, nearness: Nearness) -> Markup:
    """The scores with rules, those nearest to their bounds first, and the others folded away."""
    rows = joined(_row(one) for one in nearness.of(clip))
    table = Markup(f'<dl class="near">{rows}</dl>') if rows else Markup("")
    return Markup(f'{table}<p class="format">{_format(clip)}</p>{all_scores(clip)}')


def all_scores(clip: Clip) -> Markup:
    """All scores by family, to be unfolded; those that were not measured by name alone."""
    known = [name for name in SCORES if clip.get(name) is not None]
    if not known:
        return Markup("")
    families = joined(_family(clip, title, names) for title, names in FAMILIES.items())
    missing = [name for name in SCORES if name not in known]
    none = f'<p class="none">not measured: {esc(", ".join(missing))}</p>' if missing else ""
    return Markup(
        f'<details class="all"><summary>{amount(len(known), "score")}</summary>'
        f"{families}{none}</details>"
    )


def clip_s(clip: Clip) -> float | None:
    """Length of a clip in seconds."""
    start_s, end_s = clip.get("start_s"), clip.get("end_s")
    return end_s - start_s if start_s is not None and end_s is not None else None


def _outcome(name: str, why: str) -> Markup:
    """The outcome in a word, and the number and the bound behind it."""
    css = "kept" if name == "kept" else "why"
    number = f" <strong>{esc(why)}</strong>" if why else ""
    return Markup(f'<p class="outcome {css}"><span>{esc(name)}</span>{number}</p>')


def _caption(clip: Clip) -> Markup:
    if caption := clip.get("caption"):
        return Markup(f'<p class="caption">{esc(_short(caption))}</p>')
    failure = clip.get("caption_failure")
    return Markup(
        f'<p class="caption none">no caption{esc(f": {_short(failure)}") if failure else ""}</p>'
    )


def _short(text: object) -> str:
    said = str(text)
    return said if len(said) <= MAX_TEXT else f"{said[: MAX_TEXT - 1]}…"


def _row(one: Beside) -> Markup:
    """A score with its bound, and a gauge of both."""
    is_low = one.side == "min"
    css = ("flag" if one.is_flag else "missed") if one.is_missed else ""
    if one.is_missed:
        value, sign, bound = beside(one.value, one.bound).split()
    else:
        sign = "\N{GREATER-THAN OR EQUAL TO}" if is_low else "\N{LESS-THAN OR EQUAL TO}"
        value, bound = score(one.value), score(one.bound)
    name = joined(one.score.split("_"), "_<wbr>")
    said = {"missed": "outside the bound", "flag": "flagged", "": "within the bound"}[css]
    return Markup(
        f'<div class="{css}"><dt>{name}</dt><dd>{value} '
        f'<small title="{said}">{esc(sign)} {bound}</small></dd>'
        f'<i class="gauge {one.side}" style="--v:{100 * one.place:.0f}%;'
        f'--b:{100 * one.bound_place:.0f}%" aria-hidden="true"></i></div>'
    )


def _family(clip: Clip, title: str, names: Sequence[str]) -> Markup:
    pairs = joined(_pairs(clip, names))
    if not pairs:
        return Markup("")
    return Markup(f'<p class="family">{esc(title)}</p><dl class="scores">{pairs}</dl>')


def _pairs(clip: Clip, names: Sequence[str]) -> Iterator[Markup]:
    for name in names:
        value = clip.get(name)
        if value is not None:
            yield Markup(f"<dt>{esc(name)}</dt><dd>{score(value)}</dd>")


def _format(clip: Clip) -> Markup:
    width, height, fps = clip.get("width"), clip.get("height"), clip.get("fps")
    size = f"{width}\N{MULTIPLICATION SIGN}{height}" if width and height else "size unknown"
    rate = f"{fps:.4g} fps" if fps is not None else "rate unknown"
    return esc(f"{size} \N{MIDDLE DOT} {rate}")


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


def _why(clip: Clip, nearness: Nearness) -> str:
    """The first reason against a clip: its score and the bound it misses."""
    reason, value = str(clip.get("reason")), clip.get("reason_score")
    bound = clip.get("reason_threshold")
    if reason == Reason.NOT_MEASURED:
        return ", ".join(name for name in nearness.required if clip.get(name) is None)
    if value is None or bound is None or reason == Reason.NOT_SELECTED:
        return ""
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
