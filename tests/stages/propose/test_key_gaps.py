"""Where the key frames of clips are, which tells the driver whether clips can be copied."""

import numpy as np
import pyarrow as pa
import pytest
from samples import made_track

from curator.records.sources import SourceRef
from curator.stages.propose.stage import _key_gaps_s
from curator.tables.track_items import TrackItem


def test_gaps_go_from_the_start_to_the_first_key_frame_and_to_the_end() -> None:
    flags = np.zeros(100, np.uint8)
    flags[[0, 30, 50]] = 1
    flags[[10, 20]] = 2  # damaged, and no key frames
    track = made_track(100, frame_flags=flags)
    tick_s = track.seconds(int(track.frame_pts[1])) - track.seconds(int(track.frame_pts[0]))
    source = SourceRef(uri="a", n_bytes=1, version="", source_id=track.source_id)
    item = TrackItem(source=source, track=track, frames_part=None)
    spans = {"key": (0, 60), "late": (5, 90), "none": (60, 70)}
    clips = pa.table(
        {
            "clip_id": list(spans),
            "source_id": [track.source_id] * 3,
            "start_frame": [start for start, _ in spans.values()],
            "end_frame": [end for _, end in spans.values()],
        }
    )
    gaps = {
        name: tuple(s / tick_s for s in own) for name, own in _key_gaps_s([item], clips).items()
    }
    assert gaps["key"] == pytest.approx((0, 30))
    assert gaps["late"] == pytest.approx((25, 40))
    # Without a key frame, the clip's whole length is before the first one.
    assert gaps["none"] == pytest.approx((10, 0))
