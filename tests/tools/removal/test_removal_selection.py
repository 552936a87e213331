"""What a removal selects: thumbnails that other footage has too stay, and objects of users."""

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
from curator.tools.commands.arguments import EXIT_OK

TITLE_FRAMES, FRAMES = 40, 60
LOSSLESS = {"qp": "0"}


class Titled(Place):
    """Films that begin with the same still title, and then differ."""

    settings = SHORT


@pytest.fixture
def titled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Titled:
    """The output of two such films."""
    work_here(monkeypatch)
    (tmp_path / "in").mkdir()
    for number in range(2):
        frames = list(moving_texture(FRAMES, seed=number, width_px=160, height_px=120))
        title = np.full_like(frames[0], 90)
        title[40:80, 20:140] = 200
        write_video(
            tmp_path / "in" / f"{number}.mp4", [title] * TITLE_FRAMES + frames, fps=Fraction(25),
            options=LOSSLESS,
        )  # fmt: skip
    place = Titled(tmp_path / "in", tmp_path / "out")
    place.run()
    return place


def clips_of(out: Path, number: int) -> dict[str, str | None]:
    """Reasons of the clips of a film: its title is rejected, because nothing moves."""
    return {clip["clip_id"]: clip["reason"] for clip in of_film(rows_of(out)[-1], number)}


def pictures_of(out: Path, number: int) -> set[bytes]:
    return {jpeg for jpegs in thumbnails(out, {*clips_of(out, number)}) for jpeg in jpegs}


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
