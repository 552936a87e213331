"""Windows that a GPU decodes are the CPU's, or the CPU decodes them and it is counted.

The video engine is FFmpeg behind the calls of PyNvVideoCodec (`fake_nvdec`): what is tested is all
that lies around it. `needs_gpu` tests run on the real one.
"""

import logging
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_nvdec import (
    Decoded,
    Decoder,
    Failing,
    PacketData,
    Shifted,
    Single,
    Smaller,
    dropping,
    fake_module,
)
from film_makers import write_video
from film_shots import coloured_edges
from sweeps import sampled

from curator.errors import ShardError
from curator.loading import ClipDataset, ClipLoader
from curator.loading import device_windows as device
from curator.media.nvdec import Nvdec
from tests.made_shards import (
    FPS,
    MadeClip,
    clip_bytes,
    made_clips,
    number_in,
    numbered_frames,
    write_shards,
)

A = "48p_3-2_17f"

Engines = Callable[..., list[Decoder]]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Puts engines behind `decode="gpu"`; gives the list of the decoders that they make."""

    def put(kind: type[Decoder] = Decoder, **changes: Any) -> list[Decoder]:  # noqa: ANN401
        made: list[Decoder] = []

        def create(*, codec: Any, **_: Any) -> Any:  # noqa: ANN401
            made.append(kind(codec))
            return made[-1]

        module = fake_module(**({"CreateDecoder": create} | changes))
        monkeypatch.setattr(device, "gpu_number", lambda gpu: gpu or 0)
        monkeypatch.setattr(device, "engines_of", lambda _: Nvdec(module=module, device="cpu"))
        return made

    return put


def both(out: Path, **options: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401
    """An epoch by the CPU and by the GPU."""
    on_cpu = list(ClipDataset(str(out), **options))
    return on_cpu, list(ClipDataset(str(out), **options, decode="gpu"))


@pytest.mark.parametrize(
    ("bframes", "gop", "frames", "stride"),
    sampled(
        [(3, 8, 1, 1), (0, 8, 5, 1), (0, 250, 4, 7), (3, 250, 40, 1), (3, 8, 40, 1)],
        [(0, 250, 4, 7), (3, 8, 40, 1)],
    ),
)
def test_windows_hold_exactly_the_frames_of_their_numbers(
    tmp_path: Path, engines: Engines, bframes: int, gop: int, frames: int, stride: int
) -> None:
    """Pins windows within a GOP, over several and up to the end, of clips with B-frames."""
    made = engines()
    mp4 = clip_bytes(tmp_path, n_frames=60, gop=gop, bframes=bframes)
    clips = [MadeClip(key=f"{i:04x}", mp4=mp4, n_frames=60) for i in range(12)]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    expected, found = both(out, frames=frames, stride=stride)
    assert len({sample["start_frame"] for sample in found}) > 3
    assert len(made) == 1
    for one, other in zip(expected, found, strict=True):
        numbers = [other["start_frame"] + i * stride for i in range(frames)]
        video = other["video"].numpy()
        assert [number_in(video[:, t], 104) for t in range(frames)] == numbers
        assert np.array_equal(video, one["video"].numpy())
        assert other["not_on_gpu"] == {}
        names = ("key", "start_frame", "fps", "caption", "json", "position")
        assert [one[n] for n in names] == [other[n] for n in names]


def textured(n_frames: int, height: int, width: int) -> list[Any]:
    """Smooth coloured pictures that change."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (9 + c) + columns / (14 - c)) for c in range(3)]
    return [
        np.stack([128 + 90 * w * np.cos(t / 7 + c) for c, w in enumerate(waves)], -1).astype("u1")
        for t in range(n_frames)
    ]


FORMS: dict[str, dict[str, Any]] = {
    "h264": {"gop": 12, "bframes": 3},
    "hevc": {"codec": "libx265", "gop": 12, "bframes": 3, "options": {"preset": "ultrafast"}},
    # Its key frame 12 has leading pictures.
    "ten bits": {
        "codec": "libx265",
        "gop": 12,
        "bframes": 2,
        "pix_fmt": "yuv420p10le",
        "options": {"preset": "ultrafast"},
    },
    "full range": {"gop": 12, "bframes": 2, "pix_fmt": "yuvj420p"},
}


