"""MDS, read back by MosaicML's own package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Curate
from made_samples import FPS, MadeClip
from test_export import files

from curator.export import export
from curator.installation import install_extra
from curator.tools.commands.arguments import EXIT_USAGE

ELSEWHERE = "MosaicML's package needs an environment of its own: `make test-mds` runs this test"


def test_without_the_package_the_remedy_is_said(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, curate: Curate
) -> None:
    monkeypatch.setitem(sys.modules, "streaming", None)
    assert install_extra("mds") in curate(
        "export", out, tmp_path / "to", "--format", "mds", code=EXIT_USAGE
    )
    assert not (tmp_path / "to").exists()


READ = """
import hashlib, json, sys
from streaming import StreamingDataset
_, local, remote, split = sys.argv
data = StreamingDataset(
    local=local, remote=remote or None, split=split, shuffle=False, batch_size=1,
    validate_hash="sha1",
)
rows = []
for sample in data:
    sample["video"] = hashlib.sha256(sample["video"]).hexdigest()
    rows.append({k: v.item() if hasattr(v, "item") else v for k, v in sample.items()})
print(json.dumps(rows))
"""


def read_back(local: Path, split: str, remote: str = "") -> list[dict]:
    """All samples, by a process of its own: the package keeps shared memory until it ends."""
    command = [sys.executable, "-c", READ, str(local), remote, split]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[dict] = json.loads(done.stdout.splitlines()[-1])
    return rows


def check_rows(rows: list[dict], clips: list[MadeClip]) -> None:
    by_key = {clip.key: clip for clip in clips}
    assert sorted(row["key"] for row in rows) == sorted(by_key)
    for row in rows:
        clip = by_key[row["key"]]
        fields = json.loads(clip.json())
        assert row["json"] == fields
        assert row["video"] == fields["mp4_sha256"]
        assert (row["text"], row["num_frames"]) == (clip.caption, clip.n_frames)
        assert (row["fps"], row["bucket"]) == (float(FPS), clip.bucket)


def test_streaming_reads_all_samples_back(
    out: Path, tmp_path: Path, clips: list[MadeClip], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins every column and the MP4s, in MDS shards of one clip, which is larger than the limit."""
    pytest.importorskip("streaming", reason=ELSEWHERE)
    monkeypatch.setattr("curator.export.mds.SIZE_LIMIT_BYTES", 1000)
    done = export(str(out), str(tmp_path / "to"), "mds")
    assert done.n_clips == len(clips)
    assert len(list((tmp_path / "to").glob("*/*/shard.*.mds"))) > 6
    for split in ("train", "val"):
        check_rows(read_back(tmp_path / "to", split), [c for c in clips if c.split == split])


def test_an_mds_export_is_the_same_each_time_and_goes_on(out: Path, tmp_path: Path) -> None:
    """Pins equal bytes, that nothing is written twice, and that a lost shard comes back."""
    pytest.importorskip("streaming", reason=ELSEWHERE)
    first = export(str(out), str(tmp_path / "to"), "mds")
    export(str(out), str(tmp_path / "other"), "mds")

    whole, others = files(tmp_path / "to"), files(tmp_path / "other")
    assert whole == others
    again = export(str(out), str(tmp_path / "to"), "mds")
    assert (again.n_objects, again.n_clips) == (0, first.n_clips)
    lost = next((tmp_path / "to").rglob("*.mds"))
    lost.unlink()
    assert export(str(out), str(tmp_path / "to"), "mds").n_objects == 1
    assert lost.read_bytes() == whole[str(lost.relative_to(tmp_path / "to"))]


def test_streaming_reads_from_s3(
    out: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str, clips: list[MadeClip],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Pins an export to S3, streamed from there."""
    pytest.importorskip("streaming", reason=ELSEWHERE)
    to = f"s3://{s3_bucket}/mds"
    export(str(out), to, "mds")
    monkeypatch.setenv("S3_ENDPOINT_URL", s3_endpoint)
    own = [clip for clip in clips if clip.split == "train"]
    check_rows(read_back(tmp_path / "cache", "train", to), own)
