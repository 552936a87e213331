"""What each trainer reads of clips: values computed by hand from the trainers' own code.

The code is named in the files of the trainers; no value here comes from the engine.
"""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from curator.errors import RecipeError
from curator.trainers import fit_words
from curator.trainers.clip_fit import OutputSpec, caption_of, fit_form
from curator.trainers.frame_rules import Drop
from curator.trainers.trainer_files import FOLDER, load_trainer, trainer_names

NTSC = 30000 / 1001


def frames(name: str, n: int, fps: float, /, **values: Any) -> list[list[int]] | Drop | None:  # noqa: ANN401
    """The frames of each sample, or why there is none."""
    reading = load_trainer(name, values).read(n, fps, 960, 540)
    return reading.reason or [sample.tolist() for sample in reading.indices()]


def size(name: str, width: int, height: int, **values: Any) -> tuple[int, int]:  # noqa: ANN401
    picture = load_trainer(name, values).rules.size.fitted(999, width, height)
    assert picture is not None
    return picture.width, picture.height


def whole(n: int) -> list[list[int]]:
    return [list(range(n))]


@pytest.mark.parametrize(("n", "expected"), [(80, 77), (81, 81), (82, 81), (4, 1), (5, 5)])
def test_diffsynth_reads_the_first_frames_and_truncates_only_short_clips(
    n: int, expected: int
) -> None:
    assert frames("wan-diffsynth", n, 30.0) == whole(expected)


def test_diffsynth_resamples_for_ltx2_by_ffmpegs_hundredths() -> None:
    # 150 frames are 5.00 s: 120 frames at 24, of which 113 are 8n + 1. Frame round(k / 24 * 30):
    # 2 / 24 * 30 is 2.5, which rounds to even.
    (read,) = frames("ltx2-diffsynth", 150, 30.0) or []  # type: ignore[misc]
    assert len(read) == 113
    assert read[:5] == [0, 1, 2, 4, 5]
    # FFmpeg prints 29.97 for 30000/1001: 112 / 24 * 29.97 is 139.86.
    assert frames("ltx2-diffsynth", 150, NTSC)[0][112] == 140  # type: ignore[index]


def test_diffsynth_reads_17n_and_5_frames_for_h3() -> None:
    assert frames("h3-diffsynth", 200, 24.0) == whole(124)
    assert frames("h3-diffsynth", 38, 24.0) == whole(22)
    assert frames("h3-diffsynth", 4, 24.0) == whole(1)
    # One frame at 30 is .03 s, in which there is no frame at 24.
    assert frames("h3-diffsynth", 1, 30.0) is Drop.TOO_SHORT


@pytest.mark.parametrize("n", [60, 61, 62, 64, 65, 1830, 1831])
def test_cosmos3_needs_61_frames_and_at_most_61_seconds(n: int) -> None:
    expected = {60: Drop.TOO_SHORT, 61: 61, 62: 61, 64: 61, 65: 65, 1830: 1829, 1831: Drop.TOO_LONG}
    read = expected[n]
    assert frames("cosmos3", n, 30.0) == (read if isinstance(read, Drop) else whole(read))


def test_cosmos3_takes_a_number_of_frames_from_the_whole_window() -> None:
    # 200 // 93 is 2; 185 frames are spanned, from (200 - 185) // 2.
    expected = [list(range(7, 7 + 185, 2))]
    assert (
        frames("cosmos3", 200, 24.0, frames=93, interval="entire_chunk", place="center") == expected
    )
    # At 60 frames/s each second frame is taken, also if the window is too short for that.
    assert frames("cosmos3", 100, 60.0, frames=93) == [list(range(0, 98, 2))]


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (640, 360, (320, 192)),
        (648, 1000, (192, 320)),
        (650, 1000, (256, 320)),
        (155, 100, (320, 192)),
    ],
)
def test_cosmos3_sizes_by_thresholds_of_the_aspect(
    width: int, height: int, expected: tuple[int, int]
) -> None:
    assert size("cosmos3", width, height) == expected


