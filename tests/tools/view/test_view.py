"""`curate view`: who is answered, what is served, and a funnel that is that of `curate tune`."""

import http.client
import json
import re
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command_line import Curate
from hostile_names import HOSTILE
from searchable import searchable_out

from curator.errors import StorageError, UsageError
from curator.storage import open_store
from curator.tables import sql_condition
from curator.tables.mark_table import MarkWriter, read_marks
from curator.tools.report.page_templates import clean
from curator.tools.review.bound_tuning import tune
from curator.tools.review.finished_run import open_finished
from curator.tools.view import viewed_run
from curator.tools.view.live_funnel import LiveFunnel
from curator.tools.view.view_server import make_app, serve
from curator.tools.view.viewed_run import ClipQuery, ViewedRun

N, TOKEN = 240, "a-token-of-this-test"
MP4 = bytes(range(256)) * 8
RECIPE = {
    "filters": {
        "motion": {"min": 0.1, "max": 0.9},
        "noise": {"max": 0.8, "drop_highest": 0.1},
        "luma": {"drop_lowest": 0.2},
        "grainy": {"score": "noise", "max": 0.3, "severity": "flag"},
    }
}


class Answer(NamedTuple):
    """What a server answers."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401
        """The body, read."""
        return json.loads(self.body)


class Client:
    """Asks a server for paths below its token, by default as its own page does."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        base: str = f"/{TOKEN}",
        **changed: str,
    ) -> Answer:
        headers = {
            "Host": f"127.0.0.1:{self.port}",
            **{name.replace("_", "-"): value for name, value in changed.items()},
        }
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        method = method or ("GET" if body is None else "POST")
        link.putrequest(method, base + path, skip_host=True)
        for name, value in (headers | {"Content-Length": str(len(data or b""))}).items():
            link.putheader(name, value)
        link.endheaders(data)
        answer = link.getresponse()
        facts = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, facts, answer.read())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of made clips with hostile names and captions."""
    folder = tmp_path_factory.mktemp("view") / "out"
    rng = np.random.default_rng(5)
    names = [HOSTILE[k % len(HOSTILE)].encode("utf-8", "replace").decode() for k in range(N)]
    searchable_out(
        folder,
        N,
        recipe=RECIPE,
        captions=dict(enumerate(names)),
        mp4=MP4,
        source_id=[f"source{k // 6:04}" for k in range(N)],
        source_uri=[f"/films/{name}" for name in names],
        start_frame=[300 * (k % 6) for k in range(N)],
        end_frame=[300 * (k % 6) + 150 for k in range(N)],
        start_pts=[300 * (k % 6) for k in range(N)],
        end_pts=[300 * (k % 6) + 150 for k in range(N)],
        motion=rng.random(N),
        noise=[None if k % 50 == 0 else float(v) for k, v in enumerate(rng.random(N))],
        luma=np.round(rng.random(N), 1),
        tags=[["camera_static", "night"] if k % 3 == 0 else [] for k in range(N)],
    )
    return folder


@pytest.fixture(scope="module")
def run(out: Path) -> ViewedRun:
    """The run, opened."""
    return ViewedRun(open_finished(str(out)), MarkWriter(open_store(str(out))))


@pytest.fixture(scope="module")
def ask(run: ViewedRun) -> Iterator[Client]:
    """A client of a server in this process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        app = make_app(run, token=TOKEN, port=port)
        threading.Thread(target=serve, args=(app, listener), daemon=True).start()
        yield Client(port)


@pytest.mark.parametrize(
    "changes",
    [
        ["motion.min=0.4"],
        ["motion.max=null", "noise.max=0.5"],
        ["noise.drop_highest=0.4", "noise.max=null"],
        ["luma.drop_lowest=null", "luma.min=0.55"],
        ["sharpness.min=2"],
        ["propose.min_s=5.5"],
        ["luma.severity=flag", "motion.min=0.2"],
    ],
)
def test_the_funnel_is_that_of_tune(out: Path, changes: list[str]) -> None:
    finished = open_finished(str(out))
    funnel = LiveFunnel(finished)
    funnel.decide(["motion.min=0.3"])
    outcomes = funnel.decide(changes)
    tuned = tune(finished, changes, rules_only=True)
    assert [funnel.reasons[code] for code in funnel.now] == tuned.now
    assert [funnel.reasons[code] for code in outcomes.codes] == tuned.then
    assert tuned.then != tuned.now


