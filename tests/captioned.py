"""Runs whose clips are described by a server that says which pictures it was shown."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from films import write_film
from place import Place, sets
from served import FakeServer, without_keys

from curator.cli import main
from curator.executor.engine import Engine
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.windows import windows_of
from curator.storage import LocalStore
from curator.tools.commands.arguments import EXIT_OK

FILMS = {
    "1.mp4": ("plain", 110), "2.mkv": ("plain", 80), "3.mp4": ("rotated", 70),
    "4.mp4": ("bordered", 70), "5.mp4": ("plain", 60),
}  # fmt: skip
"""Form and frames by name; the name is the film's number."""
SETTINGS = (
    "shard.resolutions=[80]", "shard.lengths=[17]", "filters.short_side_px.min=80",
    "propose.min_s=1", "propose.max_s=2", "dedup.enabled=false", "filters.motion.min=0.0001",
    "filters.sharpness.min=0.0001", "analyze.text=false",
)  # fmt: skip
WINDOWS = {
    "window_frames": 24, "window_remainder": 12, "frames": 3, "frame_px": 96, "read_text": False,
    "in_flight": 3,
}  # fmt: skip
ALL_MAY_FAIL = ("--max-failed", "1")
_MARK = re.compile(r"(\d+):(\d+)")


def run_arguments(sources: Path | str, out: Path, *more: str) -> list[str]:
    """The command of a run with the recipe `quickstart`, in which all sources may fail."""
    return ["run", "--recipe", "quickstart", *ALL_MAY_FAIL, str(sources), str(out), *more]


@dataclass(frozen=True)
class Captioned(Place):
    """An output, its sources, and the server that is asked."""

    server: FakeServer

    @property
    def settings(self) -> tuple[str, ...]:  # type: ignore[override]
        url = f"http://127.0.0.1:{self.server.port}/v1"
        asked = {"captioner": "openai", "model": "tiny-vlm", "url": url, **WINDOWS}
        return (*SETTINGS, *(f"caption.{name}={value}" for name, value in asked.items()))

    def arguments(self, *more: str) -> list[str]:
        return run_arguments(self.sources, self.out, *sets((*self.settings, *more)))

    def recaption(self, *changes: str) -> dict[str, Any]:
        assert self.recaption_code(*changes) == EXIT_OK
        return self.summary()

    def recaption_code(self, *changes: str) -> int:
        return main(["recaption", str(self.out), *ALL_MAY_FAIL, *sets(changes)])

    def annotations(self) -> dict[str, list[dict[str, Any]]]:
        """Rows of `annotations` by clip, as they stand."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.table("annotations"):
            found.setdefault(row["clip_id"], []).append(row)
        return found

    def forget(self, *folders: str) -> None:
        for folder in folders:
            shutil.rmtree(self.out / folder)

    def n_asked(self) -> int:
        """Requests that the server has received."""
        return sum(self.server.counts().values())


def film_of(clip: Mapping[str, Any]) -> int:
    """Number of the film that a clip is of."""
    return int(Path(clip["source_uri"]).stem)


def marks_in(text: str) -> list[tuple[int, int]]:
    """Film and frame of each picture that a caption was made of."""
    return [(int(film), int(frame)) for film, frame in _MARK.findall(text)]


def assert_described(done: Captioned, **changes: object) -> None:
    """Each kept clip has a caption of its own pictures in table, text, JSON; `verify` agrees."""
    config = CaptionConfig.model_validate(
        {"captioner": "openai", "model": "tiny-vlm", "url": "http://x"} | WINDOWS | changes
    )
    annotations = done.annotations()
    clips = done.clips()
    for clip in clips:
        rows = annotations[clip["clip_id"]]
        assert {row["failure"] for row in rows} == {None}
        first = clip["start_frame"]
        expected = windows_of(clip["n_frames"], clip["written_fps"], config)
        assert [row["window"] for row in rows] == [window.index for window in expected]
        for row, window in zip(rows, expected, strict=True):
            assert (row["start_frame"], row["end_frame"]) == (window.start_frame, window.end_frame)
            assert tuple(row["shown"]) == window.shown
            truth = [(film_of(clip), first + frame) for frame in window.shown]
            for length in ("short", "medium", "long"):
                assert marks_in(row[length]) == truth
        caption = " ".join(row["medium"] for row in rows)
        assert clip["caption"] == caption
        assert clip["caption_failure"] is None
        assert done.sample(clip, "txt").decode() == caption
        told = json.loads(done.sample(clip, "json"))["annotation"]["windows"]
        assert [(window["start_frame"], window["end_frame"]) for window in told] == [
            (window.start_frame, window.end_frame) for window in expected
        ]
        assert [window["medium"] for window in told] == [row["medium"] for row in rows]
    assert clips
    # What a killed writer did not finish is removed after a day: others may be writing.
    assert not list(LocalStore(done.out).list("frames/"))
    # Earlier snapshots may name tars that a test took away.
    assert main(["clean", str(done.out), "--keep", "1"]) == EXIT_OK
    assert main(["verify", str(done.out)]) == EXIT_OK


def work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets runs start no process but the sandbox."""

    def run_in_driver(self: Engine, steps: Any, units: Any, **_: Any) -> Any:  # noqa: ANN401
        return self.run_in_driver(steps, units)

    monkeypatch.setattr(Engine, "run", run_in_driver)


@pytest.fixture(scope="session")
def described(running_server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Captioned:
    """A finished run by the process for small work; not to be changed."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "in").mkdir()
    for name, (form, n_frames) in FILMS.items():
        write_film(folder / "in" / name, int(name[0]), n_frames, form)  # type: ignore[arg-type]
    running_server.start(captions=True, delay_s=[0, 0.1])
    done = Captioned(folder / "in", folder / "out", running_server)
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_keys(monkeypatch)
        summary = done.run()
    assert summary["work"]["caption_windows_asked"] == done.n_asked() > 10
    return done


@pytest.fixture
def place(
    described: Captioned, fake_server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Captioned:
    """The finished run in another place, whose further work is done in this process."""
    work_here(monkeypatch)
    fake_server.start(captions=True)
    return replace(described.copy(tmp_path), server=fake_server)