def test_cosmos_predict2_needs_one_frame_more_and_never_reads_the_last() -> None:
    assert frames("cosmos-predict2", 92, 24.0) is Drop.TOO_SHORT
    assert frames("cosmos-predict2", 93, 24.0) is Drop.NO_FRAME_TO_SPARE
    assert frames("cosmos-predict2", 94, 24.0) == whole(93)
    assert frames("cosmos-predict2", 95, 24.0) == [list(range(93)), list(range(1, 94))]


def test_opensora_and_fastvideo_draw_no_start_at_the_end() -> None:
    assert frames("opensora", 16, 24.0) == whole(16)
    assert frames("opensora", 17, 24.0) == whole(16)
    assert frames("opensora", 18, 24.0) == [list(range(16)), list(range(1, 17))]


def test_musubi_reads_first_frames_at_the_clips_own_rate() -> None:
    assert frames("musubi", 24, 30.0) is Drop.TOO_SHORT
    assert frames("musubi", 44, 30.0) == whole(25)
    assert frames("musubi", 45, 30.0) == [list(range(25)), list(range(45))]
    assert frames("musubi", 45, 30.0, frames=[27]) == whole(25)


def test_musubi_skips_frames_to_a_lower_rate() -> None:
    # Sums of 16 / 30, truncated: 0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8. Fifteen times 16 / 30 is 8, and
    # the sum 7.999999999999998.
    read = [[0, 2, 4, 6, 8, 10, 12, 14, 16]]
    assert sum([16 / 30] * 15) < 8
    assert frames("musubi", 17, 30.0, frames=9, source_fps=30.0) == read
    assert frames("musubi", 16, 30.0, frames=9, source_fps=30.0) is Drop.TOO_SHORT


def test_musubi_stops_too_early_at_a_rate_below_the_models() -> None:
    # At 16, entries of 24 advance by 1.5 a frame: the 25th entry is passed after 17 frames.
    assert frames("musubi-hunyuan", 400, 16.0, frames=25, source_fps=16.0) is Drop.TOO_SHORT


def test_musubi_takes_chunks_slides_and_spread_windows() -> None:
    chunks = [list(range(25)), list(range(25, 50))]
    assert frames("musubi", 60, 30.0, frames=25, extraction="chunk") == chunks
    slid = frames("musubi", 60, 30.0, frames=25, extraction="slide", slide=10)
    assert [sample[0] for sample in slid or []] == [0, 10, 20, 30]  # type: ignore[index]
    spread = frames("musubi", 60, 30.0, frames=25, extraction="uniform", samples=3)
    assert [sample[0] for sample in spread or []] == [0, 17, 35]  # type: ignore[index]
    # One uniform sample is read as `head`, which stops too early at a rate below the model's.
    one = {"frames": 25, "source_fps": 16.0, "extraction": "uniform"}
    assert frames("musubi-hunyuan", 400, 16.0, **one) is Drop.TOO_SHORT
    full = {"frames": [25, 129], "extraction": "full"}
    assert frames("musubi-hunyuan", 400, 30.0, **full) == whole(129)
    assert frames("musubi-hunyuan", 36, 30.0, **full) == whole(33)
    assert frames("musubi-hunyuan", 4, 30.0, **full) == whole(1)
    # 97 are 4n + 1, and two sections of 9 * 4 frames; of at most 129 frames, three sections.
    assert frames("musubi-framepack", 36, 30.0) is Drop.TOO_SHORT
    assert frames("musubi-framepack", 100, 30.0) == whole(73)
    assert frames("musubi-framepack", 400, 30.0) == whole(109)


def test_musubi_sizes_are_buckets_of_one_area() -> None:
    # sqrt(960 * 544) is 722: widths from 352 in steps of 16; 522240 // 544 // 16 * 16 is 960.
    assert size("musubi", 1280, 720) == (960, 544)
    assert size("musubi", 720, 1280) == (544, 960)
    # 522240 // 720 is 725, and 720 on the grid.
    assert size("musubi", 500, 500) == (720, 720)
    # 500x500 is below the area of 960x544, 1000x700 above.
    assert size("musubi", 500, 500, no_upscale=True) == (496, 496)
    assert size("musubi", 1000, 700, no_upscale=True) == size("musubi", 1000, 700)


