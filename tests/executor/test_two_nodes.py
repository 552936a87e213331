"""A run on a cluster of two nodes, with sources and OUT on S3."""

import io
import json
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from film_makers import text_file, write_video
from film_shots import moving_texture

from curator.cli import main
from curator.executor import fleet, ray_backend
from curator.executor.ray_cluster import use_own_token
from curator.storage import open_store
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE


@pytest.fixture
def cluster(s3_bucket: str) -> Iterator[str]:
    """Address of two nodes with a core each; they inherit the S3 environment."""
    del s3_bucket
    use_own_token()
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    yield str(nodes.address)
    nodes.shutdown()


def _watched(monkeypatch: pytest.MonkeyPatch, prefix: str) -> list[str]:
    """Collects requests for objects that do not say that the requester pays."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer, unpaid = DomainDispatcherApplication.__call__, list[str]()

    def noting(self: object, environ: dict[str, str], begin: object) -> object:
        if environ["PATH_INFO"].startswith(prefix) and "HTTP_X_AMZ_REQUEST_PAYER" not in environ:
            unpaid.append(environ["PATH_INFO"])
        return answer(self, environ, begin)

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", noting)
    return unpaid


@pytest.mark.long
def test_a_cluster_reads_and_writes_object_storage(
    cluster: str,
    s3_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Set after the nodes were started, so only the driver has it.
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    unpaid = _watched(monkeypatch, f"/{s3_bucket}/raw/")
    bucket = open_store(f"s3://{s3_bucket}")
    for number in range(3):
        path = tmp_path / f"{number}.mp4"
        write_video(path, moving_texture(50, seed=3 + number), fps=Fraction(25))
        bucket.write(f"raw/film {number}.mp4", path.read_bytes())
    text_file(tmp_path / "text.mp4")
    bucket.write("raw/text.mp4", (tmp_path / "text.mp4").read_bytes())
    command = ["run", f"s3://{s3_bucket}/raw", f"s3://{s3_bucket}/out", "--ray-address", cluster]
    command += ["--set", "filters.short_side_px.min=100", "--set", "shard.resolutions=[120]"]
    assert main(command) == EXIT_OK
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")
    assert unpaid == []
    out = open_store(f"s3://{s3_bucket}/out")
    summary = json.loads(out.read("summary.json"))
    assert summary["counts"]["done"] == 3
    assert summary["counts"]["by_error"] == {"not_a_video": 1}
    clips = [
        row
        for part in summary["tables"]["clips"]
        for row in pq.read_table(io.BytesIO(out.read(part))).to_pylist()
    ]
    assert {clip["decision"] for clip in clips} == {"kept"}
    assert [shard["n_samples"] for shard in summary["shards"]] == [3]
    assert len(out.read(summary["shards"][0]["name"])) == summary["shards"][0]["bytes"]
    assert {info.key.partition("/")[0] for info in out.list()} == {
        "duplicate_pairs", "candidates", "clips", "config.json", "embeddings", "report", "scan",
        "shards", "shots", "snapshots", "sources", "summary.json", "tracks",
    }  # fmt: skip
    monkeypatch.setattr(fleet, "LOOK_S", 1.0)
    monkeypatch.setattr(fleet, "PLACE_S", 1.0)
    monkeypatch.setattr(ray_backend, "PLACE_S", 0.0)
    nowhere = ["run", f"s3://{s3_bucket}/raw", f"s3://{s3_bucket}/other", *command[3:]]
    # No node has this resource, and none will come.
    assert main([*nowhere, "--place", "analyze=decoders"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "with 1 CPUs" in error
    assert "0 decoders (too little decoders); there is no autoscaler" in error
