"""The report: what it says, that no name becomes HTML, and that absence does not break it."""

import hashlib
import re
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError
from PIL import Image

from curator.measures.score_list import SCORES
from curator.number_text import amount, clock, compared, length, plain, score, share, size
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.records.clips import Reason
from curator.records.columns import field_names
from curator.records.sources import Note, Source
from curator.runs.commit_run import delete_previews
from curator.storage import open_store
from curator.tools.report import render_report, shown_clips
from curator.tools.report.funnel import format_funnel, funnel_steps, reason_order
from curator.tools.report.page_templates import CARD_PX, clean, embedded
from curator.tools.report.page_templates import render as page_from
from tests.made_clips import clip_rows

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;"
VOID = {"meta", "img", "br", "line", "rect", "wbr"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails where tags do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def clip(number: int, **changes: object) -> dict[str, Any]:
    """A kept clip, unless changed."""
    scores = dict.fromkeys(SCORES, 0.5) | {"motion": 0.01 * (number + 1)}
    return {
        "clip_id": hashlib.sha256(str(number).encode()).hexdigest()[:16],
        "source_uri": f"s3://films/{number % 3}.mp4", "start_s": 10.0 * number,
        "end_s": 10.0 * number + 4.25, "width": 1280, "height": 720, **scores, "written_fps": 24.0,
        "decision": "kept", "reason": None, "reasons": [], "caption": f"caption number {number}",
        "caption_model": "curate/measured-1",
    } | changes  # fmt: skip


def rejected(number: int, reason: str, /, **changes: object) -> dict[str, Any]:
    outcome = {"decision": "rejected", "reason": reason, "reasons": [reason], "caption": None}
    return clip(number) | outcome | changes


def summary_of(clips: list[dict[str, Any]], **changes: object) -> dict[str, Any]:
    n_kept = sum(c["decision"] == "kept" for c in clips)
    shard = {"name": "shards/b/b-0.tar", "bucket": "720p_16-9_33f", "n_samples": 2}
    recipe = {
        "about": "about this recipe",
        "propose": {"min_s": 2.0},
        "filters": {
            "motion": {"min": 0.005, "max": 4.0, "why": "static shots teach no motion"},
            "luma": {"min": 0.06, "max": None, "why": ""},
        },
        "dedup": {"enabled": True, "similarity": 0.8},
    }
    return {
        "curate_version": "0.1.0",
        "recipe": recipe,
        "reasons": graph_of(Recipe.model_validate(recipe)).reasons(),
        "counts": {
            "sources": 3, "done": 2, "failed": 1, "skipped_names": 4,
            "by_error": {"not_a_video": 1}, "by_note": {"truncated": 1}, "clips": len(clips),
            "kept": n_kept, "rejected": len(clips) - n_kept,
            "by_reason": Counter(c["reason"] for c in clips if c["reason"] is not None),
            "by_any_reason": Counter(reason for c in clips for reason in c["reasons"]),
        },
        "video_s": 7200.0, "kept_s": 720.0, "stage_seconds": {"scan": 1.5, "analyze": 90.0},
        "shards": [
            shard | {"n_frames": 200, "bytes": 3_000_000},
            shard | {"name": "shards/b/b-1.tar", "n_frames": 90, "bytes": 1_500_000},
        ],
        "work": {"sources_analyzed": 2},
    } | changes  # fmt: skip


def source(**facts: Any) -> Source:  # noqa: ANN401
    """A row of `sources` of which only some columns are known."""
    return Source(**dict.fromkeys(field_names(Source)) | facts)


SOURCES = [
    source(uri="s3://films/0.mp4", outcome="done"),
    source(uri="s3://films/1.mp4", outcome="done"),
    source(
        uri="s3://films/notes.txt", outcome="failed", error_stage="scan",
        error_code="not_a_video", error_message="bytes begin with b'Dear'",
    ),
]  # fmt: skip


def render(clips: list[dict[str, Any]], **changes: object) -> tuple[str, Page]:
    given: dict[str, Any] = {
        "summary": summary_of(clips),
        "sources": SOURCES,
        "clips": clip_rows(clips),
        "pictures": lambda ids: {name: b"\xff\xd8" + name.encode() for name in ids},
    }
    page = render_report(**(given | changes))
    return page, Page(page)


def test_page_refers_to_nothing_outside_itself_and_every_link_leads_somewhere() -> None:
    html, page = render([clip(0), rejected(1, "too_dark"), rejected(2, "too_short")])
    assert all(src.startswith("data:image/jpeg;base64,") for src in page.attributes("src"))
    assert all(href.startswith("#") for href in page.attributes("href"))
    assert "default-src 'none'" in html
    assert "url(" not in html
    assert "script" not in {tag for tag, _ in page.tags}
    ids = set(page.attributes("id"))
    assert {href.removeprefix("#") for href in page.attributes("href")} <= ids
    assert len(ids) == len(page.attributes("id"))
    assert render([clip(0)])[0] == render([clip(0)])[0], "the same input gives the same bytes"


def test_text_of_clips_and_sources_never_becomes_html() -> None:
    for place in ("caption", "source_uri", "clip_id", "caption_model"):
        _refuses_evil(*render([clip(0, **{place: EVIL})]))
    for place in ("reason_detail", "source_uri", "reason", "duplicate_of"):
        clips = [clip(0), rejected(1, "duplicate", **{place: EVIL}), rejected(2, EVIL)]
        _refuses_evil(*render(clips))
    for place in ("uri", "error_stage", "error_code", "error_message"):
        _refuses_evil(*render([], sources=[replace(SOURCES[2], **{place: EVIL})]))


def test_text_of_the_summary_never_becomes_html() -> None:
    summary = summary_of([clip(0)])
    summary["recipe"]["about"] = EVIL
    summary["recipe"]["filters"]["luma"]["why"] = EVIL
    summary["shards"][0] |= {"name": EVIL, "bucket": EVIL}
    summary["stage_seconds"] = {EVIL: 1.0}
    summary["counts"]["by_note"] = {EVIL: 1}
    summary["versions"] = {EVIL: EVIL}
    summary["curate_version"] = EVIL
    html, page = render([clip(0)], summary=summary)
    _refuses_evil(html, page)


def _refuses_evil(html: str, page: Page) -> None:
    assert "<script" not in html
    assert "<img src=x" not in html
    assert not [value for _, attrs in page.tags for value in attrs if value.startswith("on")]


def test_names_that_utf8_cannot_hold_are_replaced() -> None:
    failed = replace(SOURCES[2], uri="/films/\udcff\x00\u202egpj.mp4")
    html, _ = render([clip(0, source_uri="/films/\x00\u202egpj.mp4")], sources=[failed])
    html.encode()
    assert "\x00" not in html
    assert "\u202e" not in html
    for letter in ("\x00", "\x1b", "\x85", "\u202e", "\u2069"):
        assert clean(f"été\n登山{letter}<b>") == "été\n登山\N{REPLACEMENT CHARACTER}<b>"


def test_nothing_at_all_and_clips_without_facts_make_a_page() -> None:
    page = Page(render_report(summary={}, sources=[], clips=clip_rows([]), pictures=lambda _: {}))
    for said in (
        "No candidate clip was found", "No clip was kept", "No clip was rejected",
        "No clip was measured", "No source failed", "No shard was written", "No stage was timed",
    ):  # fmt: skip
        assert said in page.text
    bare = [{"decision": "kept"}, {"decision": "rejected"}, {"clip_id": "x", "decision": "kept"}]
    clips = clip_rows(bare)
    page = Page(
        render_report(summary={}, sources=[source(uri="")], clips=clips, pictures=lambda _: {})
    )
    assert page.text.count("no picture") == 3


def test_groups_are_the_first_by_id_whatever_the_order() -> None:
    clips = [rejected(n, "too_dark") for n in range(10)] + [clip(n) for n in range(10, 20)]
    forward, page = render(clips, max_per_group=3)
    backward, _ = render(clips[::-1], max_per_group=3)
    assert page.text.count("3 of 10") == 2
    shown = re.findall(r"<code>([0-9a-f]{16})</code>", forward)
    assert shown == re.findall(r"<code>([0-9a-f]{16})</code>", backward)
    assert shown[:3] == sorted(c["clip_id"] for c in clips[10:])[:3]


def test_duplicate_stands_beside_the_clip_it_duplicates() -> None:
    best = clip(0)
    copy = rejected(
        1, "duplicate", duplicate_of=best["clip_id"], duplicate_similarity=0.93,
        reason_score=0.93, reason_threshold=0.8,
    )  # fmt: skip
    html, page = render([best, copy])
    assert "similarity 0.93, duplicate from 0.8" in page.text
    pair = html[html.index('<div class="pair card"') :]
    assert pair.index(copy["clip_id"]) < pair.index(best["clip_id"])


def test_clusters_are_galleries_of_clips_that_are_still_there() -> None:
    clips = [clip(0, cluster=0), rejected(1, "semantic_duplicate", cluster=0), clip(2, cluster=1)]
    near = [str(clips[n]["clip_id"]) for n in (1, 0)]
    listed = [
        {"cluster": 0, "n_clips": 3, "medoid": near[0], "nearest": [*near, "removed since"]},
        {"cluster": 1, "n_clips": 1, "nearest": [clips[2]["clip_id"]], "words": [EVIL, "dog"]},
        {"cluster": 2, "n_clips": 1, "medoid": clips[2]["clip_id"]},
    ]
    summary = summary_of(clips, decided_with={"clusters": listed})
    html, page = render(clips, summary=summary)
    _refuses_evil(html, page)
    gallery = html[html.index('id="clusters"') : html.index('id="scores"')]
    assert "2 clips, 1 kept, 1 dropped" in gallery
    assert "semantic duplicate" in gallery
    assert f"{EVIL}, dog" in page.text
    assert re.findall(r"<code>(\w+)</code>", gallery) == [*near, clips[2]["clip_id"]]
    assert set(near) <= set(shown_clips(summary, clip_rows([])))


def test_funnel_goes_in_the_order_in_which_reasons_count() -> None:
    clips = [
        clip(0),
        rejected(1, "duplicate"),
        rejected(2, "too_dark"),
        rejected(3, "motion_too_low", reasons=["motion_too_low", "too_dark"]),
        rejected(4, "too_short", reasons=["too_short", "too_dark", "no_bucket"]),
    ]
    steps = funnel_steps(summary_of(clips))
    assert [(s.reason, s.n_first, s.n_any, s.n_left) for s in steps] == [
        ("too_short", 1, 1, 4),
        ("motion_too_low", 1, 1, 3),
        ("motion_too_high", 0, 0, 3),
        ("too_dark", 1, 3, 2),
        ("no_bucket", 0, 1, 2),
        ("duplicate", 1, 1, 1),
    ]
    # A reason that no stage declares.
    summary = summary_of([rejected(0, "too_odd"), clip(1)])
    assert reason_order(summary)[-1] == "too_odd"
    assert funnel_steps(summary)[-1].n_left == 1


def test_histograms_count_every_measured_clip_once() -> None:
    clips = [clip(n, motion=10.0 ** (-n / 5)) for n in range(20)]
    clips += [rejected(n, "too_dark", motion=1.0) for n in range(20, 25)]
    html, _ = render(clips)
    motion = next(svg for svg in html.split("<svg")[1:] if "Histogram of motion" in svg)
    counts = re.findall(r"([\d,]+) kept, ([\d,]+) rejected", motion)
    assert sum(int(k) for k, _ in counts) == 20
    assert sum(int(r) for _, r in counts) == 5
    assert "(log)" in motion


def test_failed_sources_are_sampled_for_each_code() -> None:
    many = [replace(SOURCES[2], uri=f"s3://films/{n:02}.txt") for n in range(9)]
    one = replace(SOURCES[2], uri="s3://films/a.mp4", error_code="no_frames")
    _, page = render([], sources=[*many, one], max_per_group=2)
    assert "not_a_video 2 of 9, no_frames 1" in page.text
    assert "s3://films/01.txt" in page.text
    assert "s3://films/02.txt" not in page.text
    assert "4 names skipped" in page.text


def test_what_was_not_done_on_a_gpu_is_on_the_page_and_on_the_terminal() -> None:
    """Pins that no fall-back is silent: CPUs in its place, its failures, nodes without it."""
    facts = {
        "cpu_instead_of_gpu": {"analyze: PyNvVideoCodec is not installed": 7},
        "sandboxes": {"lost_gpu": 2, "left_behind": 1},
        "cluster": {"nodes_refused": {"10.0.0.7": "NVDEC does not answer"}},
    }
    summary = summary_of([clip(1)], **facts)
    said = render([clip(1)], summary=summary)[1].text
    for words in (
        "by a CPU, not a GPU 7 analyze: PyNvVideoCodec is not installed",
        "GPU failed 2 processes that ended because of it",
        "left behind 1 processes that a driver held",
        "nodes refused 1 such as 10.0.0.7: NVDEC does not answer",
    ):
        assert words in said
        assert words.split(" 1 ")[0] in " ".join(format_funnel(summary).split())
    assert "GPU problems" not in render([clip(1)])[1].text


def test_every_note_and_every_reason_can_be_shown() -> None:
    assert all(note.words for note in Note)
    reasons = {*Reason, *(r for spec in SCORES.values() for r in (spec.low, spec.high))}
    clips = [rejected(n, str(reason)) for n, reason in enumerate(sorted(reasons))]
    _, page = render(clips)
    ids = page.attributes("id")
    assert all(f"rejected-{reason.replace('_', '-')}" in ids for reason in reasons)


def test_numbers_in_words() -> None:
    assert [length(s) for s in (None, 0, 0.254, 59, 61, 7200)] == [
        "-", "0 s", "0.25 s", "59.0 s", "1.0 min", "2.0 h",
    ]  # fmt: skip
    assert [size(n) for n in (None, 1, 999, 999_600, 1_234_567_890, 5_000_000_000_000_000)] == [
        "-", "1 byte", "999 bytes", "1 MB", "1.23 GB", "5,000 TB",
    ]  # fmt: skip
    assert [score(x) for x in (None, 0.0123456, 1080.0)] == ["-", "0.0123", "1,080"]
    shares = [share(1, n) for n in (0, 3, 30, 3000)]
    assert shares == ["0%", "33%", "3.3%", "<0.1%"]
    assert compared(0.0049999, 0.005) == "0.0049999 < 0.005"
    assert (clock(3725.4), amount(1, "clip"), amount(1200, "clip")) == (
        "1:02:05", "1 clip", "1,200 clips",
    )  # fmt: skip
    # Names on a terminal are one line, without control characters.
    assert plain("s3://b/été 登山 'x' <y>.mp4") == "s3://b/été 登山 'x' <y>.mp4"
    assert plain("a\nb\x1b[31m\udcff\u202e.mp4") == r"a\nb\x1b[31m\udcff\u202e.mp4"


def test_text_is_escaped_once_and_only_what_a_template_says_is_html() -> None:
    _, page = render([clip(0, caption="a<b & \"c\" 'd'", source_uri="a<b & \"c\" 'd'")])
    assert "a<b & \"c\" 'd'" in page.text
    assert "a<b & \"c\" 'd'" in page.attributes("title")
    html, _ = render([clip(0, caption="a&amp;<b>")])
    assert "a&amp;amp;&lt;b&gt;" in html


def test_templates_hold_no_script_and_mark_nothing_else_as_html() -> None:
    """Pins the one use of `safe`: the break within names of scores, which are our own."""
    with pytest.raises(UndefinedError, match="is undefined"):
        page_from("report.html.j2")
    folder = files("curator.tools.report").joinpath("templates")
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    assert len(texts) > 5
    marked = {name: text.count("|safe") for name, text in texts.items() if "|safe" in text}
    assert marked == {"card.html.j2": 1}
    assert not [name for name, text in texts.items() if "autoescape" in text]
    assert [name for name, text in texts.items() if "<script" in text] == ["report.html.j2"]
    assert texts["report.html.j2"].count("<script>{{ play_script }}</script>") == 1


def test_kept_clips_with_a_preview_play_and_nothing_else_runs() -> None:
    """Pins that the policy names the one script by its hash, and that all others are stills."""
    first, second, third = clip(0), clip(1), rejected(2, "too_dark")
    html, page = render([first, second, third], previews={first["clip_id"]})
    assert html.count("<video ") == html.count('preload="none"') == 1
    assert f'src="previews/{first["clip_id"]}.mp4"' in html
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [text for text in page.attributes("content") if "default-src" in text]
    assert f"script-src 'sha256-{digest}'" in policy
    plain, _ = render([first, second, third])
    assert "<script" not in plain
    assert "script-src" not in plain
    assert "<video" not in plain


def test_a_page_has_small_copies_of_stored_pictures() -> None:
    """Pins the size of reports; a small picture, and one that is none, stay as they are."""

    def jpeg(width: int, height: int) -> bytes:
        made = BytesIO()
        Image.linear_gradient("L").resize((width, height)).save(made, "JPEG", quality=85)
        return made.getvalue()

    assert Image.open(BytesIO(b64decode(embedded(jpeg(180, 320))))).size == (90, CARD_PX)
    for other in (jpeg(160, 90), b"\xff\xd8 no picture"):
        assert b64decode(embedded(other)) == other


def test_new_pages_delete_previews_and_no_other_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for name in ("0123456789abcdef01234567.mp4", "My.mp4"):
        store.write(f"report/previews/{name}", b"x")
    delete_previews(store)
    assert [info.key for info in store.list()] == ["report/previews/My.mp4"]
