"""Groups whose spans have no common instant: they are refused, not cut as if they had one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from samples import made_track

from curator.errors import UsageError
from curator.recipe import load_recipe
from curator.records.sources import SourceRef
from curator.records.time_spans import TimeSpan, spans_as_json
from curator.runs.aligning import Aligning, CameraGroup, _groups
from curator.stages.cameras.config import CamerasConfig
from curator.stages.propose.config import ProposeConfig
from curator.storage.metadata_columns import GROUP

FIRST, SECOND = TimeSpan(0, 4), TimeSpan(4, 8)


class Tracks:
    """Tracks of two cameras with spans."""

    def read(self, stored: object) -> list[Any]:
        return [
            SimpleNamespace(
                source=SourceRef(
                    uri=f"/{name}.mp4", n_bytes=1, version="", source_id=name * 32, spans=(FIRST,)
                ),
                uri=f"/{name}.mp4",
                track=made_track(source_id=name * 32),
            )
            for name in "ab"
        ]


@pytest.mark.parametrize("clock", ["given", "content"])
def test_the_clock_of_spans_is_given_or_refused(clock: str) -> None:
    """Pins that content, which is asked for, is not replaced by the begins of spans."""
    spans = {"a" * 32: FIRST, "b" * 32: None}
    unit = CameraGroup(name="g", tracks=(), spans=spans)
    cameras = CamerasConfig.model_validate({"clock": clock})
    made = Aligning(cast(Any, Tracks()), ProposeConfig(max_s=60), cameras)(unit)
    assert bool(made.moments) == (clock == "given")
    refused = {name: why.partition(":")[0] for name, why in made.refused.items()}
    assert refused == ({} if clock == "given" else dict.fromkeys(spans, "spans"))


def test_two_spans_of_a_source_in_a_group_are_refused() -> None:
    """Pins the message, and that a group of one source may have several spans."""

    def groups(*names: str) -> dict[str, Any]:
        sources = [
            SourceRef(uri=f"/{name}.mp4", n_bytes=1, version="", source_id=name) for name in names
        ]
        described = spans_as_json({FIRST: {GROUP: "g"}, SECOND: {GROUP: "g"}})
        rows = [{"source_id": name, "spans": described, GROUP: "g"} for name in names]
        table = SimpleNamespace(
            select=lambda _: SimpleNamespace(to_pylist=lambda: rows),
        )
        metadata = SimpleNamespace(
            schema=lambda: SimpleNamespace(names=[GROUP]), joined=lambda *_: table
        )
        run = SimpleNamespace(metadata=metadata)
        return dict(_groups(cast(Any, run), sources, cast(Any, SimpleNamespace(by_content=list))))

    assert groups("a") == {}
    with pytest.raises(UsageError, match=r"/[ab]\.mp4: its spans from 0 s to 4 s and from 4 s"):
        groups("a", "b")


def test_the_clock_can_be_turned_off_as_help_and_messages_write_it() -> None:
    recipe = load_recipe("quickstart", overrides=["cameras.clock=off"])
    assert not recipe.cameras.enabled
