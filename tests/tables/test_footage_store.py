"""Footage of removed clips is stored in row groups, because Arrow reads at most 2 GiB at a time."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from curator.matching.clip_footage import ClipFootage, Keypoints
from curator.storage import open_store
from curator.tables.footage_store import read_removed_footage, write_removed_footage


def clip(number: int) -> ClipFootage:
    points = Keypoints(
        xy_K2=np.full((2, 2), number, np.float32),
        descriptors_KD=np.full((2, 128), number, np.uint8),
        width=320.0,
        height=180.0,
    )
    return ClipFootage(
        clip_id=str(number),
        fps=25,
        picture_s=np.zeros(1, np.float32),
        pictures=(points,),
        vector_s=np.zeros(1, np.float32),
        vectors_VD=np.ones((1, 4), np.float32),
        luma_F=np.zeros(3, np.float32),
        luma_spread_F=np.zeros(3, np.float32),
    )


def test_removed_footage_is_written_and_read_a_few_clips_at_a_time(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    name = write_removed_footage(store, [clip(number) for number in range(40)])
    assert name is not None
    footer = pq.read_metadata(tmp_path / name)
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [16, 16, 8]
    footage = read_removed_footage(store, [name])
    assert footage is not None
    clips = footage.clips([f"{number}/{name}" for number in range(40)])
    assert [int(own.keypoints(0).descriptors_KD[1, 5]) for own in clips.values()] == [*range(40)]
