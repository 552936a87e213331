"""What footage that was removed is known by when it comes back: no pictures, and no ids.

    removed/footage-<hash>.parquet   a row per clip of one removal

A row has vectors and keypoints of pictures and the luma of frames. Pictures and captions cannot be
read from it, and no id or address. `curate remove --forget` writes none.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curator.errors import DamagedError
from curator.matching.clip_footage import ClipFootage, Keypoints
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.out_layout import REMOVED
from curator.tables.parts import parquet_by_content
from curator.tables.schemas import FOOTAGE_SCHEMA, LUMA_HZ

logger = logging.getLogger(__name__)

_KEYPOINTS = pa.struct(
    [
        ("xy", pa.list_(pa.float32())),
        ("descriptors", pa.binary()),
        ("width", pa.float32()),
        ("height", pa.float32()),
    ]
)
_SCHEMA = pa.schema(
    [
        *FOOTAGE_SCHEMA,
        ("picture_second", pa.list_(pa.float32())),
        ("keypoints", pa.list_(_KEYPOINTS)),
        ("luma_mean", pa.list_(pa.float16())),
        ("luma_spread", pa.list_(pa.float16())),
    ]
)


class RemovedFootage:
    """Footage of removed clips, in memory.

    Args:
        clips: In any order.

    Attributes:
        key: Changes with the clips.
    """

    def __init__(self, key: str, clips: Iterable[ClipFootage]) -> None:
        self.key = key
        self._clips = {clip.clip_id: clip for clip in clips}

    def blocks(self) -> Iterator[pa.Table]:
        """Yields rows of `FOOTAGE_SCHEMA`; ids are numbers."""
        rows = [_vectors_row(clip) for clip in self._clips.values()]
        yield pa.Table.from_pylist(rows, FOOTAGE_SCHEMA)

    def clips(self, clip_ids: Collection[str]) -> dict[str, ClipFootage]:
        """Returns clips by such ids."""
        return {name: self._clips[name] for name in clip_ids if name in self._clips}


def write_removed_footage(store: Store, clips: Sequence[ClipFootage]) -> str | None:
    """Writes what clips are known by; returns the object's name, None for no clips."""
    if not clips:
        return None
    rows = [_row(clip, number) for number, clip in enumerate(clips)]
    table = pa.Table.from_pylist(rows, _SCHEMA)
    name, data = parquet_by_content([table], _SCHEMA, f"{REMOVED}/footage-{'~' * 16}.parquet")
    store.write(name, data)
    return name


def read_removed_footage(store: Store, names: Collection[str]) -> RemovedFootage | None:
    """Reads objects that records of removals name; None for none.

    One that is lost has no copy, and nothing can make it again: a warning says what that means.
    """
    clips = []
    for name in sorted(names):
        try:
            rows = read_parquet(store, name).to_pylist()
        except DamagedError as error:
            logger.warning(
                "%s/%s (%s): edited copies of the footage that a removal took are not known by it "
                "any more; copies with the same frames are; restore it from a copy of OUT",
                store.uri,
                name,
                error.why,
            )
            continue
        clips += [_clip(row, f"{number}/{name}") for number, row in enumerate(rows)]
    if not clips:
        return None
    return RemovedFootage(" ".join(sorted(names)), clips)


def _vectors_row(clip: ClipFootage) -> dict[str, Any]:
    return {
        "clip_id": clip.clip_id,
        "second": clip.vector_s,
        "vector": clip.vectors_VD.astype(np.float16).ravel(),
    }


def _row(clip: ClipFootage, number: int) -> dict[str, Any]:
    keypoints = [clip.keypoints(at) for at in range(len(clip.pictures))]
    return _vectors_row(clip) | {
        "clip_id": str(number),
        "picture_second": clip.picture_s,
        "keypoints": [
            {
                "xy": points.xy_K2.ravel().tolist(),
                "descriptors": points.descriptors_KD.tobytes(),
                "width": points.width,
                "height": points.height,
            }
            for points in keypoints
        ],
        "luma_mean": clip.luma_F.astype(np.float16),
        "luma_spread": clip.luma_spread_F.astype(np.float16),
    }


def _clip(row: dict[str, Any], name: str) -> ClipFootage:
    n_vectors = len(row["second"])
    vectors = np.array(row["vector"], np.float32).reshape(n_vectors, -1 if n_vectors else 0)
    keypoints = tuple(
        Keypoints(
            xy_K2=np.array(points["xy"], np.float32).reshape(-1, 2),
            descriptors_KD=np.frombuffer(points["descriptors"], np.uint8).reshape(-1, 128),
            width=points["width"],
            height=points["height"],
        )
        for points in row["keypoints"]
    )
    return ClipFootage(
        clip_id=name,
        fps=LUMA_HZ,
        picture_s=np.array(row["picture_second"], np.float32),
        pictures=keypoints,
        vector_s=np.array(row["second"], np.float32),
        vectors_VD=vectors,
        luma_F=np.array(row["luma_mean"], np.float32),
        luma_spread_F=np.array(row["luma_spread"], np.float32),
    )