@pytest.mark.parametrize(
    ("n", "fps", "kept"), [(61, 30.0, False), (62, 30.0, True), (26, 12.5, True)]
)
def test_diffusion_pipe_counts_frames_at_the_models_rate(n: int, fps: float, kept: bool) -> None:
    # int(61 * 16 / 30) is 32, int(62 * 16 / 30) is 33, int(26 * 16 / 12.5) is 33.
    read = frames("diffusion-pipe", n, fps)
    assert (read is Drop.TOO_SHORT) != kept
    if kept:
        assert len(read[0]) == 33  # type: ignore[index]
        assert read[0][-1] == n - 1  # type: ignore[index]


def test_diffusion_pipe_rounds_frames_down_to_the_models_grid() -> None:
    # H3: 40 // 17 * 17 is 34. LTX: (48 - 1) // 8 * 8 + 1 is 41.
    assert len(frames("diffusion-pipe-h3", 100, 24.0, frames=40)[0]) == 34  # type: ignore[index]
    assert len(frames("diffusion-pipe-ltx", 100, 25.0, frames=48)[0]) == 41  # type: ignore[index]
    # (100 - 33) / 2 is 33.5.
    middle = frames("diffusion-pipe-hunyuan", 100, 24.0, place="middle")
    assert middle == [list(range(33, 66))]


def test_diffusion_pipe_sizes_are_seven_aspects_of_one_area() -> None:
    # Of .5, .63, .794, 1, 1.26, 1.587, 2 the nearest to 16:9 in logarithms is 1.587, and 2 to 2:1.
    # sqrt(512² * 1.587) is 645.0, and 512² / 645.0 is 406.4.
    assert size("diffusion-pipe", 1280, 720) == (640, 400)
    assert size("diffusion-pipe", 1280, 640) == (720, 368)
    assert size("diffusion-pipe", 1280, 720, by_aspect=False) == (512, 512)
    # Buckets are multiples of 16, of which LTX-2 takes multiples of 32: 400 / 32 is 12.5.
    assert size("diffusion-pipe-ltx2", 1280, 720) == (640, 384)
    # LTX-Video has buckets of multiples of 32: 406.4 / 32 is 12.7.
    assert size("diffusion-pipe-ltx", 1280, 720) == (640, 416)


def test_ltx2_takes_the_nearest_aspect_before_the_longest_bucket() -> None:
    buckets = ["960x544x49", "960x544x25", "512x512x97"]
    assert frames("ltx2", 24, 24.0, buckets=buckets) is Drop.TOO_SHORT
    assert frames("ltx2", 48, 24.0, buckets=buckets) == whole(25)
    assert frames("ltx2", 200, 24.0, buckets=buckets) == whole(49)
    assert size("ltx2", 700, 700, buckets=buckets) == (512, 512)


@pytest.mark.parametrize("n", [143, 144, 721, 722])
def test_fastvideo_needs_the_frames_and_refuses_long_clips(n: int) -> None:
    # ceil(n / 1.875) reaches 77 at 143 frames; 5 * 77 / 16 is 24.0625 s, 721.875 frames.
    read = frames("fastvideo", n, 30.0)
    if n == 722:
        assert read is Drop.TOO_LONG
    else:
        # int(76 * 1.875) is 142.
        assert (len(read[0]), read[0][:4], read[0][-1]) == (77, [0, 1, 3, 5], 142)  # type: ignore[index]
    assert frames("fastvideo", 142, 30.0) is Drop.TOO_SHORT


def test_videox_fun_counts_whole_strides() -> None:
    # 161 // 2 is 80, of which 77 are 4n + 1, though 81 would fit. Starts: 161 - 159.
    read = frames("videox-fun", 161, 30.0)
    assert read == [list(range(start, start + 154, 2)) for start in range(3)]
    assert frames("videox-fun", 1, 30.0) is Drop.TOO_SHORT
    assert size("videox-fun", 1280, 720) == (832, 480)


