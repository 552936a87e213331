"""Steps of the pipeline, a folder each, named by what they do.

A stage of `OPTIONAL` is a folder and its line here: the recipe gets its section and the graph its
stage from the declarations, and no other module names the stage.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

OPTIONAL: Mapping[str, tuple[str, str]] = {
    "cluster": ("ClusterConfig", "ClusterStage"),
}
"""By folder, the classes of settings in `config.py` and of the stage in `stage.py`. The stages
decide about clips, between `dedup` and `select`, in this order."""
ANNOTATORS: Mapping[str, str] = {
    "caption_claims": f"{__name__}.derive.caption_claims:CaptionClaims",
    "blur_faces": f"{__name__}.derive.blur_faces:BlurFaces",
    "camera_track": f"{__name__}.derive.camera_track:CameraTrack",
    "edges": f"{__name__}.derive.edges:Edges",
    "faces": f"{__name__}.derive.faces:Faces",
    "latents": f"{__name__}.derive.latents:Latents",
    "nudity": f"{__name__}.derive.nudity:Nudity",
    "picture_metrics": f"{__name__}.derive.picture_metrics:PictureMetrics",
    "rows": f"{__name__}.derive.rows:FrameRows",
    "text_vectors": f"{__name__}.derive.text_vectors:TextVectors",
    "speech": f"{__name__}.derive.speech:Speech",
    "transcript": f"{__name__}.derive.transcript:Transcript",
}
"""Annotators of this package by the names that recipes give them; a recipe names those it uses."""
MOVABLE = ("dedup", *OPTIONAL, "select")
"""Stages that a recipe may move."""


def section_type(name: str) -> Any:  # noqa: ANN401 - a class of settings
    """Returns the class of the settings of an optional stage, which is its section of a recipe."""
    return getattr(import_module(f"{__name__}.{name}.config"), OPTIONAL[name][0])


def stage_type(name: str) -> Any:  # noqa: ANN401 - a class of a stage
    """Returns the class of an optional stage. It is imported on use: its models may be large."""
    return getattr(import_module(f"{__name__}.{name}.stage"), OPTIONAL[name][1])
