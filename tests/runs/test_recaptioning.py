"""`curate recaption`: other words beside the same clips, without their sources."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from captioned import Captioned, assert_described, film_of

from curator.cli import main
from curator.executor.end_time import StageState
from curator.executor.unit_times import UnitTimes
from curator.runs.recaptioning import EXPECTED
from curator.stages.cut.stage import CutStage
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE


@pytest.fixture
def alone(place: Captioned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Captioned]:
    """A finished run whose sources are gone, and that cuts nothing."""
    monkeypatch.setattr(CutStage, "process", None)
    place.sources.rename(tmp_path / "gone")
    yield place
    (tmp_path / "gone").rename(place.sources)


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another prompt."""
    text = Path("pipelines/prompts/describe.yaml").read_text()
    path = tmp_path / "other.yaml"
    path.write_text(text.replace("You write precise", "You write very precise"))
    return str(path)


def _mp4s(place: Captioned) -> dict[str, bytes]:
    return {clip["clip_id"]: place.sample(clip, "mp4") for clip in place.clips()}


def test_without_changes_nothing_is_asked_and_no_shard_written(alone: Captioned) -> None:
    before, tables = alone.files(), alone.summary()["tables"]
    tars = {name: (alone.out / name).stat().st_mtime_ns for name in alone.tars()}
    work = alone.recaption()["work"]
    assert alone.n_asked() == work["caption_windows_asked"] == work["shards_written"] == 0
    assert alone.files() == before
    assert {name: (alone.out / name).stat().st_mtime_ns for name in tars} == tars
    assert alone.summary()["tables"] == tables
    # Pictures of written clips are those of the cut.
    alone.forget("replies")
    alone.recaption()
    assert alone.n_asked() == len(alone.table("annotations"))
    assert_described(alone)


def test_recaption_shows_the_rest_once_captions_are_there() -> None:
    """Pins that a captioner that loads for long, and then is fast, gets no estimate before."""

    def left(
        ended: dict[str, float], name: str, elapsed_s: float, done: float | None
    ) -> dict[str, float] | None:
        now = StageState(name=name, elapsed_s=elapsed_s, done=done, reached_s=elapsed_s)
        return EXPECTED.left(ended, now)

    assert left({}, "caption", 31.0, 0.0) is None
    assert left({}, "caption", 40.0, 0.25) == {"caption": 120.0}
    assert left({"caption": 160.0}, "shard", 5.0, None) is None


def test_marks_by_hand_outlive_new_captions(alone: Captioned) -> None:
    """Pins caption and label of a mark in table and sample, and that the others' stay."""
    before = {clip["clip_id"]: clip for clip in alone.clips()}
    marked = next(iter(before))
    words = ["--caption", "A dog", "--label", "dog"]
    assert main(["mark", str(alone.out), marked, *words]) == EXIT_OK
    assert alone.recaption()["marks"]["honoured"] == 1
    for clip in alone.clips():
        name = clip["clip_id"]
        is_marked = name == marked
        assert clip["caption"] == ("A dog" if is_marked else before[name]["caption"])
        assert clip["mark_label"] == ("dog" if is_marked else None)
        assert (alone.sample(clip, "txt") == b"A dog") == is_marked
    assert main(["mark", str(alone.out), marked, "--clear"]) == EXIT_OK
    assert "marks" not in alone.recaption()
    assert {clip["clip_id"]: clip for clip in alone.clips()} == before


def test_another_prompt_changes_words_alone_and_going_back_costs_nothing(
    alone: Captioned, other: str
) -> None:
    before, mp4s, clips = alone.files(), _mp4s(alone), alone.clips()
    tracks = alone.files("tracks")
    n_windows = len(alone.table("annotations"))
    alone.server.set(delay_s=[0, 0.05])
    work = alone.recaption(f"caption.prompt={other}", "caption.text=short")["work"]
    assert alone.n_asked() == work["caption_windows_asked"] == n_windows
    assert work["shards_written"] > 0
    assert alone.files() != before
    assert _mp4s(alone) == mp4s
    assert alone.files("tracks") == tracks
    now = {clip["clip_id"]: clip for clip in alone.clips()}
    for clip in clips:
        assert now[clip["clip_id"]]["caption"] == clip["caption"].replace("medium", "short")
        same = set(clip) - {"caption", "shard", "mp4_offset", "key"}
        assert {name: now[clip["clip_id"]][name] for name in same} == {
            name: clip[name] for name in same
        }
    alone.recaption("caption.prompt=describe", "caption.text=medium")
    assert alone.n_asked() == n_windows
    assert alone.files() == before
    assert_described(alone)