def test_histograms_count_all_clips_and_pages_are_sorted_and_filtered(run: ViewedRun) -> None:
    funnel = run.funnel_of(["motion.min=0.5"], ["motion", "noise"])
    motion, noise = funnel["charts"]
    kept = next(row for row in funnel["rows"] if row["reason"] is None)
    assert sum(k + r for k, r in motion["bins"]) == N
    assert sum(k for k, _ in motion["bins"]) == kept["then"] < kept["now"]
    assert sum(k + r for k, r in noise["bins"]) == N - len(range(0, N, 50))
    assert {"rule": "motion", "score": "motion", "min": 0.5, "max": 0.9, "severity": "reject"} in (
        funnel["rules"]
    )
    clips = run.clips.to_pylist()
    changes = ["motion.min=0.5"]

    def ids(**query: Any) -> list[str]:  # noqa: ANN401
        pages = [run.page(ClipQuery(**query), start, 100) for start in range(0, N, 100)]
        shown = [card["clip_id"] for page in pages for card in page["clips"]]
        assert {page["n"] for page in pages} == {len(shown)}
        return shown

    by_motion = sorted(clips, key=lambda clip: -clip["motion"])
    assert ids(sort="motion", descending=True) == [clip["clip_id"] for clip in by_motion]
    assert [c["clip_id"] for c in clips if "night" in c["tags"]] == ids(tag="night")
    kept = {c["clip_id"] for c in clips if c["decision"] == "kept"}
    lost = {c["clip_id"] for c in clips if c["decision"] == "kept" and c["motion"] < 0.5}
    assert set(ids(changes=changes, side="lost")) == lost
    assert set(ids(changes=changes, side="kept")) == kept - lost
    assert set(ids(where="luma > 0.5 AND motion < 0.2")) == {
        c["clip_id"] for c in clips if c["luma"] > 0.5 and c["motion"] < 0.2
    }
    assert len(ids(source="source0003")) == 6
    unmeasured = ids(sort="noise")[-len(range(0, N, 50)) :]
    assert {c["clip_id"] for c in clips if c["noise"] is None} == set(unmeasured)


