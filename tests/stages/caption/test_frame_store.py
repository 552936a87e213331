"""Pictures of several clips are read in parallel, and once for all windows of a clip."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from curator.errors import StorageError
from curator.records.cuts import SampledFrames, StoredFrames
from curator.stages.caption.caption_records import Task, Window
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.frame_store import ClipToCaption, FrameParts
from curator.storage import Store, open_store

CONFIG = CaptionConfig(captioner="openai", url="http://x", model="m")


def _written(store: Store, names: str) -> list[StoredFrames]:
    parts = FrameParts(store, CONFIG)
    return [where for name in names for where in parts.put([_clip(name)], [_sampled(name)])]


def _clip(name: str) -> ClipToCaption:
    return ClipToCaption(uri="a.tar", n_frames=2, wanted=(), clip_id=name, key=f"of {name}")


def _sampled(name: str) -> SampledFrames:
    return SampledFrames(n_frames=2, jpegs={0: name.encode(), 1: b"last"})


def _task(name: str, frame: int) -> Task:
    window = Window(index=frame, start_frame=frame, end_frame=frame + 1, shown=(frame,))
    return Task(clip_id=name, content=name, window=window, fps=30.0)


def test_clips_are_read_side_by_side_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a slow store does not make one clip wait for another."""
    store = open_store(str(tmp_path))
    written = _written(store, "abcd")
    parts = FrameParts(store, CONFIG)
    together, opened = threading.Barrier(len(written), timeout=20), []
    open_part = type(store).open

    def open_slowly(self: Any, name: str) -> Any:  # noqa: ANN401
        opened.append(name)
        together.wait()
        return open_part(self, name)

    monkeypatch.setattr(type(store), "open", open_slowly)
    asked = [(where, frame) for where in written for frame in (0, 1)]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(
            pool.map(lambda each: parts.frames(each[0], _task(each[0].clip_id, each[1])), asked)
        )
    assert [frames.jpegs for frames in found] == [
        (b"last",) if frame else (where.clip_id.encode(),) for where, frame in asked
    ]
    assert sorted(opened) == sorted(where.part for where in written)


def test_frames_are_stored_under_the_clip_that_was_asked_for_or_read_again(tmp_path: Path) -> None:
    """Pins also that a later run finds stored frames by their content."""
    store = open_store(str(tmp_path))
    written = _written(store, "abc")
    parts = FrameParts(store, CONFIG)
    places = {key: where.part for key, where in parts.stored().items()}
    assert places == {f"of {where.clip_id}": where.part for where in written}
    where, hidden = written[0], tmp_path / "hidden"
    (tmp_path / where.part).rename(hidden)
    with pytest.raises(StorageError):
        parts.frames(where, _task("a", 0))
    hidden.rename(tmp_path / where.part)
    assert parts.frames(where, _task("a", 0)).jpegs == (b"a",)
    # A compromised sandbox cannot name another clip.
    store = open_store(str(tmp_path))
    parts = pickle.loads(pickle.dumps(FrameParts(store, CONFIG)))
    results = [_sampled("another"), SampledFrames(error="no frames")]
    stored, failed = parts.put([_clip("asked"), _clip("broken")], results)
    assert stored.clip_id == "asked"
    assert (failed.clip_id, failed.error) == ("broken", "no frames")
