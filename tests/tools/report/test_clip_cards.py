"""Cards of the report: the scores that matter, filters and orders without a script, its size."""

import re
from typing import Any

import pytest

from curator.measures.score_list import BUILT_IN, SCORES
from curator.records.clips import Reason
from curator.tools.report import render_report, shown_clips
from curator.tools.report.contact_sheets import KEPT, MAX_CARDS, Browsing, Sheet
from curator.tools.report.score_distance import Nearness
from tests.made_clips import clip_rows
from tests.tools.report.test_report import (
    EVIL,
    Page,
    _refuses_evil,
    clip,
    rejected,
    render,
    summary_of,
)


def ruled(clips: list[dict[str, Any]], **filters: object) -> Nearness:
    return Nearness({"recipe": {"filters": filters}}, clips)


def test_missed_bounds_come_first_then_flags_then_the_nearest() -> None:
    listed = [name for names in BUILT_IN.headings.values() for name in names]
    assert sorted(listed) == sorted(SCORES), "every score is in one family"
    clips = clip_rows(
        clip(n, motion=n / 10, luma=n / 10, noise=float(n), contrast=0.05) for n in range(10)
    )
    nearness = ruled(
        clips,
        contrast={"min": 0.04},
        luma={"max": 0.9},
        noise={"max": 3, "severity": "flag"},
        motion={"min": 0.75},
    )
    found = nearness.of(clips[7])
    assert [(one.score, one.is_missed) for one in found] == [
        ("motion", True), ("noise", True), ("luma", False), ("contrast", False),
    ]  # fmt: skip
    assert (found[0].side, found[0].bound, found[0].value) == ("min", 0.75, 0.7)


def test_nearness_is_measured_by_how_far_clips_go_on_the_same_side() -> None:
    clips = clip_rows(clip(n, motion=n / 100, overlay_text_area=0.0) for n in range(101))
    nearness = ruled(clips, motion={"min": 0.05, "max": 0.9}, overlay_text_area={"max": 0.001})
    near = {one.score: one for one in nearness.of(clips[10])}
    assert near["motion"].side == "min"
    assert near["motion"].nearness == pytest.approx(0.05 / 0.9, rel=0.01)
    # Nothing at all is as far from the bound as a clip can be, however small the bound is.
    assert near["overlay_text_area"].nearness == 1.0
    # The margin is the nearest bound of a kept, and the furthest of a rejected clip.
    clips = clip_rows(clip(n, motion=n / 100, luma=n / 100) for n in range(101))
    nearness = ruled(clips, motion={"min": 0.5}, luma={"min": 0.2})
    inside, outside = nearness.margin(clips[60]), nearness.margin(clips[10])
    assert inside == pytest.approx(0.1 / 0.45)
    assert outside == pytest.approx(0.4 / 0.45)
    assert ruled(clips).margin(clips[0]) is None


def test_lists_filter_and_order_by_style_alone() -> None:
    clips = [
        clip(0, tags=["camera_static"]),
        clip(1, tags=["camera_static", "pan_left"]),
        rejected(2, "too_dark"),
    ]
    html, page = render(clips)
    assert {"show", "tag", "order"} <= set(page.attributes("id"))
    values = page.attributes("value")
    chosen = set(re.findall(r"\[value=(\w+)\]:checked", html))
    assert chosen == {value for value in values if value}
    assert "script" not in {tag for tag, _ in page.tags}
    assert "camera_static (2)" in page.text
    assert html.count('figure class="clip card t0') == 2
    evil = "}</style><script>alert(1)</script>" + EVIL
    html, page = render([clip(0, tags=[evil]), rejected(1, evil), clip(2, tags=["a"])])
    _refuses_evil(html, page)
    assert html.count("</style>") == 2
    # Ranks follow the score, and clips without it have none.
    clips = clip_rows(clip(n, motion=value) for n, value in enumerate((0.3, None, 0.1, 0.2)))
    browsing = Browsing([Sheet(KEPT, 4, list(clips))], ruled(clips, motion={"min": 0.01}))
    ranks = [re.findall(r"--x0:(\d+)", browsing.order_of(one)) for one in clips]
    assert ranks == [["2"], [], ["0"], ["1"]]


def test_number_of_cards_and_size_of_the_page_are_bounded() -> None:
    clips = [clip(n) for n in range(60)]
    of_scores = (reason for spec in SCORES.values() for reason in (spec.low, spec.high))
    for number, reason in enumerate(sorted({*Reason, *of_scores})):
        clips += [
            rejected(1000 * number + n, str(reason), reason_detail="&" * 5000, tags=[f"tag{n}"])
            for n in range(1, 40)
        ]
    shown = shown_clips({}, clip_rows(clips))
    assert MAX_CARDS // 2 < len(shown) <= MAX_CARDS
    pictures = {clip_id: b"\xff" * 6000 for clip_id in shown}
    page = render_report(
        summary=summary_of(clips), sources=[], clips=clip_rows(clips), pictures=lambda _: pictures
    )
    assert page.count('class="picture"') <= MAX_CARDS
    assert len(page) < 12_000_000
    Page(page)


def page_with(unit_times: list[dict[str, Any]]) -> tuple[str, Page]:
    clips = [clip(0)]
    return render(clips, summary=summary_of(clips, unit_times=unit_times))


def test_a_page_has_the_workers_of_stages_only_if_there_are_some() -> None:
    row = {"stage": "analyze", "units": 12, "busy_s": 100.0, "workers": 3, "nodes": 2}
    _, page = page_with([row])
    assert "#workers" in page.attributes("href")
    assert "analyze 12 3 2" in " ".join(page.text.split())
    html, page = page_with([])
    assert "#workers" not in page.attributes("href")
    assert 'id="workers"' not in html
    _refuses_evil(*page_with([row | {"stage": EVIL}]))
