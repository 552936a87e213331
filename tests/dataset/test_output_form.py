"""Size, rate and length that a recipe asks of clips, the guard against large ones, and checks."""

import errno
import io
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pytest
from film_makers import write_video
from film_shots import moving_texture
from made_cuts import cutter_of, fingerprint_of, pictures, psnr, request_of
from pydantic import ValidationError
from samples import framed, made_track

from curator.buckets import MAX_ENLARGED, Bucket, bucket_of, cover_factor, covered_size
from curator.cut_requests import cut_request, frame_plan, source_frames, windowed
from curator.dataset.output_form import as_output, as_written
from curator.errors import (
    CutError,
    DeviceLostError,
    DeviceMemoryError,
    ErrorCode,
    RecipeError,
    UsageError,
)
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.frame_size import parsed_size
from curator.measures.filtering import _most_repeated
from curator.measures.score_list import SCORES
from curator.media import encode as encoding
from curator.media.encode import _NVENC_OPTIONS, nvenc_problem
from curator.media.tone_mapping import to_bt709
from curator.recipe import load_recipe
from curator.records.clips import Candidate, Span
from curator.records.cuts import CutClip, CutRequest, NotCopied
from curator.stage import ClipFacts
from curator.stages.cut.config import CutConfig
from curator.stages.cut.copy_check import check_encoded
from curator.stages.cut.cut_driver import Cutting
from curator.stages.cut.stage import MAX_CUT_BYTES, CutStage, CutStageConfig
from curator.stages.propose.candidate_row import candidate_of
from curator.stages.shard.config import ShardConfig
from curator.storage import open_store
from curator.tables.clip_rank import criterion
from curator.tables.clip_rows import candidates_table

N = 60


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("form") / "film.mp4"
    frames = moving_texture(N, width_px=320, height_px=180)
    options = {"x264-params": "keyint=15:scenecut=0", "crf": "12"}
    write_video(path, frames, fps=Fraction(60), bframes=0, options=options)
    return path


def cut(path: Path, request: CutRequest, **config: object) -> CutClip:
    settings = CutConfig.model_validate({"mode": "encode", "crf": 12} | config)
    with cutter_of(path, settings) as cutter:
        return cutter.cut(request)


@pytest.mark.parametrize(("rate", "step"), [(30, 2), (20, 3), (60, 1), (120, 0.5)])
def test_a_fixed_rate_shows_what_the_source_showed(film: Path, rate: int, step: float) -> None:
    """Pins which frames are left out or repeated, and that the pictures are those."""
    request = as_output(request_of(film, 3, 51), fps=Fraction(rate))
    plan = frame_plan(request).tolist()
    assert plan == [int(index * step) for index in range(round(48 / step))]
    clip = cut(film, request)
    assert (clip.fps, clip.n_frames) == (rate, len(plan))
    source, written = pictures(film), pictures(clip.mp4)
    for frame, index in zip(written, plan, strict=True):
        right = psnr(frame, source[3 + index])
        assert right > max(psnr(frame, source[2 + index]), psnr(frame, source[4 + index])) + 2


@pytest.mark.parametrize(
    "form",
    [
        {}, {"fps": Fraction(20)}, {"n_frames": 20}, {"fps": Fraction(48), "n_frames": 20},
        {"window": (17, Fraction(16))}, {"window": (100, Fraction(30))}, {"window": (17, None)},
    ],
)  # fmt: skip
@pytest.mark.parametrize("first_varying", [0, 50, 200])
def test_the_row_of_a_written_clip_says_which_frames_it_shows(
    form: dict[str, Any], first_varying: int
) -> None:
    """Pins this for clips that are shortened to a part without the rate or the jitter of all."""
    steps = np.full(200, 512)
    steps[first_varying:] = np.random.default_rng(1).integers(600, 1000, 200 - first_varying)
    pts = np.cumsum(steps)
    track = made_track(200, frame_pts=pts, end_pts=int(pts[-1]) + 512)
    own = cut_request(track, "clip", Span(start_frame=20, end_frame=190, shot=0))
    request, window = as_output(own, fps=form.get("fps"), n_frames=form.get("n_frames")), None
    if "window" in form:
        window, fps = form["window"]
        request = windowed(own, fps=fps or own.fps, n_frames=window)
    plan = frame_plan(request)
    is_retimed = form.get("fps") is not None or (window is not None and form["window"][1])
    columns = {
        "start_frame": 20, "end_frame": 20 + len(request.frame_pts), "is_vfr": own.is_vfr,
        "rate_factor": float(request.fps / own.fps) if is_retimed else None,
        "window_frames": window,
    }  # fmt: skip
    facts = ClipFacts(
        clip_id="clip", source_id=track.source_id, n_frames=len(plan), fps=request.fps, width=64,
        height=64, columns=columns,
    )  # fmt: skip
    np.testing.assert_array_equal(source_frames(track, facts), 20 + plan)


