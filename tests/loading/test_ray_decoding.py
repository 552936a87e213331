"""Samples that other processes decode, through Ray Data."""

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

import curator
from curator.errors import UsageError
from curator.installation import install_extra
from curator.loading import ClipDataset, ray_clips
from tests.made_shards import made_clips, write_shards

A, B = "48p_3-2_17f", "48p_1-1_17f"

IN_A_PROCESS = """
import hashlib, json, logging, sys
import ray
from curator.loading import ClipDataset, ray_clips

if __name__ == "__main__":
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
             logging_level=logging.ERROR, _node_ip_address="127.0.0.1")
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ClipDataset(sys.argv[1], batch_size=2, frames=3, stride=2, drop_last=True)
    rows = list(ray_clips(dataset, epoch=1).iter_rows())
    digests = [hashlib.sha256(row["video"].tobytes()).hexdigest() for row in rows]
    columns = [[row[n] for row in rows] for n in ("key", "caption", "start_frame", "bucket")]
    later = ray_clips(dataset, epoch=1, first_step=dataset.steps - 2)
    shapes = [list(b["video"].shape)
              for b in later.select_columns(["video"]).iter_torch_batches(batch_size=2)]
    single = ClipDataset(sys.argv[1], frames=3, buckets=["48p_1-1_17f"])
    print(json.dumps({"digests": digests, "columns": columns, "shapes": shapes,
                      "singles": len(list(ray_clips(single).iter_rows()))}))
"""


@pytest.mark.long
def test_ray_gives_the_samples_of_the_dataset_in_its_order(tmp_path: Path) -> None:
    """Pins pixels, captions, blend and order, a later first step, and single samples."""
    pytest.importorskip("ray.data")
    import hashlib

    tars = [
        (A, "train", made_clips(tmp_path, 6)),
        (B, "train", made_clips(tmp_path, 5, first=100, height=100)),
    ]
    out = str(write_shards(tmp_path / "out", tars))
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, out],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ
        | {
            "PYTHONPATH": str(Path(curator.__file__).parent.parent),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    given = json.loads(done.stdout.strip().splitlines()[-1])
    dataset = ClipDataset(out, batch_size=2, frames=3, stride=2, drop_last=True)
    dataset.set_epoch(1)
    digests, columns, shapes = [], [[], [], [], []], []
    for batch in dataset:
        shapes.append(list(batch["video"].shape))
        digests += [hashlib.sha256(v.numpy().tobytes()).hexdigest() for v in batch["video"]]
        caption = [batch["caption"].unique[i] for i in batch["caption"].inverse]
        starts = batch["start_frame"].tolist()
        for column, values in zip(
            columns, (batch["key"], caption, starts, batch["bucket"]), strict=True
        ):
            column += values
    assert given == {"digests": digests, "columns": columns, "shapes": shapes[-2:], "singles": 5}
    assert len(digests) == 10


def test_ray_must_be_started_by_the_caller(tmp_path: Path) -> None:
    """Pins that no cluster is joined or started by accident."""
    pytest.importorskip("ray.data")
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 2))])
    with pytest.raises(UsageError, match=r"Ray is not started: call ray.init\(address=...\)"):
        ray_clips(ClipDataset(str(out), frames=2))


def test_a_dataset_without_video_is_refused(tmp_path: Path) -> None:
    """Pins the remedy, before Ray is needed."""
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 2))])
    with pytest.raises(UsageError, match=r"has video=False.*give the dataset video=True"):
        ray_clips(ClipDataset(str(out), video=False))


def test_without_ray_data_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the name of the extra."""
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 2))])
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(UsageError, match=re.escape(install_extra("loading-ray"))):
        ray_clips(ClipDataset(str(out), frames=2))