def test_the_funnel_honours_marks_as_the_next_run_does(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = tmp_path / "out"
    shutil.copytree(out, marked)
    run = ViewedRun(open_finished(str(marked)), MarkWriter(open_store(str(marked))))
    clips = run.clips.to_pylist()
    low = next(c["clip_id"] for c in clips if c["reason"] == "motion_too_low")
    kept = next(c["clip_id"] for c in clips if c["decision"] == "kept")
    # A mark of the second in which the run ended may be one that the run honours.
    while datetime.now(UTC).isoformat()[:19] <= run.finished.summary["created_at"][:19]:
        time.sleep(0.05)
    run.mark(low, {"verdict": "keep"})
    run.mark(kept, {"verdict": "drop"})
    for changes in ([], ["luma.drop_lowest=0.4"]):
        codes = run.funnel.decide(changes).codes
        tuned = tune(open_finished(str(marked)), changes, rules_only=True)
        assert [run.funnel.reasons[code] for code in codes] == tuned.then
    outcome = {c["clip_id"]: run.funnel.reasons[k] for c, k in zip(clips, codes, strict=True)}
    assert (outcome[low], outcome[kept]) == (None, "marked_drop")
    assert (
        "marked by hand: drop; the next run honours the mark" in (run.clip(kept, [])["explanation"])
    )
    # After a removal the page stores nothing, and shows nothing that memory holds.
    assert run.pictures(low)
    run.finished.store.write("removed/footage-1.parquet", b"another removal")
    monkeypatch.setattr(viewed_run, "CHECK_S", 0.0)
    for refused in (
        lambda: run.mark(low, {"note": "secret"}),
        lambda: run.source_mp4(low),
        lambda: run.mp4_of(kept),
        lambda: run.pictures(low),
        lambda: run.clip(low, []),
        lambda: run.page(ClipQuery(), 0, 10),
        lambda: run.search("clip", low, 5, None),
    ):
        with pytest.raises(UsageError, match="start it again"):
            refused()


def test_no_browser_keeps_media_and_no_counts_stay_after_a_mark(
    ask: Client, run: ViewedRun
) -> None:
    """Pins that a browser asks again for media, and that a mark hides counts of earlier marks."""
    clips = run.clips.to_pylist()
    kept = next(c["clip_id"] for c in clips if c["decision"] == "kept")
    for path in (f"/picture/{kept}/0.jpg", f"/clip/{kept}.mp4", f"/clip/{kept}.mp4?again"):
        answer = ask(path)
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    script = ask("/view.js").body.decode()
    store = script.partition("async function store(")[2].partition("\n}\n")[0]
    assert '$("exact-lines").hidden = true' in store


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"base": ""}, 401),
        ({"base": "/another"}, 401),
        ({"base": "", "Cookie": f"token={TOKEN}"}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_others_are_refused(
    ask: Client, run: ViewedRun, changed: dict[str, Any], status: int
) -> None:
    clip = run.clips["clip_id"][0].as_py()
    for path, body in (
        ("/api/overview", None),
        (f"/clip/{clip}.mp4", None),
        ("/view.js", None),
        (f"/api/mark/{clip}", {"verdict": "drop"}),
    ):
        assert ask(path, body, **changed).status == status, path
    assert clip not in run.marks


def test_a_mark_without_a_host_is_refused(ask: Client, run: ViewedRun) -> None:
    """Pins the refusal by HTTP's own rule.

    Head and body go in one segment: the server closes after a head that breaks the rule, and a
    body that arrives later would reset the connection before the client has read the answer.
    """
    clip = run.clips["clip_id"][0].as_py()
    body = b'{"verdict": "drop"}'
    head = f"POST /{TOKEN}/api/mark/{clip} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", ask.port), timeout=60) as link:
        link.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: link.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert clip not in run.marks


