"""Whole runs that ask a model: each clip ends with words about its own pictures, or a reason."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from captioned import Captioned, assert_described, film_of
from tiny_vlm import tiny_folder

from curator.cli import main
from curator.sample_frames import SampleFramesStage
from curator.stages.cut.stage import CutStage
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK

UNCUT = ("shards", "replies")
QUESTION = 'caption.questions={is_odd: "Is it odd?"}'


def test_a_run_describes_each_clip_by_its_own_pictures(described: Captioned) -> None:
    """Pins copies, encodes, turned and cropped sources, under answers in any order."""
    assert_described(described)
    clips = described.clips()
    assert {film_of(clip) for clip in clips} == {1, 2, 3, 4, 5}
    assert {clip["cut_mode"] for clip in clips} == {"copy", "encode_head", "encode"}
    assert {clip["crop_height"] for clip in clips if film_of(clip) == 4} == {88}
    assert max(len(rows) for rows in described.annotations().values()) == 2


def test_the_same_run_asks_nothing_and_another_prompt_once(
    place: Captioned, tmp_path: Path
) -> None:
    before = place.files()
    place.run()
    assert place.n_asked() == 0
    assert place.files() == before
    text = Path("pipelines/prompts/describe.yaml").read_text()
    other = tmp_path / "other.yaml"
    other.write_text(text.replace("You write precise", "You write very precise"))
    n_windows = len(place.table("annotations"))
    work = place.run(f"caption.prompt={other}")["work"]
    assert place.n_asked() == work["caption_windows_asked"] == n_windows
    assert place.files() != before
    assert_described(place)
    for prompt in ("describe", str(other), "describe"):
        place.run(f"caption.prompt={prompt}")
    assert place.n_asked() == n_windows
    assert place.files() == before


@pytest.mark.parametrize("name", ["summary.json", "shards"])
def test_a_repair_with_stored_replies_needs_no_server(place: Captioned, name: str) -> None:
    """Pins that a lost summary, table or tar is made again while the server is down."""
    before = place.files()
    lost = place.out / name
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    place.server.kill()
    assert main(place.arguments()) == EXIT_OK
    assert place.files() == before


@pytest.mark.parametrize("mode", ["auto", pytest.param("encode", marks=pytest.mark.long)])
def test_answers_reject_written_clips(place: Captioned, mode: str) -> None:
    """Pins also that a rerun does not cut the rejected clips again."""
    place.forget(*UNCUT)
    place.server.set(yes={"is_odd": [1, 3]}, delay_s=[0, 0.02])
    settings = (QUESTION, "caption.reject={is_odd: [true]}", f"cut.mode={mode}")
    summary = place.run(*settings)
    assert_described(place, questions={"is_odd": "?"}, reject={"is_odd": [True]})
    kept = place.clips()
    assert {film_of(clip) for clip in kept} == {2, 4, 5}
    unwanted = [clip for clip in place.clips("rejected") if film_of(clip) in (1, 3)]
    assert {clip["reason"] for clip in unwanted} == {"answer_unwanted"}
    assert {clip["reason_detail"] for clip in unwanted} == {"is_odd is True in window 0"}
    assert summary["work"]["clips_cut"] == len(kept) + len(unwanted)
    before, n_asked = place.files(), place.n_asked()
    again = place.run(*settings)["work"]
    assert (place.n_asked(), again["clips_cut"], place.files()) == (n_asked, 0, before)
    place.recaption()
    assert (place.n_asked(), place.files()) == (n_asked, before)
    # Other bounds take the clips back, which are cut again and not asked about.
    back = place.run(QUESTION, f"cut.mode={mode}")["work"]
    assert (place.n_asked(), back["clips_cut"]) == (n_asked, len(unwanted))


@pytest.mark.long
def test_failures_are_outcomes_and_only_passing_ones_are_asked_again(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    place.forget("replies")
    broken = {
        "1": {"text": "A {broken object"},
        "2": {"finish": "length", "text": '{"short": "A dog runs over the'},
        "3": {"status": 500},
        "5": {"hang": 3},
    }
    place.server.set(by_source=broken)
    settings = ("caption.tries=1", "caption.timeout_s=1")
    summary = place.run(*settings)
    reasons = {1: "bad_answer", 2: "cut_off", 3: "server_error", 5: "timed_out"}
    annotations = place.annotations()
    for clip in place.clips():
        if film_of(clip) == 4:
            assert clip["caption"] is not None
            continue
        reason = reasons[film_of(clip)]
        assert {row["failure"] for row in annotations[clip["clip_id"]]} == {reason}
        assert clip["caption"] is None
        assert reason in clip["caption_failure"]
        assert place.sample(clip, "txt") == b""
        told = json.loads(place.sample(clip, "json"))["annotation"]["windows"]
        assert {window["failure"] for window in told} == {reason}
    n_windows = {
        film: sum(len(annotations[c["clip_id"]]) for c in place.clips() if film_of(c) == film)
        for film in reasons
    }
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("  without an answer")]
    for film, reason in reasons.items():
        assert summary["work"][f"caption_failed_{reason}"] == n_windows[film]
        assert f"{n_windows[film]} {reason}" in line
    assert main(["verify", str(place.out)]) == EXIT_OK
    # One request to mend broken JSON, one more try for what is cut off.
    n_asked = {1: 2, 2: 2, 3: 1, 5: 1}
    assert place.n_asked() >= sum(n_asked[film] * n for film, n in n_windows.items())
    place.server.start(captions=True)
    place.run(*settings)
    passing = (3, 5)
    assert place.n_asked() == sum(n_windows[film] for film in passing)
    described = {film_of(clip) for clip in place.clips() if clip["caption"] is not None}
    assert described == {4, *passing}
    place.recaption("caption.failed=reject")
    assert place.n_asked() == sum(n_windows[film] for film in passing)
    assert {film_of(clip) for clip in place.clips()} == {4, *passing}
    lost = {clip["reason"] for clip in place.clips("rejected") if film_of(clip) in (1, 2)}
    assert lost == {"not_annotated"}


def test_failed_clips_are_rejected_and_asked_about_again(place: Captioned) -> None:
    place.forget(*UNCUT)
    place.server.set(by_source={"4": {"status": 400}})
    summary = place.run("caption.failed=reject")
    assert_described(place, failed="reject")
    assert {film_of(clip) for clip in place.clips()} == {1, 2, 3, 5}
    lost = [clip for clip in place.clips("rejected") if film_of(clip) == 4]
    assert summary["work"]["clips_cut"] == len(place.clips()) + len(lost)
    assert {clip["reason"] for clip in lost} == {"not_annotated"}
    assert all("refused_request" in clip["reason_detail"] for clip in lost)


def test_a_clip_that_takes_too_long_is_over_budget(place: Captioned) -> None:
    place.forget("replies")
    place.server.set(by_source={"2": {"hang": 3}})
    place.run("caption.budget_s=1")
    failures = {
        film_of(clip): {row["failure"] for row in place.annotations()[clip["clip_id"]]}
        for clip in place.clips()
    }
    assert failures == {film: {"over_budget" if film == 2 else None} for film in range(1, 6)}


def test_trouble_that_passes_leaves_no_trace(place: Captioned, described: Captioned) -> None:
    """Pins 429, 500, broken connections, time-outs and broken JSON that is mended."""
    place.forget(*UNCUT)
    faults: list[Any] = [
        {"status": 429, "headers": {"Retry-After": "0.1"}}, None, {"status": 500}, {"cut": True},
        {"hang": 3}, {"status": 503}, None, {"text": '{"short": "A dog runs over'},
    ]  # fmt: skip
    place.server.set(faults=faults, delay_s=[0, 0.05])
    place.run("caption.timeout_s=1")
    assert_described(place)
    assert sum(json.loads(row["set_aside"] or "{}").get("bad_answer", 0)
               for row in place.table("annotations")) == 1  # fmt: skip
    assert place.n_asked() == len(place.table("annotations")) + 6
    assert max(place.server.counts("answered").values()) == 1
    assert [clip["caption"] for clip in place.clips()] == [
        clip["caption"] for clip in described.clips()
    ]


@pytest.mark.usefixtures("unsandboxed")
def test_pictures_that_a_broken_run_left_are_used(
    place: Captioned, described: Captioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.forget(*UNCUT)
    (place.out / "summary.json").unlink()
    place.break_off(monkeypatch)
    assert place.files("frames")
    place.forget("replies")
    for stage in (CutStage, SampleFramesStage):
        monkeypatch.setattr(stage, "process", None)
    place.run()
    assert_described(place)
    assert place.files() == described.files()


@pytest.mark.long
def test_a_model_on_this_machine_ends_each_window_and_is_asked_once(
    place: Captioned,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pins the way of frames to `transformers serve`; weights are random, as are the words."""
    folder = tiny_folder(tmp_path / "model", "smolvlm")
    place.forget("replies")
    settings = ("caption.captioner=local", f"caption.model={folder}",
                "caption.max_tokens=16", "caption.lengths=[medium]", "caption.frames=1",
                "caption.window_frames=256")  # fmt: skip
    shards = place.files()
    assert main(place.arguments(*settings)) == EXIT_BROKEN_OFF
    error = capsys.readouterr().err.splitlines()[-1]
    found = re.search(r"none of (\d+) windows got an annotation \((.*?)\)", error)
    assert found is not None
    assert set(re.findall("[a-z_]+", found[2])) <= {"cut_off", "bad_answer", "empty", "repeated"}
    answers = {
        reply["key"]: reply["text"]
        for path in (place.out / "replies").glob("*.parquet")
        for reply in pq.read_table(path).to_pylist()
        if reply["n_tries"]
    }
    # Each was asked once more, because its answer could not be used.
    assert len(answers) == 2 * int(found[1])
    assert len(set(answers.values())) >= int(found[1])
    assert place.n_asked() == 0
    assert f"{folder}, by transformers serve" in caplog.text
    replies = place.files("replies")
    assert main(place.arguments(*settings)) == EXIT_BROKEN_OFF
    assert (place.files("replies"), place.files()) == (replies, shards)
