"""Computes dense optical flow on a GPU's optical flow engine (NVOFA), through DALI.

Turing, Ampere and Hopper have the engine, which uses neither the GPU's cores nor the CPU. Its flow
differs from the CPU's, so recipes name the method (`analyze.flow`), and tracks record it.
"""

# ruff: noqa: ANN401, N803 - DALI has no types; shape letters

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError
from curator.installation import install_extra
from curator.media.opencv import cv2

GRID_PX = 4
"""Pixels between neighbouring vectors; every generation of the engine supports this grid."""
MIN_SIDE_PX = 32
"""Smallest side of a picture for which flow is computed."""
_LEAST_PX = 128
"""Smaller sides are padded by repeating the edge: if the engine refuses a picture, DALI ends."""

_KNOWN_PX = (8, 4)
"""Motion of the pair that tests the engine, in x and y."""
_KNOWN_WITHIN_PX = 1.0


class HardwareFlow:
    """Dense optical flow on the first GPU, with the interface of `measures.motion.DenseFlow`.

    Raises:
        CuratorError: DALI is missing or finds no engine, or the engine mismeasures a known motion.
    """

    def __init__(self) -> None:
        self._pair_FHWC: NDArray[np.uint8] | None = None
        try:
            self._pipeline = self._built()
            # DALI opens the engine at the first pair.
            flow = self.between(*_known_pair())
        except ImportError as error:
            raise CuratorError(
                f"flow on the GPU needs DALI: {install_extra('gpu-flow')}, or set analyze.flow "
                "to dis"
            ) from error
        except RuntimeError as error:
            line = " ".join(str(error).split())[:200]
            raise CuratorError(
                f"DALI finds no engine for optical flow on GPU 0 ({line}); set analyze.flow to dis"
            ) from error
        assert flow is not None
        x, y = np.median(flow[32:-32, 32:-32], axis=(0, 1))
        if max(abs(x - _KNOWN_PX[0]), abs(y - _KNOWN_PX[1])) > _KNOWN_WITHIN_PX:
            raise CuratorError(
                f"the engine for optical flow on GPU 0 measures a motion of {_KNOWN_PX} pixels as "
                f"({x:.2f}, {y:.2f}); set analyze.flow to dis"
            )

    def between(
        self, before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]
    ) -> NDArray[np.float32] | None:
        """Returns each pixel's motion (x, y), float32 [H, W, 2]; None below `MIN_SIDE_PX`."""
        if min(before_HW.shape) < MIN_SIDE_PX:
            return None
        # DALI's vectors point from the later frame to the earlier one. DALI passes gray pictures to
        # the engine as if four pixels were one colour pixel, so they are converted to colour.
        pair = np.stack([after_HW, before_HW])
        lacking = [(0, max(0, _LEAST_PX - side)) for side in before_HW.shape]
        padded = np.pad(pair, [(0, 0), *lacking], mode="edge")
        self._pair_FHWC = np.repeat(padded[..., None], 3, axis=3)
        (flow,) = self._pipeline.run()
        coarse = np.asarray(flow.as_cpu().at(0), np.float32)[0]
        height, width = before_HW.shape
        # A vector belongs to the centre of its cell; the last cells extend beyond the edge.
        rows, columns = coarse.shape[:2]
        whole = cv2.resize(
            coarse, (columns * GRID_PX, rows * GRID_PX), interpolation=cv2.INTER_LINEAR
        )
        return np.ascontiguousarray(whole[:height, :width], np.float32)

    def _built(self) -> Any:
        dali: Any = import_module("nvidia.dali")
        fn, types = import_module("nvidia.dali.fn"), import_module("nvidia.dali.types")

        @dali.pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=1, num_threads=1, device_id=0, prefetch_queue_depth=1
        )
        def flow() -> Any:
            pair = fn.external_source(
                source=lambda: [self._pair_FHWC], layout="FHWC", dtype=types.UINT8, batch=True
            )
            return fn.optical_flow(pair.gpu(), output_grid=GRID_PX, image_type=types.RGB)

        pipeline = flow()
        pipeline.build()
        return pipeline


def _known_pair() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns two pictures of a texture, uint8 [H, W]; it moves by `_KNOWN_PX` between them."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 96), np.uint8)
    whole = np.asarray(cv2.resize(noise, (384, 256), interpolation=cv2.INTER_CUBIC), np.uint8)
    (x, y), margin = _KNOWN_PX, 32
    height, width = whole.shape
    before = whole[margin : height - margin, margin : width - margin]
    after = whole[margin - y : height - margin - y, margin - x : width - margin - x]
    return before.copy(), after.copy()
