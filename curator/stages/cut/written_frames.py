"""The stage that decodes written clips, once for all annotators of a worker, in the sandbox."""

from curator.media.clip_frames import ClipPixels, ClipToSample, clip_frames
from curator.records.sources import Failure
from curator.stage import Scope, Stage, StageConfig


class SampleFramesStage(Stage[StageConfig, ClipToSample, ClipPixels]):
    """Decodes written clips and scales the frames that annotators ask for."""

    name = "sample_frames"
    version = 1
    scope = Scope.CLIP
    reads = ("cuts",)
    boxed = True
    imports = ("curator.media.clip_frames",)

    def __init__(self, config: StageConfig, *, threads: int = 1) -> None:
        super().__init__(config)
        self._threads = threads

    def process(self, unit: ClipToSample) -> ClipPixels:
        """Decodes a clip."""
        pixels = clip_frames(unit.mp4, unit.wanted, n_frames=unit.n_frames, threads=self._threads)
        return ClipPixels(pixels=tuple(pixels))

    def failed(self, unit: ClipToSample, failure: Failure) -> ClipPixels:
        """Returns the error."""
        return ClipPixels(error=failure.message)
