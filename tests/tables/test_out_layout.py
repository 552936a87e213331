"""What a run removes or writes over is its own: files of others under OUT stay, or it refuses."""

import os
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.storage import ObjectInfo, open_store
from curator.storage.local_store import LocalStore
from curator.tables import out_layout
from curator.tables.out_layout import is_own, listed
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

SETTINGS = ["--set", "shard.resolutions=[120]", "--set", "filters.short_side_px.min=100"]
FOREIGN = [
    "duplicate_pairs/a.parquet", "families/a", "annotations/labels.json",
    "candidates/pictures/me.png",
    "clip_embeddings/x.npy", "clips/foo.parquet", "clips/holiday.mp4", "clips/part-1.parquet",
    "cuts/final.mp4", "embeddings/e.npy", "frames/0001.png", "frames/deep/0002.png",
    "replies/letter.json", "report/notes.txt", "scan/page-1.pdf", "segments/1.mp4",
    "shards/mine/train.tar", "shards/mine/README.md", "shards/notes.txt",
    "shots/1.mov", "sources/film.mp4",
    "values/a.npy", "tracks/song.wav", "tracks/0123456789abcdef-x.parquet",
]  # fmt: skip
"""Where the commit removes objects; some are named nearly as it names its own."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources `in`, and the `out` of a finished run over them."""
    folder = tmp_path_factory.mktemp("owned")
    (folder / "in").mkdir()
    write_video(folder / "in/0.mp4", moving_texture(70, seed=1), fps=Fraction(25))
    assert main(["run", str(folder / "in"), str(folder / "out"), *SETTINGS]) == EXIT_OK
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "place")


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


class Bucket(LocalStore):
    """Objects as of a bucket; notes what is listed."""

    asked: ClassVar[list[str]] = []

    @property
    def is_local(self) -> bool:
        return False

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.asked.append(prefix)
        return LocalStore.list(self, prefix)


def test_a_small_bucket_is_listed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "scan/a", "scan/b/c", "clips-old/x", "summary.json", "shards/d")
    store = Bucket(str(tmp_path))
    found = {"clips": [], "scan": ["scan/a", "scan/b/c"], "shards": ["shards/d"]}
    assert listed(store, ["clips", "scan", "shards"]) == found
    assert Bucket.asked == [""]
    monkeypatch.setattr(out_layout, "_FEW_OBJECTS", 4)
    Bucket.asked.clear()
    assert listed(store, ["clips", "scan", "shards"]) == found
    assert sorted(Bucket.asked) == ["", "clips/", "scan/", "shards/"]


def test_all_that_a_run_writes_is_known_as_its_own(place: Path) -> None:
    """Pins that what `is_own` knows is complete: what it did not know would never be removed."""
    written = files(place / "out")
    assert {name.split("/")[0] for name in written} > {"scan", "tracks", "clips", "shards"}
    assert [name for name in written if not is_own(name)] == []


