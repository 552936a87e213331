"""The recipe `driving` in whole runs: frames say their number, and a server reads them.

The steps run in this process, so that no Ray is needed.
"""

import base64
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from PIL import Image
from place import QVGA, SMALL, Place

from curator.commands.arguments import EXIT_BROKEN_OFF

BLOCK = 16
EVENTS = [
    {"time_s": 2.0, "label": "near_collision", "about": "a van cuts in"},
    # The time of frame 228 to the last digit, of 30 frames/s.
    {"time_s": 7.6, "end_s": 7.8, "label": "collision", "ego_brakes": True},
    # The source has ended by then.
    {"time_s": 70, "label": "collision"},
]


class Drives(Place):
    """Ten seconds with events, cut in two, and three seconds that nobody says anything of."""

    recipe = "driving"
    settings = (*SMALL, "propose.max_s=5", "filters.frozen_fraction.max=1", "analyze.text=false",
                "caption.event_window_s=2")  # fmt: skip

    def around(self) -> dict[str, dict[str, Any]]:
        """Windows around events by their label, with the row of their clip as `clip`."""
        clips = {row["clip_id"]: row for row in self.table("clips")}
        rows = [row for row in self.table("annotations") if row["label"] is not None]
        found = {row["label"]: row | {"clip": clips[row["clip_id"]]} for row in rows}
        assert len(found) == len(rows)
        return found

    def move_the_collision(self) -> None:
        moved = [EVENTS[0], EVENTS[1] | {"time_s": 7.0, "end_s": 7.0}, EVENTS[2]]
        said = {"events": moved, "weather": 3, "light": "day"}
        (self.sources / "drive.json").write_text(json.dumps(said))

    def moved_frames(self) -> list[int]:
        """Frames of the source that the window around the moved event shows."""
        row = self.around()["collision"]
        begin = row["clip_start_frame"]
        assert (begin + row["start_frame"], begin + row["end_frame"]) == (180, 240)
        return [begin + frame for frame in row["shown"]]


