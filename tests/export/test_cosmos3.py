"""`curate export --format cosmos3`: windows, structured captions, and what the loader drops.

What the trainer's own loaders make of such folders is in `benchmarks/results/cosmos3.md`.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_samples import FPS, HEIGHT, WIDTH, MadeClip, made_clips, make_shards
from test_export import exported, files
from test_export_annotations import QUESTIONS, annotated, config

from curator.errors import UsageError
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.storage import open_store

__all__ = ["config"]

SCENE: dict[str, Any] = {
    "actions": [{"description": "It runs.", "time": "0:00-0:02"}],
    "aesthetics": {"color_scheme": "blue", "composition": "centred"},
    "background_setting": "A beach",
    "cinematography": {"camera_angle": "low", "camera_motion": "static", "framing": "wide"},
    "lighting": {"conditions": "bright"},
    "segments": [{"description": "A run.", "segment_index": 0, "time_range": "0:00-0:04"}],
    "style_medium": "live action",
    "subjects": [{"action": "runs", "clothing": "", "description": "A dög", "number_of_legs": 4}],
    "weather": "clear",
}
"""As samples hold it: with sorted keys, and a field that a user's own copy of the prompt adds."""
MODEL = {"caption_model": "m"}


def with_windows(clip: MadeClip, *windows: dict[str, Any], caption: str = "A dog.") -> MadeClip:
    """A clip with windows; its MP4 is not read, so that it need not be as long."""
    annotation = {"model": "m", "prompt": "cosmos3", "judge": None, "windows": list(windows)}
    n_frames = max(window["end_frame"] for window in windows)
    changes = {**MODEL, "annotation": annotation, "caption": caption}
    return replace(clip, n_frames=n_frames, caption=caption, changes=changes)


def window(start: int, end: int, **more: object) -> dict[str, Any]:
    return {"start_frame": start, "end_frame": end, "long": f"Frames {start} to {end}.", **more}


@pytest.fixture
def clips() -> list[MadeClip]:
    whole, two, short, failed, long, hand, plain, other = made_clips()
    wrong = {**SCENE, "actions": "It runs."}
    by_hand = with_windows(hand, window(0, 90), caption="By hand.")
    return [
        with_windows(whole, window(0, 121, extra=SCENE)),
        with_windows(two, window(0, 61, extra=wrong), window(61, 100), caption=""),
        replace(short, n_frames=60),
        with_windows(
            failed, {"start_frame": 0, "end_frame": 90, "failure": "timed_out"}, caption=""
        ),
        # 61 s at 30000/1001 frames per second are 1828 frames and a bit.
        with_windows(long, window(0, 1000), window(1000, 1829)),
        replace(by_hand, changes={**by_hand.changes, "caption_model": "hand"}),
        replace(plain, n_frames=61),
        replace(other, n_frames=1828),
    ]


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return [
        json.loads(line)
        for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    ]


def written(
    to: Path, split: str = "train", name: str = "video_dataset_file.jsonl"
) -> dict[str, Any]:
    return {line["uuid"]: line for line in lines(to / split / name)}


