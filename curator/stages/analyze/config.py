"""Settings of the analysis; `families` says which of them each family depends on."""

from typing import Literal

from pydantic import field_validator, model_validator

from curator.models.cpu_arithmetic import Precision
from curator.stage import StageConfig, setting

ANALYZED_IN = "analyzed_in_"  # begins names of counts, by arithmetic of the shot network


class AnalyzeConfig(StageConfig):
    """What is measured, and the limits of what is decoded."""

    # 2 per second: VideoX-Fun's rate for motion, cosmos-curate's for captions.
    samples_per_s: float = setting(2.0, gt=0, le=30, unit="1/s")
    """grid on which motion, sharpness, exposure and descriptor are measured"""
    # 0.1 s: a fast pan of 2 picture heights per second moves 36 px of 180, which DIS still follows.
    motion_pair_s: float = setting(0.1, gt=0, le=1, unit="s")
    """distance of the two frames between which motion is measured"""
    text: bool = setting(True, unit="yes or no")
    """look for text, which scores of text need; one look costs 0.03 CPU-seconds"""
    # 1 s: the shortest clip, of 2 s, then has two looks; subtitles stand for 1 s upwards.
    text_every_s: float = setting(1.0, gt=0, le=60, unit="s")
    """grid on which text, logos and divided screens are looked for; whole samples"""
    audio: bool = setting(True, unit="yes or no")
    """measure how loud the audio is, which scores of audio need; 0.05 CPU-seconds a minute of
    stereo"""
    # 2, so 1 per second: 7 KB a second over the labelled media, 16 KB for edited films.
    thumbnail_every: int = setting(2, ge=1, unit="samples")
    """samples per stored thumbnail, which the report shows and duplicates are verified by; a sample
    that differs much from the one before it has one too, so that short shots have pictures"""
    scenes: bool = setting(True, unit="yes or no")
    """compute vectors of what pictures show, by which copies of footage are found; 0.016
    CPU-seconds a picture"""
    # 2 s: the shortest clip, of 2 s, has a picture with a vector.
    scene_every_s: float = setting(2.0, gt=0, unit="s")
    """time between pictures that have a vector; whole samples, and a sample that differs much from
    the one before it has a vector too"""
    # 240 s: at 30 frames/s the 382 frames that two segments both decode are 5% of one.
    segment_s: float = setting(240.0, ge=10, unit="s")
    """a longer source is cut at key frames into segments of at most this length, which are analyzed
    in parallel; changes no result"""
    shot_precision: Precision = setting("auto", unit="name")
    """arithmetic of the networks for shots and text on CPUs: float32, int8, or auto for int8 where
    the CPU has instructions for it. Text is bfloat16 where the CPU has that, unless float32 is
    named; name float32 where unlike CPUs must find the same shots and lines"""
    clip: str | None = setting(None, unit="name")
    """CLIP model of `curate models list` that looks at the pictures; null for none, and then scores
    that are read from its embeddings are absent"""
    # 1 s: the shortest clip, of 2 s, has two pictures to compare.
    clip_every_s: float = setting(1.0, gt=0, unit="s")
    """time between pictures that the CLIP model looks at; they are samples, so that it is no
    shorter than one of 1 / samples_per_s"""
    # benchmarks/results/clip.md: bfloat16 is 3 times as fast, and moves embeddings by 0.0017.
    device: Literal["auto", "cpu", "gpu"] = setting("auto", unit="name")
    """where sources are decoded and the networks run: gpu needs one and PyNvVideoCodec, auto takes
    it where both are there; scores differ in the last digits"""
    # `gpu_engines.workers_per_gpu` has the rule.
    workers_per_gpu: int | None = setting(None, ge=1, unit="processes")
    """processes that share a GPU, each with a decoder and the networks; each takes half a core and
    about 2.5 GB of the GPU's memory; null decides by the GPU's video engines, cores and memory"""
    flow: Literal["dis", "hardware"] = setting("dis", unit="name")
    """dense optical flow behind motion and camera scores: dis on CPUs, or hardware for the GPU's
    own engine through DALI"""
    clip_precision: Literal["float32", "bfloat16"] = setting("float32", unit="name")
    """arithmetic of the CLIP model on CPUs; bfloat16 takes a third of the time where the CPU has
    instructions for it; a GPU uses float16"""
    # 8192x4608 is 37.7 million: 8K UHD and DCI 8K pass, a decompression bomb does not.
    max_pixels: int = setting(40_000_000, ge=1, unit="px")
    """largest frame that is decoded; a larger one fails with too_many_pixels"""
    # 24 hours at 60 frames per second.
    max_frames: int = setting(5_184_000, ge=1, unit="frames")
    """most frames of a source; more fail with too_long"""
    # Twelve hours for one source: the worst honest case is a day of 4K on one slow core.
    max_decode_s: float = setting(43_200.0, gt=0, unit="s")
    """most CPU-seconds for one source, which then fails with too_slow; less is given by its bytes,
    frames and pixels: 6 minutes for one of 1080p, 2 hours for 60"""

    @field_validator("shot_precision", mode="before")
    @classmethod
    def _as_older_recipes_mean_it(cls, value: object) -> object:
        """Takes bfloat16, which versions before int8 had, as the CPU's own arithmetic."""
        return "auto" if value == "bfloat16" else value

    @model_validator(mode="after")
    def _pairs_fit(self) -> "AnalyzeConfig":
        if self.motion_pair_s * self.samples_per_s > 1:
            raise ValueError(
                f"samples_per_s is {self.samples_per_s} and motion_pair_s {self.motion_pair_s}; a "
                f"pair must end before the next sample, in {1 / self.samples_per_s:.3g} s"
            )
        return self
