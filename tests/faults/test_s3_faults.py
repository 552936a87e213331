"""A run over S3 whose network fails: errors, resets, cut and slow bodies, flips in uploads.

The same against a real server, and with processes: `benchmarks/s3_faults.py`.
"""

import errno
import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import av
import pytest
from captioned import work_here
from fault_proxy import KINDS, FaultProxy, refuse_nothing
from newest import earlier_objects
from place import QVGA, sets, write_films

from curator.cli import main
from curator.errors import StorageError
from curator.storage import local_store, open_store, scratch
from curator.storage.object_service import service_named
from curator.storage.s3_client import client
from curator.storage.scratch import unnamed_file
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SETTINGS = (
    "shard.resolutions=[64, 120]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0", "shard.append=false",
)  # fmt: skip
COMPARED = ("shards", "sources", "clips", "shots", "embeddings")


class Runs:
    """Runs over the same films, in this process, into outputs that must have the same objects."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.whole: dict[str, str] = {}

    def run(self, out: str) -> tuple[int, str]:
        with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
            code = main(["run", f"s3://{self.bucket}/in", out, *sets(SETTINGS)])
        return code, said.getvalue()

    def goes_on(self, out: str) -> None:
        """A run without faults over what is there makes what a run from nothing makes."""
        code, said = self.run(out)
        assert code == EXIT_OK, said
        assert self.objects(out) == self.whole

    def objects(self, out: str) -> dict[str, str]:
        store, earlier = open_store(out), earlier_objects(out)
        return {
            info.key: hashlib.sha256(store.read(info.key)).hexdigest()
            for folder in COMPARED
            for info in store.list(f"{folder}/")
            if info.key not in earlier
        }


@pytest.fixture(scope="module")
def served(s3_endpoint: str) -> Iterator[FaultProxy]:
    """Between this process and moto."""
    with (
        FaultProxy(server=s3_endpoint, share=0, checks=True, slow_s=0.2) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
        yield proxy


@pytest.fixture(scope="module")
def runs(served: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Two films on S3, one of them above 8 MiB, and what a run without faults makes."""
    runs = Runs(f"curate-test-{secrets.token_hex(4)}")
    client().create_bucket(Bucket=runs.bucket)
    films = open_store(f"s3://{runs.bucket}/in")
    for path in sorted(write_films(tmp_path_factory.mktemp("films"), (25, 25), **QVGA).iterdir()):
        padding = bytes(9 << 20) if path.stem == "1" else b""
        box = (8 + len(padding)).to_bytes(4, "big") + b"free" + padding
        films.write(path.name, path.read_bytes() + box)
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        assert runs.run(f"s3://{runs.bucket}/whole")[0] == EXIT_OK
        runs.whole = runs.objects(f"s3://{runs.bucket}/whole")
        yield runs


@pytest.fixture
def proxy(served: FaultProxy) -> Iterator[FaultProxy]:
    """Without faults at first."""
    served.counts.clear()
    yield served
    served.share, served.kinds, served.refuse = 0, KINDS, refuse_nothing


@pytest.mark.long
def test_bodies_that_break_off_are_read_again(proxy: FaultProxy, runs: Runs) -> None:
    """Before: urllib3's `ProtocolError`, as a traceback, because nothing foresaw it."""
    data = os.urandom(1 << 20)
    store = open_store(f"s3://{runs.bucket}/p")
    store.write("a", data)
    proxy.share, proxy.kinds = 0.3, ("cut",)
    assert all(store.read("a") == data for _ in range(40))
    found = service_named("s3").get_range(runs.bucket, "p/a", 7, 70_000)
    assert found.data == data[7:70_000]
    assert proxy.counts["cut"] > 2


@pytest.mark.long
def test_shards_are_the_same_over_a_network_that_fails(proxy: FaultProxy, runs: Runs) -> None:
    proxy.share = 0.08
    code, said = runs.run(f"s3://{runs.bucket}/faults")
    assert code == EXIT_OK, said
    assert proxy.n_faults > 3
    proxy.share = 0
    assert runs.objects(f"s3://{runs.bucket}/faults") == runs.whole


@pytest.mark.long
def test_runs_that_are_refused_say_why_and_the_next_one_goes_on(
    proxy: FaultProxy, runs: Runs
) -> None:
    """403 for one film fails that film alone; credentials that expire end the next run."""
    out = f"s3://{runs.bucket}/refused"
    proxy.refuse = lambda number, method, path: (
        "AccessDenied" if method == "GET" and path.endswith("/in/1.mp4") else None
    )
    code, said = runs.run(out)
    assert code == EXIT_OK, said
    assert "Traceback" not in said
    assert runs.objects(out) != runs.whole
    n_before = proxy.counts["requests"]
    # An answer to HEAD has no body, and so no code.
    proxy.refuse = lambda number, method, path: (
        "ExpiredToken" if number > n_before + 60 and method != "HEAD" else None
    )
    code, said = runs.run(out)
    assert code == EXIT_BROKEN_OFF
    assert "ExpiredToken" in said
    assert "set AWS_ACCESS_KEY_ID" in said
    assert "Traceback" not in said
    proxy.refuse = refuse_nothing
    runs.goes_on(out)


@pytest.mark.long
def test_a_full_disk_ends_the_run_with_the_remedy(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0]

    class Full(io.FileIO):
        def write(self, data: "ReadableBuffer", /) -> int:
            left[0] -= memoryview(data).nbytes
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    class FullFile(local_store.AppendFile, Full):
        pass

    out = str(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(local_store, "AppendFile", FullFile)
        for n_bytes, expected in ((0, EXIT_USAGE), (150_000, EXIT_BROKEN_OFF)):
            left[0] = n_bytes
            code, said = runs.run(out)
            assert code == expected
            assert "No space left on device; free some space" in said
            assert "Traceback" not in said
    runs.goes_on(out)


def test_a_full_disk_of_temporary_files_is_no_error_of_a_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a clip was encoded that would have been copied, or a traceback ended the run."""
    words = "cannot write temporary files in .*: no space left on its disk.* set TMPDIR"
    monkeypatch.setattr(scratch, "ROOM_BYTES", 1 << 62)
    with pytest.raises(StorageError, match=words), unnamed_file(".mp4"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(StorageError, match=words), unnamed_file(".mp4"):
        mux_to("/dev/full")


def mux_to(path: str) -> None:
    with av.open(path, "w", format="mpegts") as output:
        stream = output.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for packet in (*stream.encode(av.VideoFrame(64, 64)), *stream.encode()):
            output.mux(packet)
