"""The annotator `nudity`: what its network sees, and what becomes of the scores."""

from fractions import Fraction

import numpy as np
import pytest

from curator.stage import ClipFacts, RequestedFrames, SampledClip
from curator.stages.derive.nudity import Nudity, NudityConfig


def clip(*frames: np.ndarray) -> SampledClip:
    facts = ClipFacts(
        clip_id="0" * 24, source_id="0" * 32, n_frames=len(frames), fps=Fraction(1),
        width=64, height=48, columns={},
    )  # fmt: skip
    shown = RequestedFrames(numbers=tuple(range(len(frames))), pixels=np.stack(frames))
    return SampledClip(facts=facts, requested=(shown,))


def test_each_clip_has_the_scores_of_its_own_frames() -> None:
    """Pins batches over clips of several lengths, against the package's own call for a picture."""
    stage = Nudity(NudityConfig())
    stage.preflight()
    stage.setup()
    rng = np.random.default_rng(3)
    frames = [np.full((48, 64, 3), level, np.uint8) for level in (0, 120, 255)]
    frames += [rng.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(7)]
    # A colour of skin scores higher than noise.
    frames.append(np.full((48, 64, 3), (224, 172, 140), np.uint8))
    groups = [frames[:1], frames[1:10], frames[10:]]
    found = stage.process([clip(*group) for group in groups])
    from PIL import Image

    alone = [stage._network.score(Image.fromarray(frame)) for frame in frames]
    for values, own in zip(found, (alone[:1], alone[1:10], alone[10:]), strict=True):
        assert values["nudity"] == pytest.approx(max(own), abs=1e-4)
        assert values["nudity_mean"] == pytest.approx(np.mean(own), abs=1e-4)
    assert 0 <= min(alone) < max(alone) < 1


def test_frames_are_spread_over_the_clip() -> None:
    (request,) = Nudity(NudityConfig(frames_per_s=0.5)).frames
    facts = ClipFacts(
        clip_id="0" * 24, source_id="0" * 32, n_frames=100, fps=Fraction(25), width=1920,
        height=1080, columns={},
    )  # fmt: skip
    assert request.numbers(facts) == [25, 75]
    assert request.size_of(facts) == (512, 288)
