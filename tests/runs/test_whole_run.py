"""One run over sound and broken sources, then reruns of it: every promise that a user can check."""

import io
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import av
import pytest
import webdataset
from captioned import work_here
from film_makers import MAKERS
from place import Place

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.footage.demo_films import make_demo

FAILS = {
    "audio_only.mp4": "unused_medium",
    "empty.mp4": "empty_file",
    "index_missing.mp4": "not_a_video",
    "png.mp4": "unused_medium",
    "text.mp4": "not_a_video",
    "zero_frames.mp4": "no_frames",
    "notes.mp4": "not_a_video",
}
"""Files that cannot be used, and the code each ends with."""
LIKE_OTHERS = (
    "b_frames.mp4", "constant_rate.avi", "constant_rate.mkv", "constant_rate.mov",
    "constant_rate.ts", "duration_too_long.mp4", "duration_too_short.mp4", "interlaced.mp4",
    "open_gop.mp4",
)  # fmt: skip
"""Sound files with the pictures of `constant_rate.mp4`, which end as its duplicates."""
ODD_NAMES = ("a b's #1 100%.mp4", 'new\nline "quoted".mp4', "日本語 ü.mp4", "no_extension")


class Whole(Place):
    """A finished run."""

    settings = ("filters.short_side_px.min=50", "propose.min_s=1.0",
                "shard.resolutions=[50, 120, 240, 480]", "--max-failed=1")  # fmt: skip


def name_of(row: dict[str, Any]) -> str:
    return str(row["uri"]).rpartition("/")[2]


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.long)])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """By this process for `some`, and by Ray's workers for `all`."""
    # The folders of `make demo`, for the commands of README.md.
    folder = tmp_path_factory.mktemp("whole") / "demo"
    sources = folder / "footage"
    make_demo(sources / "films", height_px=108)
    (sources / "made").mkdir()
    for name, make in MAKERS.items():
        if request.param == "all" or name not in LIKE_OTHERS:
            make(sources / "made" / name)
    sound = (sources / "made" / "constant_rate.mp4").read_bytes()
    for name in ODD_NAMES:
        (sources / name).write_bytes(sound)
    (sources / "about.json").write_text("{}")
    (sources / "read me.txt").write_text("no manifest: a folder is listed by name")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "some":
            work_here(patch)
        done = Whole(sources, folder / "out")
        done.run()
        return done


def test_every_input_has_one_row_and_every_clip_a_decision(whole: Whole) -> None:
    sources, clips, counts = whole.table("sources"), whole.table("clips"), whole.summary()["counts"]
    files = [p for p in whole.sources.rglob("*") if p.is_file()]
    assert Counter(row["uri"] for row in sources) == Counter(
        str(p) for p in files if p.suffix not in (".json", ".txt")
    )
    assert counts["skipped_names"] == 2
    assert counts["sources"] == counts["done"] + counts["failed"] == len(sources)
    assert counts["clips"] == counts["kept"] + counts["rejected"] == len(clips)
    assert sum(row["n_clips"] or 0 for row in sources) == len(clips)
    assert {row["outcome"] for row in sources} == {"done", "failed"}
    for clip in clips:
        assert (clip["decision"] == "kept") == (clip["reason"] is None) == (not clip["reasons"])


def test_broken_files_end_with_their_code_and_a_message_that_names_them(whole: Whole) -> None:
    failed = {name_of(row): row for row in whole.table("sources") if row["outcome"] == "failed"}
    assert {name: row["error_code"] for name, row in failed.items()} == FAILS
    for row in failed.values():
        assert row["uri"] in row["error_message"]
        assert row["error_stage"] in ("scan", "analyze")


def test_what_decodes_of_damaged_files_is_used_and_noted(whole: Whole) -> None:
    notes = {name_of(row): row["notes"] or [] for row in whole.table("sources")}
    assert "truncated" in notes["truncated.mp4"]
    assert "truncated" in notes["broken upload.mp4"]
    assert {"decode_errors", "corrupt_frames"} & set(notes["flipped.mp4"])
    assert "duration_differs" in notes["duration_too_long.mkv"]
    variable = {name_of(row) for row in whole.table("sources") if row["is_vfr"]}
    assert {"variable_rate.mp4", "phone.mov"} <= variable
    assert not {name for name in variable if name.startswith("constant_rate")}
    clips = [c for c in whole.table("clips") if c["source_uri"].endswith("broken upload.mp4")]
    (clip,) = clips
    assert 80 <= clip["end_frame"] <= 87
    assert clip["decision"] == "kept"
    assert "cut_failed" not in whole.summary()["counts"]["by_reason"]


def test_shots_of_an_edited_film_are_those_of_its_edit(whole: Whole) -> None:
    ids = {name_of(row): row["source_id"] for row in whole.table("sources")}
    shots = sorted(
        (row["start_frame"], row["end_frame"])
        for row in whole.table("shots")
        if row["source_id"] == ids["tour.mp4"]
    )
    expected = [(0, 150), (150, 270), (270, 402), (420, 552), (552, 702), (702, 882)]
    assert len(shots) == len(expected)
    for found, true in zip(shots, expected, strict=True):
        # The dissolve before frame 420 is given up to ten clean frames of the shot after it.
        assert -4 <= found[0] - true[0] <= (10 if true[0] == 420 else 4)
        assert abs(found[1] - true[1]) <= 4