def test_automodel_spreads_frames_over_the_clip() -> None:
    # linspace(0, 10, 5) is 0, 2.5, 5, 7.5, 10, truncated.
    assert frames("automodel", 11, 30.0, frames=5) == [[0, 2, 5, 7, 10]]
    assert frames("automodel", 4, 30.0, frames=5) == whole(4)
    assert frames("automodel-hunyuan", 4, 30.0, frames=5) == [[0, 0, 1, 2, 3]]
    assert frames("automodel-ltx2", 10, 30.0, frames=9) is Drop.TOO_SHORT
    # round(k * 1.25) to even: 0 1.25 2.5 3.75 5 6.25 7.5 8.75 10.
    assert frames("automodel-ltx2", 12, 30.0, frames=9) == [[0, 1, 2, 4, 5, 6, 8, 9, 10]]
    assert size("automodel", 1280, 720) == (672, 384)


def test_ai_toolkit_spreads_frames_or_takes_whole_clips() -> None:
    # 10 / 4 is 2.5, which rounds to even.
    assert frames("ai-toolkit", 11, 30.0, frames=5) == [[0, 2, 5, 8, 10]]
    assert frames("ai-toolkit", 3, 30.0, frames=5) == [[0, 0, 1, 2, 2]]
    # int(31 / 30 * 24) is 24, and 23 // 4 * 4 + 1 is 21.
    assert len(frames("ai-toolkit-auto", 31, 30.0)[0]) == 21  # type: ignore[index]


def test_ai_toolkit_reads_consecutive_frames_where_there_are_enough() -> None:
    # round(30 / 16) is 2. Of 10 frames, five samples of 2 fit: 9 frames, from 0 or 1.
    few = {"frames": 5, "fps": 16}
    expected = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert frames("ai-toolkit-consecutive", 10, 30.0, **few) == expected
    # 9 // 2 is 4, though five frames fit: they are spread. 7 / 4 is 1.75.
    assert frames("ai-toolkit-consecutive", 9, 30.0, **few) == [[0, 2, 4, 6, 8]]
    assert frames("ai-toolkit-consecutive", 8, 30.0, **few) == [[0, 2, 4, 5, 7]]
    assert frames("ai-toolkit-consecutive", 3, 12.5, **few) == [[0, 0, 1, 2, 2]]
    # round(12.5 / 16) is 1.
    assert frames("ai-toolkit-consecutive", 6, 12.5, **few) == [list(range(5)), list(range(1, 6))]


def test_simpletuner_puts_clips_on_a_grid_of_eight_before_it_counts_them() -> None:
    # 125 becomes 121 in the configuration and in the clip.
    assert frames("simpletuner", 120, 16.0, frames=125) is Drop.TOO_SHORT
    assert frames("simpletuner", 128, 16.0, frames=125) == whole(121)
    assert frames("simpletuner", 140, 16.0, frames=125, max_frames=130) is Drop.TOO_LONG


def test_simpletuner_sizes_have_the_area_of_a_square_and_the_rounded_aspect() -> None:
    # 256 * sqrt(1.33) is 295.2, 4.6 times 64; 256 / sqrt(1.33) is 222.0, 3.5 times 64 less a bit.
    assert size("simpletuner", 640, 480, side=256, multiple=64) == (320, 192)
    # 480 * sqrt(1.78) is 640.4, 480 / sqrt(1.78) is 359.8, 11.2 times 32.
    assert size("simpletuner", 1280, 720) == (640, 352)
    # .2304 megapixels count as .25, for which squares have 512.
    assert size("simpletuner", 500, 500) == (512, 512)
    assert size("simpletuner", 500, 500, side=256) == (256, 256)


def test_others() -> None:
    assert frames("hunyuanvideo", 122, 24.0) is Drop.OFF_GRID
    assert frames("hunyuanvideo", 121, 24.0) == whole(121)
    assert frames("cogvideo", 3, 16.0, frames=5) == [[0, 1, 2, 2, 2]]
    assert frames("cogvideo", 11, 16.0, frames=5) == [[0, 2, 4, 6, 8]]
    assert frames("finetrainers", 40, 24.0) == whole(40)
    # linspace(0, 97, 49) has steps of 2.02.
    assert frames("finetrainers", 98, 24.0)[0][:4] == [0, 2, 4, 6]  # type: ignore[index]
    assert frames("clip-dataset", 18, 24.0) == [list(range(17)), list(range(1, 18))]


