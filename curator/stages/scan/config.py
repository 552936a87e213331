"""Settings of the listing and the scan. Probes follow from the bytes alone, and from none of it."""

from pydantic import Field

from curator.stage import StageConfig


class ScanConfig(StageConfig):
    """What is read about sources, apart from the sources themselves."""

    sidecar_meta: bool = Field(
        False,
        description="keys of the `.json` beside a source (video.mp4.json, or video.json) become "
        "columns meta.* of `sources` and `clips`, as columns of a manifest do: bool, number, text, "
        "or list of texts",
    )
