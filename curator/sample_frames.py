"""The stage that decodes a written clip once, in the sandbox, for all users of its contents."""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from curator.errors import CutError
from curator.media.clip_frames import Wanted, sample_clip
from curator.records.audio_requests import AudioSpan
from curator.records.cuts import SampledFrames, TextLine
from curator.records.sources import Failure
from curator.stage import FRAMES_VERSION, Scope, Stage, StageConfig

if TYPE_CHECKING:
    from curator.models.text_reader import TextReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToSample:
    """A written clip, and the frames and audio to sample from it.

    `mp4` has the clip's bytes once they are read from the object `uri`; `error` says why they
    cannot be read. `rate`, in frames per second, lets the decoder begin before the first frame.
    """

    uri: str
    n_frames: int
    wanted: tuple[Wanted, ...]
    mp4: bytes = field(default=b"", repr=False)
    error: str | None = None
    rate: Fraction | None = None
    audio: tuple[AudioSpan, ...] = ()


class SampleFramesStage(Stage[StageConfig, ClipToSample, SampledFrames]):
    """Decodes written clips, and samples frames. The number of threads changes no result."""

    name = "sample_frames"
    version = FRAMES_VERSION
    scope = Scope.CLIP
    reads = ("cuts",)
    sandboxed = True
    imports = ("curator.media.clip_frames",)

    def __init__(self, threads: int = 1) -> None:
        super().__init__(StageConfig())
        self._threads = threads

    def process(self, unit: ClipToSample) -> SampledFrames:
        """Samples the frames and the audio of a clip."""
        if unit.error is not None:
            raise CutError(unit.error)
        return sample_clip(
            unit.mp4,
            unit.wanted,
            n_frames=unit.n_frames,
            threads=self._threads,
            read_text=read_text,
            rate=unit.rate,
            audio=unit.audio,
        )

    def failed(self, unit: ClipToSample, failure: Failure) -> SampledFrames:
        """Returns the error."""
        return SampledFrames(error=failure.message)


def read_text(rgb_HWC: NDArray[np.uint8]) -> tuple[TextLine, ...]:  # noqa: N803
    """Reads lines of text in a picture, uint8 RGB [H, W, 3]; each process loads one model."""
    return tuple(_reader().read(rgb_HWC))


@cache
def _reader() -> "TextReader":
    # Most processes read no text, and the network is large.
    from curator.models.text_reader import TextReader

    return TextReader()
