"""Keys of stored work never change: another key would request answers again."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from curator.stages.caption.annotations import annotation_key, answers_fingerprint
from curator.stages.caption.caption_records import Reply, Task, Window
from curator.stages.caption.config import CaptionConfig, frames_fingerprint
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import content_of, frames_key
from curator.stages.caption.reply_store import replies_fingerprint

SERVER: dict[str, Any] = {"captioner": "openai", "model": "m", "url": "http://a/v1"}
CONFIGS: dict[str, dict[str, Any]] = {
    "server": SERVER,
    "fields": SERVER
    | {"structured": True, "safety": True, "content_types": ["animals", "sports"],
       "questions": {"has_people": "Are there people?"}, "language": "de", "revision": "r1"},
    "text": SERVER | {"prompt": "cosmos", "lengths": ["medium"]},
    "judge": SERVER
    | {"candidates": 2, "judge": {"model": "j", "url": "http://j/v1", "frames_as": "video"}},
    "worker": {"captioner": "local", "model": "folder", "frames_as": "video"},
    "metadata": {"captioner": "metadata", "events": {"crash": "Cars touch."},
                 "event_window_s": 2.0},
}  # fmt: skip
TASK = Task(
    clip_id="clip",
    content="content",
    window=Window(index=1, start_frame=24, end_frame=72, shown=(30, 48, 66)),
    fps=23.976,
    facts="- Camera, measured over the whole clip: the camera pans left slowly",
)
# Of commit e0fe287. The second number of "worker" is of the captioner's name `local`.
KEYS = {
    "server": ["dc834fa1ac5d2af1", "236ac46a58e1e1b5"],
    "fields": ["4c6962588f729855", "be7c9196195a581f"],
    "text": ["a29090d28c2fc7ac"],
    "judge": ["dc834fa1ac5d2af1", "6408933073963123", "236ac46a58e1e1b5",
              "50b7d8f2cf29bf4c", "b5cd4a9d63631f81", "1b1cc95257c229c2"],
    "worker": ["3d16a81e905c72bd", "d48ce906765bc87d"],
}  # fmt: skip
STAMPS = {
    "server": ["124916d165b4fc5a", "3446039ecb163935", "f0acbf15afca7050", "5806c51ad7eece9b"],
    "fields": ["e7f6406add5d6121", "ba8fd88f8274683d", "bfdebc0acf596184", "5806c51ad7eece9b"],
    "text": ["be7f79fd31cf62ec", "5fa9e92726c96389", "e32b5b10d3deac60", "5806c51ad7eece9b"],
    "judge": ["9f9f176124c881da", "92837335db133902", "cb710f28ce925e72", "5806c51ad7eece9b"],
    "worker": ["618516f7e7e15d5b", "b024b67d5d62b422", "632da12358bc2787", "5806c51ad7eece9b"],
    "metadata": ["85904ac5a2e0b276", "dd02f22732e500c4", "c5b2c4c1614418ba", "0adc646985ef60d4"],
}
CONTENT = ["44ae33af6be58585", "44ae33af6be58585", "80a0150310239579"]


def replies() -> list[Reply]:
    """Returns broken JSON, an answer that breaks a rule, a good answer, and a judge's answer."""
    words = {n: "A red car drives down a wet street at night." for n in ("short", "medium", "long")}
    more = {"structured": {}, "content_type": "sports", "answers": {}, "safety": "safe"}
    scores = {"why": "none", "faithfulness": 4, "completeness": 4, "correctness": 4}
    return [
        Reply(text='{"short": 3'),
        Reply(text=json.dumps(words | {"medium": "I cannot help with that."} | more)),
        Reply(text=json.dumps(words)),
        Reply(text=json.dumps(scores)),
    ]


def requested(config: CaptionConfig) -> list[str]:
    """Returns the keys of all requests of a dialog that gets the replies in turn."""
    keys: list[str] = []
    dialog, said, n = make_dialogs(config)(TASK), replies(), 0
    try:
        requests = next(dialog)
        while True:
            keys += [request.key for request in requests]
            given = [said[(n + i) % len(said)] for i in range(len(requests))]
            n += len(requests)
            requests = dialog.send(given)
    except StopIteration:
        return keys


@pytest.mark.parametrize("name", CONFIGS)
def test_requests_and_what_is_stored_keep_their_keys(name: str) -> None:
    """Pins keys of first requests, repairs, retries, judgements, replies, frames, annotations."""
    config = CaptionConfig.model_validate(CONFIGS[name])
    if config.asks:
        assert requested(config) == KEYS[name]
    stamp = answers_fingerprint(config)
    made = [replies_fingerprint(config), stamp, annotation_key(TASK, stamp)]
    assert [*made, frames_fingerprint(config)] == STAMPS[name]


def test_clips_keep_the_fingerprints_of_their_pixels() -> None:
    clip: Any = SimpleNamespace(
        start_frame=5, end_frame=65, n_frames=60, width=640, height=360,
        crop_x=None, crop_y=2, crop_width=None, crop_height=300,
    )  # fmt: skip
    content = content_of("clip", clip, "")
    assert content != content_of("clip", clip, "blur")
    assert [content, frames_key(content, ()), frames_key(content, ((1.0, 2.5),))] == CONTENT
