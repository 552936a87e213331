"""Captioners over footage with text, a logo, an inset and a border: no clip is lost."""

from dataclasses import replace
from pathlib import Path

import pytest
from captioned import SETTINGS, Captioned, marks_in, work_here
from films import SAID, write_film
from served import FakeServer

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK


class Overlaid(Captioned):
    """A run that looks for text in its sources, with measured captions, and then others."""

    @property
    def settings(self) -> tuple[str, ...]:
        return (*SETTINGS, "analyze.text=true")

    @property
    def asked(self) -> tuple[str, ...]:
        """Settings of a captioner on the fake server."""
        url = f"http://127.0.0.1:{self.server.port}/v1"
        return ("caption.captioner=openai", "caption.model=tiny-vlm", f"caption.url={url}",
                "caption.frames=2", "caption.frame_px=96")  # fmt: skip


@pytest.fixture(scope="module")
def measured(running_server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Overlaid:
    """A finished run with measured captions; not to be changed."""
    folder = tmp_path_factory.mktemp("overlaid")
    (folder / "in").mkdir()
    write_film(folder / "in" / "1.mp4", 1, 60, "overlaid")
    done = Overlaid(folder / "in", folder / "out", running_server)
    done.run()
    return done


@pytest.fixture
def overlaid(
    measured: Overlaid, fake_server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Overlaid:
    """The finished run in another place, whose further work is done in this process."""
    work_here(monkeypatch)
    fake_server.start(captions=True)
    return replace(measured.copy(tmp_path), server=fake_server)


def kept(place: Captioned) -> list[str]:
    """Ids of the clips that are kept, of which there must be some; none failed to be written."""
    counts = place.summary()["counts"]
    assert "cut_failed" not in counts["by_reason"]
    assert counts["kept"] > 0
    return [clip["clip_id"] for clip in place.clips()]


@pytest.mark.long
def test_measured_captions_need_no_frames(measured: Overlaid) -> None:
    """Pins what the footage has, without which the other tests would prove nothing."""
    kept(measured)
    for clip in measured.clips():
        assert clip["overlay_text_area"] > 0
        assert clip["crop_height"] == 272
        assert clip["caption"]
    assert main(["verify", str(measured.out)]) == EXIT_OK


@pytest.mark.long
@pytest.mark.parametrize("way", ["cut", "look", "recaption"])
def test_a_server_is_told_the_text_of_each_clip(
    overlaid: Overlaid, measured: Overlaid, way: str
) -> None:
    """Pins the three ways in which frames of a clip come out of a sandbox."""
    if way == "recaption":
        overlaid.recaption(*overlaid.asked)
    else:
        overlaid.forget("shards")
        overlaid.run(*overlaid.asked, f"caption.failed={'reject' if way == 'look' else 'keep'}")
    assert kept(overlaid) == kept(measured)
    rows = [row for rows in overlaid.annotations().values() for row in rows]
    for row in rows:
        assert row["failure"] is None
        assert SAID in row["facts"]
        assert [film for film, _ in marks_in(row["medium"])] == [1, 1]
    for clip in overlaid.clips():
        assert overlaid.sample(clip, "txt").decode() == clip["caption"]
    # The earlier snapshot names tars that were taken away.
    assert main(["clean", str(overlaid.out), "--keep", "1"]) == EXIT_OK
    assert main(["verify", str(overlaid.out)]) == EXIT_OK