@pytest.mark.parametrize("size", [(160, 96), (96, 160), (160, 160), (320, 176), (640, 352)])
def test_a_fixed_size_keeps_the_middle_in_shape(film: Path, size: tuple[int, int]) -> None:
    """Pins scale and centre crop: the picture covers the size, and is not stretched."""
    clip = cut(film, as_output(request_of(film, 0, 8), size=size))
    assert (clip.width, clip.height) == size
    for frame, source in zip(pictures(clip.mp4), pictures(film)[:8], strict=True):
        scale = max(size[0] / 320, size[1] / 180)
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        whole = cv2.resize(source, (math.ceil(320 * scale), math.ceil(180 * scale)),
                           interpolation=method)  # fmt: skip
        x, y = (whole.shape[1] - size[0]) // 2, (whole.shape[0] - size[1]) // 2
        near = [
            psnr(frame, whole[y + dy : y + dy + size[1], x + dx : x + dx + size[0]])
            for dy in range(-min(y, 1), min(1, whole.shape[0] - size[1] - y) + 1)
            for dx in range(-min(x, 1), min(1, whole.shape[1] - size[0] - x) + 1)
        ]
        assert max(near) > 27


def test_a_fixed_length_takes_the_first_frames(film: Path) -> None:
    """Pins that a clip has exactly the frames asked for, and its span says which."""
    request = as_output(request_of(film, 5, 50), n_frames=17)
    clip = cut(film, request)
    assert (clip.first, clip.end, clip.n_frames) == (0, 17, 17)
    source, written = pictures(film), pictures(clip.mp4)
    assert len(written) == 17
    assert all(psnr(frame, source[5 + i]) > 30 for i, frame in enumerate(written))
    half = as_output(request_of(film, 5, 50), n_frames=17, fps=Fraction(30))
    assert (half.frame_pts == request_of(film, 5, 38).frame_pts).all()
    assert cut(film, half).n_frames == 17


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"size": (160, 96)}, NotCopied.FIXED_SIZE),
        ({"fps": Fraction(30)}, NotCopied.FIXED_RATE),
        ({"size": (320, 180), "fps": Fraction(60)}, None),
        ({"n_frames": 20}, None),
    ],
)
def test_what_has_the_form_is_copied(
    film: Path, form: dict[str, Any], reason: NotCopied | None
) -> None:
    """Pins that copies are made where they are exact, and reasons where not."""
    clip = cut(film, as_output(request_of(film, 15, 45), **form), mode="auto")
    assert clip.not_copied == reason
    assert clip.cut_mode == ("copy" if reason is None else "encode")
    assert clip.n_frames == {30: 15}.get(form.get("fps", 0), form.get("n_frames", 30))
    off_key = cut(film, as_output(request_of(film, 16, 46), n_frames=20), mode="auto")
    assert (off_key.cut_mode, off_key.n_frames) == ("encode_head", 20)


def row_of(path: Path, start: int, end: int) -> Candidate:
    span = Span(start_frame=start, end_frame=end, shot=0)
    return candidate_of(framed(path), span, "u", aggregates={}, crop_borders=True)


def test_rows_say_what_will_be_written(film: Path) -> None:
    """Pins that candidates have the form that the cutter then gives them."""
    rows = [row_of(film, 0, 48), row_of(film, 7, 24)]
    table = candidates_table(rows, SCORES)
    same = as_written(table, CutConfig(), ShardConfig())
    assert same.select(table.column_names) == table
    assert {n: same[n].null_count for n in same.column_names if n not in table.column_names} == {
        "scale_factor": 2, "cropped_share": 2,
    }  # fmt: skip
    config = CutConfig.model_validate({"size": [160, 96], "fps": 24, "length_frames": 17})
    written = as_written(table, config, ShardConfig()).to_pylist()
    assert [(r["width"], r["height"], r["fps_fraction"]) for r in written] == [(160, 96, "24")] * 2
    assert [r["n_frames"] for r in written] == [17, 7]
    plan = frame_plan(as_output(request_of(film, 7, 24), fps=Fraction(24)))
    assert len(plan) == 7