@cache
def encoded(form: str, height: int, width: int) -> bytes:
    """30 frames of `textured`: x265 takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clip.mp4")
        write_video(path, textured(30, height, width), fps=FPS, **FORMS[form])
        return path.read_bytes()


@pytest.mark.parametrize(
    ("form", "height", "width", "size", "bound"),
    [
        *sampled(
            [
                *((form, 360, 640, None, 0.01) for form in FORMS),
                *((form, 360, 640, (96, 96), 1.4) for form in FORMS),
                ("h264", 240, 432, (480, 480), 1.7),
                ("h264", 720, 1280, (240, 176), 1.4),
            ],
            [("h264", 360, 640, None, 0.01), ("ten bits", 360, 640, (96, 96), 1.4)],
        ),
    ],
)
def test_pixels_are_the_cpus_within_a_tolerance(
    tmp_path: Path,
    engines: Engines,
    form: str,
    height: int,
    width: int,
    size: tuple[int, int] | None,
    bound: float,
) -> None:
    """Pins colours, range and scaling: the mean difference in levels, and no frame off by one."""
    # Not scaled, 8 bits are the same.
    engines()
    if form == "ten bits" and size is None:
        bound = 1.7
    clip = {"mp4": encoded(form, height, width), "n_frames": 30, "height": height, "width": width}
    clips = [MadeClip(key=f"{i:04x}", **clip) for i in range(2)]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    for one, other in zip(*both(out, frames=9, size=size), strict=True):
        assert other["not_on_gpu"] == {}
        a, b = one["video"].int(), other["video"].int()
        assert a.shape == b.shape
        assert (a - b).abs().float().mean() < bound
        moved = (a[:, 1:] - b[:, :-1]).abs().float().mean()
        assert moved > (a - b).abs().float().mean() + 0.5


@pytest.mark.parametrize(("size", "bound"), [((64, 64), 4), ((400, 400), 7)])
def test_coloured_edges_are_where_the_cpu_has_them(
    tmp_path: Path, engines: Engines, size: tuple[int, int], bound: int
) -> None:
    """Pins the place of chroma, which is left in H.264: between pixels, it is 40 levels off."""
    engines()
    write_video(tmp_path / "clip.mp4", coloured_edges(), fps=FPS)
    mp4 = (tmp_path / "clip.mp4").read_bytes()
    clip = MadeClip(key="a", mp4=mp4, n_frames=2, height=180, width=320)
    out = write_shards(tmp_path / "out", [(A, "train", [clip])])
    ((one,), (other,)) = both(out, frames=2, size=size)
    assert other["not_on_gpu"] == {}
    assert (one["video"].int() - other["video"].int()).abs().max() <= bound


def test_a_clip_s_frames_are_never_those_of_an_earlier_one(
    tmp_path: Path, engines: Engines
) -> None:
    """Pins that what a decoder still held of another clip is left out."""

    class Leaking(Decoder):
        """Gives its last frames with the next stream's first packet."""

        late: list[Decoded] = []  # noqa: RUF012

        def Decode(self, packet: PacketData) -> list[Decoded]:
            frames = super().Decode(packet)
            if packet.bsl == 0:
                kept = [Decoded(f.getPTS(), f.planes.clone()) for f in frames]
                self.late, self._given = kept, []
                return kept
            found, self.late = [*self.late, *frames], []
            return found

    made = engines(Leaking)
    plain = clip_bytes(tmp_path, n_frames=60, gop=60, bframes=3)
    path = tmp_path / "dark.mp4"
    dark = [frame // 2 for frame in numbered_frames(60, 68, 104)]
    write_video(path, dark, fps=FPS, gop=60, bframes=3)
    clips = [
        MadeClip(key=f"{i:04x}", mp4=(plain, path.read_bytes())[i % 2], n_frames=60)
        for i in range(8)
    ]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    for one, other in zip(*both(out, frames=9), strict=True):
        assert torch.equal(one["video"], other["video"])
        assert other["not_on_gpu"] == {}
    assert len(made) == 1


def test_where_a_used_decoder_fails_each_clip_gets_its_own(
    tmp_path: Path, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that an engine which does not go on costs time and no frames, and is told of once."""
    made = engines(Single)
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 5, bframes=2))])
    with caplog.at_level(logging.WARNING):
        expected, found = both(out, frames=5)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one["video"], other["video"])
        assert other["not_on_gpu"] == {}
    # One more for the comparison of the first picture.
    assert len(made) == 6
    assert caplog.text.count("a used decoder failed where a new one does not") == 1


def odd_clips(folder: Path) -> list[MadeClip]:
    """Two clips for the engine and three that it does not decode."""
    clips = made_clips(folder, 2)
    shown = numbered_frames(24, 68, 104)
    write_video(folder / "chroma.mp4", shown, fps=FPS, pix_fmt="yuv444p")
    write_video(folder / "mpeg4.mp4", shown, fps=FPS, codec="mpeg4")
    for number, name in enumerate(["chroma.mp4", "mpeg4.mp4", "chroma.mp4"]):
        clips.append(MadeClip(key=f"{90 + number:08x}", mp4=(folder / name).read_bytes()))
    return clips


def test_what_the_engine_refuses_is_decoded_by_the_cpu_and_counted(
    tmp_path: Path, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins frames, the count in each batch and of the dataset, and one line for each reason."""
    engines()
    out = write_shards(tmp_path / "out", [(A, "train", odd_clips(tmp_path))])
    options: dict[str, Any] = {"frames": 5, "batch_size": 2}
    dataset = ClipDataset(str(out), **options, decode="gpu")
    with caplog.at_level(logging.WARNING):
        found = list(ClipLoader(dataset))
    for one, other in zip(ClipDataset(str(out), **options), found, strict=True):
        assert torch.equal(one["video"], other["video"])
    assert dataset.not_on_gpu == {"pixel_format": 2, "codec": 1}
    assert sum(sum(batch["not_on_gpu"].values()) for batch in found) == 3
    assert caplog.text.count("is decoded on the CPU (pixel_format") == 1
    assert "pixel format yuv444p" in caplog.text


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (dropping(1), "frames_differ"),
        (dropping(6), "frames_differ"),
        (Failing, "decoder_error"),
        (Smaller, "size_changes"),
        (Shifted, "frames_differ"),
    ],
    ids=["first lost", "one lost", "error", "size", "crop"],
)
def test_an_engine_that_errs_gives_no_wrong_frames(
    tmp_path: Path, engines: Engines, kind: type[Decoder], reason: str
) -> None:
    engines(kind)
    mp4 = clip_bytes(tmp_path, n_frames=60, gop=60)
    out = write_shards(tmp_path / "out", [(A, "train", [MadeClip(key="00", mp4=mp4, n_frames=60)])])
    for one, other in zip(*both(out, frames=12, window="first"), strict=True):
        assert torch.equal(one["video"], other["video"])
        assert other["not_on_gpu"] == {reason: 1}


