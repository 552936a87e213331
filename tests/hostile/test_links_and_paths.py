"""Sidecars that are links, and paths in manifests, reach only files that the user named."""

import io
import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.errors import UsageError
from curator.stages.caption.sidecar_table import count_problems, sidecars_table
from curator.stages.scan.source_listing import list_sources
from curator.storage import s3_client
from curator.storage.sidecar_files import Sidecar, SidecarCode, SidecarProblem, read_sidecars
from curator.storage.source_manifests import manifest_rows
from curator.tools.commands.arguments import EXIT_OK


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    """A folder of sources; `tmp_path` outside it has a secret."""
    (tmp_path / "secret.json").write_text(json.dumps({"token": "hunter2"}))
    folder = tmp_path / "footage"
    (folder / "sub").mkdir(parents=True)
    for name in ("v.mp4", "w.mp4", "x.mp4", "sub/y.mp4"):
        (folder / name).write_bytes(b"video")
    return folder


def test_a_sidecar_that_leads_outside_is_not_followed(footage: Path) -> None:
    """Pins absolute, relative and chained links, and links to a folder above."""
    (footage / "v.json").symlink_to(footage.parent / "secret.json")
    (footage / "w.mp4.json").symlink_to("../secret.json")
    (footage / "x.json").symlink_to("w.mp4.json")
    (footage / "up").symlink_to("..")
    (footage / "sub" / "y.json").symlink_to("../up/secret.json")
    uris = [str(footage / name) for name in ("v.mp4", "w.mp4", "x.mp4", "sub/y.mp4")]
    found = read_sidecars(uris)
    assert sorted(found) == sorted(uris)
    for problem in found.values():
        assert isinstance(problem, SidecarProblem)
        assert problem.code is SidecarCode.OUTSIDE
        assert f"is a link to {str(footage.parent / 'secret.json')!r}" in problem.message
        assert "put a copy of the file there" in problem.message
    assert count_problems(found) == {"outside": 4}
    assert sidecars_table(found).num_rows == 0


def test_links_within_the_folder_of_a_source_are_followed(footage: Path) -> None:
    """Pins that a folder which is a link itself is the folder, as it is for its videos."""
    (footage / "sub" / "common.json").write_text('{"place": "Oslo"}')
    (footage / "v.json").symlink_to("sub/common.json")
    (footage.parent / "linked").symlink_to(footage)
    for folder in (footage, footage.parent / "linked"):
        found = read_sidecars([str(folder / "v.mp4")])[str(folder / "v.mp4")]
        assert isinstance(found, Sidecar)
        assert found.data == {"place": "Oslo"}


def test_a_listing_goes_on_and_counts_refused_sidecars(
    footage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (footage / "v.json").symlink_to("../secret.json")
    (footage / "w.json").write_text('{"place": "Oslo"}')
    with caplog.at_level(logging.WARNING):
        found = list(list_sources([str(footage)], sidecar_meta=True))
    metadata = [getattr(source, "metadata", {}) for source in found]
    assert {"meta.place": "Oslo"} in metadata
    assert "hunter2" not in str(metadata)
    assert "sidecars that cannot be used as metadata: 1, such as" in caplog.text
    assert "outside the folder of its source" in caplog.text


def manifest(kind: str, lines: list[str]) -> bytes:
    if kind != "parquet":
        return "\n".join(["uri"] * (kind == "csv") + lines).encode()
    sink = io.BytesIO()
    pq.write_table(pa.table({"uri": lines}), sink)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["txt", "csv", "parquet"])
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("/etc/passwd", "is a path on this machine"),
        ("//etc/passwd", "is a path on this machine"),
        ("../../../x.mp4", "leads out of the manifest's bucket"),
    ],
)
def test_a_manifest_in_a_bucket_names_no_file(
    s3_bucket: str, kind: str, written: str, said: str
) -> None:
    """Pins that the error names the manifest, the line and the value."""
    uri = f"s3://{s3_bucket}/lists/m.{kind}"
    body = manifest(kind, ["a.mp4", "b.mp4", written])
    s3_client.client().put_object(Bucket=s3_bucket, Key=f"lists/m.{kind}", Body=body)
    with pytest.raises(UsageError) as caught:
        list(list_sources([uri]))
    line = {"txt": "line 3", "csv": "line 4", "parquet": "row 3"}[kind]
    assert f"manifest {uri!r}, {line}: {written!r} {said}" in str(caught.value)
    assert "expected s3://" in str(caught.value)


def test_manifests_name_files_on_this_machine_alone(s3_bucket: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"secret")
    s3_client.client().put_object(Bucket=s3_bucket, Key="m.txt", Body=f"file://{secret}\n".encode())
    (found,) = list_sources([f"s3://{s3_bucket}/m.txt"])
    assert "is not supported" in getattr(found, "message", "")
    # A manifest on this machine names files and objects.
    path = tmp_path / "m.txt"
    path.write_text("/other/a.mp4\ns3://bucket/b.mp4\n../c.mp4\n")
    assert [row.uri for row in manifest_rows(str(path))] == [
        "/other/a.mp4", "s3://bucket/b.mp4", str(tmp_path.parent / "c.mp4"),
    ]  # fmt: skip


def test_a_run_ends_well_and_holds_nothing_of_a_linked_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins `curate run` with metadata of sidecars: a warning, and no byte of the secret in OUT."""
    (tmp_path / "secret.json").write_text(json.dumps({"token": "hunter2"}))
    folder = tmp_path / "in"
    folder.mkdir()
    write_video(folder / "v.mp4", moving_texture(30, width_px=160, height_px=120, seed=1))
    (folder / "v.json").symlink_to("../secret.json")
    command = ["run", str(folder), str(tmp_path / "out"), "--set", "scan.sidecar_meta=true"]
    assert main([*command, "--set", "analyze.text=false"]) == EXIT_OK
    assert "outside the folder of its source" in caplog.text
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path
    assert pq.read_table(next((tmp_path / "out" / "sources").glob("*.parquet"))).num_rows == 1
