"""A later run adds shards and takes none away that still counts; kills leave only whole ones."""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from place import SMALL, sets, write_films

from curator.cli import main
from curator.dataset.tar_writer import TarWriter
from curator.storage import Store, open_store
from curator.tools.commands.arguments import EXIT_OK

SETTINGS = sets((*SMALL, "dedup.enabled=false", "shard.val_share=0"))
MANIFEST = "shards/manifest.json"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources `in`, their output `out`, and sources `more` that are analyzed too.

    In `both` all sources were packed at once.
    """
    folder = tmp_path_factory.mktemp("appended")
    write_films(folder / "in", (60, 68, 76))
    write_films(folder / "more", (84, 92))
    assert run(folder / "out", folder / "in") == EXIT_OK
    shutil.copytree(folder / "out", folder / "both")
    everything = folder / "in", folder / "more"
    assert run(folder / "both", *everything, "shard.append=false") == EXIT_OK
    clean(folder / "both")
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy of `out`, where the tracks of all sources are known."""
    out = shutil.copytree(finished / "out", tmp_path / "out")
    for stage in ("scan", "tracks", "candidates"):
        shutil.copytree(finished / "both" / stage, out / stage, dirs_exist_ok=True)
    return out


def command(out: object, *arguments: object) -> list[str]:
    sources = [str(a) for a in arguments if isinstance(a, Path)]
    more = [argument for argument in arguments if isinstance(argument, str)]
    return ["run", "--recipe", "quickstart", *sources, str(out), *SETTINGS, *sets(more)]


def run(out: object, *arguments: object) -> int:
    return main(command(out, *arguments))


def clean(out: object) -> None:
    """Leaves what the newest snapshot names."""
    assert main(["clean", str(out)]) == EXIT_OK


def shards(store: Store) -> dict[str, str]:
    return {
        info.key: hashlib.sha256(store.read(info.key)).hexdigest() for info in store.list("shards/")
    }


def tars(store: Store) -> dict[str, str]:
    return {name: digest for name, digest in shards(store).items() if name.endswith(".tar")}


def assert_readers_find_only_whole_shards(store: Store) -> None:
    """Each tar that is there is whole, with its index; the manifest's are the bytes it says."""
    found = tars(store)
    for name in found:
        data = store.read(name)
        assert data.endswith(b"\0" * 1024)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            keys = [member.name.partition(".")[0] for member in tar.getmembers()]
            end = tar.offset
        assert end == len(data) - 1024
        offsets = store.read(f"{name}.idx")
        assert int.from_bytes(offsets[-8:], "little") == end
        assert len(offsets) == 8 * (len(set(keys)) + 1)
        lines = store.read(name.replace(".tar", ".meta.jsonl")).splitlines()
        assert [json.loads(line)["key"] for line in lines] == list(dict.fromkeys(keys))
    for shard in json.loads(store.read(MANIFEST))["shards"]:
        assert found[f"shards/{shard['name']}"] == shard["sha256"]


@pytest.mark.long
def test_new_sources_go_into_new_shards_and_old_ones_are_not_touched(
    finished: Path, place: Path
) -> None:
    store = open_store(str(place))
    before, old = tars(store), json.loads(store.read(MANIFEST))
    times = {name: (place / name).stat().st_mtime_ns for name in shards(store) if ".nv" not in name}
    assert run(place, finished / "in", finished / "more") == EXIT_OK
    summary = json.loads(store.read("summary.json"))
    assert summary["work"]["sources_analyzed"] == 0
    assert summary["work"]["shards_written"] == 1
    after, new = tars(store), json.loads(store.read(MANIFEST))
    assert before.items() < after.items()
    for name in before:
        for beside in (name, f"{name}.idx", name.replace(".tar", ".meta.jsonl")):
            assert (place / beside).stat().st_mtime_ns == times[beside]
    (added,) = set(after) - set(before)
    assert max(before) < added
    assert [s for s in new["shards"] if f"shards/{s['name']}" in before] == old["shards"]
    assert new["counts"]["samples"] == 5
    assert old["counts"]["samples"] == 3
    assert_readers_find_only_whole_shards(store)

    assert run(place, finished / "in", "--replace") == EXIT_OK
    clean(place)
    assert tars(store) == before
    assert run(place, finished / "in", finished / "more", "shard.append=false") == EXIT_OK
    clean(place)
    assert tars(store) == tars(open_store(str(finished / "both")))