@pytest.mark.parametrize("aspect", ["1,1", "4,3", "3,4", "16,9", "9,16"])
@pytest.mark.parametrize("resolution", [240, 360, 480, 720, 1080, 1440, 2160])
def test_sizes_of_buckets_stay_in_their_buckets(resolution: int, aspect: str) -> None:
    """Pins even sizes of the bucket's class and aspect, such as 1920x1080 and 854x480."""
    bucket = Bucket(resolution=resolution, aspect=aspect, min_frames=17)
    wide, high = (int(number) for number in aspect.split(","))
    long = math.ceil(resolution * max(wide, high) / min(wide, high))
    picture = (long, resolution) if wide >= high else (resolution, long)
    size = covered_size(*picture, ShardConfig())
    assert size is not None
    assert (min(size), size[0] % 2, size[1] % 2) == (resolution, 0, 0)
    assert abs(size[0] / size[1] / (wide / high) - 1) < 0.005
    assert bucket_of(*size, 18, ShardConfig()) == bucket


def test_a_picture_is_never_enlarged_to_its_bucket() -> None:
    """Pins the largest bucket that a picture covers, for any shape of pictures."""
    rng = np.random.default_rng(0)
    shard = ShardConfig()
    sizes = rng.integers(240, 2400, (300, 2)).tolist()
    for width, height in [(1200, 720), (640, 480), (1920, 1080), (1918, 1078), *sizes]:
        size = covered_size(width, height, shard)
        assert size is not None
        factor = cover_factor((width, height), size)
        # Only a picture whose shape covers no bucket at all would have to be enlarged.
        assert factor <= MAX_ENLARGED or min(size) == 240
    given = {size: covered_size(*size, shard) for size in [(1200, 720), (1918, 1080), (200, 900)]}
    assert list(given.values()) == [(854, 480), (1920, 1080), None]
    assert covered_size(240, 250, ShardConfig(aspects=("16,9",))) == (426, 240)


def table_of(*clips: tuple[int, int, float, float]) -> pa.Table:
    """Candidates of 10 s by width, height, nominal and mean rate."""
    rows = []
    for width, height, fps, mean in clips:
        rows.append({
            "medium": "video", "width": width, "height": height, "written_fps": fps,
            "n_frames": round(10 * fps),
            "fps_fraction": str(Fraction(fps).limit_denominator(1001)), "time_base": "1/90000",
            "start_frame": 7, "end_frame": 7 + round(10 * mean), "start_pts": 900,
            "end_pts": 900_900, "is_vfr": fps != mean,
        })  # fmt: skip
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    ("clip", "form", "scale", "cropped", "repeated"),
    [
        ((640, 360, 25, 25), {"size": "720p"}, 2.0, 0.0, None),
        ((1920, 1080, 25, 25), {"size": "720p"}, 2 / 3, 0.0, None),
        ((852, 480, 25, 25), {"size": "480p"}, 854 / 852, 0.0023, None),
        ((540, 960, 25, 25), {"size": "720p"}, 1280 / 540, 1 - 81 / 256, None),
        ((2160, 3840, 25, 25), {"size": (1280, 720)}, 1280 / 2160, 1 - 81 / 256, None),
        ((1440, 1080, 25, 25), {"size": (1280, 720)}, 8 / 9, 0.25, None),
        ((1280, 720, 25, 25), {"size": 256}, 256 / 720, 1 - 9 / 16, None),
        ((1200, 720, 25, 25), {"size": "bucket"}, 854 / 1200, 1 - 854 * 480 / (854 * 512.4), None),
        ((640, 360, 12.5, 12.5), {"fps": 24}, None, None, 115 / 240),
        ((640, 360, 24000 / 1001, 24000 / 1001), {"fps": 24}, None, None, 0.0),
        ((640, 360, 24, 24), {"fps": 25}, None, None, 0.04),
        ((640, 360, 30, 29.8), {"fps": 30}, None, None, 2 / 300),
        # A recording of a screen: 60 frames/s at times, and 10 on average.
        ((640, 360, 60, 10), {"fps": 24}, None, None, 140 / 240),
        ((640, 360, 50, 50), {"fps": 24, "length_frames": 17}, None, None, 0.0),
    ],
)
def test_what_the_form_changes_is_known_before_any_decoding(
    clip: tuple[int, int, float, float],
    form: dict[str, object],
    scale: float | None,
    cropped: float | None,
    repeated: float | None,
) -> None:
    """Pins the columns by which clips are rejected and counted."""
    (row,) = as_written(table_of(clip), CutConfig.model_validate(form), ShardConfig()).to_pylist()
    for name, value in (
        ("scale_factor", scale), ("cropped_share", cropped), ("repeated_share", repeated),
    ):  # fmt: skip
        assert (row.get(name) is None) == (value is None)
        assert row.get(name) is None or row[name] == pytest.approx(value, abs=0.0006)
    if "size" in form and form["size"] != "bucket":
        assert (row["width"], row["height"]) == parsed_size(form["size"])
    if "fps" in form:
        assert row["rate_factor"] == pytest.approx(row["written_fps"] / clip[2])


