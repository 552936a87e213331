"""Reruns over what is stored: sources come, go and move, settings change, a commit breaks off.

One run decodes; all others here start no Ray, or they fail.
"""

import hashlib
import io
import json
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import webdataset
from film_makers import text_file
from place import Place, sets, write_films

from curator.cli import main
from curator.errors import ErrorCode, SourceError
from curator.executor.engine import Engine
from curator.executor.unit_times import UnitTimes
from curator.runs import dry_run
from curator.stages.scan import probe as scan
from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.tables import candidate_store as candidates
from curator.tables import track_parts
from curator.tables.output_format import read_summary
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK

TABLES = ("sources", "shots", "clips", "embeddings")


class Rerun(Place):
    """The output of the last run, in which all sources may fail."""

    settings = (*Place.settings, "--max-failed=1")

    def source(self, name: str) -> dict[str, Any]:
        (row,) = (row for row in self.table("sources") if row["uri"].endswith(f"/{name}"))
        return row

    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.out / "shards/manifest.json").read_text())
        return manifest

    def texts(self) -> Iterator[dict[str, Any]]:
        """All samples."""
        for name in self.tars():
            yield from webdataset.WebDataset(str(self.out / name), shardshuffle=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rerun, str]:
    """A finished run, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    place = Rerun(folder / "in", folder / "out")
    write_films(place.sources, (65, 80, 95))
    text_file(place.sources / "text.mp4")
    (place.sources / "0.json").write_text("{}")
    printed = io.StringIO()
    with redirect_stdout(printed):
        place.run()
    return place, printed.getvalue()


@pytest.fixture
def place(finished: tuple[Rerun, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rerun:
    """The finished run in another place, where Ray does not start."""

    def refuse(_: Engine) -> None:
        raise AssertionError("Ray was started, and there is nothing to decode")

    monkeypatch.setattr(Engine, "_start", refuse)
    shutil.copytree(finished[0].sources, tmp_path / "in")
    shutil.copytree(finished[0].out, tmp_path / "out")
    return Rerun(tmp_path / "in", tmp_path / "out")


def assert_whole(place: Rerun) -> None:
    """All that the summary lists is there, with the counts that it gives."""
    summary = place.summary()
    counts, sources, clips = summary["counts"], place.table("sources"), place.table("clips")
    kept = [clip for clip in clips if clip["decision"] == "kept"]
    failed = [row for row in sources if row["outcome"] == "failed"]
    assert counts["sources"] == len(sources) == counts["done"] + counts["failed"]
    assert counts["failed"] == len(failed) == sum(counts["by_error"].values())
    assert counts["clips"] == len(clips) == counts["kept"] + counts["rejected"]
    assert counts["kept"] == len(kept) == sum(row["n_kept"] or 0 for row in sources)
    assert counts["rejected"] == sum(counts["by_reason"].values())
    assert summary["kept_s"] == pytest.approx(
        sum(c["end_s"] - c["start_s"] for c in kept), abs=0.01
    )
    assert sum(shard["n_samples"] for shard in summary["shards"]) == len(kept)
    assert {clip["shard"] for clip in kept} == {shard["name"] for shard in summary["shards"]}
    for shard in summary["shards"]:
        assert (place.out / shard["name"]).stat().st_size == shard["bytes"]
    for shard in place.manifest()["shards"]:
        tar = place.out / "shards" / shard["name"]
        assert hashlib.sha256(tar.read_bytes()).hexdigest() == shard["sha256"]
        assert len(tar.with_suffix(".tar.idx").read_bytes()) == 8 * (shard["samples"] + 1)
    for clip in kept:
        with (place.out / clip["shard"]).open("rb") as tar:
            tar.seek(clip["mp4_offset"])
            mp4 = tar.read(clip["mp4_bytes"])
        assert hashlib.sha256(mp4).hexdigest() == clip["mp4_sha256"]


def assert_no_more_than_whole(place: Rerun) -> None:
    """Nothing of older runs is there either, and the manifest names each object with its hash."""
    assert_whole(place)
    summary = place.summary()
    listed = {part for parts in summary["tables"].values() for part in parts}
    assert set(place.files(*TABLES)) == listed
    assert set(place.tars()) == {shard["name"] for shard in summary["shards"]}
    assert not place.files("cuts")
    assert not [path for path in place.out.rglob("*") if path.name.startswith(".tmp")]
    manifest = place.manifest()
    expected = {name: facts["sha256"] for name, facts in manifest["files"].items()}
    for shard in manifest["shards"]:
        tar = shard["name"]
        expected[tar] = shard["sha256"]
        expected[f"{tar}.idx"] = shard["idx_sha256"]
        expected[tar.replace(".tar", ".meta.jsonl")] = shard["meta_sha256"]
        expected[tar.replace(".tar", ".json")] = shard["members_sha256"]
    objects = place.files("shards")
    del objects["shards/manifest.json"]
    assert objects == {f"shards/{name}": digest for name, digest in expected.items()}
    counts = manifest["counts"]
    assert counts["samples"] == summary["counts"]["kept"]
    assert counts["bytes"] == sum(shard["bytes"] for shard in summary["shards"])
    for groups in ("by_split", "by_bucket"):
        for name in ("shards", "samples", "frames", "bytes"):
            assert sum(group[name] for group in counts[groups].values()) == counts[name]


def test_the_summary_agrees_with_the_tables_and_the_funnel_is_printed(
    finished: tuple[Rerun, str],
) -> None:
    place, printed = finished
    assert_no_more_than_whole(place)
    summary = place.summary()
    assert summary["counts"]["kept"] >= 3
    assert summary["counts"]["skipped_names"] == 1
    # The arithmetic is the CPU's.
    (in_cpu,) = (k for k in summary["work"] if k.startswith("analyzed_in_"))
    counts = {in_cpu: 3, "sources_scanned": 4, "sources_analyzed": 3}
    counts |= {"clips_cut": summary["counts"]["kept"], "shards_written": len(summary["shards"])}
    assert {name: n for name, n in summary["work"].items() if n} == counts
    lines = {line.split("  ")[0].strip(): line for line in printed.splitlines()}
    assert lines["sources"].split()[1] == "4"
    assert lines["kept"].split()[1] == str(summary["counts"]["kept"])
    assert "not_a_video" in printed
    for name in ("shards", "clips", "report/index.html", "summary.json"):
        assert f"{place.out}/{name}" in printed


def test_a_dry_run_knows_what_is_analyzed_and_what_failed(
    finished: tuple[Rerun, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = finished[0].copy(tmp_path)

    def said() -> str:
        before = place.files("")
        assert place.code("--dry-run") == EXIT_OK
        assert place.files("") == before
        return capsys.readouterr().out

    first = said()
    assert first.startswith("4 sources, ")
    for words in (
        "3 analyzed already",
        "1 failed before or were removed, and not tried again",
    ):
        assert words in first
    assert len(first.splitlines()) == 6
    n_clips, n_kept = len(place.table("clips")), len(place.clips())
    assert f"{n_clips} stored candidate clips: the rules keep {n_kept}" in first
    assert f"0 of them to encode, 0 to copy where key frames allow it, {n_kept} written" in first
    assert place.code("--dry-run", "train_for=[wan-diffsynth]") == EXIT_OK
    assert "\n  wan-diffsynth sees " in capsys.readouterr().out
    # As after a run over files that were seconds old, whose probes are not stored.
    shutil.rmtree(place.out / "scan")
    assert said() == first
    monkeypatch.setattr(dry_run, "RETRIED", {str(ErrorCode.NOT_A_VIDEO)})
    assert "1 failed before, and tried again" in said()
    shutil.rmtree(place.out / "tracks")
    assert "3 to analyze" in said()
    # As if all files had been written again.
    store = open_store(str(place.out))
    rows = dry_run.last_sources(store, read_summary(store))
    others = rows.set_column(rows.schema.get_field_index("version"), "version", rows["uri"])
    monkeypatch.setattr(dry_run, "last_sources", lambda *_: others)
    assert "3 changed since the last run" in said()


def test_the_same_run_again_does_nothing_and_changes_nothing(
    finished: tuple[Rerun, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = finished
    monkeypatch.setattr(Engine, "_start", None)
    kinds = ("shards", "tracks", "scan", *TABLES, "config.json")
    before = place.files(*kinds)
    times = {name: (place.out / name).stat().st_mtime_ns for name in before}
    assert set(place.run()["work"].values()) == {0}
    assert place.files(*kinds) == before
    assert {name: (place.out / name).stat().st_mtime_ns for name in before} == times


def test_sources_that_moved_or_were_touched_are_only_scanned(place: Rerun) -> None:
    before = {clip["clip_id"]: clip for clip in place.table("clips")}
    work = place.run()["work"]
    assert work["sources_scanned"] == 4
    assert work["sources_analyzed"] == work["clips_cut"] == 0
    after = {clip["clip_id"]: clip for clip in place.table("clips")}
    assert set(after) == set(before)
    for name, clip in after.items():
        assert clip["source_uri"].startswith(str(place.sources))
        assert clip["mp4_sha256"] == before[name]["mp4_sha256"]
    assert_no_more_than_whole(place)
    shards = place.files("shards")
    (place.sources / "1.mp4").touch()
    work = place.run()["work"]
    assert work == dict.fromkeys(work, 0) | {"sources_scanned": 1}
    assert place.files("shards") == shards


def test_a_copy_adds_a_row_and_a_removed_source_takes_its_clips_along(place: Rerun) -> None:
    place.run()
    shards, clips = place.files("shards"), place.table("clips")
    shutil.copy(place.sources / "1.mp4", place.sources / "9 copy.mp4")
    place.run()
    assert place.files("shards") == shards
    assert place.table("clips") == clips
    copy, first = place.source("9 copy.mp4"), place.source("1.mp4")
    assert (copy["notes"], copy["n_clips"]) == (["same_bytes"], 0)
    assert copy["source_id"] == first["source_id"]
    (place.sources / "1.mp4").unlink()
    place.run()
    assert place.source("9 copy.mp4")["n_clips"] == first["n_clips"]
    assert {clip["clip_id"] for clip in place.table("clips")} == {c["clip_id"] for c in clips}
    (place.sources / "9 copy.mp4").unlink()
    place.run("--replace")
    where = {"shard", "mp4_offset"}
    assert _without(place.table("clips"), where) == _without(
        (clip for clip in clips if clip["source_id"] != first["source_id"]), where
    )
    assert_no_more_than_whole(place)


@pytest.mark.long
def test_settings_of_late_stages_change_what_they_name_and_nothing_else(place: Rerun) -> None:
    place.run()
    shards, clips = place.tars(), place.table("clips")
    place.run("caption.enabled=false")
    assert_no_more_than_whole(place)
    for sample in place.texts():
        assert {key for key in sample if not key.startswith("__")} == {"mp4", "json", "txt"}
        assert sample["txt"] == b""
    nothing = {"shard", "mp4_offset", "caption", "caption_model"}
    assert _without(place.table("clips"), nothing) == _without(clips, nothing)
    place.run("shard.max_bytes=65536")
    small = place.tars()
    assert len(small) == place.summary()["counts"]["kept"]
    assert_no_more_than_whole(place)
    assert place.run()["work"]["shards_written"] == 0
    assert place.tars() == small
    place.run("shard.append=false")
    assert place.tars() == shards
    assert_no_more_than_whole(place)


def _without(rows: Iterable[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


def test_other_bounds_read_no_tracks_and_give_what_tracks_give(
    place: Rerun, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run()
    middle = statistics.median(clip["motion"] for clip in place.table("clips"))
    changed = (
        f"filters.motion.max={middle}", "filters.sharpness.drop_lowest=0.4",
        "filters.lively={score: motion, max: 0, severity: flag}",
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(track_parts, "table_to_tracks", None)
        summary = place.run(*changed)
    assert_no_more_than_whole(place)
    assert 0 < summary["counts"]["kept"] < 3
    (kept, *_) = (clip for clip in place.table("clips") if clip["decision"] == "kept")
    assert "lively" in kept["tags"]
    (sample,) = (s for s in place.texts() if s["__key__"] == kept["clip_id"])
    assert json.loads(sample["json"])["tags"] == kept["tags"]
    kinds = ("shards", *TABLES, "config.json")
    expected = place.files(*kinds)
    shutil.rmtree(place.out / "candidates")
    place.run(*changed)
    assert place.files(*kinds) == expected
    # Four kinds of rows, and footage and pictures of three units.
    assert len(place.files("candidates")) == 4 + 2 * 3


@pytest.mark.long
def test_candidates_are_only_taken_for_tracks_that_stand(
    place: Rerun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another longest length needs new candidates; a lost part is seen."""
    place.run()
    before = set(place.files("candidates"))
    place.run("propose.max_s=4")
    assert not set(place.files("candidates")) & before
    (place.sources / "1.mp4").unlink()
    place.run("propose.max_s=4", "--replace")
    assert place.summary()["counts"]["clips"] == len(place.table("clips")) == 2
    monkeypatch.setattr(candidates, "MAX_PARTS", 0)
    place.run("propose.max_s=4")
    assert len(place.files("candidates/sources")) == 1
    assert_no_more_than_whole(place)