def test_static_shots_and_duplicates_are_rejected_for_what_they_are(whole: Whole) -> None:
    clips = {clip["clip_id"]: clip for clip in whole.table("clips")}
    static = [
        c for c in clips.values()
        if c["source_uri"].endswith("studio.mkv") and 150 <= c["start_frame"] < 200
    ]  # fmt: skip
    assert [clip["reason"] for clip in static] == ["motion_too_low"]
    assert static[0]["reason_score"] < static[0]["reason_threshold"]
    (copy,) = (c for c in clips.values() if c["source_uri"].endswith("café copy.mp4"))
    assert copy["reason"] == "duplicate"
    for clip in clips.values():
        if clip["reason"] == "duplicate":
            kept = clips[clip["duplicate_of"]]
            assert kept["decision"] == "kept"
            assert clip["duplicate_similarity"] >= clip["reason_threshold"]


def test_every_sample_decodes_to_the_frames_that_its_json_names(whole: Whole) -> None:
    clips = {clip["clip_id"]: clip for clip in whole.table("clips")}
    seen = set()
    for tar in sorted((whole.out / "shards").rglob("*.tar")):
        assert tar.with_suffix(".tar.idx").exists()
        for sample in webdataset.WebDataset(str(tar), shardshuffle=False):
            key, facts = sample["__key__"], json.loads(sample["json"])
            assert {name for name in sample if name[0] != "_"} == {"mp4", "json", "txt"}
            assert "." not in key
            with av.open(io.BytesIO(sample["mp4"])) as container:
                frames = [(f.width, f.height, f.format.name) for f in container.decode(video=0)]
            assert len(frames) == facts["n_frames"] == clips[key]["n_frames"]
            assert set(frames) == {(facts["width"], facts["height"], "yuv420p")}
            crop = facts["crop"] or {}
            assert [crop.get(side) for side in ("x", "y", "width", "height")] == [
                clips[key][f"crop_{side}"] for side in ("x", "y", "width", "height")
            ]
            assert sample["txt"].decode() == facts["caption"] == clips[key]["caption"]
            assert clips[key]["caption_model"] == "curate/measured-1"
            assert clips[key]["shard"] == str(tar.relative_to(whole.out))
            with tar.open("rb") as file:
                file.seek(clips[key]["mp4_offset"])
                assert file.read(clips[key]["mp4_bytes"]) == sample["mp4"]
            seen.add(key)
    assert seen == {name for name, clip in clips.items() if clip["decision"] == "kept"}
    assert len(seen) >= 10


def test_report_and_config_stand_beside_the_tables(whole: Whole) -> None:
    page = (whole.out / "report" / "index.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert "motion_too_low" in page
    config = json.loads((whole.out / "config.json").read_text())
    assert config["recipe"]["propose"]["min_s"] == 1.0
    assert config["fingerprints"] == whole.summary()["fingerprints"]
    listed = {part for parts in whole.summary()["tables"].values() for part in parts}
    reusable = {
        str(path.relative_to(whole.out))
        for table in ("sources", "shots", "clips", "embeddings")
        for path in (whole.out / table).iterdir()
    }
    assert reusable == listed
    assert not list(whole.out.glob("cuts/*"))


README = Path(__file__).parents[2] / "README.md"


def test_commands_of_the_readme_work_as_written(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins commands and Python blocks in their order, with the demo's folders and a small size.

    It comes last, because it changes the run. Runs keep the settings of the one before; this
    module's footage has more broken files than the demo's.
    """
    monkeypatch.chdir(whole.sources.parents[1])
    work_here(monkeypatch)
    Path("more").mkdir()
    (Path("more") / "again.mp4").write_bytes((whole.sources / ODD_NAMES[0]).read_bytes())
    names = {"my_videos/": "demo/footage", "more_videos/": "more", "out/": "demo/out",
             "720p": "128x72"}  # fmt: skip
    ran = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.M | re.S):
        for shown, used in names.items():
            block = re.sub(rf"(?<![\w/]){re.escape(shown)}", used, block)
        if language == "python":
            exec(compile(block, README.name, "exec"), {})
            ran.append("ClipLoader" if "ClipLoader" in block else "python")
        # What programs print is in blocks too.
        for line in block.splitlines() if re.match("(git|curate) ", block) else ():
            match shlex.split(line, comments=True):
                case ["curate", "view", *_]:
                    pass
                case ["curate", command, *rest]:
                    more = ["--max-failed", "1"] if command == "run" else []
                    assert main([command, *rest, *more]) == EXIT_OK, line
                    ran.append(command)
    assert ran.count("run") == 4
    assert {"tune", "explain", "export", "snapshots", "ClipLoader"} <= set(ran)
    assert list(Path("sft").rglob("*.mp4"))
