"""What a removal selects: thumbnails that other footage has too stay, and objects of users."""

import hashlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from place import SHORT, Place
from test_removing import check_all, of_film, remove, rows_of, search, thumbnails

from curator.cli import main
from curator.storage import open_store
from curator.tables.removal_records import read_removals
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK
from curator.tools.removal import removal_selection

TITLE_FRAMES, FRAMES = 40, 60
LOSSLESS = {"qp": "0"}


class Titled(Place):
    """Films that begin with the same still title, and then differ."""

    settings = SHORT

    def write(self, number: int) -> None:
        """Writes a film."""
        self.sources.mkdir(exist_ok=True)
        frames = list(moving_texture(FRAMES, seed=number, width_px=160, height_px=120))
        title = np.full_like(frames[0], 90)
        title[40:80, 20:140] = 200
        write_video(
            self.sources / f"{number}.mp4", [title] * TITLE_FRAMES + frames, fps=Fraction(25),
            options=LOSSLESS,
        )  # fmt: skip


@pytest.fixture
def titled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Titled:
    """The output of two such films."""
    work_here(monkeypatch)
    place = Titled(tmp_path / "in", tmp_path / "out")
    for number in range(2):
        place.write(number)
    place.run()
    return place


def clips_of(out: Path, number: int) -> dict[str, str | None]:
    """Reasons of the clips of a film: its title is rejected, because nothing moves."""
    return {clip["clip_id"]: clip["reason"] for clip in of_film(rows_of(out)[-1], number)}


def pictures_of(out: Path, number: int) -> set[bytes]:
    return {jpeg for jpegs in thumbnails(out, {*clips_of(out, number)}) for jpeg in jpegs}


@pytest.mark.long
def test_thumbnails_that_other_footage_has_too_stay_until_it_goes(titled: Titled) -> None:
    """Pins that neither `verify` nor `--finish` takes footage that stays for removed footage."""
    out = titled.out
    stays, both = clips_of(out, 1), (pictures_of(out, 0), pictures_of(out, 1))
    assert {*stays.values()} == {None, "motion_too_low"}
    shared, alone = both[0] & both[1], both[0] - both[1]
    assert shared
    assert alone
    assert remove(out, "sources", str(titled.sources / "0.mp4")) == EXIT_OK
    for _ in range(2):
        assert search(out, list(alone)) == []
        assert pictures_of(out, 1) == both[1]
        assert clips_of(out, 1) == stays
        check_all(out)
        assert main(["remove", str(out), "--finish"]) == EXIT_OK
    tracks = (out / "tracks" / "pictures").glob("*.parquet")
    stored = {
        jpeg for path in tracks for row in pq.read_table(path)["thumbnails"] for jpeg in row.as_py()
    }
    assert stored >= both[1]
    assert remove(out, "sources", str(titled.sources / "1.mp4")) == EXIT_OK
    assert search(out, [*both[0], *both[1]]) == []
    check_all(out)


@pytest.mark.long
@pytest.mark.parametrize("is_old", [False, True])
def test_a_record_that_names_a_shared_thumbnail_takes_nothing_from_other_footage(
    titled: Titled, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """Pins records of versions that did not compare, and footage that came after a removal."""
    out, films = titled.out, titled.sources
    both = pictures_of(out, 0), pictures_of(out, 1)
    if is_old:
        # Film 1 stays, and the record names its title.
        monkeypatch.setattr(removal_selection, "pictures_that_stay", lambda *_: iter(()))
    else:
        # No other footage has the title now.
        assert remove(out, "sources", str(films / "1.mp4")) == EXIT_OK
        (films / "1.mp4").unlink()
    assert remove(out, "sources", str(films / "0.mp4")) == EXIT_OK
    (films / "0.mp4").unlink()
    removals = read_removals(open_store(str(out)))
    (title,) = both[0] & both[1]
    assert hashlib.sha256(title).hexdigest() in removals.pictures
    titled.write(2)
    titled.run()
    assert {title} == pictures_of(out, 2) & both[0]
    stay = [number for number in (1, 2) if (films / f"{number}.mp4").exists()]
    clips = {number: clips_of(out, number) for number in stay}
    pictures = {number: pictures_of(out, number) for number in stay}
    for _ in range(2):
        check_all(out)
        assert main(["remove", str(out), "--finish"]) == EXIT_OK
        assert {number: clips_of(out, number) for number in stay} == clips
        assert {number: pictures_of(out, number) for number in stay} == pictures
    assert search(out, list(both[0] - both[1])) == []
    (out / "mine.jpg").write_bytes(next(iter(both[0] - both[1])))
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED


@pytest.mark.long
def test_a_film_of_removed_stills_alone_gets_no_thumbnails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that nothing shows it again, although no frame hash tells it."""
    work_here(monkeypatch)
    place = Titled(tmp_path / "in", tmp_path / "out")
    place.sources.mkdir()
    title = np.full((120, 160, 3), 90, np.uint8)
    title[40:80, 20:140] = 200
    for number, n_frames in ((0, 50), (1, 60)):
        write_video(
            place.sources / f"{number}.mp4", [title] * n_frames, fps=Fraction(25), options=LOSSLESS
        )
        if not number:
            place.run()
            shown = pictures_of(place.out, 0)
            assert shown
            assert remove(place.out, "sources", str(place.sources / "0.mp4")) == EXIT_OK
            (place.sources / "0.mp4").unlink()
    place.run()
    assert clips_of(place.out, 1)
    assert search(place.out, list(shown)) == []
    check_all(place.out)


@pytest.mark.long
def test_a_removal_without_a_snapshot_keeps_what_users_put_beside_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    (tmp_path / "in").mkdir()
    for number in range(2):
        frames = moving_texture(FRAMES, seed=number, width_px=160, height_px=120)
        write_video(tmp_path / "in" / f"{number}.mp4", frames, fps=Fraction(25))
    place = Place(tmp_path / "in", tmp_path / "out")
    place.break_off(monkeypatch, *SHORT)
    report = place.out / "report"
    own = ("index.html", "tune.html", f"previews/{'0' * 24}.mp4")
    others = ("notes.txt", "logo.png", "previews/mine.mp4", "index.html.bak")
    for name in (*own, *others):
        (report / name).parent.mkdir(parents=True, exist_ok=True)
        (report / name).write_bytes(b"x")
    assert remove(place.out, "sources", str(place.sources / "0.mp4")) == EXIT_OK
    left = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert left == set(others)