def test_damage_is_the_error_of_the_cpu_path(tmp_path: Path, engines: Engines) -> None:
    engines()
    mp4 = clip_bytes(tmp_path, n_frames=10)
    for number, data in enumerate((mp4, mp4[:700], b"no video")):
        clips = [MadeClip(key="abc1", mp4=data, n_frames=24)]
        out = str(write_shards(tmp_path / f"{number}", [(A, "train", clips)]))
        options: dict[str, Any] = {"frames": 12, "window": "first"}
        with pytest.raises(ShardError, match=r"clip abc1 of ") as expected:
            list(ClipDataset(out, **options))
        with pytest.raises(ShardError) as found:
            list(ClipDataset(out, **options, decode="gpu"))
        assert str(found.value) == str(expected.value)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, (48, 48)])
def test_the_real_engine_gives_the_cpus_windows(
    tmp_path: Path, workers: int, size: tuple[int, int] | None
) -> None:
    """Pins NVDEC itself, a decoder that goes on with the next clip, and frames from workers."""
    mp4 = clip_bytes(tmp_path, n_frames=60, gop=8, bframes=3, height=196, width=304)
    shape = {"n_frames": 60, "height": 196, "width": 304}
    clips = [MadeClip(key=f"{i:04x}", mp4=mp4, **shape) for i in range(24)]
    out = write_shards(tmp_path / "out", [(A, "train", clips)])
    options: dict[str, Any] = {"frames": 9, "batch_size": 4, "size": size}
    dataset = ClipDataset(str(out), **options, decode="gpu")
    context = "spawn" if workers else None
    loader = ClipLoader(dataset, num_workers=workers, multiprocessing_context=context)
    found = {tuple(batch["key"]): batch for batch in loader}
    expected = ClipLoader(ClipDataset(str(out), **options), num_workers=workers)
    for one in expected:
        other = found.pop(tuple(one["key"]))
        assert other["video"].device == torch.device("cuda", torch.cuda.current_device())
        assert torch.equal(one["start_frame"], other["start_frame"])
        off = (one["video"].int() - other["video"].cpu().int()).abs().float()
        assert off.mean() < 1.5
        if size is None:
            starts = one["start_frame"].tolist()
            for video, start in zip(other["video"].cpu().numpy(), starts, strict=True):
                shown = [number_in(video[:, t], 304) for t in range(9)]
                assert shown == list(range(start, start + 9))
    assert not found
    assert dataset.not_on_gpu == {}
