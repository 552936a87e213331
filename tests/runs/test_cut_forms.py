"""Clips in another form than their source's, in a whole run: buckets, tables, samples, reruns.

The steps run in this process, so that no Ray is needed.
"""

import io
import json
import tarfile
from pathlib import Path

import av
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import moving_texture
from test_cut_modes import code, curated

SMALL = {"width_px": 160, "height_px": 120}
FORM = ("cut.size=bucket", "cut.fps=15", "cut.length_frames=18", "cut.audio=aac",
        "shard.lengths=[17]")  # fmt: skip


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write_video(folder / "heard.mp4", moving_texture(100, **SMALL), audio_tone_s=4.0)
    write_video(folder / "mute.mkv", moving_texture(110, **SMALL, seed=1))
    return folder


def test_clips_have_the_form_of_their_bucket(sources: Path, tmp_path: Path) -> None:
    """Pins size, rate, length and audio in tables, samples and the file itself, and a rerun."""
    out = tmp_path / "out"
    summary, clips = curated(sources, out, *FORM)
    assert len(clips) >= 4
    heard = [clip["audio"] for clip in clips if clip["source_uri"].endswith("heard.mp4")]
    assert set(heard) == {"aac"}
    assert {c["audio"] for c in clips} == {"aac", "none"}
    assert summary["cut"]["audio"] == {"aac": len(heard), "none": len(clips) - len(heard)}
    for clip in clips:
        assert (clip["width"], clip["height"], clip["fps"]) == (160, 128, 15)
        assert clip["n_frames"] == 18
        assert clip["end_frame"] - clip["start_frame"] == 35
        assert clip["bucket"] == "120p_4-3_17f"
        with tarfile.open(out / clip["shard"]) as tar:
            mp4 = tar.extractfile(f"{clip['key']}.mp4").read()  # type: ignore[union-attr]
            sample = json.load(tar.extractfile(f"{clip['key']}.json"))  # type: ignore[arg-type]
        assert (sample["audio"], sample["n_frames"]) == (clip["audio"], 18)
        with av.open(io.BytesIO(mp4), mode="r") as container:
            assert sum(1 for _ in container.decode(video=0)) == 18
            assert container.streams.video[0].average_rate == 15
            assert bool(container.streams.audio) == (clip["audio"] == "aac")
    summary, again = curated(sources, out, *FORM)
    assert summary["work"]["clips_cut"] == 0
    assert [clip["mp4_sha256"] for clip in again] == [clip["mp4_sha256"] for clip in clips]


def test_clips_too_short_for_the_length_are_rejected(sources: Path, tmp_path: Path) -> None:
    """Pins the reason, and that nothing is scored again for another length."""
    out = tmp_path / "out"
    more = [*FORM[3:], "cut.length_frames=1000"]
    code(sources, out, *more)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["counts"]["kept"] == 0
    assert summary["counts"]["by_any_reason"]["too_short"] == summary["counts"]["clips"]
    _, clips = curated(sources, out, *FORM[3:], "cut.length_frames=40")
    assert {clip["n_frames"] for clip in clips} == {40}


def test_hdr_without_a_rule_is_rejected_before_it_is_cut(tmp_path: Path) -> None:
    """Pins the default of `cut.hdr`, and that `tonemap` writes the same clips."""
    folder = tmp_path / "in"
    folder.mkdir()
    with av.open(str(folder / "hdr.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace = 9, 16, 9
        for picture in moving_texture(80, **SMALL):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            output.mux(stream.encode(frame.reformat(format="yuv420p")))
        output.mux(stream.encode(None))
    free = [*FORM[4:], "filters.hdr.max=1", "filters.contrast.min=0"]
    code(folder, tmp_path / "out", *free)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["counts"]["kept"] == 0
    assert summary["counts"]["by_reason"] == {"high_dynamic_range": summary["counts"]["clips"]}
    summary, clips = curated(folder, tmp_path / "out", *free, "cut.hdr=tonemap")
    assert clips
    assert summary["cut"]["not_copied"] == {"high_dynamic_range": len(clips)}
