"""What the program does with an output of format 1: never misread, in part used again, or refused.

Format 1 is what commit e0fe287 wrote: a summary without a number, `loudness_db` where there is
`audio_rms_db` now, tracks in one object each, and other fingerprints.
"""

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture
from made_samples import FPS
from place import QVGA, Place
from small_output import SmallOutput

from curator.cli import main
from curator.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.loading import ClipDataset
from curator.removal.removal_selection import select
from curator.storage import open_store
from curator.tables.output_format import FORMAT, read_summary

OLD_STAMP = "0123456789abcdef"
REMEDY = f"in output format 1; expected {FORMAT}: `curate run SOURCE... OUT` updates this"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    frames = moving_texture(90, seed=1, **QVGA)
    write_video(folder / "film.mp4", frames, fps=Fraction(30), audio_tone_s=3.0)
    return folder


class Audible(Place):
    """A film with sound."""

    settings = ("filters.short_side_px.min=60", "propose.min_s=1.0", "shard.resolutions=[64, 120]")


def run(sources: Path, out: Path) -> dict[str, Any]:
    return Audible(sources, out).run()


@pytest.fixture(scope="module")
def fresh(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fresh") / "out"
    assert run(sources, out)["format"] == FORMAT
    return out


@pytest.fixture
def old(fresh: Path, tmp_path: Path) -> Path:
    """The fresh output in the layout of format 1."""
    out = tmp_path / "out"
    shutil.copytree(fresh, out)
    summary = json.loads((out / "summary.json").read_text())
    for field in ("format", "checksum", "snapshot", "made", "earlier", "indexes", "head",
                  "objects", "previous", "object"):  # fmt: skip
        del summary[field]
    del summary["candidates"]
    shutil.rmtree(out / "snapshots")
    summary["fingerprints"] = dict.fromkeys(("scan", "tracks", "candidates", "cuts"), OLD_STAMP)
    (part,) = summary["tables"]["clips"]
    summary["tables"]["clips"] = ["clips/part-00000-0123456789ab.parquet"]
    (out / part).rename(out / summary["tables"]["clips"][0])
    (out / "summary.json").write_text(json.dumps(summary))
    (frames,) = out.glob("tracks/frames/*")
    frames.rename(out / "tracks" / frames.name)
    for family in filter(Path.is_dir, [*out.glob("tracks/*")]):
        shutil.rmtree(family)
    for path in [*out.glob("clips/*"), *out.glob("candidates/clips/*"), *out.glob("tracks/*")]:
        table = pq.read_table(path)
        names = [name.replace("audio_rms", "loudness") for name in table.column_names]
        pq.write_table(table.rename_columns(names), path)
    for path in [*out.glob("scan/*"), *out.glob("tracks/*"), *out.glob("candidates/*/*")]:
        path.rename(path.with_name(f"{OLD_STAMP}-{path.name.partition('-')[2]}"))
    return out


def clips_of(out: Path) -> str:
    """Rows as text, in which a score that is no number equals itself."""
    return str(pq.read_table(out / "clips").to_pylist())


@pytest.mark.parametrize("command", ["explain", "tune", "recaption"])
def test_commands_that_read_tables_refuse_it(
    old: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins version found, version expected and the remedy."""
    more = {"explain": ["00"], "tune": ["motion.min=0.1"], "recaption": []}[command]
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert main([command, str(old), *more]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert f"{old} was made by curate 0.1.0 {REMEDY}" in said
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_its_shards_are_verified_exported_and_loaded(old: Path, tmp_path: Path) -> None:
    """Pins that what reads shards needs no table of the run."""
    assert main(["verify", str(old)]) == EXIT_OK
    assert main(["export", "--format", "cosmos", str(old), str(tmp_path / "made")]) == EXIT_OK
    assert len(list((tmp_path / "made").rglob("*.mp4"))) == 1
    (tar,) = (old / "shards").rglob("*.tar")
    loaded = ClipDataset(str(old), split=tar.name.partition("-")[0], batch_size=None, frames=17)
    assert len(list(loaded)) == 1


def test_a_run_analyzes_again_and_says_so(
    sources: Path, fresh: Path, old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins one line of the log, and results equal to those of a run into an empty output."""
    summary = run(sources, old)
    (said,) = (r.getMessage() for r in caplog.records if "output format" in r.getMessage())
    assert f"{old} was made by curate 0.1.0 in output format 1; this version writes" in said
    assert (summary["format"], summary["work"]["sources_analyzed"]) == (FORMAT, 1)
    assert clips_of(old) == clips_of(fresh)
    names = [{str(p.relative_to(out)) for p in out.rglob("*")} for out in (fresh, old)]
    assert names[0] == names[1]
    assert run(sources, old)["work"]["sources_analyzed"] == 0


def test_parts_of_an_unfinished_older_run_are_not_read(
    sources: Path, fresh: Path, old: Path
) -> None:
    """Pins that without a summary, the fingerprints alone keep old parts out."""
    (old / "summary.json").unlink()
    assert run(sources, old)["work"]["sources_analyzed"] == 1
    assert clips_of(old) == clips_of(fresh)


def test_a_newer_output_is_refused(
    sources: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that no command replaces or reads what a newer version wrote."""
    summary = json.loads((old / "summary.json").read_text()) | {"format": FORMAT + 1}
    (old / "summary.json").write_text(json.dumps(summary))
    for arguments in (["run", str(sources), str(old)], ["explain", str(old), "00"]):
        assert main(arguments) == EXIT_USAGE
        said = capsys.readouterr().err
        assert f"in output format {FORMAT + 1}; this version reads up to {FORMAT}" in said


def test_a_condition_on_fps_means_the_score_in_tables_of_every_format(tmp_path: Path) -> None:
    """Pins `fps` in tables of format 2, which called the score `measured_fps`."""
    SmallOutput(tmp_path, {1}).run([1])
    store = open_store(str(tmp_path))
    summaries = {1: read_summary(store)}
    (part,) = summaries[1]["tables"]["clips"]
    table = pq.read_table(tmp_path / part).replace_schema_metadata()
    names = {"fps": "measured_fps", "written_fps": "fps"}
    pq.write_table(table.rename_columns(names), tmp_path / part)
    assert set(table["fps"].to_pylist()) == {1.0}
    assert set(table["written_fps"].to_pylist()) == {float(FPS)}
    assert select(store, summaries, "where", ["fps = 1"]).record["n_clips"] == table.num_rows