@pytest.mark.parametrize("most", [None, 17])
def test_the_share_of_repeated_frames_is_that_of_the_written_clip(most: int | None) -> None:
    """Pins constant rates and lengths against the plan by which clips are cut."""
    rng = np.random.default_rng(0)
    rates = [Fraction(n) for n in (10, 15, 20, 24, 25, 30, 50)] + [Fraction(24_000, 1001)]
    for own in rates:
        n_source = int(rng.integers(20, 90))
        times = np.rint(np.arange(n_source + 1) * float(90_000 / own)).astype(np.int64) + 900
        track = made_track(
            n_source, time_base=Fraction(1, 90_000), frame_pts=times[:-1], end_pts=int(times[-1])
        )
        span = Span(start_frame=0, end_frame=n_source, shot=0)
        clip = {
            "medium": "video", "written_fps": float(own), "fps_fraction": str(own),
            "time_base": "1/90000",
            "is_vfr": False, "n_frames": n_source, "start_frame": 0, "end_frame": n_source,
            "start_pts": 900, "end_pts": int(times[-1]), "width": 640, "height": 360,
        }  # fmt: skip
        for rate in rates:
            config = CutConfig(fps=str(rate), length_frames=most)
            (row,) = as_written(pa.Table.from_pylist([clip]), config, ShardConfig()).to_pylist()
            plan = frame_plan(as_output(cut_request(track, "a", span), fps=rate))[:most]
            n_repeated = np.count_nonzero(np.diff(plan) == 0)
            assert row["n_frames"] == len(plan)
            assert row["repeated_share"] * len(plan) == pytest.approx(n_repeated), (own, rate)
        # Of a clip at its own rate, which may be a copy, a longer span repeats nothing.
        clip["end_pts"] += int(0.9 * 90_000 / own)
        (row,) = as_written(
            pa.Table.from_pylist([clip]), CutConfig(fps=str(own)), ShardConfig()
        ).to_pylist()
        assert (row["n_frames"], row["repeated_share"]) == (n_source, 0.0)


def test_a_frame_of_rounding_rejects_no_short_clip() -> None:
    """Pins one repeated frame of 24 where a phone left one out, and not where the rate is lower."""
    rows = pa.table({
        "repeated_share": [1 / 24, 2 / 24, 1 / 24, 0.015], "rate_factor": [1.0, 1.0, 25 / 24, 1.2],
        "n_frames": [24, 24, 24, 200],
    })  # fmt: skip
    assert (rows["repeated_share"].to_numpy() > _most_repeated(rows, 0.015)).tolist() == [
        False, True, True, False
    ]  # fmt: skip


def test_of_clips_of_one_size_the_one_with_more_source_pixels_is_better() -> None:
    """Pins the rank by which one of several near duplicates stays."""
    table = table_of((640, 360, 25, 25), (1920, 1080, 25, 25), (1440, 1080, 25, 25))
    config = CutConfig(size=(1280, 720), enlarge="always")
    pixels = criterion(as_written(table, config, ShardConfig()), "pixels")
    np.testing.assert_allclose(pixels, [640 * 360, 1920 * 1080, 1440 * 810])


