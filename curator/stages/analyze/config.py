"""Settings of the analysis. `families` lists the settings that each family depends on."""

from typing import Literal

from pydantic import field_validator, model_validator

from curator.models.cpu_arithmetic import Precision
from curator.stage import StageConfig, setting

ANALYZED_IN = "analyzed_in_"  # prefix of counts by precision of the shot network


class AnalyzeConfig(StageConfig):
    """Which families are measured, how, and limits of the decode."""

    # 2 per second: VideoX-Fun's rate for motion, cosmos-curate's for captions.
    samples_per_s: float = setting(2.0, gt=0, le=30, unit="1/s")
    """rate of the samples for which motion, sharpness, exposure and descriptor are measured"""
    # 0.1 s: a fast pan of 2 picture heights per second moves 36 px of 180, which DIS can follow.
    motion_pair_s: float = setting(0.1, gt=0, le=1, unit="s")
    """time between the two frames of which motion is measured"""
    text: bool = setting(True, unit="yes or no")
    """detect text, which scores of text need; 0.03 CPU-seconds per picture"""
    # 1 s: the shortest clip, of 2 s, then has two looks. Subtitles are shown for 1 s or longer.
    text_every_s: float = setting(1.0, gt=0, le=60, unit="s")
    """time between looks for text, logos and divided screens; rounded to whole samples"""
    audio: bool = setting(True, unit="yes or no")
    """measure the level of the audio, which scores of audio need; 0.05 CPU-seconds per minute of
    stereo"""
    # benchmarks/results/common_clock.md: 0.3% of the analysis of 1080p.
    activity: bool = setting(False, unit="yes or no")
    """measure how much each frame changes apart from the camera's motion and the light, by which
    several cameras of one event are aligned in time; 0.04 ms of CPU time per frame"""
    # 2, so 1 per second: 7 KB per second over the labelled media, 16 KB for edited films.
    thumbnail_every: int = setting(2, ge=1, unit="samples")
    """samples per stored thumbnail, for the report and to verify duplicates; a sample that differs
    much from the sample before also has a thumbnail, so short shots have pictures"""
    scenes: bool = setting(True, unit="yes or no")
    """compute scene vectors of pictures, which find copies of footage; 0.016 CPU-seconds per
    picture"""
    # 2 s: the shortest clip, of 2 s, has a picture with a vector.
    scene_every_s: float = setting(2.0, gt=0, unit="s")
    """time between pictures with a scene vector, rounded to whole samples; a sample that differs
    much from the sample before also has a vector"""
    # benchmarks/results/distortion.md: the share of a run's CPU time.
    distortion: bool = setting(True, unit="yes or no")
    """score how damaged pictures are, for the score distortion; 0.02 CPU-seconds per picture"""
    # 1.5 s: the shortest clip, of 2 s, has a picture with a score.
    distortion_every_s: float = setting(1.5, gt=0, unit="s")
    """time between pictures that are scored for damage, rounded to whole samples"""
    # 240 s: at 30 frames/s, the 382 frames that two segments both decode are 5% of a segment.
    segment_s: float = setting(240.0, ge=10, unit="s")
    """a longer source is divided at key frames into segments of at most this length, which are
    analyzed in parallel; changes no result"""
    shot_precision: Precision = setting("auto", unit="name")
    """precision of the networks on CPUs: shots use float32 or int8, and auto is int8 if the CPU has
    instructions for it; text uses bfloat16 if the CPU has instructions for it, unless the precision
    is float32; use float32 if different CPUs must find the same shots and lines"""
    clip: str | None = setting(None, unit="name")
    """CLIP model of `curate models list` that embeds pictures; null for no model, and no
    scores that need embeddings"""
    # 1 s: the shortest clip, of 2 s, has two pictures to compare.
    clip_every_s: float = setting(1.0, gt=0, unit="s")
    """time between pictures that the CLIP model embeds; at least 1 / samples_per_s, because these
    pictures are samples"""
    device: Literal["auto", "cpu", "gpu"] = setting("auto", unit="name")
    """device that decodes sources and runs the networks: gpu needs a GPU and PyNvVideoCodec, auto
    uses a GPU if both are available; scores of the devices differ in the last digits"""
    # The rule is in `gpu_engines.workers_per_gpu`.
    workers_per_gpu: int | None = setting(None, ge=1, unit="processes")
    """processes that share a GPU, each with a decoder and the networks; each takes half a core and
    about 2.5 GB of GPU memory; null derives the number from video engines, cores and memory"""
    flow: Literal["dis", "hardware"] = setting("dis", unit="name")
    """dense optical flow for motion and camera scores: dis runs on CPUs; hardware uses the optical
    flow engine of the GPU through DALI"""
    # benchmarks/results/clip.md: bfloat16 is 3 times as fast, and changes embeddings by 0.0017.
    clip_precision: Literal["float32", "bfloat16"] = setting("float32", unit="name")
    """precision of the CLIP model on CPUs; bfloat16 takes a third of the time if the CPU has
    instructions for it; GPUs use float16"""
    # 8192x4608 is 37.7 million: 8K UHD and DCI 8K pass, a decompression bomb does not.
    max_pixels: int = setting(40_000_000, ge=1, unit="px")
    """largest frame that is decoded; a source with a larger frame fails with too_many_pixels"""
    # 24 hours at 60 frames per second.
    max_frames: int = setting(5_184_000, ge=1, unit="frames")
    """maximum frames of a source; a source with more frames fails with too_long"""
    # Twelve hours for one source: the worst honest case is a day of 4K on one slow core.
    max_decode_s: float = setting(43_200.0, gt=0, unit="s")
    """maximum CPU-seconds of a source, which otherwise fails with too_slow; short sources get less,
    by bytes, frames and pixels: 4 minutes for a minute of 1080p, 3.4 hours for an hour"""

    @field_validator("shot_precision", mode="before")
    @classmethod
    def _as_older_recipes_mean_it(cls, value: object) -> object:
        """Reads bfloat16, a value of versions without int8, as auto."""
        return "auto" if value == "bfloat16" else value

    @model_validator(mode="after")
    def _pairs_fit(self) -> "AnalyzeConfig":
        if self.motion_pair_s * self.samples_per_s > 1:
            raise ValueError(
                f"samples_per_s is {self.samples_per_s} and motion_pair_s {self.motion_pair_s}; "
                f"motion_pair_s must be at most 1 / samples_per_s, {1 / self.samples_per_s:.3g} s"
            )
        return self
