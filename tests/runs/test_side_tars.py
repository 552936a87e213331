"""Values in tars of their own: what a run writes, and what all readers find.

Films show the number of each frame, and the values are the numbers that the annotator saw.
"""

import importlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset as wds
import yaml
from captioned import work_here
from film_makers import write_video
from numbered_films import numbered
from place import Place

from curator.cli import main
from curator.errors import ShardError, UsageError
from curator.loading import ClipDataset, shard_reader
from curator.storage.local_store import LocalStore
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.report.funnel import format_funnel

OWN = '''"""Annotators whose values are beside the samples."""

import numpy as np
from numbered_films import number_of

from curator.family import FRAMES, Array, Columns, Family, Scope
from curator.stage import Annotator, FrameRequest, StageConfig


class Config(StageConfig):
    offset: int = 0


class Numbers(Annotator[Config]):
    """The number of each frame; none for the shortest clips."""

    name, version, config_type = "numbers", 1, Config
    frames = (FrameRequest(),)
    families = (
        Family("numbers", Scope.CLIP, Array("i32", (FRAMES,)), member="numbers.npy", place="side"),
    )

    def key(self, facts, mp4_sha256):
        return super().key(facts, mp4_sha256) if facts.n_frames > 8 else None

    def process(self, unit):
        return [
            np.array([number_of(f) + self.config.offset for f in clip.frames], np.int32)
            for clip in unit
        ]


class Lengths(Annotator[StageConfig]):
    """A long vector that clips of one length share."""

    name, version, frames, columns = "lengths", 1, (), ("n_frames",)
    families = (
        Family(
            "lengths", Scope.CLIP, Array("f32", (5000,)), member="lengths.npy", place="shared"
        ),
    )

    def key(self, facts, mp4_sha256):
        return str(facts.n_frames)

    def process(self, unit):
        return [np.full(5000, clip.facts.n_frames, np.float32) for clip in unit]
'''
RECIPE = {
    "propose": {"min_s": 0.2, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip
NUMBERS = "{use: own_sides:Numbers, config: {offset: %d}}"
LENGTHS = "{use: own_sides:Lengths}"
FRAMES = {"a": 12, "b": 12, "c": 20, "d": 8}


@dataclass(frozen=True)
class Sides(Place):
    """Four films of a clip each."""

    settings = ()
    recipe: str = ""

    def stages(self, *stages: str) -> str:
        return f"stages=[{','.join(stages)}]"

    @property
    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.out / "shards/manifest.json").read_text())
        return manifest

    def sides(self) -> dict[str, Path]:
        """The tars beside the samples, by member."""
        (entry,) = self.manifest["shards"]
        return {m: self.out / "shards" / e["name"] for m, e in entry.get("sides", {}).items()}

    def main_tars(self) -> dict[str, str]:
        return {name: digest for name, digest in self.tars().items() if "/side/" not in name}

    def values(self, out: str | list[str] | None = None, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        dataset = ClipDataset(
            out or str(self.out), members=["numbers", "lengths"], video=False,
            whole_clip_values=True, batch_size=1, **options,
        )  # fmt: skip
        return {
            batch["key"][0]: (
                batch["json"][0]["n_frames"],
                batch["numbers"][0],
                batch["lengths"][0],
            )
            for batch in dataset
        }

    def check(self, offset: int = 0, n_clips: int = 4, out: str | None = None) -> None:
        """Compares what the loader gives with what the films show."""
        values = self.values(out)
        assert len(values) == n_clips
        for n_frames, numbers, lengths in values.values():
            if n_frames == FRAMES["d"]:
                assert numbers is None
            else:
                assert numbers.tolist() == [n + offset for n in range(n_frames)]
            assert set(lengths.tolist()) == {n_frames}


def members(tar: Path) -> list[str]:
    with tarfile.open(tar) as opened:
        return opened.getnames()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_sides.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[1]}")
        work_here(patch)
        yield folder