def test_captions_off_and_on_again_are_the_first_ones(alone: Captioned) -> None:
    before, mp4s = alone.files(), _mp4s(alone)
    summary = alone.recaption("caption.enabled=false")
    assert "annotations" not in summary["tables"]
    assert not alone.files("annotations")
    assert {alone.sample(clip, "txt") for clip in alone.clips()} == {b""}
    assert _mp4s(alone) == mp4s
    alone.recaption("caption.captioner=measured", "caption.enabled=true")
    assert {clip["caption_model"] for clip in alone.clips()} == {"curate/measured-1"}
    alone.recaption("caption.captioner=openai")
    assert alone.n_asked() == 0
    assert alone.files() == before
    assert_described(alone)


def test_clips_that_answers_reject_leave_and_come_back_with_a_run(
    place: Captioned, described: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    place.server.set(yes={"is_odd": [1, 3]})
    question = 'caption.questions={is_odd: "Is it odd?"}'
    place.recaption(question)
    assert_described(place, questions={"is_odd": "?"})
    n_asked, all_clips = place.n_asked(), place.clips()
    capsys.readouterr()
    n_lost = place.recaption("caption.reject={is_odd: [true]}")["work"]["clips_rejected"]
    assert (
        f"\n{n_lost} clips newly rejected by answers (answer_unwanted)\n" in capsys.readouterr().out
    )
    assert place.n_asked() == n_asked
    assert {film_of(clip) for clip in place.clips()} == {2, 4, 5}
    lost = place.clips("rejected")
    assert ({film_of(clip) for clip in lost}, len(lost)) == ({1, 3}, n_lost)
    for clip in lost:
        assert [clip[name] for name in ("shard", "key", "mp4_offset", "bucket")] == [None] * 4
    assert all((place.out / clip["shard"]).is_file() for clip in place.clips())
    kept = {row["uri"]: row["n_kept"] for row in place.table("sources")}
    for uri, n_kept in kept.items():
        assert n_kept == sum(clip["source_uri"] == uri for clip in place.clips())
    # This command has no bytes of these clips, and names the one that cuts them.
    capsys.readouterr()
    assert place.recaption("caption.reject={}")["work"]["clips_rejected"] == 0
    said = capsys.readouterr().out
    assert f"\n{n_lost} clips rejected by answers before (answer_unwanted): " in said
    assert f"`curate run SOURCE... {place.out}`" in said
    assert [c["clip_id"] for c in place.clips("rejected")] == [c["clip_id"] for c in lost]
    assert main(["run", str(place.sources), str(place.out)]) == EXIT_OK
    assert [clip["clip_id"] for clip in place.clips()] == [clip["clip_id"] for clip in all_clips]
    assert place.n_asked() == n_asked
    capsys.readouterr()
    place.recaption()
    assert "rejected by answers before" not in capsys.readouterr().out
    place.run()
    assert place.files() == described.files()


def test_changes_that_cannot_be_made_or_seen_are_refused(
    alone: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins also that measured captions ask no model: another prompt would be no other caption."""
    before = alone.files("")
    for changes, said in {
        ("cut.crf=30",): "takes only keys of caption",
        ("caption.promt=cosmos",): "prompt",
        ("caption.prompt=nothing",): "nothing",
        ("caption.captioner=measured", "caption.prompt=cosmos"): (
            "--set 'caption.prompt=cosmos' would change nothing"
        ),
    }.items():
        assert alone.recaption_code(*changes) == EXIT_USAGE
        assert said in capsys.readouterr().err
    assert alone.files("") == before


def test_a_cluster_that_may_not_see_the_output_is_refused(
    alone: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    before = alone.files("")
    cluster = ["recaption", str(alone.out), "--ray-address", "10.0.0.1:6379"]
    assert main(cluster) == EXIT_USAGE
    error = capsys.readouterr().err
    for word in (str(alone.out), "10.0.0.1:6379", "s3://", "--shared-out"):
        assert word in error
    assert alone.files("") == before
    away = ["recaption", str(alone.out), "--shared-out", "--ray-address", "127.0.0.1:1"]
    assert main(away) == EXIT_USAGE
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert alone.files("") == before


def test_the_summary_says_what_this_command_did(
    alone: Captioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no time and no count of the run before stands as if it were this one's."""
    before = alone.summary()
    made = [{"stage": "shard", "units": 1, "busy_s": 1.0, "workers": 1, "nodes": 1}]
    times = iter([made, []])
    monkeypatch.setattr(UnitTimes, "facts", lambda _: next(times))
    assert before["cut"]["copied"] + before["cut"]["encoded"] > 0
    assert "cut" in before["cpu_seconds"]
    after = alone.recaption("caption.text=short")
    assert after["cpu_seconds"].keys() == {"driver", "engine", "total"}
    assert after["cut"].keys() == before["cut"].keys()
    assert not any(after["cut"].values())
    assert after["long_sources_analyzed_whole"] == {}
    assert after["unit_times"] == made
    assert after["source_bytes"] == before["source_bytes"]
    alone.forget("replies")
    summary = alone.recaption()
    assert "unit_times" not in summary
    spent = summary["cpu_seconds"]
    assert {"driver", "engine", "total"} < spent.keys()
    parts = [seconds for name, seconds in spent.items() if name != "total"]
    assert sum(parts) == pytest.approx(spent["total"], abs=0.01)


@pytest.fixture
def beside(place: Captioned, tmp_path: Path) -> Captioned:
    """A finished run some of whose sources have metadata beside them."""
    moved = Captioned(tmp_path / "films", place.out, place.server)
    shutil.copytree(place.sources, moved.sources)
    (moved.sources / "1.json").write_text('{"title": "A \\ud83d walk", "at": [1.5, null, 1e999]}')
    (moved.sources / "3.mp4.json").write_text('{"weather": "rain"}')
    moved.run()
    return moved


@pytest.mark.long
def test_metadata_beside_sources_that_are_gone_is_that_of_the_run(beside: Captioned) -> None:
    before, asked = beside.files(), beside.n_asked()
    facts = {row["clip_id"]: row["facts"] for row in beside.table("annotations")}
    assert any('weather: "rain"' in told for told in facts.values())
    beside.sources.rename(beside.sources.with_name("gone"))
    for _ in range(2):
        work = beside.recaption()["work"]
        assert work["sidecars_of_the_run_before"] == 2
        assert (work["caption_windows_asked"], beside.n_asked()) == (0, asked)
        assert beside.files() == before
    assert {row["clip_id"]: row["facts"] for row in beside.table("annotations")} == facts
    beside.recaption("caption.sidecar=false")
    beside.recaption("caption.sidecar=true")
    assert beside.files() == before
    assert_described(beside)


@pytest.mark.long
def test_a_run_keeps_metadata_of_sources_that_are_gone(
    beside: Captioned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins a run over one new source, and the loss of both copies of the table."""
    asked = beside.n_asked()
    facts = {row["clip_id"]: row["facts"] for row in beside.table("annotations")}
    (tmp_path / "more").mkdir()
    beside.sources.rename(beside.sources.with_name("gone"))
    shutil.copy(tmp_path / "gone" / "4.mp4", tmp_path / "more")
    more = Captioned(tmp_path / "more", beside.out, beside.server)
    more.run()
    rows = {row["clip_id"]: row["facts"] for row in more.table("annotations")}
    assert rows == facts
    assert more.n_asked() == asked
    assert len(more.table("sidecars")) == 2
    (name,) = more.summary()["tables"]["sidecars"]
    for path in (more.out / name, more.out / "snapshots" / name):
        path.write_bytes(path.read_bytes()[:-9])
    for _ in range(2):
        assert main(more.arguments()) == EXIT_USAGE
        error = capsys.readouterr().err
        assert f"{name} is lost with its copy" in error
        assert "4 sources cannot be reached" in error
    # As the message says.
    assert main([*more.arguments(), "--replace"]) == EXIT_OK


def test_metadata_that_was_changed_or_removed_counts_where_sources_are_there(
    beside: Captioned,
) -> None:
    (beside.sources / "1.json").unlink()
    (beside.sources / "3.mp4.json").write_text('{"weather": "snow"}')
    assert "sidecars_of_the_run_before" not in beside.recaption()["work"]
    facts = " ".join(row["facts"] for row in beside.table("annotations"))
    assert "snow" in facts
    assert not re.search("walk|rain", facts)


@pytest.mark.long
def test_metadata_that_no_run_kept_is_missed_with_a_warning(
    beside: Captioned, caplog: pytest.LogCaptureFixture
) -> None:
    def forget() -> None:
        summary = beside.summary()
        # Without a checksum, so that the change is no damage.
        del summary["checksum"], summary["tables"]["sidecars"]
        (beside.out / "summary.json").write_text(json.dumps(summary))

    forget()
    beside.recaption()
    assert not caplog.text
    forget()
    beside.sources.rename(beside.sources.with_name("gone"))
    beside.recaption()
    assert "cannot be reached" in caplog.text
    assert "curate run" in caplog.text


def test_an_output_that_is_not_whole_is_refused(
    alone: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next((alone.out / "shards").rglob("*.tar"))
    shard.unlink()
    assert alone.recaption_code() == EXIT_USAGE
    said = capsys.readouterr().err
    assert f"{shard.name} is missing or damaged" in said
    assert "`curate run`" in said
    shutil.rmtree(alone.out)
    assert alone.recaption_code() == EXIT_USAGE
    assert "has no finished run" in capsys.readouterr().err
