"""Slurm's files: what they start, and parts of manifests. They ran: results/cluster.md."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.cli import make_parser
from curator.errors import UsageError
from curator.storage.source_manifests import manifest_rows
from curator.tables.parts import leave_pandas_out

FOLDER = Path(__file__).parents[2] / "infra" / "slurm"
FILES = ("curate.sbatch", "array.sbatch")
N_PARTS = 4


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    leave_pandas_out()
    spec = importlib.util.spec_from_file_location("take_part", FOLDER / "take_part.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def taken(parts: ModuleType, manifest: Path) -> list[list[tuple[str, dict[str, object]]]]:
    """What `curate run` reads of each part."""
    found = []
    for index in range(N_PARTS):
        folder = manifest.parent / f"part{index}"
        folder.mkdir()
        path = parts.take_part(str(manifest), index, N_PARTS, folder)
        found.append([(r.uri, dict(r.metadata)) for r in manifest_rows(str(path))] if path else [])
    return found


def names() -> list[str]:
    return [f"film {n}.mp4" for n in range(20)] + ["s3://bucket/a,b.mp4", "film 3.mp4"]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".parquet"])
def test_parts_are_the_whole_list_with_its_metadata(
    parts: ModuleType, tmp_path: Path, suffix: str
) -> None:
    """Pins that a source which is named twice is in one part, so that it is curated once."""
    manifest = tmp_path / f"list{suffix}"
    if suffix == ".txt":
        manifest.write_text("# films\n\n" + "".join(f"{name}\n" for name in names()))
    elif suffix == ".csv":
        lines = (f'"{name}","week {n},\n{n}"\n' for n, name in enumerate(names()))
        manifest.write_text("uri,week\n" + "".join(lines))
    else:
        weeks = pa.array(range(len(names())))
        pq.write_table(pa.table({"week": weeks, "uri": [*names()]}), manifest)
    found = taken(parts, manifest)
    whole = [(r.uri, dict(r.metadata)) for r in manifest_rows(str(manifest))]
    assert sorted(map(str, whole)) == sorted(str(row) for rows in found for row in rows)
    uris = [{uri for uri, _ in rows} for rows in found]
    assert sum(map(len, uris)) == len(set(names()))
    assert sum(map(bool, uris)) > 1


def test_a_source_stays_in_its_part_when_the_list_grows(parts: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("/a.mp4\n/b.mp4\n")
    (tmp_path / "long.txt").write_text("/new.mp4\n/b.mp4\n/a.mp4\n")
    short = taken(parts, tmp_path / "short.txt")
    for index in range(N_PARTS):
        (tmp_path / f"part{index}").rename(tmp_path / f"before{index}")
    for before, after in zip(short, taken(parts, tmp_path / "long.txt"), strict=True):
        assert {uri for uri, _ in before} == {uri for uri, _ in after} - {"/new.mp4"}


def test_what_is_no_manifest_is_refused(parts: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected \.txt, \.csv or \.parquet"):
        parts.take_part("/films/film.mp4", 0, N_PARTS, tmp_path)
    (tmp_path / "list.csv").write_text("path\n/a.mp4\n")
    with pytest.raises(UsageError, match="has no column 'uri'"):
        parts.take_part(str(tmp_path / "list.csv"), 0, N_PARTS, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_bash_and_are_queued_again(name: str) -> None:
    text = (FOLDER / name).read_text()
    subprocess.run(["bash", "-n", FOLDER / name], check=True)
    for option in ("--requeue", "--signal=B:USR1@300", "--open-mode=append"):
        assert f"\n#SBATCH {option}\n" in text
    assert "ray stop" not in text
    assert "pkill" not in text
    (command,) = re.findall(r"^curate (run .*) &$", text, re.MULTILINE)
    arguments = "--limit 3" if name == "array.sbatch" else "s3://raw s3://out --limit 3"
    words = re.sub(r'"\$SLURM_\w+"', "1", command).replace('"$@"', arguments)
    make_parser().parse_args(words.replace('"', "").split())


def test_ports_of_jobs_are_pairs_below_those_that_systems_choose() -> None:
    text = (FOLDER / "curate.sbatch").read_text()
    (expression,) = re.findall(r"^port=(.*)$", text, re.MULTILINE)
    script = "for SLURM_JOB_ID in 1 2 8191 8192 4294901760; do echo " + expression + "; done"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    ports = [int(port) for port in ran.stdout.split()]
    assert ports == [16386, 16388, 32766, 16384, 16384]
