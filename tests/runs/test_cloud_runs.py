"""A whole run over `gs://` and `az://` makes the clips of one in a folder."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from place import QVGA, sets, write_films

from curator.cli import main
from curator.storage import open_store
from curator.tools.commands.arguments import EXIT_OK

SETTINGS = (
    "shard.resolutions=[64, 120]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0",
)  # fmt: skip


def videos(out: str) -> set[tuple[str, str]]:
    """Names and hashes of the videos in the shards."""
    store = open_store(out)
    found = set()
    for info in store.list("shards/"):
        if info.key.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(store.read(info.key))) as tar:
                for name in [name for name in tar.getnames() if name.endswith(".mp4")]:
                    stream = tar.extractfile(name)
                    assert stream is not None
                    found.add((name, hashlib.sha256(stream.read()).hexdigest()))
    return found


@pytest.mark.long
def test_clips_are_those_of_a_folder(gs_bucket: str, az_container: str, tmp_path: Path) -> None:
    """Sources and OUT are in the same bucket, and a second run changes nothing."""
    film = write_films(tmp_path / "in", (50,), **QVGA) / "0.mp4"
    changes = sets(SETTINGS)
    assert main(["run", str(film.parent), f"{tmp_path}/out", *changes]) == EXIT_OK
    expected = videos(f"{tmp_path}/out")
    assert expected
    for root in (f"gs://{gs_bucket}", f"az://{az_container}"):
        open_store(f"{root}/in").write("0.mp4", film.read_bytes())
        for _ in range(2):
            assert main(["run", f"{root}/in", f"{root}/out", *changes]) == EXIT_OK
            assert videos(f"{root}/out") == expected
        assert main(["verify", f"{root}/out"]) == EXIT_OK