def form(n: int, fps: Fraction | int, **more: Any) -> OutputSpec:  # noqa: ANN401
    numbers = {"width": 960, "height": 544, "has_sound": False} | more
    return OutputSpec(n_frames=n, fps=Fraction(fps), **numbers)


def test_speed_is_the_models_rate_over_the_rate_that_is_read() -> None:
    fit = fit_form(load_trainer("wan-diffsynth"), form(300, 30))
    assert fit.is_retimed
    assert fit.speed == pytest.approx(16 / 30)
    assert not fit_form(load_trainer("wan-diffsynth"), form(300, 16)).is_retimed
    assert not fit_form(load_trainer("diffusion-pipe"), form(300, 30)).is_retimed
    assert fit_form(load_trainer("ltx2"), form(300, 30)).speed == 1.0
    # 41 frames over 201: 40 / 200 * 30 is 6 frames/s.
    assert fit_form(load_trainer("ai-toolkit"), form(201, 30)).speed == pytest.approx(16 / 6)


@pytest.mark.parametrize(
    "name", ["wan-diffsynth", "cosmos-predict2", "videox-fun", "diffusion-pipe", "simpletuner"]
)
def test_the_window_of_a_remedy_is_read_whole_and_at_the_models_speed(name: str) -> None:
    trainer = load_trainer(name)
    short = form(9, 9)
    words = next(fit_words._remedies(trainer, Drop.OFF_GRID, short, fit_form(trainer, short)))
    found = re.search(r"frames: (\d+), fps: (\d+)", words)
    assert found is not None
    fit = fit_form(trainer, form(int(found[1]), int(found[2])))
    assert not fit.is_retimed
    # One spare frame of cosmos-predict2, and of a stride of 2.
    assert fit.seen_share >= 1 - 1 / 90
    shorter = fit_form(trainer, form(int(found[1]) - 1, int(found[2])))
    assert shorter.reason is not None or shorter.reading.samples[0].count < (
        fit.reading.samples[0].count
    )


def test_footage_counts_the_time_between_the_frames_of_a_sample() -> None:
    # 33 frames at 16 from 30 cover 60 of 150 frames, and the interval of the last.
    fit = fit_form(load_trainer("diffusion-pipe"), form(150, 30))
    assert fit.seen_share == pytest.approx((60 + 60 / 32) / 150)
    drawn = fit_form(load_trainer("cosmos-predict2"), form(186, 24))
    assert (drawn.seen_share, drawn.readable_share) == (93 / 186, 185 / 186)
    chunks = fit_form(load_trainer("musubi", {"frames": 25, "extraction": "chunk"}), form(60, 16))
    assert chunks.seen_share == 50 / 60
    assert fit_form(load_trainer("ai-toolkit"), form(1000, 30)).seen_share == 1.0


def test_pictures_are_cropped_and_enlarged() -> None:
    picture = fit_form(load_trainer("ltx2"), form(49, 24, width=480, height=480)).picture
    assert picture is not None
    # Scaled by 2 to 960x960, of which 544 rows are shown.
    assert (picture.scale, picture.is_enlarged) == (2.0, True)
    assert picture.cropped_share == pytest.approx(1 - 544 / 960)
    stretched = fit_form(
        load_trainer("cosmos-predict2"), form(99, 24, width=640, height=704)
    ).picture
    assert stretched is not None
    assert (stretched.stretch, stretched.cropped_share) == (2.0, 0.0)


def test_captions_are_cut_for_certain_only_where_a_bound_decides() -> None:
    trainer = load_trainer("automodel")
    clip = form(200, 24)
    fit = fit_form(trainer, clip)

    def cut(caption: str) -> str:
        return caption_of(trainer, fit, clip, caption).cut

    assert cut("a " * 227) == "yes"
    assert cut("a" * 224) == "no"
    assert cut("a" * 225) == "unlikely"
    assert cut("a" * 1000) == "likely"
    # A letter of another script is a token.
    assert cut("猫" * 230) == "likely"


