"""The annotator `camera_track`: the camera's motion per frame, from signals of the analysis.

    stages:
      - use: camera_track
        config: {field_of_view: 45, poses: true}

`curator/measures/camera_path.py` computes it; nothing is decoded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from curator.family import FRAMES, Array, Family, Place, Scalar, Scope
from curator.measures.camera_path import RATES, TIMES, camera_poses, frame_motion
from curator.stage import Annotator, SampledClip, StageConfig, setting


class CameraTrackConfig(StageConfig):
    """What is stored about the camera."""

    field_of_view: float | None = setting(None, gt=0, lt=180, unit="degrees")
    """angle that the short side of the source's picture covers in the first frame of a clip; pans
    and tilts are then rotations in degrees, for a camera that turns on its place"""
    poses: bool = setting(False, unit="true or false")
    """also store the family `camera_poses`, from which `curator.loading.plucker_rays` computes
    Plücker rays; needs `field_of_view`"""
    place: Place = setting(Place.SAMPLE, unit="sample or side")
    """in the samples, or in tars of their own"""

    @model_validator(mode="after")
    def _poses_need_a_lens(self) -> Self:
        if self.poses and self.field_of_view is None:
            raise ValueError(
                "poses: true without field_of_view; expected the angle in degrees that the short "
                "side covers, such as 45, because rays depend on it"
            )
        return self


class CameraTrack(Annotator[CameraTrackConfig]):
    """Writes pan, tilt, zoom and roll of each frame from the frame before, float32 [frames, 4].

    Right, up, in and clockwise are positive, and the first frame has 0. Values describe the whole
    picture of the source, with black borders. NaN stands for frames without a known motion near.
    """

    name = "camera_track"
    version = 1
    config_type = CameraTrackConfig
    signals = (*RATES, *TIMES)
    results_ignore = frozenset({"place"})
    batch = 256

    def __init__(self, config: CameraTrackConfig) -> None:
        super().__init__(config)
        angle, place = config.field_of_view, config.place
        unit = "short sides" if angle is None else "degrees"
        facts: dict[str, Scalar] = {
            "motion": "from the frame before",
            "pan": f"{unit}, right is positive", "tilt": f"{unit}, up is positive",
            "zoom": "logarithm of the scale, in is positive",
            "roll": "degrees, clockwise is positive",
        }  # fmt: skip
        lens: dict[str, Scalar] = {} if angle is None else {"field_of_view_deg": angle}
        track = Family(
            "camera_track",
            Scope.CLIP,
            Array("f32", (FRAMES, 4)),
            member="camera_track.safetensors",
            facts=facts | lens,
            place=place,
        )
        poses = Family(
            "camera_poses",
            Scope.CLIP,
            Array("f32", (FRAMES, 4)),
            member="camera_poses.safetensors",
            facts={
                "rotation": "axis times radians, to the axes of the first frame",
                "axes": "right, down, forward", "focal_length": "short sides of the source",
            } | lens,
            place=place,
        )  # fmt: skip
        self.families = (track, poses) if config.poses else (track,)

    def process(self, unit: Sequence[SampledClip]) -> list[Mapping[str, NDArray[np.float32]]]:
        """Returns the motion, and the poses if the configuration has them, by family."""
        return [dict(self._values(clip)) for clip in unit]

    def _values(self, clip: SampledClip) -> Iterator[tuple[str, NDArray[np.float32]]]:
        angle = self.config.field_of_view
        focal = None if angle is None else 0.5 / np.tan(np.radians(angle) / 2)
        size = clip.facts.width, clip.facts.height
        motion = frame_motion(clip.signals, focal=focal, size=size)
        yield "camera_track", motion.astype(np.float32)
        if self.config.poses and focal is not None:
            yield "camera_poses", camera_poses(motion, focal).astype(np.float32)