@pytest.fixture(scope="module")
def plain(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """A run without annotators; not to be changed."""
    folder = tmp_path_factory.mktemp("sides")
    (folder / "in").mkdir()
    for number, (name, n_frames) in enumerate(FRAMES.items()):
        frames = (frame[:, : 160 - 16 * number] for frame in numbered(n_frames))
        write_video(folder / "in" / f"{name}.mp4", frames, fps=Fraction(25))
    place = Sides(folder / "in", folder / "out", recipe=str(own / "recipe.yaml"))
    assert place.run()["counts"]["kept"] == 4
    return place


@pytest.fixture(scope="module")
def finished(plain: Sides, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """The same, with values in tars of their own; not to be changed."""
    place = plain.copy(tmp_path_factory.mktemp("finished"))
    place.run(place.stages(NUMBERS % 0, LENGTHS))
    return place


@pytest.fixture
def place(finished: Sides, tmp_path: Path) -> Sides:
    return finished.copy(tmp_path)


def test_new_families_write_no_tar_of_samples_again(plain: Sides, finished: Sides) -> None:
    lines = format_funnel(finished.summary()).splitlines()
    assert any(re.fullmatch(r"  numbers.npy +1  .* kB in tars of their own", n) for n in lines)
    assert finished.main_tars() == plain.main_tars()
    sides = finished.sides()
    assert set(sides) == {"numbers.npy", "lengths.npy"}
    (tar,) = (finished.out / name for name in finished.main_tars())
    keys = [name.partition(".")[0] for name in members(tar) if name.endswith(".mp4")]
    short = {row["clip_id"] for row in finished.clips() if row["n_frames"] == FRAMES["d"]}
    assert members(sides["numbers.npy"]) == [f"{k}.numbers.npy" for k in keys if k not in short]
    assert len(members(sides["lengths.npy"])) == 3, "two clips of 12 frames share a value"
    assert sides["lengths.npy"].stat().st_size < 3 * 5000 * 4 + 8192
    finished.check()
    for row in finished.table("members"):
        assert row["mp4_distance"] is None
    assert main(["verify", str(finished.out), "--json"]) == EXIT_OK


def test_other_values_of_a_family_write_its_tars_alone(place: Sides) -> None:
    before, sides = place.main_tars(), place.sides()
    again = place.run(place.stages(NUMBERS % 0, LENGTHS))
    assert not any(again["work"].get(f"{name}_made") for name in ("numbers", "lengths"))
    assert place.sides() == sides
    other = place.run(place.stages(NUMBERS % 100, LENGTHS))
    assert (other["work"]["numbers_made"], other["work"].get("lengths_made", 0)) == (3, 0)
    assert other["work"]["clips_cut"] == 0
    assert place.main_tars() == before
    assert place.sides()["lengths.npy"] == sides["lengths.npy"]
    assert place.sides()["numbers.npy"] != sides["numbers.npy"]
    place.check(100)
    # The older snapshot still has its values, until it goes.
    assert {v[1][0].item() for v in place.values(snapshot=2).values() if v[1] is not None} == {0}
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK
    assert main(["clean", str(place.out)]) == EXIT_OK
    assert not sides["numbers.npy"].exists()
    place.check(100)
    without = place.run(place.stages(LENGTHS))
    assert without["work"].get("lengths_made", 0) == 0
    assert set(place.sides()) == {"lengths.npy"}
    assert not [*(place.out / "shards/side/numbers/.nv-meta").glob("*")]
    assert place.main_tars() == before
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


RANDOM = '''"""An annotator whose values have another size each time."""

import os

from curator.family import Bytes, Family, Scope
from curator.stage import Annotator, StageConfig


class Noise(Annotator[StageConfig]):
    """Random bytes."""

    name, version, frames, columns = "noise", 1, (), ()
    content = Bytes("application/octet-stream")
    families = (Family("noise", Scope.CLIP, content, member="noise.bin", place="PLACE"),)

    def process(self, unit):
        return [os.urandom(600 + int.from_bytes(os.urandom(2))) for _ in unit]
'''


@pytest.mark.parametrize("where", ["side", "shared", "sample"])
def test_values_of_another_size_change_no_tar_of_an_older_snapshot(
    plain: Sides, own: Path, tmp_path: Path, where: str
) -> None:
    (own / f"own_noise_{where}.py").write_text(RANDOM.replace("PLACE", where))
    place = plain.copy(tmp_path)
    noise = place.stages(f"{{use: own_noise_{where}:Noise}}")

    def values(snapshot: int) -> dict[str, bytes]:
        options = {"members": ["noise"], "video": False, "batch_size": 1, "snapshot": snapshot}
        dataset = ClipDataset(str(place.out), **options)
        return {batch["key"][0]: batch["noise"][0] for batch in dataset}

    place.run(noise)
    first = values(2)
    place.run(place.stages())
    assert place.run(noise)["work"]["noise_made"] == 4
    assert values(2) == first
    assert values(4) != first
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


def test_values_move_between_the_samples_and_tars_of_their_own(place: Sides, own: Path) -> None:
    """Pins that the place of values is no reason to compute them again."""
    (own / "own_moved.py").write_text(OWN.replace('place="side"', 'place="sample"'))
    summary = place.run(f"stages=[{(NUMBERS % 0).replace('own_sides', 'own_moved')},{LENGTHS}]")
    assert not summary["work"].get("numbers_made")
    assert set(place.sides()) == {"lengths.npy"}
    place.check()
    summary = place.run(place.stages(NUMBERS % 0, LENGTHS))
    assert not summary["work"].get("numbers_made")
    assert set(place.sides()) == {"numbers.npy", "lengths.npy"}
    place.check()


@pytest.mark.long
def test_outputs_with_values_at_other_places_are_one_dataset(
    finished: Sides, own: Path, tmp_path: Path
) -> None:
    """Pins that the place is no difference between values."""
    sources = tmp_path / "in"
    sources.mkdir()
    write_video(sources / "f.mp4", numbered(26), fps=Fraction(25))
    other = Sides(sources, tmp_path / "out", recipe=finished.recipe)
    (own / "own_inside.py").write_text(re.sub('place="(side|shared)"', 'place="sample"', OWN))
    other.run(other.stages(NUMBERS % 0, LENGTHS).replace("own_sides", "own_inside"))
    assert not other.sides()
    for outs in ([finished.out, other.out], [other.out, finished.out]):
        values = finished.values([str(out) for out in outs]).values()
        assert sorted(v[0] for v in values) == [8, 12, 12, 20, 26]
        assert all(v[1] is None or v[1].tolist() == [*range(v[0])] for v in values)
        assert all(set(v[2].tolist()) == {v[0]} for v in values)


def test_lost_tars_beside_the_samples_are_found_and_made_again(place: Sides) -> None:
    before = place.files()
    sides = place.sides()
    (tar, index) = sides["numbers.npy"], sides["lengths.npy"].with_suffix(".tar.idx")
    tar.unlink()
    index.unlink()
    assert main(["verify", str(place.out), "--json"]) != EXIT_OK
    summary = place.run(place.stages(NUMBERS % 0, LENGTHS))
    assert summary["work"]["numbers_made"] == 3
    assert place.files() == before
    data = tar.read_bytes()
    tar.write_bytes(data[:700] + bytes([data[700] ^ 1]) + data[701:])
    assert main(["verify", str(place.out), "--json"]) != EXIT_OK
    place.run(place.stages(NUMBERS % 0, LENGTHS))
    assert place.files() == before


@pytest.mark.long
def test_a_removal_takes_values_out_of_all_tars(place: Sides, tmp_path: Path) -> None:
    place.run(place.stages(NUMBERS % 100, LENGTHS))
    gone = min(row["clip_id"] for row in place.clips() if row["n_frames"] == FRAMES["a"])
    (tmp_path / "gone.txt").write_text(gone)
    assert main(["remove", str(place.out), "--clips", str(tmp_path / "gone.txt")]) == EXIT_OK
    assert main(["verify", str(place.out), "--removed"]) == EXIT_OK
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK
    assert not [t for t in place.out.rglob("*.tar") if any(gone in name for name in members(t))]
    place.check(100, 3)
    older = place.values(snapshot=2)
    assert len(older) == 3
    assert {v[1][0].item() for v in older.values() if v[1] is not None} == {0}
    summary = place.run(place.stages(NUMBERS % 100, LENGTHS))
    assert not any(summary["work"].get(f"{name}_made") for name in ("numbers", "lengths"))
    place.check(100, 3)


def test_the_folder_of_shards_can_be_copied_alone(place: Sides, tmp_path: Path) -> None:
    copy = shutil.copytree(place.out / "shards", tmp_path / "copied")
    place.check(out=str(copy))
    assert main(["verify", str(copy), "--json"]) == EXIT_OK
    (copy / "manifest.json").unlink()
    with pytest.raises(UsageError, match="1 tar "):
        ClipDataset(str(copy))
    assert len(list(ClipDataset(str(copy), allow_incomplete=True, video=False, batch_size=1))) == 4


def test_readers_of_tars_join_by_key(finished: Sides) -> None:
    """Pins order and keys: two streams that are read together need no index."""
    (tar,) = (finished.out / name for name in finished.main_tars())
    side_members = iter(
        wds.WebDataset(str(finished.sides()["numbers.npy"]), shardshuffle=False).decode()
    )
    other, n_joined = next(side_members), 0
    for sample in wds.WebDataset(str(tar), shardshuffle=False).decode():
        if other is not None and sample["__key__"] == other["__key__"]:
            assert other["numbers.npy"].tolist() == list(range(sample["json"]["n_frames"]))
            other, n_joined = next(side_members, None), n_joined + 1
    assert (other, n_joined) == (None, 3)


def test_an_export_of_rows_says_in_which_tar_a_value_is(finished: Sides, tmp_path: Path) -> None:
    assert main(["export", str(finished.out), str(tmp_path), "--format", "parquet"]) == EXIT_OK
    (part,) = tmp_path.rglob("*.parquet")
    n_read = 0
    for row in pq.read_table(part).to_pylist():
        for name, first in (("numbers", 0), ("lengths", row["num_frames"])):
            if (tar := row[f"{name}_tar"]) is not None:
                data = (finished.out / "shards" / tar).read_bytes()
                value = data[row[f"{name}_offset"] :][: row[f"{name}_bytes"]]
                assert np.load(io.BytesIO(value))[0] == first
                n_read += 1
    assert n_read == 7


def swapped(data: bytes) -> bytes:
    """Exchanges the first two members: each then has the value of another clip."""
    size = len(data) // 512
    first = [n for n in range(size) if data[n * 512 + 257 : n * 512 + 262] == b"ustar"][:3]
    a, b, c = (n * 512 for n in first)
    return data[b:c] + data[a:b] + data[c:]


FAULTS = {
    "swapped": swapped,
    "cut off": lambda data: data[: len(data) // 2 // 512 * 512],
    "other key": lambda data: data[:1] + (b"0" if data[1:2] != b"0" else b"1") + data[2:],
    "no tar": lambda data: bytes(len(data)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_tar_beside_the_samples_is_refused(place: Sides, name: str) -> None:
    tar = place.sides()["numbers.npy"]
    tar.write_bytes(FAULTS[name](tar.read_bytes()))
    with pytest.raises(ShardError, match=r"numbers|side/"):
        place.check()
    assert main(["verify", str(place.out), "--json"]) != EXIT_OK


@pytest.mark.parametrize("name", ["64p_*/*.tar", "64p_*/*.tar.idx", ".nv-meta/split.yaml"])
def test_verify_advises_a_run_that_restores_objects_beside_the_samples(
    place: Sides, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (damaged,) = (place.out / "shards/side/numbers").glob(name)
    before = damaged.read_bytes()
    damaged.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    capsys.readouterr()
    assert main(["verify", str(place.out), "--json"]) != EXIT_OK
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert re.search("run `curate run` again", finding["remedy"])
    place.run(place.stages(NUMBERS % 0, LENGTHS))
    assert damaged.read_bytes() == before
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


def test_shared_values_are_requested_once(finished: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins requests to an object store: the value of two clips is read once."""
    read: list[str] = []
    inner = LocalStore.read_range

    def read_range(self: LocalStore, key: str, first: int, end: int) -> bytes:
        read.append(f"{key} {first}")
        return inner(self, key, first, end)

    monkeypatch.setattr(LocalStore, "read_range", read_range)
    monkeypatch.setattr(LocalStore, "is_local", False)
    monkeypatch.setattr(shard_reader, "GAP_BYTES", 0)
    finished.check()
    assert len([name for name in read if "side/lengths" in name]) == 3


@pytest.mark.long
def test_energon_joins_the_values_with_the_samples(finished: Sides) -> None:
    """Energon 7.4.1 fails on samples without a value if they stay (`nonmatch: none`)."""
    program = Path(__file__).parents[1] / "energon_join.py"
    arguments = [str(finished.out / "shards"), "numbers", "numbers.npy", "skip"]
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    rows = finished.clips()
    assert found == {r["clip_id"]: [*range(r["n_frames"])] for r in rows if r["n_frames"] > 8}


def test_new_captions_leave_the_values_as_they_are(place: Sides) -> None:
    before, sides = place.main_tars(), place.sides()
    assert main(["recaption", str(place.out), "--set", "caption.enabled=false"]) == EXIT_OK
    assert place.main_tars().keys().isdisjoint(before)
    assert not any(place.summary()["work"].get(f"{n}_made") for n in ("numbers", "lengths"))
    assert [tar.read_bytes() for tar in place.sides().values()] == [
        tar.read_bytes() for tar in sides.values()
    ]
    place.check()
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


@pytest.mark.long
def test_a_growing_output_keeps_the_values_of_earlier_generations(
    plain: Sides, tmp_path: Path
) -> None:
    sources = shutil.copytree(plain.sources, tmp_path / "in")
    place = Sides(sources, tmp_path / "out", recipe=plain.recipe)
    both = (place.stages(NUMBERS % 0, LENGTHS), "run.mode=growing", "run.generation_hours=0.0001")
    place.run(*both)
    first = place.tars()
    write_video(sources / "e.mp4", (f[:, :80] for f in numbered(30)), fps=Fraction(25))
    summary = place.run(*both)
    assert (summary["work"]["numbers_made"], summary["work"]["clips_cut"]) == (1, 1)
    assert first.items() < place.tars().items()
    values = place.values()
    assert sorted(v[0] for v in values.values()) == [8, 12, 12, 20, 30]
    assert all(v[1] is None or v[1].tolist() == [*range(v[0])] for v in values.values())
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


@pytest.mark.long
def test_another_place_of_a_family_is_applied_to_all_generations(
    plain: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a manifest, with one declaration for each family, describes all generations.

    Without it, readers would refuse a value of another clip where clips share it.
    """
    sources = shutil.copytree(plain.sources, tmp_path / "in")
    place = Sides(sources, tmp_path / "out", recipe=plain.recipe)
    both = (place.stages(NUMBERS % 0, LENGTHS), "run.mode=growing", "run.generation_hours=0.0001")
    (family,) = importlib.import_module("own_sides").Lengths.families
    with monkeypatch.context() as patch:
        patch.setattr("own_sides.Lengths.families", (replace(family, place="side"),))
        place.run(*both)
    for number, width in enumerate((96, 80)):
        frames = (frame[:, :width] for frame in numbered(30))
        write_video(sources / f"e{number}.mp4", frames, fps=Fraction(25))
    summary = place.run(*both[:2], "run.generation_hours=1")
    assert summary["work"]["lengths_made"] == 1
    assert {v["name"]: v["place"] for v in place.manifest["members"].values()} == {
        "numbers": "side",
        "lengths": "shared",
    }
    values = place.values().values()
    assert sorted(v[0] for v in values) == [8, 12, 12, 20, 30, 30]
    assert all(set(v[2].tolist()) == {v[0]} for v in values)
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK
