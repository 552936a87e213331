"""Names of cameras in tars of moments."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from curator.export.camera_tars import CameraOptions, CameraTars


@pytest.mark.parametrize(
    ("uri", "camera", "name"),
    [
        ("/rig/Front.Left.mp4", None, "front"),
        ("/rig.tar::front.mp4", None, "front"),
        ("s3://b/rig.tar::1/rear.mp4", None, "rear"),
        ("/rig/front.mp4", 0, "0"),
        ("/rig/front.mp4", "Wrist cam/1", "wrist_cam_1"),
    ],
)
def test_a_camera_has_the_name_of_its_column_or_file(uri: str, camera: object, name: str) -> None:
    """Pins the camera 0, and that the name of a tar is not that of its members."""
    exporter = SimpleNamespace(options=CameraOptions.model_construct(camera="camera"))
    clip = SimpleNamespace(fields={"source_uri": uri, "meta": {"camera": camera}})
    assert CameraTars._camera(cast(Any, exporter), cast(Any, clip)) == name