@pytest.mark.long
def test_what_is_lost_beside_a_tar_is_written_again(finished: Path, place: Path) -> None:
    store = open_store(str(place))
    before = shards(store)
    (tar,) = tars(store)
    (place / f"{tar}.idx").unlink()
    (place / tar.replace(".tar", ".meta.jsonl")).write_bytes(b"")
    (place / "shards" / "wids-train.json").unlink()
    time = (place / tar).stat().st_mtime_ns
    assert run(place, finished / "in") == EXIT_OK
    assert shards(store) == before
    assert (place / tar).stat().st_mtime_ns == time
    with (place / tar).open("ab") as stream:
        stream.truncate(60_000)
    (place / MANIFEST).unlink()
    assert run(place, finished / "in") == EXIT_OK
    assert json.loads(store.read("summary.json"))["work"]["clips_cut"] == 3
    assert shards(store) == before


DYING = """
import os, signal, sys
from curator.cli import main
from curator.dataset import tar_writer as sharding
from curator.storage import s3_store as s3

dies_at, calls = int(sys.argv[1]), []
read = sharding.TarWriter.read
s3.PART_BYTES = 1 << 12
s3._BUFFER_BYTES = 1 << 10


def dying(self, sample):
    calls.append(sample)
    if len(calls) > dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, sample)


sharding.TarWriter.read = dying
main(sys.argv[2:])
"""


def killed(dies_at: int, out: str, *arguments: object) -> None:
    """A run that is killed when it has read so many clips for its shards."""
    words = [sys.executable, "-c", DYING, str(dies_at), *command(out, *arguments)]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.long)])
def copied(request: pytest.FixtureRequest, place: Path) -> Iterator[Store]:
    """`place` in a folder and on S3."""
    if request.param == "folder":
        yield open_store(str(place))
        return
    store = open_store(f"s3://{request.getfixturevalue('s3_bucket')}/out")
    for path in place.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(place)), path.read_bytes())
    # Parts of a real size would take a tar of many megabytes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
        yield store


@pytest.mark.long
def test_a_kill_while_shards_are_written_leaves_only_whole_ones(
    finished: Path, copied: Store, tmp_path: Path
) -> None:
    """Two tars are to be written, of three clips and of two; the kill comes within each."""
    arguments = (finished / "in", finished / "more", "caption.enabled=false")
    before = shards(copied)
    for dies_at, n_new in ((2, 0), (4, 1)):
        # A limit that parts the five clips in two tars.
        killed(dies_at, copied.uri, *arguments, "shard.max_bytes=150000")
        now = shards(copied)
        assert {name: now[name] for name in before} == before, "what readers see has changed"
        assert len({n for n in now if n.endswith(".tar")} - set(before)) == n_new
        assert_readers_find_only_whole_shards(copied)
    assert unfinished(copied) == 2
    written: list[str] = []
    read = TarWriter.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TarWriter, "read", lambda s, x: written.append(x.key) or read(s, x))
        assert run(copied.uri, *arguments, "shard.max_bytes=150000") == EXIT_OK
    assert len(written) == 2, "a tar that was whole was written again"
    assert_readers_find_only_whole_shards(copied)
    clean(copied.uri)
    reached = shards(copied)
    undisturbed = open_store(str(tmp_path / "undisturbed"))
    shutil.copytree(finished / "both", undisturbed.uri)
    more = "shard.append=false"
    assert run(undisturbed.uri, *arguments, "shard.max_bytes=150000", more) == EXIT_OK
    clean(undisturbed.uri)
    assert tars(undisturbed) == {n: d for n, d in reached.items() if n.endswith(".tar")}


def unfinished(store: Store) -> int:
    """How many objects were begun and never finished; no reader takes one for a tar."""
    if store.is_local:
        left = [path for path in Path(store.uri).rglob("*") if path.name.startswith(".tmp-")]
        assert not [path for path in left if path.suffix == ".tar"]
        return len(left)
    bucket = store.uri.removeprefix("s3://").partition("/")[0]
    uploads = boto3.client("s3").list_multipart_uploads(Bucket=bucket)
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")
    return len(uploads.get("Uploads", ()))