def test_a_commit_removes_its_own_leftovers_and_nothing_else(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = place / "out"
    before = files(out)
    foreign = [*FOREIGN, ".tmp-mine/film.mp4", "raw/.tmp-0123456789abcdef", "clips/.tmp-x"]
    unfinished = (".tmp-0123456789abcdef", "clips/.tmp-0123456789abcdef")
    old = {"clips/part-00000-0123456789ab.parquet", f"shards/a/{unfinished[0]}", *unfinished}
    put(out, *foreign, *old, "cuts/0123456789abcdef-0123456789abcdef.parquet")
    for name in (*foreign, *old):
        os.utime(out / name, (1, 1))
    changed = [*SETTINGS, "--set", "shard.min_bytes=1", "--set", "filters.motion.min=3.9"]
    assert main(["run", str(place / "in"), str(out), *changed]) == EXIT_OK
    now = files(out)
    assert {*foreign, *old} & now == set(foreign)
    assert [(out / name).read_bytes().decode() for name in foreign] == foreign
    tars = {name for name in before if name.endswith(".tar")}
    assert tars <= now, "the first snapshot names them"
    assert main(["clean", str(out)]) == EXIT_OK
    now = files(out)
    assert set(foreign) <= now
    assert not tars & now
    assert {name for name in now if not is_own(name)} == set(foreign)
    assert "are not of curate and stay" in caplog.text


@pytest.mark.parametrize("form", ["energon", "wids"])
def test_lost_dataset_cards_come_back_as_they_were(place: Path, form: str) -> None:
    """Pins that cards made from tars alone are those of the run, by which its manifest holds."""
    shards = place / "out/shards"
    cards = {path: path.read_bytes() for path in shards.rglob("README.md")}
    assert len(cards) == 2
    for path in cards:
        path.unlink()
    assert main(["export", str(place / "out"), str(place / "out"), "--format", form]) == EXIT_OK
    assert {path: path.read_bytes() for path in shards.rglob("README.md")} == cards


def code(*arguments: object) -> int:
    return main(["run", "--recipe", "quickstart", *map(str, arguments), *SETTINGS])


@pytest.mark.parametrize("name", ["clips/holiday.mp4", "shards/README.md", "report/index.html"])
def test_a_first_run_begins_nothing_among_the_files_of_others(
    place: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = place / "mine"
    put(out, name, "raw/film.mp4", "clips/.DS_Store")
    assert code(place / "in", out) == EXIT_USAGE
    error = capsys.readouterr().err
    assert f"have 1 object that curate did not write, such as {name!r}" in (error)
    assert "choose another OUT, or move these objects elsewhere" in error
    assert files(out) == {name, "raw/film.mp4", "clips/.DS_Store"}
    (out / name).unlink()
    assert code(place / "in", out, "--dry-run") == EXIT_OK


@pytest.mark.parametrize("name", ["summary.json", "config.json"])
@pytest.mark.parametrize("text", ['{"mine": 1}', "mine", "[1]"])
def test_a_summary_of_another_program_is_not_written_over(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    out = place / "mine"
    out.mkdir()
    (out / name).write_text(text)
    assert code(place / "in", out) == EXIT_USAGE
    assert f"has a {name} that curate did not write" in capsys.readouterr().err
    assert files(out) == {name}


def test_a_killed_first_run_goes_on(place: Path) -> None:
    out = place / "out"
    for name in ("summary.json", "config.json", "shards/manifest.json"):
        (out / name).unlink()
    assert code(place / "in", out) == EXIT_OK


@pytest.fixture
def original(place: Path) -> Path:
    """A film that lies among the clips of a finished run, and ways that lead to it."""
    film = place / "out/clips/film.mp4"
    shutil.copy(place / "in/0.mp4", film)
    (place / "links").mkdir()
    (place / "links/a.mp4").symlink_to(film)
    (place / "folders").mkdir()
    (place / "folders/a").symlink_to(film.parent)
    (place / "list.txt").write_text(f"in/0.mp4\n{film}\n")
    (place / "list.csv").write_text("uri\nlinks/a.mp4\n")
    return film


@pytest.mark.parametrize(
    "source",
    [".", "*/clips/*.mp4", "**/*.mp4", "out/clips", "out/clips/film.mp4", "list.txt", "list.csv",
     "links", "links/a.mp4", "folders", "folders/*/*.mp4"],
)  # fmt: skip
def test_an_original_among_the_results_is_refused_by_name_on_whatever_way(
    place: Path, original: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    before = files(place)
    assert code(place / "in", place / source, place / "out") == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "is in 'clips' of OUT" in error
    assert "choose another OUT, or move the source" in error
    named = error.split("'")[1]
    assert (place / source == Path(named)) or Path(named).resolve() == original
    assert files(place) == before


def test_an_original_that_is_no_source_stays_and_other_sources_are_taken(
    place: Path, original: Path
) -> None:
    assert code(place / "in", place / "out") == EXIT_OK
    assert original.read_bytes() == (place / "in/0.mp4").read_bytes()


def test_on_s3_originals_among_the_results_are_refused_and_stay(
    place: Path, s3_bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"s3://{s3_bucket}/a"
    store = open_store(f"{root}/out")
    film = (place / "in/0.mp4").read_bytes()
    open_store(root).write("in/0.mp4", film)
    for name in ("clips/film.mp4", "frames/1.png"):
        store.write(name, film)
    assert code(f"{root}/in", store.uri) == EXIT_USAGE
    assert "such as 'clips/film.mp4'" in capsys.readouterr().err
    store.delete(["clips/film.mp4", "frames/1.png"])
    for key in files(place / "out"):
        store.write(key, (place / "out" / key).read_bytes())
    for name in ("clips/film.mp4", "frames/1.png"):
        store.write(name, film)
    (place / "list.txt").write_text(f"{store.uri}/clips/film.mp4\n")
    for source in (root, f"{root}/**/*.mp4", f"s3://{s3_bucket}/a*", place / "list.txt"):
        assert code(source, store.uri) == EXIT_USAGE
        error = capsys.readouterr().err
        assert f"the source '{store.uri}/clips/film.mp4' is in 'clips' of OUT" in error
    assert code(f"{root}/in", store.uri, "--set", "filters.motion.min=3.9") == EXIT_OK
    assert {info.key for info in store.list() if info.bytes == len(film)} == {
        "clips/film.mp4", "frames/1.png",
    }  # fmt: skip
