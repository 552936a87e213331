"""Copied clips, and clips in another form, in whole runs: table, sample, shard, and reruns.

The steps run in this process, so that no Ray is needed.
"""

import io
import json
from pathlib import Path

import av
import numpy as np
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from place import QVGA, SHORT, Place

from curator.records.clips import FITTED
from curator.stages.cut.stage import CutStage
from curator.stages.propose.clip_spans import clip_id
from curator.tools.report.funnel import format_funnel

N = 100
GOP = 6
FEW, MANY = "shard.lengths=[17,33]", "shard.lengths=[17,33,50]"
"""Buckets that a clip of 50 frames stays in without its first four, and those it does not."""
FORM = ("cut.size=bucket", "cut.fps=15", "cut.length_frames=18", "cut.audio=aac",
        "shard.lengths=[17]")  # fmt: skip


class Cut(Place):
    """Films of short clips, all of which are kept."""

    settings = (*SHORT, "propose.max_s=2.5")

    def results(self) -> dict[str, str]:
        return self.files("shards", "clips", "sources", "shots")


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Cut:
    """Films with many key frames."""
    (tmp_path / "in").mkdir()
    params = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:b-adapt=0"
    for number, suffix in enumerate((".mp4", ".mkv")):
        write_video(
            tmp_path / "in" / f"{number}{suffix}",
            moving_texture(N, **QVGA, seed=number),
            bframes=2,
            options={"preset": "veryfast", "x264-params": params},
        )
    return Cut(tmp_path / "in", tmp_path / "out")


@pytest.fixture
def heard(tmp_path: Path) -> Cut:
    """Films with sound and without."""
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in/heard.mp4", moving_texture(100, **QVGA), audio_tone_s=4.0)
    write_video(tmp_path / "in/mute.mkv", moving_texture(110, **QVGA, seed=1))
    return Cut(tmp_path / "in", tmp_path / "out")


def test_table_and_sample_carry_the_span_that_was_written(place: Cut, tmp_path: Path) -> None:
    """Pins frames, seconds and timestamps of a copy, under the id of what was proposed."""
    summary, clips = place.run(FEW), place.clips()
    assert [clip["cut_mode"] for clip in clips] == ["copy"] * 4
    assert summary["counts"]["by_cut_mode"] == {"copy": 4}
    assert summary["cut"]["copied"] == summary["work"]["clips_cut"] == 4
    assert summary["cut"]["not_copied"] == {}
    starts = set()
    for clip in clips:
        start, end = clip["start_frame"], clip["end_frame"]
        starts.add(start)
        assert clip["n_frames"] == end - start
        assert clip["end_s"] - clip["start_s"] == pytest.approx((end - start) / 30, abs=0.002)
        half = 0 if start < 50 else 50
        with av.open(clip["source_uri"]) as container:
            frames = list(container.decode(video=0))
        times = [*(frame.pts for frame in frames), frames[-1].pts + frames[-1].duration]
        assert (clip["start_pts"], clip["end_pts"]) == (times[start], times[end])
        assert clip["clip_id"] == clip_id(clip["source_id"], times[half], times[half + 50])
        sample = json.loads(place.sample(clip, "json"))
        caption, mp4 = place.sample(clip, "txt"), place.sample(clip, "mp4")
        for name, column in (
            ("source_start_s", "start_s"), ("source_end_s", "end_s"), ("n_frames", "n_frames"),
            ("source_start_pts", "start_pts"), ("source_end_pts", "end_pts"),
            ("cut_mode", "cut_mode"), ("mp4_sha256", "mp4_sha256"),
        ):  # fmt: skip
            assert sample[name] == pytest.approx(clip[column], abs=1e-6)
        assert f" of {(end - start) / 30:.1f} seconds," in caption.decode()
        with av.open(io.BytesIO(mp4)) as container:
            copied = [frame.to_ndarray() for frame in container.decode(video=0)]
        np.testing.assert_array_equal(copied, [f.to_ndarray() for f in frames[start:end]])
    assert starts == {0, 54}