@pytest.mark.parametrize("size", [(426, 240), (854, 480), (1918, 1078), (1920, 1080), (18, 16)])
@pytest.mark.parametrize("encoder", ["x264", "vp9"])
def test_any_even_size_is_written(film: Path, size: tuple[int, int], encoder: str) -> None:
    """Pins sizes that are no multiples of 16, in the file's own header too."""
    clip = cut(film, as_output(request_of(film, 0, 2), size=size), encoder=encoder)
    assert (clip.width, clip.height) == size
    assert {frame.shape for frame in pictures(clip.mp4)} == {(size[1], size[0], 3)}


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("1280x720", (1280, 720)), ("720p", (1280, 720)), ("1080P", (1920, 1080)),
        ("480p", (854, 480)), (256, (256, 256)), ("256", (256, 256)), ([854, 480], (854, 480)),
        (" 640 X 360 ", (640, 360)),
    ],
)  # fmt: skip
def test_a_size_is_width_and_height_however_it_is_written(
    value: object, size: tuple[int, int]
) -> None:
    assert parsed_size(value) == CutConfig.model_validate({"size": value}).size == size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": [101, 96]}, r"\[101, 96\] \(width, height\); expected even .* such as 100x96"),
        ({"size": [8, 100_000]}, "from 16 to 16384, such as 16x16384"),
        ({"size": "720q"}, "'720q'; expected 1280x720, 720p, 256 .*; or bucket"),
        ({"size": [1280, 720, 3]}, "expected 1280x720"),
        ({"size": True}, "expected 1280x720"),
        ({"most_cropped": 1.1}, "less than or equal to 1"),
        ({"fps": "fast"}, "expected frames per second, such as 24"),
        ({"fps": "２４"}, "expected frames per second, such as 24"),  # noqa: RUF001
        ({"fps": "2_4"}, "expected frames per second, such as 24"),
        ({"size": "720ｐ"}, "expected 1280x720"),  # noqa: RUF001
        ({"size": "１２８０x７２０"}, "expected 1280x720"),  # noqa: RUF001
        ({"fps": 1000}, "expected 1 to 240"),
        ({"size": "large"}, "bucket"),
    ],
)
def test_impossible_forms_are_refused(changes: dict[str, object], words: str) -> None:
    """Pins messages for a form that no clip can have."""
    with pytest.raises(ValidationError, match=words):
        CutConfig.model_validate(changes)


def test_rates_of_broadcast_are_fractions() -> None:
    """Pins that 29.97 is 30000/1001, and that whole rates stay."""
    rates = {"29.97": Fraction(30_000, 1001), "23.976": Fraction(24_000, 1001), "25": Fraction(25)}
    for text, rate in rates.items():
        assert CutConfig(fps=text).rate == rate
    assert CutConfig.model_validate({"fps": 12.5}).rate == Fraction(25, 2)


def test_a_clip_larger_than_its_source_is_encoded_coarser(tmp_path: Path) -> None:
    """Pins the guard: one more encode, with a CRF by the overshoot, within a third."""
    path = tmp_path / "starved.mp4"
    rng = np.random.default_rng(0)
    noisy = (
        np.clip(f + rng.normal(0, 20, f.shape), 0, 255).astype(np.uint8)
        for f in moving_texture(40, width_px=320, height_px=180)
    )
    write_video(path, noisy, fps=Fraction(30), options={"crf": "30"})
    request = request_of(path, 0, 40)
    assert request.source_bits_per_pixel is not None
    source_bytes = request.source_bits_per_pixel / 8 * 320 * 180 * 40
    free = cut(path, request, max_size_factor=None, crf=10)
    assert free.crf == 10
    assert len(free.mp4) > 2 * source_bytes
    guarded = cut(path, request, max_size_factor=2.0, crf=10)
    assert guarded.crf is not None
    overshoot = len(free.mp4) / (2 * source_bytes)
    assert guarded.crf == 10 + min(10, math.ceil(6 * math.log2(overshoot)))
    assert len(guarded.mp4) < 0.75 * len(free.mp4)
    roomy = cut(path, request, max_size_factor=1000.0, crf=10)
    assert roomy.mp4_sha256 == free.mp4_sha256


