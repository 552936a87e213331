"""Decodes the audio of windows, and puts it into batches.

Shape letters: B samples, C channels, N samples of a channel.
"""

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av.error
import numpy as np
import torch

from curator.errors import ShardError, SourceError, UsageError
from curator.loading.window_decoder import FrameWindow
from curator.media.audio_samples import Wave, clip_samples
from curator.media.container import open_container
from curator.records.audio_requests import AudioRequest, AudioSpan


def requested_audio(audio: int | AudioRequest | None) -> AudioRequest | None:
    """Returns the request; a number is the rate of mono audio.

    Raises:
        UsageError: The rate is out of its range.
    """
    return audio if audio is None or isinstance(audio, AudioRequest) else AudioRequest(audio)


def decode_audio(mp4: bytes, span: AudioSpan, name: str) -> Wave | None:
    """Decodes a part of a clip's audio, float32 [C, N]; None for a clip without audio.

    `name` is that of the clip in messages.

    Raises:
        ShardError: The audio does not decode.
    """
    try:
        with open_container(io.BytesIO(mp4), name, n_bytes=len(mp4)) as container:
            return clip_samples(container, span)
    # PyAV raises ValueError for a format of audio that changes.
    except (av.error.FFmpegError, SourceError, ValueError) as error:
        fault = f"the audio of {name} does not decode ({error})"
        raise ShardError(f"{fault}; `curate verify` lists all damage") from error


def audio_batch(waves: Sequence[Wave | None], spans: Sequence[AudioSpan]) -> dict[str, Any]:
    """Returns `audio` and `has_audio` of a batch.

    `audio` is float32 [B, C, N] with zeros for clips without audio, or a list of [C, N] if lengths
    differ.
    """
    tensors = [
        torch.from_numpy(
            np.zeros((span.request.channels, span.n_samples), np.float32) if wave is None else wave
        )
        for wave, span in zip(waves, spans, strict=True)
    ]
    is_same = len({tensor.shape for tensor in tensors}) == 1
    return {
        "audio": torch.stack(tensors) if is_same else tensors,
        "has_audio": torch.tensor([wave is not None for wave in waves]),
    }


def check_lengths(
    request: AudioRequest,
    window: FrameWindow,
    rates: tuple[Fraction, Fraction],
    *,
    name: str,
    is_stored: bool,
) -> None:
    """Refuses windows of unequal duration, whose audio does not fill one batch.

    Args:
        request: The requested audio.
        window: The window of all clips of the batch.
        rates: Least and highest frame rate of these clips.
        name: Name of the clips in the message.
        is_stored: Whether the window is one for which values are stored.

    Raises:
        UsageError: The windows have different numbers of samples.
    """
    seconds = [window.seconds(rate) for rate in rates]
    low, high = rates
    if request.n_samples(seconds[0]) == request.n_samples(seconds[1]):
        return
    remedy = "`where` that reads clips of one rate" if is_stored else "fps=..."
    raise UsageError(
        f"audio of {name}: {window.frames} frames last {float(seconds[1]):.4g} to "
        f"{float(seconds[0]):.4g} s, because the clips have {float(low):.5g} to {float(high):.5g} "
        f"frames/s, so their audio does not fill a batch; give {remedy}, or batch_size=1 or None"
    )
