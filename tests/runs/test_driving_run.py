"""The recipe `driving` in whole runs: frames say their number, and a server reads them.

The steps run in this process, so that no Ray is needed.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from captioned import marks_in, work_here
from films import FPS, write_film
from place import SMALL, Place
from served import FakeServer

from curator.tools.commands.arguments import EXIT_BROKEN_OFF

EVENTS = [
    {"time_s": 2.0, "label": "near_collision", "about": "a van cuts in"},
    # The time of frame 190 to the last digit, of 25 frames/s.
    {"time_s": 7.6, "end_s": 7.8, "label": "collision", "ego_brakes": True},
    # The source has ended by then.
    {"time_s": 70, "label": "collision"},
]


class Drives(Place):
    """Ten seconds with events, cut in two, and three seconds without an event."""

    recipe = "driving"
    settings = (*SMALL, "propose.max_s=5", "filters.frozen_fraction.max=1", "analyze.text=false",
                "caption.event_window_s=2")  # fmt: skip

    def around(self) -> dict[str, dict[str, Any]]:
        """Windows around events by label, with the row of their `clip`, and the frames `seen`."""
        clips = {row["clip_id"]: row for row in self.table("clips")}
        rows = [row for row in self.table("annotations") if row["label"] is not None]
        found = {
            row["label"]: row | {"clip": clips[row["clip_id"]], "seen": frames_in(row)}
            for row in rows
        }
        assert len(found) == len(rows)
        return found

    def move_the_collision(self) -> None:
        moved = [EVENTS[0], EVENTS[1] | {"time_s": 7.0, "end_s": 7.0}, EVENTS[2]]
        said = {"events": moved, "weather": 3, "light": "day"}
        (self.sources / "drive.json").write_text(json.dumps(said))

    def moved_frames(self) -> list[int]:
        """Frames of the source that the window around the moved event shows."""
        row = self.around()["collision"]
        begin = row["clip"]["start_frame"]
        assert (begin + row["start_frame"], begin + row["end_frame"]) == (150, 200)
        return [begin + frame for frame in row["shown"]]

    def ask(self, server: FakeServer) -> tuple[str, ...]:
        """Settings with which a server is asked."""
        url = f"http://127.0.0.1:{server.port}/v1"
        return ("caption.captioner=openai", f"caption.url={url}", "caption.model=tiny-vlm",
                "caption.read_text=false")  # fmt: skip


def frames_in(row: dict[str, Any]) -> list[int]:
    """Frames of the source whose pictures an answer describes."""
    return [frame for _, frame in marks_in(row["medium"] or "")]


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("drives") / "in"
    folder.mkdir()
    # Key frames every 6 frames: the second clip begins later than proposed when it is copied.
    write_film(folder / "drive.mp4", 1, 250)
    write_film(folder / "plain.mp4", 2, 75)
    (folder / "drive.json").write_text(json.dumps({"events": EVENTS, "weather": 3, "light": "day"}))
    return folder


@pytest.fixture
def place(sources: Path, tmp_path: Path) -> Drives:
    return Drives(Path(shutil.copytree(sources, tmp_path / "in")), tmp_path / "out")


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


@pytest.mark.parametrize("more", [(), ("caption.failed=reject",)], ids=["keep", "reject"])
def test_models_are_shown_the_frames_around_events(
    more: tuple[str, ...], fake_server: FakeServer, place: Drives
) -> None:
    """Pins each picture to its frame of the source, in copies that begin late too, and a rerun."""
    fake_server.start(captions=True)
    place.run(*place.ask(fake_server), *more)
    found = place.around()
    for label, first, end in (("near_collision", 25, 75), ("collision", 165, 220)):
        row, clip = found[label], found[label]["clip"]
        begin = clip["start_frame"]
        assert clip["cut_mode"] == "copy"
        assert row["start_frame"] == max(first, begin) - begin
        assert begin + row["end_frame"] == min(end, begin + clip["n_frames"], end)
        assert row["seen"] == [begin + frame for frame in row["shown"]]
        assert len(row["seen"]) == round((row["end_frame"] - row["start_frame"]) / FPS * 4)
        questions = {made["name"]: made for made in json.loads(row["questions"])}
        at_s = {"near_collision": 2.0, "collision": 7.6}[label] - clip["start_s"]
        assert questions[f"time_of_{label}"]["answer"].startswith(f"{at_s:.1f} s ")
        assert questions["reasoning"]["reasoning_origin"] == "tiny-vlm"
    n_asked = sum(fake_server.counts().values())
    assert n_asked == len(place.table("annotations"))
    before = place.table("annotations")
    place.run(*place.ask(fake_server), *more)
    assert sum(fake_server.counts().values()) == n_asked
    assert place.table("annotations") == before


@pytest.mark.long
def test_a_corrected_sidecar_asks_about_its_windows_alone(
    fake_server: FakeServer, place: Drives
) -> None:
    """Pins that where windows move, pictures are taken anew, out of written clips."""
    fake_server.start(captions=True)
    place.run(*place.ask(fake_server))
    n_asked = sum(fake_server.counts().values())
    place.move_the_collision()
    place.run(*place.ask(fake_server))
    assert sum(fake_server.counts().values()) == n_asked + 1
    assert place.around()["collision"]["seen"] == place.moved_frames()


@pytest.mark.long
def test_pictures_of_a_run_that_broke_off_are_taken_for_their_windows_alone(
    fake_server: FakeServer, place: Drives
) -> None:
    """Pins that pictures around an event are not looked for among those around another moment."""
    # By then all clips are cut, and their pictures taken.
    refused = {"hang": 5, "status": 401, "body": '{"error": {"message": "no such key"}}'}
    fake_server.start(captions=True, by_source={"1": refused, "2": refused})
    assert place.code(*place.ask(fake_server)) == EXIT_BROKEN_OFF
    taken = [pq.read_table(part).num_rows for part in (place.out / "frames").glob("*.parquet")]
    assert sum(taken) == 3
    fake_server.start(captions=True)
    place.move_the_collision()
    place.run(*place.ask(fake_server))
    assert place.around()["collision"]["seen"] == place.moved_frames()
    assert {row["failure"] for row in place.table("annotations")} == {None}