def test_captions_as_trainers_use_them() -> None:
    clip = form(150, 30)
    trainer = load_trainer("cosmos3")
    used = caption_of(trainer, fit_form(trainer, clip), clip, " A cat... ")
    assert used.text == (
        "A cat. The video is 5.0 seconds long and is of 30 FPS. "
        "This video is of 192x320 resolution."
    )
    # The recipe's -1 is the clip's rate; the dataset's default of 24 is told whatever the rate is.
    trainer = load_trainer("cosmos3", {"frames": 93, "told_fps": 24})
    fit = fit_form(trainer, clip)
    assert "3.9 seconds long and is of 24 FPS" in str(caption_of(trainer, fit, clip, "A cat").text)
    assert fit.speed == pytest.approx(24 / 30)
    for name, caption, expected in (
        ("cogvideo", " ", None),
        ("cosmos3", " ", None),
        # The export writes a blank, and the trainer filters only the empty text.
        ("fastvideo", "", ""),
        ("ai-toolkit", "a, b,c [trigger]", "a,  b, c "),
        ("simpletuner", "\n a\n\nA longer line. \n", " a"),
        ("simpletuner", "\n", ""),
        ("simpletuner", " a ", " a "),
    ):
        trainer = load_trainer(name)
        assert caption_of(trainer, fit_form(trainer, clip), clip, caption).text == expected
    # The longest of the captions of a clip is counted.
    assert caption_of(trainer, fit, clip, "a\n" + "b " * 600).cut == "yes"
    whole_text = load_trainer("simpletuner", {"caption": "as_is"})
    assert caption_of(whole_text, fit, clip, "a\nb").text == "a\nb"


def test_sound_is_missing_only_where_it_is_trained() -> None:
    assert fit_form(load_trainer("ltx2"), form(49, 24)).sound == "missing"
    assert fit_form(load_trainer("ltx2"), form(49, 24, has_sound=True)).sound == "used"
    assert fit_form(load_trainer("wan-diffsynth"), form(49, 24)).sound == "ignored"


@pytest.mark.parametrize("name", trainer_names())
def test_every_file_names_its_version_and_layout(name: str) -> None:
    trainer = load_trainer(name)
    assert trainer.rules.project
    assert trainer.rules.layout
    # A clip of any form has an outcome.
    for n in (1, 2, 16, 17, 121, 5000):
        for fps in (12.5, NTSC, 60.0):
            reading = trainer.read(n, fps, 300, 400)
            assert (reading.reason is None) == bool(reading.samples)
            assert all(0 <= reading.end <= n for _ in reading.samples)
            seen, readable = reading.frames_seen
            assert 0 <= seen <= readable + 1e-9 <= n + 1e-6