class Server(ThreadingHTTPServer):
    """Answers by the schema that it is given, and notes which frames it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[int]] = []
        self.said: list[str] = []
        self.refuses = False
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def settings(self) -> tuple[str, ...]:
        url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        return ("caption.captioner=openai", f"caption.url={url}", "caption.model=tiny",
                "caption.read_text=false")  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Speaks for `Server`."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = request["messages"][-1]["content"][-1]
        if isinstance(last, dict) and last.get("text") == "Answer yes.":
            # The first question of a run, about grey pictures.
            self._send({"choices": [{"message": {"role": "assistant", "content": "yes"}}]})
            return
        if self.server.refuses:
            # By then all clips are cut, and their pictures taken.
            time.sleep(5.0)
            self._send({"error": {"message": "no such key"}}, 401)
            return
        content = request["messages"][-1]["content"]
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        said = "".join(part["text"] for part in content if part["type"] == "text")
        label = re.search(r"Class of this piece, from its owner: (\w+)", said)
        self.server.shown.append([number_in(url) for url in pictures])
        self.server.said.append(said)
        schema = request["response_format"]["json_schema"]["schema"]
        answer = filled(schema)
        answer["content_type"] = label[1] if label else "normal_driving"
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": json.dumps(answer)},
            "finish_reason": "stop",
        }
        self._send({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})

    def _send(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


def filled(schema: dict[str, Any], name: str = "") -> Any:  # noqa: ANN401 - a value of JSON
    if schema["type"] == "object":
        return {key: filled(field, key) for key, field in schema["properties"].items()}
    if schema["type"] == "boolean":
        return False
    words = f"the {name} of a grey road that runs past low houses to a hill far away"
    return schema.get("enum", [words.capitalize() + "."])[0]


def numbered(n_frames: int, seed: int) -> Iterator[np.ndarray]:
    """A moving shot whose corner has the number of each frame, nine bits as grey squares."""
    for number, picture in enumerate(moving_texture(n_frames, **QVGA, seed=seed)):
        marked = picture.copy()
        for bit in range(9):
            left = bit * BLOCK
            marked[:BLOCK, left : left + BLOCK] = 200 if number >> bit & 1 else 50
        yield marked


def number_in(url: str) -> int:
    image = Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))
    grey = np.asarray(image.convert("L"), np.float32)[2 : BLOCK - 2]
    means = [grey[:, b * BLOCK + 3 : (b + 1) * BLOCK - 3].mean() for b in range(9)]
    return sum(1 << bit for bit, mean in enumerate(means) if mean > 125)


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def place(tmp_path: Path) -> Drives:
    folder = tmp_path / "in"
    folder.mkdir()
    # Key frames every 7 frames: the second clip begins later than proposed when it is copied.
    write_video(folder / "drive.mp4", numbered(300, 0), gop=7, bframes=0)
    write_video(folder / "plain.mp4", numbered(90, 1))
    (folder / "drive.json").write_text(json.dumps({"events": EVENTS, "weather": 3, "light": "day"}))
    return Drives(folder, tmp_path / "out")


def test_captions_from_metadata_need_no_model(place: Drives) -> None:
    """Pins labels, captions, problems and questions of a run that asks nobody."""
    summary = place.run()
    counted = {name: n for name, n in summary["work"].items() if name.startswith("events")}
    assert counted == {"events": 3, "events_in_windows": 2, "events_bad_value": 1}
    found = place.around()
    assert set(found) == {"near_collision", "collision"}
    assert found["collision"]["clip"]["caption"].startswith("Collision: ")
    assert found["collision"]["clip"]["caption_model"] == "curate/metadata-1"
    for row in place.table("annotations"):
        assert row["request_keys"] == []
        assert {made["origin"] for made in json.loads(row["questions"])} == {"metadata"}
        is_told = row["label"] is not None
        problems = json.loads(row["known"])["problems"]
        assert problems == (["weather is 3; expected words"] if is_told else [])


def test_only_clips_with_events_can_be_kept_without_a_model(place: Drives) -> None:
    """Pins that metadata decides before anything is cut."""
    (place.sources / "plain.json").write_text(json.dumps({"events": []}))
    place.run("caption.reject.content_type=[normal_driving]")
    clips = place.table("clips")
    decided = [(Path(c["source_uri"]).name, c["decision"], c["reason"]) for c in clips]
    assert sorted(decided, key=str) == [
        ("drive.mp4", "kept", None),
        ("drive.mp4", "kept", None),
        ("plain.mp4", "rejected", "answer_unwanted"),
    ]


@pytest.mark.parametrize("more", [(), ("caption.failed=reject",)], ids=["as_cut", "before_cut"])
def test_models_are_shown_the_frames_around_events(
    more: tuple[str, ...], server: Server, place: Drives
) -> None:
    """Pins each picture to its frame of the source, in copies that begin late too, and a rerun."""
    place.run(*server.settings, *more)
    found = place.around()
    for label, first, end in (("near_collision", 30, 90), ("collision", 198, 264)):
        row, clip = found[label], found[label]["clip"]
        begin = row["clip_start_frame"]
        assert clip["cut_mode"] == "copy"
        assert begin <= clip["start_frame"]
        assert row["start_frame"] == max(first, begin) - begin
        assert begin + row["end_frame"] == min(end, begin + clip["n_frames"], end)
        wanted = [begin + frame for frame in row["shown"]]
        (shown,) = (
            shown
            for shown, said in zip(server.shown, server.said, strict=True)
            if f"from its owner: {label}" in said
        )
        assert shown == wanted
        assert len(shown) == round((row["end_frame"] - row["start_frame"]) / 30 * 4)
        questions = {made["name"]: made for made in json.loads(row["questions"])}
        at_s = {"near_collision": 2.0, "collision": 7.6}[label] - clip["start_s"]
        assert questions[f"time_of_{label}"]["answer"].startswith(f"{at_s:.1f} s ")
        assert questions["reasoning"]["reasoning_origin"] == "tiny"
    late = found["collision"]
    assert (late["clip_start_frame"] < late["clip"]["start_frame"]) == bool(more)
    n_asked = len(server.shown)
    assert n_asked == len(place.table("annotations"))
    before = place.table("annotations")
    place.run(*server.settings, *more)
    assert len(server.shown) == n_asked
    assert place.table("annotations") == before


def test_a_corrected_sidecar_asks_about_its_windows_alone(server: Server, place: Drives) -> None:
    """Pins that where windows move, pictures are taken anew, out of written clips."""
    place.run(*server.settings)
    place.move_the_collision()
    server.shown.clear()
    place.run(*server.settings)
    assert server.shown == [place.moved_frames()]


def test_pictures_of_a_run_that_broke_off_are_taken_for_their_windows_alone(
    server: Server, place: Drives
) -> None:
    """Pins that pictures around an event are not looked for among those around another moment."""
    server.refuses = True
    assert place.code(*server.settings) == EXIT_BROKEN_OFF
    taken = [pq.read_table(part).num_rows for part in (place.out / "frames").glob("*.parquet")]
    assert sum(taken) == 3
    server.refuses = False
    place.move_the_collision()
    place.run(*server.settings)
    assert place.moved_frames() in server.shown
    assert {row["failure"] for row in place.table("annotations")} == {None}