def test_windows_captions_and_media_are_as_the_trainer_reads_them(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins a line, inclusive ends, the order of keys, and captions that are not structured."""
    done = exported(out, tmp_path / "to", "cosmos3")
    records = written(tmp_path / "to")
    assert set(records) == {clip.key for clip in clips if clip.split == "train"}
    whole, two, *_ = clips
    line = records[whole.key]
    (only,) = line.pop("t2w_windows")
    video = tmp_path / "to" / "train" / "videos" / f"{whole.key}.mp4"
    assert line == {
        "uuid": whole.key, "duration": 121 / float(FPS), "width": WIDTH, "height": HEIGHT,
        "vision_path": str(video), "nb_frames": 121, "framerate": float(FPS),
    }  # fmt: skip
    assert video.read_bytes() == whole.mp4
    caption = only.pop("caption_json")
    assert only == {
        "start_frame": 0, "end_frame": 120, "temporal_interval": 1, "caption": "Frames 0 to 121.",
    }  # fmt: skip
    known = load_prompt("cosmos3").own_schema["properties"]
    described = [name for name in known if name in SCENE]
    media = ["temporal_caption", "resolution", "aspect_ratio", "duration", "fps"]
    assert list(caption) == [*described, *media, "weather"]
    assert list(caption["subjects"][0]) == ["description", "action", "clothing", "number_of_legs"]
    assert list(caption["actions"][0]) == ["time", "description"]
    assert {name: caption[name] for name in media} == {
        "temporal_caption": "Frames 0 to 121.", "resolution": {"H": HEIGHT, "W": WIDTH},
        "aspect_ratio": "16,9", "duration": "4s", "fps": 30,
    }  # fmt: skip
    # A scene of another form is no structured caption, but its narrative is a caption.
    first, second = records[two.key]["t2w_windows"]
    assert (first["end_frame"], second["start_frame"], second["end_frame"]) == (60, 61, 99)
    assert not {"caption_json"} & (first.keys() | second.keys())
    hand = written(tmp_path / "to")[clips[5].key]["t2w_windows"]
    assert [(each["end_frame"], each["caption"]) for each in hand] == [(89, "By hand.")]
    assert len(done.notes) == 2


def test_the_summary_says_what_the_loader_drops_and_why(
    out: Path, tmp_path: Path, clips: list[MadeClip]
) -> None:
    exported(out, tmp_path / "to", "cosmos3")
    summary = json.loads((tmp_path / "to" / "train" / "summary.json").read_bytes())
    assert summary.pop("settings")["frames"] is None
    assert summary == {
        "clips": 6, "clips_read": 3, "windows": 8, "windows_read": 3, "with_caption_json": 1,
        "times_left_out": 0, "captions_cut": 0, "captions_likely_cut": 0, "control": None,
        "dropped": {"no_caption": 1, "too_long": 2, "too_short": 2},
    }  # fmt: skip
    drops = lines(tmp_path / "to" / "train" / "dropped.jsonl")
    by_clip = {(drop["uuid"], drop["start_frame"]): drop for drop in drops}
    _, two, short, failed, long, *_ = clips
    assert {key: drop["reason"] for key, drop in by_clip.items()} == {
        (two.key, 61): "too_short", (short.key, 0): "too_short", (failed.key, 0): "no_caption",
        (long.key, 0): "too_long", (long.key, 1000): "too_long",
    }  # fmt: skip
    assert (by_clip[two.key, 61]["has"], by_clip[two.key, 61]["needs"]) == (39, 61)
    assert by_clip[two.key, 61]["end_frame"] == 99
    assert by_clip[failed.key, 0] == {
        "uuid": failed.key, "window": None, "start_frame": 0, "end_frame": 89,
        "has": None, "needs": None, "reason": "no_caption",
    }  # fmt: skip
    assert written(tmp_path / "to")[failed.key]["t2w_windows"] == []
    # With the trainer's own settings, more is dropped.
    done = exported(out, tmp_path / "93", "cosmos3", frames=93, min_side=40, splits=["val"])
    assert done.notes == [
        "val: the trainer reads 0 of 2 windows; dropped: 1 too_short, 1 too_small "
        "(val/dropped.jsonl)"
    ]


def test_actions_with_times_outside_of_the_window_are_left_out(
    tmp_path: Path, clips: list[MadeClip]
) -> None:
    """Pins outputs whose answers were not checked; the window has 4.04 s."""
    (right,) = SCENE["actions"]
    times = ("9:00-sometime", "0:03-0:05", "0:05-0:04", "0:02-0:01", "0:03-0:04")
    actions = [right, *({**right, "time": time} for time in times)]
    segments = [{**SCENE["segments"][0], "time_range": "0:00-99:00"}]
    scene = {**SCENE, "actions": actions, "segments": segments}
    clips = [with_windows(clips[0], window(0, 121, extra=scene))]
    make_shards(str(tmp_path / "timed"), clips)
    done = exported(tmp_path / "timed", tmp_path / "to", "cosmos3", splits=["train"])
    (only,) = written(tmp_path / "to")[clips[0].key]["t2w_windows"]
    assert only["caption_json"]["actions"] == [actions[0], actions[-1]]
    assert only["caption_json"]["segments"] == []
    summary = json.loads((tmp_path / "to" / "train" / "summary.json").read_bytes())
    assert (summary["with_caption_json"], summary["times_left_out"]) == (1, 5)
    assert "5 of the actions" in done.notes[-1]


def test_captions_that_a_judge_may_have_refused_are_not_used(
    tmp_path: Path, clips: list[MadeClip]
) -> None:
    annotation = clips[1].changes["annotation"] | {"judge": "strict"}
    clips[1] = replace(clips[1], changes={**clips[1].changes, "annotation": annotation})
    make_shards(str(tmp_path / "judged"), clips)
    exported(tmp_path / "judged", tmp_path / "to", "cosmos3", splits=["train"])
    assert written(tmp_path / "to")[clips[1].key]["t2w_windows"] == []


def test_compressed_lines_and_relative_paths(out: Path, tmp_path: Path) -> None:
    """Pins that the bytes depend on neither time nor place."""
    options = {"gzip": True, "relative": True}
    exported(out, tmp_path / "a", "cosmos3", **options)
    exported(out, tmp_path / "b", "cosmos3", **options)
    one, other = (
        {name: data for name, data in files(tmp_path / to).items() if ".exported" not in name}
        for to in "ab"
    )
    assert one == other
    assert "train/video_dataset_file.jsonl" not in one
    for line in written(tmp_path / "a", name="video_dataset_file.jsonl.gz").values():
        assert (tmp_path / "a" / "train" / line["vision_path"]).is_file()


def test_lines_on_s3_name_addresses_there(out: Path, s3_bucket: str) -> None:
    exported(out, f"s3://{s3_bucket}/to", "cosmos3", splits=["val"])
    data = open_store(f"s3://{s3_bucket}/to").read("val/video_dataset_file.jsonl")
    for line in map(json.loads, data.splitlines()):
        assert line["vision_path"] == f"s3://{s3_bucket}/to/val/videos/{line['uuid']}.mp4"


def test_edges_need_no_file_and_depth_needs_a_family(out: Path, tmp_path: Path) -> None:
    exported(out, tmp_path / "to", "cosmos3", control="edge")
    records = written(tmp_path / "to").values()
    assert {line["control_type"] for line in records} == {"edge"}
    assert not any("control_path" in line for line in records)
    with pytest.raises(UsageError, match="'depth'"):
        exported(out, tmp_path / "to", "cosmos3", control="depth")
    with pytest.raises(UsageError, match="--control depth or seg"):
        exported(out, tmp_path / "to", "cosmos3", control_values="depth")
    with pytest.raises(UsageError, match="control"):
        exported(out, tmp_path / "to", "cosmos3", control="pose")


def test_the_reasoner_gets_a_conversation_for_each_question(
    tmp_path: Path, config: CaptionConfig
) -> None:
    own = {"source_start_frame": 40, "source_start_s": 2.0}
    clips = [replace(clip, changes=own) for clip in made_clips()]
    out = annotated(tmp_path / "out", clips, config)
    exported(out, tmp_path / "to", "cosmos3", reasoner=True)
    n_seen = 0
    for split in ("train", "val"):
        root = tmp_path / "to" / split
        for entry in json.loads((root / "meta.json").read_bytes()):
            n_seen += 1
            key = entry["id"].split("-")[0]
            clip = next(clip for clip in clips if clip.key == key)
            assert (root / entry["media"]).read_bytes() == clip.mp4
            user, model = json.loads((root / entry["conversation"]).read_bytes())["conversations"]
            assert user["content"][0] == {"type": "video", "video": "video_0"}
            told = (user["content"][1]["text"], model["content"][0]["text"])
            if "reasoning" in entry["id"]:
                assert told[1].startswith("<think>\nNothing is near.")
            else:
                assert told == (QUESTIONS[0]["question"], QUESTIONS[0]["answer"])
    assert n_seen == 2 * 7
    make_shards(str(tmp_path / "plain"), clips)
    with pytest.raises(UsageError, match="annotations"):
        exported(tmp_path / "plain", tmp_path / "to2", "cosmos3", reasoner=True)
