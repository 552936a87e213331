"""Plug-ins for `golden.py`: a captioner, a measure, a filter, a pixel stage."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import cv2
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.measures.measure_contract import Measure, SamplePictures, ScoreSpec, Signal
from curator.stage import ClipFilter, ClipFrames, PixelStage, Rejection, StageConfig
from curator.stages.caption.caption_records import Frames, Request
from curator.stages.caption.captioners.captioner_contract import Captioner


def filled(schema: Mapping[str, Any], text: str) -> Any:  # noqa: ANN401 - any JSON
    """Returns a value that fits a schema."""
    if schema.get("type") == "object":
        return {name: filled(field, text) for name, field in schema["properties"].items()}
    if schema.get("type") == "array":
        return [filled(schema["items"], text)]
    return schema["enum"][0] if "enum" in schema else schema.get("type") == "string" and text


class Hashed(Captioner):
    """Answers with a hash of prompt and pixels; equal captions mean equal requests."""

    version = 1

    def answer(self, request: Request, frames: Frames) -> Any:  # noqa: ANN401 - text, or fields
        digest = hashlib.sha256(repr((request.system, request.turns, request.schema)).encode())
        for picture in frames.arrays():
            digest.update(picture.tobytes())
        text = f"A thing with the number {digest.hexdigest()[:6]} moves across a green field."
        return text if request.schema is None else filled(request.schema, text)


class Edges(Measure):
    """Measures the share of edge pixels."""

    name, version = "edges", 1
    signals: ClassVar = {"edge_share": Signal(unit="share", range="0 to 1", meaning="edges")}
    scores: ClassVar = {
        "edge_share": ScoreSpec(
            unit="share", range="0 to 1", meaning="edges", of="edge_share", aggregate="median"
        )
    }

    def measure(self, sample: SamplePictures) -> dict[str, float]:
        gray = cv2.cvtColor(sample.small_HWC, cv2.COLOR_RGB2GRAY)
        return {"edge_share": float(np.mean(cv2.Canny(gray, 50, 150) > 0))}


class NoMirrors(ClipFilter[StageConfig]):
    """Rejects clips of sources with `hflip` in their names."""

    name, version, config_type = "no_mirrors", 1, StageConfig

    def process(self, unit: pa.Table) -> Iterator[Rejection]:
        columns = unit["clip_id"].to_pylist(), unit["source_uri"].to_pylist()
        for clip_id, uri in zip(*columns, strict=True):
            if "hflip" in uri:
                yield Rejection(clip_id=clip_id, reason="mirrored", detail="by name")


class Darken(PixelStage[StageConfig]):
    """Darkens frames by a quarter."""

    name, version, config_type = "darken", 1, StageConfig

    def process(self, unit: ClipFrames) -> Iterator[NDArray[np.uint8]]:
        for frame in unit.frames:
            yield frame - frame // 4