def test_an_encoded_clip_that_is_not_what_was_meant_is_noticed_and_checks_change_none(
    film: Path,
) -> None:
    """Pins the check of count, size and times, by decoding and by packets alone."""
    clip = cut(film, request_of(film, 0, 20))
    right = {"n_frames": 20, "size": (320, 180), "fps": Fraction(60)}
    for decodes in (True, False):

        def check(mp4: bytes, *, decodes: bool = decodes, **wrong: object) -> str | None:
            return check_encoded(mp4, decodes=decodes, threads=1, **(right | wrong))  # type: ignore[arg-type]

        assert check(clip.mp4) is None
        assert "expected 21" in str(check(clip.mp4, n_frames=21))
        assert "expected 320x178" in str(check(clip.mp4, size=(320, 178)))
        assert "ticks apart" in str(check(clip.mp4, fps=Fraction(30)))
        assert check(clip.mp4[: len(clip.mp4) // 2]) is not None
    # Checking less is no other output, and in no fingerprint.
    request = request_of(film, 0, 20)
    assert cut(film, request, verify_share=0.0).mp4_sha256 == cut(film, request).mp4_sha256
    assert fingerprint_of(CutConfig(verify_share=0.1)) == fingerprint_of(CutConfig())
    assert fingerprint_of(CutConfig(length_frames=17)) != fingerprint_of(CutConfig())


def test_without_nvenc_a_run_ends_before_its_first_clip(film: Path) -> None:
    """Pins one error of the stage and of the cutter, and that nothing else encodes instead."""
    if nvenc_problem() is None:
        pytest.skip("NVENC opens here")
    for begin in (nvenc_stage().setup, lambda: cut(film, request_of(film, 0, N), encoder="nvenc")):
        with pytest.raises(CutError, match=r"set cut\.encoder to x264"):
            begin()


def nvenc_stage() -> CutStage:
    return CutStage(CutStageConfig(cut=CutConfig(encoder="nvenc"), max_pixels=1))


def test_nvenc_is_given_a_share_of_a_gpu() -> None:
    """Pins that its workers see a GPU, in a locked box, and that others hold none."""
    stage = nvenc_stage()
    assert stage.resources.gpus == 1 / 8
    assert stage.limit_bytes is None
    assert stage.locks
    other = CutStage(CutStageConfig(cut=CutConfig(), max_pixels=1))
    assert other.resources.gpus == 0
    assert other.limit_bytes == MAX_CUT_BYTES


FULL = av.error.MemoryError(errno.ENOMEM, "out of memory")
BROKEN = av.error.ExternalError(542398533, "Generic error in an external library")


@pytest.mark.parametrize(
    ("error", "at", "opens", "kind", "code"),
    [
        (FULL, 0, True, DeviceMemoryError, ErrorCode.GPU_OUT_OF_MEMORY),
        (FULL, 3, True, DeviceMemoryError, ErrorCode.GPU_OUT_OF_MEMORY),
        (BROKEN, 3, True, DeviceLostError, ErrorCode.GPU_FAILED),
        (BROKEN, 0, False, DeviceLostError, ErrorCode.GPU_FAILED),
        (BROKEN, 0, True, CutError, None),
    ],
    ids=["opening, memory", "memory", "broken", "opens no more", "a size that it does not take"],
)
def test_what_fails_in_nvenc_is_the_gpus_and_not_the_clips(
    film: Path,
    error: av.error.FFmpegError,
    at: int,
    opens: bool,
    kind: type[Exception],
    code: ErrorCode | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins codes, after which a new process tries the clip again; only a size is the clip's own."""

    def encode(picture: object) -> list[object]:
        del picture
        taken.append(1)
        if len(taken) > at:
            raise error
        return []

    taken: list[int] = []
    monkeypatch.setattr(encoding, "add_stream", lambda *_: SimpleNamespace(encode=encode))
    monkeypatch.setattr(encoding, "nvenc_problem", lambda: None if opens else "it does not open")
    monkeypatch.setattr("curator.stages.cut.clip_cutter.refuse_without", lambda _: None)
    with pytest.raises(kind) as raised:
        cut(film, request_of(film, 0, N), encoder="nvenc")
    assert getattr(raised.value, "code", None) == code
    assert len(taken) == at + 1


def test_a_run_on_a_machine_without_a_gpu_does_not_wait_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the error in place of workers for which Ray has no room."""
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 0)
    with Engine(address=None, workers=1) as engine:
        cutting = Cutting(
            nvenc_stage(), open_store(str(tmp_path)), engine, Progress(live=False), {},
            min_s=2.0, buckets=None, previous={}, reusable=dict,  # type: ignore[arg-type]
        )  # fmt: skip
        monkeypatch.setattr(cutting, "_units", lambda *_: [])
        clip = SimpleNamespace(
            start_s=0.0,
            end_s=1.0,
            n_frames=30,
            width=64,
            height=64,
            source_id="a",
            crop_x=0,
            start_frame=0,
            output_size=None,
        )
        sources = {"a": SimpleNamespace()}
        with pytest.raises(UsageError, match=r"cut\.encoder is nvenc"):
            next(cutting._run([clip], sources, None, 0))  # type: ignore[list-item, arg-type]


def test_nvencs_options_are_known_to_ffmpeg() -> None:
    """Pins names and values, which FFmpeg passes over or refuses where there is a GPU alone."""
    context = av.CodecContext.create("h264_nvenc", "w")
    known = {option.name: option for option in context.supported_options.private}
    for name, value in ({"qp": "20"} | _NVENC_OPTIONS).items():
        choices = [choice.name for choice in known[name].choices]
        assert value in choices or (not choices and value.isdigit())


@pytest.mark.needs_gpu
def test_nvenc_writes_what_x264_writes(film: Path) -> None:
    """Pins the file by NVENC: same frames, times and form; it needs a GPU that has NVENC."""
    if nvenc_problem() is not None:
        pytest.skip(f"this GPU has no NVENC: {nvenc_problem()}")
    clip = cut(film, request_of(film, 0, N), encoder="nvenc", max_size_factor=None)
    source, written = pictures(film), pictures(clip.mp4)
    assert len(written) == N
    assert all(psnr(a, b) > 30 for a, b in zip(written, source, strict=True))
    assert b"elst" not in clip.mp4


def test_tone_mapping_and_a_rule_against_hdr_contradict_each_other() -> None:
    """Pins the message for a recipe that would map nothing."""
    with pytest.raises(RecipeError, match=r"filters\.hdr rejects"):
        load_recipe("quickstart", ["filters.hdr.max=0"])
    load_recipe("quickstart", ["filters.hdr.max=1"])
    # Phones film in HLG and PQ: by default, such clips are mapped and kept.
    recipe = load_recipe("quickstart", [])
    assert recipe.cut.hdr == "tonemap"
    assert "hdr" not in recipe.filters.root


@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_is_mapped_frame_by_frame(transfer: int, tmp_path: Path) -> None:
    """Pins the pictures of a PQ and an HLG film, against the curve computed directly."""
    path = tmp_path / "hdr.mp4"
    shown = list(moving_texture(6, width_px=192, height_px=112))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx265", rate=30)
        stream.width, stream.height, stream.pix_fmt = 192, 112, "yuv420p10le"
        context = stream.codec_context
        context.options = {"crf": "4", "x265-params": "log-level=none:pools=none"}
        context.color_primaries, context.color_trc, context.colorspace = 9, transfer, 9
        context.color_range = 1
        for picture in shown:
            frame = av.VideoFrame.from_ndarray(picture // 2 + 40, format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p10le", dst_colorspace=9)))
        container.mux(stream.encode(None))
    request = request_of(path, 0, 6)
    assert request.is_hdr
    clip = cut(path, request, crf=4, hdr="tonemap", max_size_factor=None)
    assert clip.not_copied is None
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        context = container.streams.video[0].codec_context
        assert (context.color_primaries, context.color_trc, context.colorspace) == (1, 1, 1)
        written = [
            f.reformat(format="rgb24", src_colorspace=1).to_ndarray()
            for f in container.decode(video=0)
        ]
    for frame, picture in zip(written, shown, strict=True):
        coded = (picture // 2 + 40).reshape(-1, 3) / 255
        meant = to_bt709(coded, 9, transfer).reshape(picture.shape) * 255
        assert np.abs((frame - meant).mean(axis=(0, 1))).max() < 2.5
        assert np.abs(frame - meant).mean() < 8