@pytest.mark.long
@pytest.mark.usefixtures("unsandboxed")
def test_a_rerun_takes_over_what_was_written(
    place: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that nothing is cut again, from shards and from parts, and all bytes are the same."""
    broken = Cut(place.sources, tmp_path / "broken")
    place.run(FEW)
    before = place.results()
    broken.break_off(monkeypatch, FEW)
    assert broken.files("cuts")
    monkeypatch.setattr(CutStage, "process", None)
    for here in (place, broken):
        summary = here.run(FEW)
        assert summary["work"]["clips_cut"] == summary["cut"]["copied"] == 0
        assert summary["counts"]["by_cut_mode"] == {"copy": 4}
        assert here.results() == before


@pytest.mark.long
def test_other_buckets_and_modes_cut_again_what_would_be_written_otherwise(
    place: Cut, tmp_path: Path
) -> None:
    """Pins that results do not depend on what was written before: either way and back."""
    place.run(FEW)
    few = place.results()
    summary = place.run(MANY)
    modes = {c["start_frame"]: (c["cut_mode"], c["copy_frames"]) for c in place.clips()}
    assert modes == {0: ("encode", 49), 50: ("encode_head", 46)}
    assert summary["cut"]["encoded"] == summary["cut"]["encoded_head"] == 2
    assert summary["cut"]["not_copied"] == {"too_few_frames": 4}
    fresh = Cut(place.sources, tmp_path / "fresh")
    fresh.run(MANY)
    assert place.results() == fresh.results()
    place.run(FEW)
    assert place.results() == few
    summary = place.run(FEW, "cut.mode=encode")
    assert summary["cut"]["encoded"] == summary["counts"]["by_cut_mode"]["encode"] == 4
    assert {clip["start_frame"] for clip in place.clips()} == {0, 50}


def test_clips_have_the_form_of_their_bucket(heard: Cut) -> None:
    """Pins size, rate, length and audio in tables, samples and the file itself, and a rerun."""
    summary, clips = heard.run(*FORM), heard.clips()
    assert len(clips) >= 4
    assert summary["counts"]["by_form"] == {"retimed": len(clips)}
    assert f"  {'retimed':<22}{len(clips):>11}" in format_funnel(summary)
    allowed = {"cut.enlarge=always", "cut.most_cropped=0.9", "cut.most_repeated=1"}
    assert heard.run(*FORM, *allowed)["work"]["clips_cut"] == 0
    audio = [clip["audio"] for clip in clips if clip["source_uri"].endswith("heard.mp4")]
    assert set(audio) == {"aac"}
    assert {c["audio"] for c in clips} == {"aac", "none"}
    assert summary["cut"]["audio"] == {"aac": len(audio), "none": len(clips) - len(audio)}
    for clip in clips:
        assert (clip["width"], clip["height"], clip["written_fps"]) == (160, 120, 15)
        assert clip["n_frames"] == 18
        assert clip["end_frame"] - clip["start_frame"] == 35
        assert clip["bucket"] == "120p_4-3_17f"
        sample = json.loads(heard.sample(clip, "json"))
        assert (sample["audio"], sample["n_frames"]) == (clip["audio"], 18)
        assert [sample[name] for name in FITTED] == [1.0, 0.0, 0.5, 0.0]
        with av.open(io.BytesIO(heard.sample(clip, "mp4"))) as container:
            assert sum(1 for _ in container.decode(video=0)) == 18
            assert container.streams.video[0].average_rate == 15
            assert bool(container.streams.audio) == (clip["audio"] == "aac")
    assert heard.run(*FORM)["work"]["clips_cut"] == 0
    assert [c["mp4_sha256"] for c in heard.clips()] == [c["mp4_sha256"] for c in clips]


def test_clips_too_short_for_the_length_are_rejected(heard: Cut) -> None:
    """Pins the reason, and that nothing is scored again for another length."""
    heard.code(*FORM[3:], "cut.length_frames=1000")
    summary = heard.summary()
    assert summary["counts"]["kept"] == 0
    assert summary["counts"]["by_any_reason"]["too_short"] == summary["counts"]["clips"]
    heard.run(*FORM[3:], "cut.length_frames=40")
    assert {clip["n_frames"] for clip in heard.clips()} == {40}


def test_hdr_without_a_rule_is_rejected_before_it_is_cut(tmp_path: Path) -> None:
    """Pins both values of `cut.hdr`, and that `tonemap` writes the same clips."""
    place = Cut(tmp_path / "in", tmp_path / "out")
    place.sources.mkdir()
    with av.open(str(place.sources / "hdr.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace = 9, 16, 9
        for picture in moving_texture(80, **QVGA):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            output.mux(stream.encode(frame.reformat(format="yuv420p")))
        output.mux(stream.encode(None))
    free = [*FORM[4:], "filters.hdr.max=1", "filters.contrast.min=0"]
    place.code(*free, "cut.hdr=reject")
    counts = place.summary()["counts"]
    assert (counts["kept"], counts["by_reason"]) == (0, {"high_dynamic_range": counts["clips"]})
    summary = place.run(*free)
    assert place.clips()
    assert summary["cut"]["not_copied"] == {"high_dynamic_range": len(place.clips())}