@pytest.mark.long
def test_summary_and_report_have_the_unit_times_of_their_own_run(
    finished: tuple[Rerun, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = finished
    made = [{"stage": "cut", "units": 123_456, "busy_s": 1.0, "workers": 2, "nodes": 1}]
    page = place.out / "report" / "index.html"
    with monkeypatch.context() as patched:
        patched.setattr(UnitTimes, "facts", lambda _: made)
        assert place.run()["unit_times"] == place.summary()["unit_times"] == made
    assert "123,456" in page.read_text()
    assert place.run().get("unit_times") != made
    assert "123,456" not in page.read_text()


@pytest.mark.long
def test_a_run_that_keeps_nothing_is_whole(place: Rerun) -> None:
    place.run("filters.motion.max=0.0001", "filters.motion.min=0")
    assert_no_more_than_whole(place)
    assert {clip["reason"] for clip in place.table("clips")} == {"motion_too_high"}
    assert {clip["shard"] for clip in place.table("clips")} == {None}
    assert place.summary()["shards"] == []
    assert (place.out / "report" / "index.html").exists()


@pytest.mark.long
@pytest.mark.usefixtures("unsandboxed")
def test_a_source_that_was_locked_is_done_once_it_can_be_read(
    place: Rerun, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = {f"locked {number}.mp4" for number in range(5)}
    for name in sorted(locked):
        shutil.copy(place.sources / "0.mp4", place.sources / name)
    open_source = scan.open_source

    def open_unlocked(uri: str, **options: str) -> Any:  # noqa: ANN401
        if Path(uri).name in locked:
            raise SourceError(ErrorCode.UNREADABLE, f"{uri} cannot be read: permission denied")
        return open_source(uri, **options)

    monkeypatch.setattr(scan, "open_source", open_unlocked)
    assert place.run()["counts"]["by_error"] == {"not_a_video": 1, "unreadable": 5}
    while locked:
        locked.pop()
        summary = place.run()
        assert summary["counts"]["by_error"].get("unreadable", 0) == len(locked)
        assert summary["work"]["sources_scanned"] == len(locked) + 1
    assert set(place.run()["work"].values()) == {0}
    assert place.summary()["counts"]["by_note"] == {"same_bytes": 5}


@pytest.mark.parametrize(
    ("operation", "every"),
    [
        pytest.param("write", 4, marks=pytest.mark.long),
        ("delete", 2),
        *(pytest.param(n, 1, marks=pytest.mark.long) for n in ("write", "delete")),
    ],
)
def test_a_commit_that_breaks_off_leaves_a_whole_run_and_the_next_finishes_it(
    place: Rerun, monkeypatch: pytest.MonkeyPatch, operation: str, every: int
) -> None:
    """Breaks off at each `every`th operation, and once where there are no more."""
    place.run()
    middle = statistics.median(clip["motion"] for clip in place.table("clips"))
    changed = ("caption.enabled=false", f"filters.motion.max={middle}")
    begun = shutil.copytree(place.out, place.out.with_name("begun"))
    place.run(*changed)
    kinds = ("shards", "tracks", "scan", *TABLES, "config.json")
    expected = place.files(*kinds)
    n_broken = 0
    while True:
        shutil.rmtree(place.out)
        shutil.copytree(begun, place.out)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, operation, _fails_after(n_broken, operation))
            code = place.code(*changed)
        assert_whole(place)
        if code == EXIT_OK:
            break
        assert code == 130
        n_broken += every
        place.run(*changed)
        assert_no_more_than_whole(place)
        assert place.files(*kinds) == expected
    assert n_broken >= {"write": 5, "delete": 1}[operation]


def _fails_after(n: int, operation: str) -> Callable[..., None]:
    original, calls = getattr(LocalStore, operation), []

    def fails(*arguments: object) -> None:
        if len(calls) == n:
            raise KeyboardInterrupt
        calls.append(arguments)
        original(*arguments)

    return fails


def test_sources_none_of_which_is_there_replace_nothing(
    place: Rerun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that results outlive a text file that is no manifest, or one of a place that is gone."""
    before = {path: path.read_bytes() for path in place.out.rglob("*.tar")}
    notes = place.out.parent / "notes.txt"
    notes.write_text("remember the milk\nand bread\n")
    capsys.readouterr()
    assert main(["run", str(notes), str(place.out), *sets(Rerun.settings)]) == EXIT_FAILED
    error = capsys.readouterr().err
    for word in ("no source of 2 can be read", "remember the milk", "the run changed nothing"):
        assert word in error
    assert {path: path.read_bytes() for path in place.out.rglob("*.tar")} == before
    place.run()