def test_a_file_of_ones_own_is_a_trainer(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((FOLDER / "ltx2.yaml").read_text().replace("default: 49", "default: 9"))
    trainer = load_trainer(str(path))
    assert trainer.read(20, 24.0).samples[0].count == 9


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("ltx3", {}, "unknown trainer 'ltx3'; did you mean 'ltx2'"),
        ("ltx2", {"frame": 3}, "unknown parameter 'frame'; did you mean 'frames'"),
        ("ltx2", {"buckets": ["9x9"]}, "bucket '9x9'; expected WIDTHxHEIGHTxFRAMES"),
        ("musubi", {"frames": "many"}, "the parameter frames: expected a whole number; got 'many'"),
        ("musubi", {"extraction": "tail"}, "the parameter extraction: expected 'first', 'head'"),
    ],
)
def test_wrong_names_and_values_are_named(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message.replace("[", r"\[")):
        load_trainer(name, values)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("wan-diffsynth", {"frames": 0}, "the parameter frames: expected a number greater than"),
        ("musubi", {"frames": True}, "expected a whole number; got true"),
        ("ai-toolkit", {"frames": 10**6}, "less than or equal to 100000; got 1000000"),
        ("fastvideo", {"frames": []}, "the parameter frames: expected at least one entry"),
        ("fastvideo", {"fps": float("inf")}, "the parameter fps: expected"),
        ("musubi", {"grid": [0, 1]}, "grid.0: expected a number greater than"),
        ("videox-fun", {"stride": 0}, "the parameter stride: expected"),
        ("cogvideo", {"height": 0}, "the parameter height: expected a number greater than"),
        ("musubi", {"width": None}, "size: width is empty; the policy area_buckets needs it"),
        ("finetrainers", {"width": None}, "expected buckets, or width and height"),
        ("musubi", {"width": 10**12}, "the parameter width: expected a number less than"),
        ("automodel", {"max_pixels": None}, "size: max_pixels is empty"),
        ("wan-diffsynth", {"max_pixels": -1}, "the parameter max_pixels: expected"),
        ("diffusion-pipe", {"resolutions": []}, "size: resolutions is empty"),
        ("diffusion-pipe", {"resolutions": float("nan")}, "the parameter resolutions: expected"),
        ("diffusion-pipe", {"min_aspect": 0}, "the parameter min_aspect: expected"),
        ("diffusion-pipe", {"n_aspects": 10**12}, "the parameter n_aspects: expected"),
        ("cosmos3", {"resolution": 99}, "size: unknown resolution '99'; known: 256, 480"),
        ("ltx2", {"buckets": "²x2x2"}, "expected WIDTHxHEIGHTxFRAMES"),
    ],
)  # fmt: skip
def test_values_that_no_trainer_can_have_are_refused_by_name(
    name: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        load_trainer(name, values)


def _own(folder: Path, changes: str, at: str) -> str:
    text = (FOLDER / "cogvideo.yaml").read_text(encoding="utf-8")
    path = folder / "mine.yaml"
    path.write_text(
        re.sub(rf"(?m)^{at}:.*\n(  .*\n)*", f"{at}: {changes}\n", text), encoding="utf-8"
    )
    return str(path)


@pytest.mark.parametrize(
    ("at", "changes", "message"),
    [
        ("parameters", "[1]", r"parameters is \[1\]; expected names and defaults such as"),
        ("parameters", "text", "parameters is 'text'; expected names and defaults"),
        ("caption", '{suffix: "{0.__class__}"}', "caption.suffix: expected text with {seconds}"),
        ("caption", '{suffix: "{seconds:9999999999}"}', "caption.suffix: expected text with"),
        ("caption", '{suffix: "{unknown}"}', "caption.suffix: expected text with"),
        ("rate", "{policy: resample, fps: 16}", "policy is resample; expected fps and"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_applied_is_refused(
    tmp_path: Path, at: str, changes: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        load_trainer(_own(tmp_path, changes, at))


def test_a_parameter_may_default_to_one_that_defaults_to_a_third(tmp_path: Path) -> None:
    parameters = (
        "{frames: {default: $width, option: a}, width: {default: $height, option: b}, "
        "height: {default: 49, option: c}}"
    )
    path = _own(tmp_path, parameters, "parameters")
    assert load_trainer(path).values == {"frames": 49, "width": 49, "height": 49}


def test_a_limit_below_one_step_leaves_one_step() -> None:
    assert size("wan-diffsynth", 64, 9, max_pixels=256) == (32, 16)
    rules = load_trainer("musubi", {"width": 16, "height": 16}).rules
    picture = rules.size.fitted(25, 64, 9)
    assert picture is not None
    assert (picture.width, picture.height) == (16, 16)


def test_a_parameter_that_follows_another_one_is_not_changed() -> None:
    assert load_trainer("simpletuner").label == "simpletuner"
    assert load_trainer("simpletuner", {"frames": 49}).label == "simpletuner frames=49"
    one = load_trainer("simpletuner", {"frames": 49, "min_frames": 17})
    assert one.label == "simpletuner frames=49 min_frames=17"


@pytest.mark.parametrize(
    ("name", "values", "fps", "most_s"),
    [("simpletuner", {"max_frames": 100}, 25, 4.011), ("cosmos3", {}, 30, 61.0)],
)
def test_the_remedy_for_a_long_clip_makes_the_trainer_read_it(
    name: str, values: dict[str, Any], fps: int, most_s: float
) -> None:
    trainer = load_trainer(name, values)

    def lines(seconds: float) -> str:
        form = OutputSpec(
            n_frames=round(seconds * fps), fps=Fraction(fps), width=960, height=540, has_sound=True
        )
        fit = fit_form(trainer, form)
        caption = caption_of(trainer, fit, form, "words")
        return "\n".join(fit_words.clip_lines(trainer, form, fit, caption))

    assert f"propose.max_s of at most {most_s:g}," in lines(70)
    assert "kept" in lines(most_s)