def test_no_cookie_has_the_token_and_the_page_asks_no_one_else(ask: Client) -> None:
    """Pins that no other port of the host learns the token: a browser sends cookies to all."""
    assert [ask(path, base="").status for path in ("/", "/another/", f"/{TOKEN}")] == [401] * 3
    page = ask("/")
    assert page.status == 200
    assert "set-cookie" not in page.headers
    assert page.headers["referrer-policy"] == "no-referrer"
    # The policy lets the page ask for nothing else.
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    html, script = page.body.decode(), ask("/view.js").body.decode()
    assert not re.findall(r"<script(?![^>]*src=\"view\.js\")|\son\w+=|style=", html)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
    for text in (html, script, ask("/view.css").body.decode()):
        assert set(re.findall(r"https?://[^\"'` )]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/clip/../summary.json",
        "/clip/..%2f..%2fsummary.json", "/clip/..%2fsummary.json.mp4", "/summary.json",
        "/view.py", "/assets/view.js", "/picture/..%2f..%2fx/0.jpg", "//etc/passwd",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(ask: Client, path: str) -> None:
    answer = ask(path)
    assert answer.status in (400, 404)
    assert b"root:" not in answer.body


def test_mp4s_are_served_by_ranges(ask: Client, run: ViewedRun) -> None:
    clips = run.clips.to_pylist()
    kept = next(c["clip_id"] for c in clips if c["decision"] == "kept")
    rejected = next(c["clip_id"] for c in clips if c["decision"] == "rejected")
    whole = ask(f"/clip/{kept}.mp4")
    assert (whole.status, whole.body, whole.headers["accept-ranges"]) == (200, MP4, "bytes")
    for span, part in {
        "bytes=0-": MP4, "bytes=5-9": MP4[5:10], "bytes=-7": MP4[-7:], "bytes=100-99999": MP4[100:],
    }.items():  # fmt: skip
        answer = ask(f"/clip/{kept}.mp4", Range=span)
        assert (answer.status, answer.body) == (206, part)
        start = MP4.index(part) if span != "bytes=-7" else len(MP4) - 7
        end = start + len(part) - 1
        assert answer.headers["content-range"] == f"bytes {start}-{end}/{len(MP4)}"
    for span in ("bytes=9999-", "bytes=-0", "bytes=9-5"):
        assert ask(f"/clip/{kept}.mp4", Range=span).status == 416
    for span in ("bytes=0-1,5-6", "lines=1-2", "bytes=-", f"bytes=0-{'9' * 5000}"):
        answer = ask(f"/clip/{kept}.mp4", Range=span)
        assert (answer.status, answer.body) == (200, MP4)
    answer = ask(f"/clip/{rejected}.mp4")
    assert (answer.status, answer.json["error"]) == (
        400, f"clip {rejected} is rejected and in no tar",
    )  # fmt: skip


def test_hostile_names_come_as_plain_text(ask: Client) -> None:
    clips = [c for k in range(0, N, 60) for c in ask("/api/clips", {"start": k}).json["clips"]]
    texts = [text for clip in clips for text in (clip["source_uri"], clip["caption"] or "")]
    assert "/films/<script>alert(1)</script>" in texts
    control = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069]")
    assert not any(control.search(text) for text in texts)
    for clip in clips[: len(HOSTILE)]:
        answer = ask(f"/api/clip/{clip['clip_id']}", {"changes": []})
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert {c["then"] for c in answer.json["source"]["clips"]} >= {clip["then"]}


def test_marks_are_stored(ask: Client, out: Path, run: ViewedRun, curate: Curate) -> None:
    first, second = run.clips["clip_id"].to_pylist()[:2]
    text = HOSTILE[0]
    assert ask(f"/api/mark/{first}", {"verdict": "keep", "note": text}).json["mark"]["note"] == text
    assert ask(f"/api/mark/{second}", {"verdict": "drop"}).status == 200
    stored = read_marks(open_store(str(out)))
    assert (stored[first].verdict, stored[first].note) == ("keep", text)
    assert stored[first].start_frame == run.clips["start_frame"][0].as_py()
    shown = ask("/api/clips", {"mark": "drop"}).json["clips"]
    assert [clip["clip_id"] for clip in shown] == [second]
    assert ask("/api/clips", {"mark": "none"}).json["n"] == N - 2
    # Another writer's fields stay.
    curate("mark", out, second, "--caption", "By hand.")
    assert ask(f"/api/mark/{second}", {"note": "seen"}).json["mark"]["caption"] == "By hand."
    nothing = dict.fromkeys(("verdict", "label", "note", "caption"))
    assert ask(f"/api/mark/{second}", nothing).status == 200
    assert second not in read_marks(open_store(str(out)))
    for wrong in ({"verdict": "maybe"}, {"vote": "keep"}, {"note": 5}, {"label": "x" * 101}):
        assert ask(f"/api/mark/{first}", wrong).status == 400
    assert ask("/api/mark/none", {"verdict": "keep"}).status == 400


def test_a_card_and_the_counts_follow_a_mark(out: Path, tmp_path: Path) -> None:
    """Pins what an answer to a mark says of the clip and of the list that the page shows."""
    marked = tmp_path / "out"
    shutil.copytree(out, marked)
    nothing = dict.fromkeys(("verdict", "label", "note", "caption"))
    for query in (
        ClipQuery(side="rejected", changes=["motion.min=0.5"]),
        ClipQuery(mark="none"),
        ClipQuery(reason="motion_too_low", where="luma < 0.9"),
    ):
        run = ViewedRun(open_finished(str(marked)), MarkWriter(open_store(str(marked))))
        n = run.page(query, 0, N)["n"]
        for changes in ({"verdict": "keep"}, {"verdict": "drop"}):
            before = {card["clip_id"]: card for card in run.page(query, 0, N)["clips"]}
            clip_id = next(iter(before))
            answer = run.mark(clip_id, changes, query)
            page = run.page(query, 0, N)
            after = {card["clip_id"]: card for card in page["clips"]}
            assert (answer["n"], answer["is_listed"]) == (page["n"], clip_id in after)
            (card,) = run.cards([run.row_of(clip_id)], run.funnel.decide(query.changes))
            assert (answer["then"], answer["mark"]) == (card["then"], card["mark"] or nothing)
            if changes == {"verdict": "keep"}:
                assert (answer["then"], answer["is_listed"]) == (None, False)
            assert run.mark(clip_id, nothing, query)["n"] == run.page(query, 0, N)["n"] == n
    with pytest.raises(UsageError, match="it ends too early"):
        run.mark(clip_id, {"verdict": "drop"}, ClipQuery(where="motion >"))
    assert clip_id not in read_marks(open_store(str(marked)))


def test_clips_are_sorted_by_the_names_of_their_files(run: ViewedRun) -> None:
    query = ClipQuery(sort=viewed_run.BY_FILE, descending=True)
    cards = [c for start in range(0, N, 100) for c in run.page(query, start, 100)["clips"]]
    places = [(c["source_uri"].rpartition("/")[2].lower(), c["start_s"]) for c in cards]
    stored = run.clips.select(["source_uri", "start_s"]).to_pylist()
    names = {clean(c["source_uri"]).rpartition("/")[2].lower() for c in stored}
    assert len({name for name, _ in places}) == len(names) > 10
    in_order = [c["source_uri"].rpartition("/")[2].lower() for c in stored]
    order = sorted(zip(in_order, (c["source_uri"] for c in stored), strict=True), reverse=True)
    assert [c["source_uri"] for c in cards] == [clean(uri) for _, uri in order]


def test_scores_with_a_bound_come_first_and_those_that_reject_most_lead(run: ViewedRun) -> None:
    scores = run.overview()["scores"]
    against = {fact["rule"]: fact["any"] for fact in run.finished.summary["rules"]
               if fact["rule"] in ("motion", "noise", "luma")}  # fmt: skip
    bounded = [score["name"] for score in scores if score["is_bounded"]]
    assert bounded == sorted(against, key=lambda name: -against[name])
    assert [score["is_bounded"] for score in scores] == sorted(
        (score["is_bounded"] for score in scores), reverse=True
    )


def test_the_page_shows_what_the_trainers_of_the_recipe_see(
    run: ViewedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.overview()["fit"] == []
    facts = {"label": "a", "drawn": 0, "seen_s": 1.0, "footage_s": 4.0, "read": 1, "clips": 2,
             "other_windows": 0}  # fmt: skip
    monkeypatch.setitem(run.finished.summary, "fit", [facts])
    assert run.overview()["fit"] == ["a sees 25% of the footage and 50% of the clips"]


def test_the_funnel_with_duplicates_is_that_of_tune(run: ViewedRun, ask: Client) -> None:
    changes = ["motion.min=0.4"]
    tuned = tune(open_finished(run.finished.store.uri), changes)
    answer = ask("/api/exact", {"changes": changes}).json
    assert {row["reason"]: row["then"] for row in answer["rows"] if row["then"]} == (
        Counter(tuned.then)
    )
    assert answer["n_lost"] == len(tuned.moved(was_kept=True)) > 0


def test_the_script_handles_every_key_of_the_footer_and_finds_its_elements(ask: Client) -> None:
    html, script = ask("/").body.decode(), ask("/view.js").body.decode()
    actions = script.partition("const actions = {")[2].partition("\n  };\n")[0]
    # No key is left out while a clip is open.
    assert "includes(event.key)" not in script
    arrows = {"←": "ArrowLeft", "→": "ArrowRight"}
    for key in re.findall(r"<kbd>(.+?)</kbd>", html):
        assert re.search(rf"\b{arrows.get(key, key)}: ", actions), key
    assert {*re.findall(r'\$\("([\w-]+)"\)', script)} <= {*re.findall(r' id="([\w-]+)"', html)}


def test_errors_are_sentences_with_a_remedy(
    ask: Client, run: ViewedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins what a person reads who opens an old address, or whose OUT changed."""
    old = ask("/", base="/another", Accept="text/html")
    assert (old.status, old.headers["content-type"]) == (401, "text/plain; charset=utf-8")
    assert old.body.decode().endswith("open the address that `curate view` prints")

    def lost(_: str) -> bytes:
        raise StorageError("cannot read 'x.tar'")

    monkeypatch.setattr(run, "source_mp4", lost)
    answer = ask("/source/x.mp4")
    assert (answer.status, answer.json["error"]) == (
        502,
        "cannot read 'x.tar'; if OUT changed since `curate view` opened it, start `curate view` "
        "again",
    )


def test_a_condition_that_never_ends_is_ended(
    run: ViewedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_condition, "LIMIT_S", 0.5)
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT * FROM t"
    with pytest.raises(UsageError, match=r"takes more than 0\.5 s"):
        run.page(ClipQuery(where=f"EXISTS({endless} WHERE n < 0)"), 0, 10)
    assert run.page(ClipQuery(where="1=1) UNION ALL SELECT NULL FROM (SELECT 1"), 0, 10)["n"] == N


def test_wrong_requests_name_what_is_wrong(ask: Client) -> None:
    for path, body, words in (
        ("/api/clips", {"side": "left"}, "expected 'kept', 'rejected', 'gained' or 'lost'"),
        ("/api/clips", {"where": "motion >"}, "where 'motion >' fails: it ends too early"),
        ("/api/clips", {"where": "motoin > 1"}, "no column 'motoin'; near: motion, "),
        ("/api/clips", {"where": "1=1; DROP TABLE clips"}, "fails"),
        ("/api/clips", {"where": "motion > (SELECT 1 FROM read_csv('/etc/passwd'))"}, "fails"),
        ("/api/clips", {"sort": "beauty"}, "no clip has the score 'beauty'"),
        ("/api/clips", {"cluster": "x"}, "cluster"),
        ("/api/clips", {"cluster": True}, "cluster"),
        ("/api/clips", {"start": -1}, "start: expected a number greater"),
        ("/api/clips", b"[1]", "the request: expected "),
        ("/api/funnel", {"changes": ["motion.min=low"]}, "motion"),
        ("/api/funnel", {"changes": ["cut.crf=3"]}, "--set"),
        ("/api/funnel", {"changes": "motion.min=1"}, "changes: expected "),
        ("/api/search/clip", b"zzzz", "no clip"),
        ("/api/search/video", b"x", "expected clip, picture or text"),
    ):
        answer = ask(path, body)
        assert answer.status == 400, (path, body, answer.body)
        assert words in answer.json["error"]


def test_similar_clips_are_found(ask: Client, run: ViewedRun) -> None:
    first = run.clips["clip_id"][0].as_py()
    answer = ask("/api/search/clip?k=5", first.encode())
    assert len(answer.json["clips"]) == 5
    assert first not in [clip["clip_id"] for clip in answer.json["clips"]]
    jpeg = ask(f"/picture/{first}/0.jpg")
    assert jpeg.headers["content-type"] == "image/jpeg"
    assert ask(f"/picture/{first}/99.jpg").status == 404
    assert ask(f"/picture/{first}/middle.jpg").body == jpeg.body


def test_a_port_that_is_taken_is_named(out: Path, curate: Curate) -> None:
    folder = resources.files("curator.tools.view").joinpath("assets")
    assert {item.name for item in folder.iterdir()} == {"index.html", "view.css", "view.js"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is not free" in curate(
            "view", out, "--port", port, code=2
        )
