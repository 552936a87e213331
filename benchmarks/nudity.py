"""How often the annotator `nudity` is above a bound on pictures that show no nudity.

    nudity.py FOLDER...

The folders have videos without nudity. A frame per second of each is scored, as the annotator does,
and prints the share of videos with a frame at or above each bound, the highest scores, and the CPU
time per frame.
"""

import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from curator.stage import ClipFacts, RequestedFrames, SampledClip
from curator.stages.derive.nudity import Nudity, NudityConfig

BOUNDS = (0.1, 0.2, 0.3, 0.5, 0.8)
LONGER_PX = 512


def frames_of(path: Path) -> NDArray[np.uint8]:
    """Returns a frame per second, uint8 [T, H, W, 3]."""
    shown, next_s = [], 0.5
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            if frame.time is not None and frame.time >= next_s:
                scale = min(1.0, LONGER_PX / max(frame.width, frame.height))
                size = max(2, round(frame.width * scale)), max(2, round(frame.height * scale))
                shown.append(frame.reformat(*size, format="rgb24").to_ndarray())
                next_s += 1.0
    return np.stack(shown) if shown else np.zeros((0, 2, 2, 3), np.uint8)


def clip_of(path: Path, pixels: NDArray[np.uint8]) -> SampledClip:
    """Returns the frames as the annotator gets them."""
    n_frames, height, width, _ = pixels.shape
    facts = ClipFacts(
        clip_id=path.name,
        source_id=path.name,
        n_frames=n_frames,
        fps=Fraction(1),
        width=width,
        height=height,
        columns={},
    )
    frames = RequestedFrames(numbers=tuple(range(n_frames)), pixels=pixels)
    return SampledClip(facts=facts, requested=(frames,))


def main() -> None:
    stage = Nudity(NudityConfig())
    stage.setup()
    scores: dict[str, tuple[float, int]] = {}
    spent_s = 0.0
    paths = sorted(path for folder in sys.argv[1:] for path in Path(folder).rglob("*"))
    for path in paths:
        try:
            pixels = frames_of(path) if path.is_file() else None
        except (av.FFmpegError, IndexError, ValueError):
            continue
        if pixels is None or not len(pixels):
            continue
        began_s = time.process_time()
        (values,) = stage.process([clip_of(path, pixels)])
        spent_s += time.process_time() - began_s
        scores[path.name] = (values["nudity"], len(pixels))
    highest = np.array([score for score, _ in scores.values()])
    n_frames = sum(n for _, n in scores.values())
    print(
        f"{len(scores)} videos, {n_frames} frames, {1000 * spent_s / n_frames:.0f} CPU-ms a frame"
    )
    for bound in BOUNDS:
        print(f"highest frame at or above {bound}: {np.mean(highest >= bound):.1%} of the videos")
    for name in sorted(scores, key=lambda name: -scores[name][0])[:8]:
        print(f"  {scores[name][0]:.3f} {name}")


if __name__ == "__main__":
    main()
