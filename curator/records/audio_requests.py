"""Requests for the audio of clips."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from curator.errors import UsageError

MAX_RATE_HZ = 192_000


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """A request for the audio of each clip, as float32 samples from -1 to 1.

        AudioRequest(16_000)              # mono, as speech models read it
        AudioRequest(48_000, channels=2)  # stereo

    Attributes:
        rate: Samples per second, from 1 to 192,000.
        channels: 1 for mono, the mean of the left and the right channel; 2 for stereo, in which
            both channels of a mono clip are the same. FFmpeg mixes surround sound to stereo.

    Raises:
        UsageError: A value is out of its range.
    """

    rate: int
    channels: int = 1

    def __post_init__(self) -> None:
        """Raises `UsageError` for a value out of its range."""
        if not isinstance(self.rate, int) or not 1 <= self.rate <= MAX_RATE_HZ:
            raise UsageError(
                f"audio rate {self.rate!r}; expected samples per second, a whole number from 1 to "
                f"{MAX_RATE_HZ}, such as 16000"
            )
        if self.channels not in (1, 2):
            raise UsageError(f"audio channels {self.channels!r}; expected 1 (mono) or 2 (stereo)")

    def n_samples(self, seconds: Fraction) -> int:
        """Returns the number of samples of a time."""
        return ceil(seconds * self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpan:
    """The requested audio of a part of a clip, in seconds from the clip's first frame."""

    request: AudioRequest
    start: Fraction
    seconds: Fraction

    @property
    def n_samples(self) -> int:
        """Number of samples of each channel."""
        return self.request.n_samples(self.seconds)

    @property
    def n_bytes(self) -> int:
        """Bytes of the samples."""
        return self.n_samples * self.request.channels * 4
