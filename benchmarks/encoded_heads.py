#!/usr/bin/env python3
"""Do all readers give frame i of a clip with an encoded head, and what do such clips cost?

    encoded_heads.py clips FOLDER MEDIA OUT         makes clips of MEDIA's H.264 and of synthetic
                                                    files, and takes those of a run
    encoded_heads.py read FOLDER --readers PYTHON   reads each clip by each reader
    encoded_heads.py loader OUT                     reads the shards of a run by `ClipDataset`
    encoded_heads.py cost OUT WHOLE                 compares clips with those of another run, which
                                                    encoded them whole, and with the source

PYTHON is an interpreter with PyAV, OpenCV, torchcodec, decord and imageio; readers run in it one by
one. Chromium, GStreamer and the `ffmpeg` command are used where they are installed.

The reference is PyAV's decode in order with one thread. A frame is wrong if its small gray picture
is nearer to that of another frame, or far from its own. A frame that equals its neighbours in the
reference decides nothing, and is not counted.
"""

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Numbered = Iterator[tuple[int, Any]]
"""Indices of frames, and what a reader gives for them: RGB [H, W, 3], or gray [H, W]."""
SMALL = (96, 54)
RANDOM = 12
"""Frames of a clip that are read in random order."""
MOST_FRAMES = 1300
"""Longer media are left out."""
MARGIN = 0.15
"""Gray levels by which another frame must be nearer; converters differ by less."""
MOST_OFF = 6.0
"""Gray levels, in the mean, that a right frame may differ by: matrices of untagged video."""


def small(picture: Any) -> NDArray[np.float32]:  # noqa: ANN401
    import cv2

    gray = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    return cv2.resize(gray, SMALL, interpolation=cv2.INTER_AREA).astype(np.float32)  # type: ignore[no-any-return]


def drawn(n: int) -> list[int]:
    """Frames in random order: all kinds of jumps, over the joint and back."""
    chance = random.Random(1)
    return [chance.randrange(n) for _ in range(RANDOM - 3)] + [n - 1, 0, n // 2]


def by_pyav(path: Any, n: int, threads: int = 1) -> Numbered:  # noqa: ANN401
    import av

    with av.open(path, mode="r") as container:
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "AUTO", threads
        for index, frame in enumerate(container.decode(stream)):
            yield index, frame.to_ndarray(format="rgb24")


def by_pyav_threads(path: Path, n: int) -> Numbered:
    yield from by_pyav(str(path), n, threads=2)


def by_pyav_seek(path: Path, n: int) -> Numbered:
    import av

    with av.open(str(path), mode="r") as container:
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "AUTO", 2
        tick = 1 / (Fraction(stream.average_rate) * stream.time_base)  # type: ignore[arg-type, operator]
        for index in drawn(n):
            container.seek(round(index * tick), stream=stream)
            for frame in container.decode(stream):
                if round(frame.pts / tick) >= index:  # type: ignore[operator]
                    yield index, frame.to_ndarray(format="rgb24")
                    break


def by_opencv(path: Path, n: int) -> Numbered:
    import cv2

    video = cv2.VideoCapture(str(path))
    assert int(video.get(cv2.CAP_PROP_FRAME_COUNT)) == n
    index = 0
    while True:
        there, frame = video.read()
        if not there:
            return
        yield index, np.ascontiguousarray(frame[:, :, ::-1])
        index += 1


def by_opencv_seek(path: Path, n: int) -> Numbered:
    import cv2

    video = cv2.VideoCapture(str(path))
    for index in drawn(n):
        video.set(cv2.CAP_PROP_POS_FRAMES, index)
        yield index, np.ascontiguousarray(video.read()[1][:, :, ::-1])


def by_torchcodec(path: Path, n: int, mode: str = "exact", *, in_order: bool = False) -> Numbered:
    from torchcodec.decoders import VideoDecoder  # type: ignore[import-not-found]

    decoder = VideoDecoder(str(path), seek_mode=mode)
    assert len(decoder) == n
    for index in range(n) if in_order else drawn(n):
        yield index, decoder[index].permute(1, 2, 0).numpy()


def by_torchcodec_in_order(path: Path, n: int) -> Numbered:
    yield from by_torchcodec(path, n, in_order=True)


def by_torchcodec_approximate(path: Path, n: int) -> Numbered:
    yield from by_torchcodec(path, n, "approximate")


def by_torchcodec_times(path: Path, n: int) -> Numbered:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(path))
    indices = drawn(n)
    rate = decoder.metadata.average_fps
    shown = decoder.get_frames_played_at([(index + 0.5) / rate for index in indices])
    yield from zip(indices, shown.data.permute(0, 2, 3, 1).numpy(), strict=True)


def by_decord(path: Path, n: int) -> Numbered:
    import decord  # type: ignore[import-not-found]

    reader = decord.VideoReader(str(path))
    assert len(reader) == n
    for index in range(n):
        yield index, reader.next().asnumpy()


def by_decord_random(path: Path, n: int) -> Numbered:
    import decord

    reader = decord.VideoReader(str(path))
    for index in drawn(n):
        yield index, reader[index].asnumpy()


def by_decord_batch(path: Path, n: int) -> Numbered:
    import decord

    indices = sorted(set(drawn(n)))
    batch = decord.VideoReader(str(path), num_threads=2).get_batch(indices)
    yield from zip(indices, batch.asnumpy(), strict=True)


def by_imageio(path: Path, n: int) -> Numbered:
    import imageio.v3 as imageio

    yield from enumerate(imageio.imiter(path, plugin="pyav", thread_type="FRAME"))


READERS: dict[str, Callable[[Path, int], Numbered]] = {
    "PyAV, in order, 2 threads": by_pyav_threads,
    "PyAV, seek": by_pyav_seek,
    "OpenCV, in order": by_opencv,
    "OpenCV, seek": by_opencv_seek,
    "torchcodec, in order": by_torchcodec_in_order,
    "torchcodec, exact, random": by_torchcodec,
    "torchcodec, approximate, random": by_torchcodec_approximate,
    "torchcodec, by time": by_torchcodec_times,
    "decord, in order": by_decord,
    "decord, random": by_decord_random,
    "decord, batch, 2 threads": by_decord_batch,
    "imageio, in order": by_imageio,
}
"""Run in the other interpreter. Readers that yield all frames must yield exactly `n`."""
ALL_FRAMES = ("in order", "ffmpeg", "GStreamer", "whole")


class Count:
    """What a reader gave: right and wrong frames, clips with a wrong one, and errors."""

    def __init__(self) -> None:
        self.frames = self.clips = 0
        self.wrong: list[tuple[str, int, int]] = []
        self.errors: list[str] = []

    def compare(
        self, name: str, meant: NDArray[np.float32], numbered: Numbered, *, whole: bool
    ) -> None:
        self.clips += 1
        n_seen, n = 0, len(meant)
        try:
            for index, picture in numbered:
                n_seen += 1
                if index >= n:
                    continue
                shown = small(picture)
                low = max(0, index - 6)
                near = meant[low : index + 7]
                # Untagged colours may be converted by another matrix: levels differ, not shapes.
                apart = near - shown
                off = np.abs(apart - apart.mean(axis=(1, 2), keepdims=True)).mean(axis=(1, 2))
                own = off[index - low]
                apart = np.abs(near - meant[index]).mean(axis=(1, 2))
                apart[index - low] = np.inf
                if own > MOST_OFF or off.min() + MARGIN < own:
                    self.wrong.append((name, index, int(off.argmin()) + low))
                elif apart.min() > 2 * MARGIN:
                    self.frames += 1
            if whole and n_seen != n:
                raise ValueError(f"{n_seen} of {n} frames")
        except Exception as error:  # noqa: BLE001 - each reader has its own errors
            self.errors.append(f"{name}: {type(error).__name__} {str(error)[:200]}")

    def told(self) -> dict[str, Any]:
        return {"clips": self.clips, "frames": self.frames, "wrong": self.wrong[:20],
                "n_wrong": len(self.wrong), "errors": self.errors}  # fmt: skip


def listed(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "clips.json").read_text())  # type: ignore[no-any-return]


def read_by(folder: Path, reader: str) -> dict[str, Any]:
    """Reads all clips by one reader, in this process."""
    count = Count()
    for clip in listed(folder):
        path = folder / clip["file"]
        meant = np.load(path.with_suffix(".npy")).astype(np.float32)
        whole = any(word in reader for word in ALL_FRAMES)
        count.compare(clip["file"], meant, READERS[reader](path, len(meant)), whole=whole)
    return count.told()


def by_command(folder: Path) -> dict[str, dict[str, Any]]:
    """Compares the bits of frames by the `ffmpeg` command: as it is, remuxed, after seeks."""
    counts = {name: Count() for name in ("ffmpeg, in order", "ffmpeg, -ss, one frame")}
    chains = (("mkv",), ("ts",), ("flv",), ("mkv", "mp4"), ("ts", "mp4"))
    counts |= {"ffmpeg -c copy, " + ", ".join(chain): Count() for chain in chains}
    for clip in listed(folder):
        path = folder / clip["file"]
        meant = json.loads(path.with_suffix(".md5.json").read_text())

        def check(
            name: str, found: Callable[[], list[str]], expected: list[str], file: str = path.name
        ) -> None:
            count = counts[name]
            count.clips += 1
            try:
                sums = found()
            except subprocess.CalledProcessError as error:
                count.errors.append(f"{file}: {error.stderr[-200:]}")
                return
            if len(sums) != len(expected):
                count.errors.append(f"{file}: {len(sums)} of {len(expected)} frames")
            pairs = list(zip(sums, expected, strict=False))
            count.wrong += [(file, i, -1) for i, (a, b) in enumerate(pairs) if a != b]
            count.frames += sum(a == b for a, b in pairs)

        check("ffmpeg, in order", lambda path=path: framemd5(path), meant)  # type: ignore[misc]
        fps = Fraction(clip["fps"])
        for index in (0, clip["n_head"] - 1, clip["n_head"], clip["n_head"] + 1, len(meant) - 1):
            # Half a frame earlier: -ss gives the first frame at or after a time.
            seek = ["-ss", f"{max(0.0, float((index - Fraction(1, 2)) / fps)):.6f}"]
            check(
                "ffmpeg, -ss, one frame",
                lambda path=path, seek=seek: framemd5(path, *seek, n=1),  # type: ignore[misc]
                meant[index : index + 1],
            )
        with tempfile.TemporaryDirectory() as scratch:
            for chain in chains:
                made = path
                for number, suffix in enumerate(chain):
                    target = Path(scratch) / f"{number}{'-'.join(chain)}.{suffix}"
                    command = ["ffmpeg", "-v", "error", "-y", "-i", made, "-c", "copy", target]
                    subprocess.run(command, check=True, capture_output=True)
                    made = target
                check(
                    "ffmpeg -c copy, " + ", ".join(chain),
                    lambda made=made: framemd5(made),  # type: ignore[misc]
                    meant,
                )
    return {name: count.told() for name, count in counts.items()}


def framemd5(path: Path, *before: str, n: int | None = None) -> list[str]:
    command = ["ffmpeg", "-v", "error", *before, "-i", str(path), "-map", "0:v", "-vsync", "0"]
    command += ["-frames:v", str(n)] if n else []
    command += ["-pix_fmt", "yuv420p", "-f", "framemd5", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if done.stderr:
        raise subprocess.CalledProcessError(0, command, stderr=done.stderr)
    return [line.split(",")[-1].strip() for line in done.stdout.splitlines() if line[0] != "#"]


def by_gstreamer(folder: Path) -> dict[str, dict[str, Any]]:
    count = Count()
    for clip in listed(folder):
        path = folder / clip["file"]
        meant = np.load(path.with_suffix(".npy")).astype(np.float32)
        count.compare(clip["file"], meant, _gstreamer_frames(path, clip), whole=True)
    return {"GStreamer (qtdemux, avdec_h264), in order": count.told()}


def _gstreamer_frames(path: Path, clip: dict[str, Any]) -> Numbered:
    width, height = clip["size"]
    row = -(-3 * width // 4) * 4
    pipeline = f"filesrc location={path} ! qtdemux ! h264parse ! avdec_h264 ! videoconvert ! video/x-raw,format=RGB ! fdsink fd=1"  # noqa: E501
    with subprocess.Popen(["gst-launch-1.0", "-q", *pipeline.split()], stdout=-1) as process:
        index = 0
        while data := process.stdout.read(row * height):  # type: ignore[union-attr]
            picture = np.frombuffer(data, np.uint8).reshape(height, row)[:, : 3 * width]
            yield index, picture.reshape(height, width, 3)
            index += 1


PAGE = """
const done = arguments[arguments.length - 1], [url, times] = arguments;
(async () => {
  const video = document.createElement('video');
  video.muted = true;
  video.src = URL.createObjectURL(await (await fetch(url)).blob());
  await new Promise((ok, bad) => { video.onloadeddata = ok; video.onerror = () => bad(video.error.message); });
  const canvas = document.createElement('canvas'), found = [];
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  for (const time of times) {
    const seeked = new Promise((ok, bad) => { video.onseeked = ok; video.onerror = () => bad(video.error.message); });
    const shown = new Promise((ok) => { video.requestVideoFrameCallback(ok); setTimeout(ok, 700); });
    video.currentTime = time;
    await seeked;
    await shown;
    canvas.getContext('2d').drawImage(video, 0, 0);
    found.push(canvas.toDataURL('image/jpeg', 0.95).split(',')[1]);
  }
  return [video.duration, found];
})().then(done, (error) => done(String(error)));
"""  # noqa: E501


def by_chromium(folder: Path) -> dict[str, dict[str, Any]]:
    """Shows random frames of each clip in a `<video>`, by seeks to their middles."""
    import base64
    import functools
    import http.server
    import threading

    import cv2
    from selenium import webdriver

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--no-proxy-server", "--no-first-run"):
        options.add_argument(option)
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(300)
    driver.get(f"http://127.0.0.1:{server.server_port}/clips.json")

    def frames(clip: dict[str, Any], n: int) -> Numbered:
        fps, joint = Fraction(clip["fps"]), clip["n_head"]
        indices = [joint, joint - 1, *drawn(n), joint]
        times = [float((index + Fraction(1, 2)) / fps) for index in indices]
        answer = driver.execute_async_script(PAGE, clip["file"], times)
        if isinstance(answer, str):
            raise ValueError(answer)
        if abs(answer[0] - n / fps) > (0.05 if clip["source"] == "sound.ts" else 0.002):
            raise ValueError(f"lasts {answer[0]} s, not {float(n / fps)}")
        for index, data in zip(indices, answer[1], strict=True):
            coded = np.frombuffer(base64.b64decode(data), np.uint8)
            yield index, cv2.imdecode(coded, cv2.IMREAD_COLOR_RGB)

    count = Count()
    for clip in listed(folder):
        meant = np.load((folder / clip["file"]).with_suffix(".npy")).astype(np.float32)
        count.compare(clip["file"], meant, frames(clip, len(meant)), whole=False)
    version = driver.capabilities["browserVersion"]
    driver.quit()
    server.shutdown()
    return {f"Chromium {version}, seek": count.told()}


def by_window_decoder(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads windows of clips as `ClipDataset` does."""
    import torch

    from curator.loading.window_decoder import ClipWindow, decode_window

    def windows(path: Path, clip: dict[str, Any], n: int, threads: int) -> Numbered:
        mp4, length, (width, height) = path.read_bytes(), min(9, n), clip["size"]
        for start in drawn(n - length + 1):
            into = torch.empty((3, length, height, width), dtype=torch.uint8)
            window = ClipWindow(
                mp4=mp4, wanted=np.arange(start, start + length), rate=Fraction(clip["fps"]),
                decoder_threads=threads, scaled=False, name=path.name,
            )  # fmt: skip
            decode_window(window, into)
            yield from enumerate(into.permute(1, 2, 3, 0).contiguous().numpy(), start)

    counts = {}
    for threads in (1, 2):
        count = Count()
        for clip in listed(folder):
            path = folder / clip["file"]
            meant = np.load(path.with_suffix(".npy")).astype(np.float32)
            numbered = windows(path, clip, len(meant), threads)
            count.compare(clip["file"], meant, numbered, whole=False)
        counts[f"curator.loading, windows, {threads} thread(s)"] = count.told()
    return counts


def by_dataset(out: Path) -> None:
    """Reads random windows of a run's clips with heads by `ClipDataset`, four epochs."""
    import io

    from curator.loading import ClipDataset

    meant: dict[str, NDArray[np.float32]] = {}
    for row, mp4 in with_heads(out):
        shown = (picture for _, picture in by_pyav(io.BytesIO(mp4), 0))
        meant[row["key"]] = np.stack([small(picture) for picture in shown])
    counts = Count()
    dataset = ClipDataset(out, frames=17, where="cut_mode = 'encode_head'")
    for epoch in range(4):
        dataset.set_epoch(epoch)
        for sample in dataset:
            if sample["key"] in meant:
                frames = sample["video"].permute(1, 2, 3, 0).contiguous().numpy()
                numbered = enumerate(frames, int(sample["start_frame"]))
                counts.compare(sample["key"], meant[sample["key"]], numbered, whole=False)
    show(f"ClipDataset, {len(meant)} clips", counts.told(), 0)


def read_all(folder: Path, python: str) -> None:
    """Prints a table of all readers, then JSON."""
    results: dict[str, Any] = {}
    for reader in READERS:
        began = time.monotonic()
        done = subprocess.run(
            [python, __file__, "read", str(folder), "--reader", reader],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        failed = Count().told() | {"errors": [done.stderr[-400:]]}
        results[reader] = json.loads(lines[-1]) if done.returncode == 0 else failed
        show(reader, results[reader], time.monotonic() - began)
    for name, (tool, read) in OTHERS.items():
        if tool is not None and shutil.which(tool) is None:
            print(f"{name}: no {tool} here")
            continue
        began = time.monotonic()
        for reader, found in read(folder).items():
            results[reader] = found
            show(reader, found, time.monotonic() - began)
    print(json.dumps(results))


OTHERS: dict[str, tuple[str | None, Callable[[Path], dict[str, dict[str, Any]]]]] = {
    "loading": (None, by_window_decoder),
    "ffmpeg": ("ffmpeg", by_command),
    "GStreamer": ("gst-launch-1.0", by_gstreamer),
    "Chromium": ("chromedriver", by_chromium),
}
"""Run in this process: the command that each needs, and what reads."""


def show(reader: str, found: dict[str, Any], seconds: float) -> None:
    print(
        f"| {reader} | {found['clips']} | {found['frames']} | {found['n_wrong']} | "
        f"{len(found['errors'])} | {seconds:.0f} s", *found["wrong"][:6], *found["errors"][:6],
        flush=True,
    )  # fmt: skip


CLOSED = "keyint=12:min-keyint=12:scenecut=0:b-adapt=0"
BROADCAST = "nal-hrd=cbr:bitrate=1500:vbv-maxrate=1500:vbv-bufsize=1500:filler=1:aud=1"
SYNTHETIC: dict[str, dict[str, Any]] = {
    "plain.mp4": {"bframes": 0},
    "plain.mkv": {"bframes": 0},
    "plain.ts": {"bframes": 0},
    "ntsc.mov": {"bframes": 0, "fps": Fraction(30_000, 1001)},
    "b_frames.mp4": {"bframes": 3},
    "b_frames.mkv": {"bframes": 3},
    "b_frames.ts": {"bframes": 3},
    "b_frames.flv": {"bframes": 2},
    "film_rate.mkv": {"bframes": 2, "fps": Fraction(24_000, 1001)},
    "ntsc60.ts": {"bframes": 2, "fps": Fraction(60_000, 1001)},
    "pyramid.mp4": {"bframes": 7, "params": f"b-pyramid=normal:ref=4:{CLOSED}"},
    "pyramid16.mkv": {"bframes": 15, "params": f"b-pyramid=normal:ref=16:{CLOSED}"},
    "sound.ts": {"bframes": 3, "audio_tone_s": 4.0},
    "open_groups.ts": {"bframes": 3, "params": "open-gop=1:keyint=12:min-keyint=12:scenecut=0"},
    "open_groups.mp4": {"bframes": 3, "params": "open-gop=1:keyint=12:min-keyint=12:scenecut=0"},
    "slices.mp4": {"bframes": 2, "params": f"slices=4:{CLOSED}"},
    "baseline.mp4": {"bframes": 0, "options": {"profile": "baseline"}},
    "main.ts": {"bframes": 2, "options": {"profile": "main"}},
    "repeated_headers.mp4": {"bframes": 2, "params": f"repeat-headers=1:aud=1:{CLOSED}"},
    "broadcast.ts": {
        "bframes": 2,
        "params": f"{BROADCAST}:{CLOSED}",
    },
    "matrices.mp4": {"bframes": 2, "params": f"cqm=jvt:{CLOSED}"},
    "weighted.mp4": {"bframes": 3, "params": f"weightp=2:ref=3:{CLOSED}"},
    "bt601.mkv": {
        "bframes": 2,
        "params": f"colorprim=smpte170m:transfer=smpte170m:colormatrix=smpte170m:{CLOSED}",
    },
    "numbered.mp4": {"bframes": 2, "params": f"sps-id=1:{CLOSED}"},
    "constrained.ts": {"bframes": 2, "params": f"constrained-intra=1:cabac=0:{CLOSED}"},
}
"""Sources of 192x108 at 30 frames/s, each frame unlike the next, with a key frame every 12."""


def make_synthetic(folder: Path) -> Iterator[Path]:
    import av
    from film_makers import write_video
    from film_shots import moving_texture

    for name, made in SYNTHETIC.items():
        path, settings = folder / name, dict(made)
        options = {"preset": "veryfast", "x264-params": settings.pop("params", CLOSED)}
        options |= settings.pop("options", {})
        target = path.with_suffix(".made.mp4") if path.suffix == ".flv" else path
        pictures = moving_texture(120, width_px=192, height_px=108)
        if name.startswith("open_groups"):
            write_open_groups(target, pictures)
        else:
            write_video(target, pictures, options=options, **settings)
        if target != path:
            with av.open(str(target)) as source, av.open(str(path), "w", format="flv") as output:
                stream = output.add_stream_from_template(source.streams.video[0], opaque=True)
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.stream = stream
                        output.mux(packet)
        yield path


def write_open_groups(path: Path, pictures: Iterable[Picture]) -> None:
    """Writes groups that are open, but for IDR pictures at frames 24, 60 and 84."""
    import av

    params = "open-gop=1:keyint=12:min-keyint=6:scenecut=0:b-adapt=0"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = 108, 192, "yuv420p"
        stream.codec_context.max_b_frames = 3
        stream.codec_context.options = {
            "preset": "veryfast", "x264-params": params, "forced-idr": "1",
        }  # fmt: skip
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            if index in (24, 60, 84):
                frame.pict_type = av.video.frame.PictureType.I
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def make_clips(folder: Path, media: Path, out: Path) -> None:
    """Cuts clips within groups of pictures, and writes them with their reference."""
    import av
    import tests_path  # noqa: F401
    from made_cuts import cutter_of, request_of
    from samples import framed

    from curator.errors import CuratorError
    from curator.stages.cut.config import CutConfig

    folder.mkdir(parents=True)
    (folder / "sources").mkdir()
    clips: list[dict[str, Any]] = []

    def add(mp4: bytes, source: str) -> None:
        path = folder / f"{len(clips):02}.mp4"
        path.write_bytes(mp4)
        clips.append({"file": path.name, "source": source} | write_reference(path))
        (folder / "clips.json").write_text(json.dumps(clips, indent=1))

    found = sorted(media.glob("[fmns]*/*.m[po][4v]")) + sorted(media.glob("*/*.ts"))
    for path in (*make_synthetic(folder / "sources"), *found):
        with av.open(str(path), mode="r") as container:
            stream = container.streams.video[0]
            form = (stream.codec_context.name, stream.pix_fmt)
            is_long = stream.frames > MOST_FRAMES
        if form != ("h264", "yuv420p") or is_long:
            continue
        try:
            track = framed(path)
        except CuratorError:
            continue
        n = track.n_frames
        config = CutConfig(copy_give_up_s=0.11, audio="copy" if path.stem == "sound" else "drop")
        for place in (0.06, 0.4, 0.21, 0.55):
            start, end = int(n * place), min(n - 3, int(n * place) + 120)
            if end - start >= 30:
                clip = cutter_of(path, config).cut(request_of(track, start, end))
                if clip.cut_mode == "encode_head":
                    add(clip.mp4, path.name)
                    break
    for row, mp4 in with_heads(out):
        add(mp4, row["source_uri"].rpartition("/")[2])
    print(len(clips), "clips")


def with_heads(out: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yields the clips with heads of a run: rows of its table, and files."""
    import pyarrow.compute as pc

    for row in clip_rows(out).filter(pc.field("cut_mode") == "encode_head").to_pylist():
        yield row, file_of(out, row)


def clip_rows(out: Path) -> Any:  # noqa: ANN401
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = json.loads((out / "summary.json").read_text())["tables"]["clips"]
    return pa.concat_tables([pq.read_table(out / name) for name in tables])


def file_of(out: Path, row: dict[str, Any]) -> bytes:
    return (out / row["shard"]).read_bytes()[row["mp4_offset"] :][: row["mp4_bytes"]]  # type: ignore[no-any-return]


def write_reference(path: Path) -> dict[str, Any]:
    """Writes what each frame of a clip is; returns the facts that readers need."""
    import av

    pictures, sums = [], []
    with av.open(str(path), mode="r") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for frame in container.decode(stream):
            pictures.append(small(frame.to_ndarray(format="rgb24")))
            sums.append(hashlib.md5(frame.to_ndarray(format="yuv420p").tobytes()).hexdigest())
        facts = {"fps": str(stream.average_rate), "size": [stream.width, stream.height]}
    np.save(path.with_suffix(".npy"), np.stack(pictures).astype(np.float16))
    path.with_suffix(".md5.json").write_text(json.dumps(sums))
    sizes, n_head = packets_of(str(path))
    return facts | {"n_head": n_head, "n_frames": len(sizes)}


def packets_of(file: Any) -> tuple[list[int], int]:  # noqa: ANN401
    """Returns the bytes of a clip's packets, and how many of them belong to the first headers."""
    import av

    from curator.media.stream_headers import _Bits, nal_units

    sizes, numbers = [], []
    with av.open(file, mode="r") as container:
        stream = container.streams.video[0]
        for packet in container.demux(stream):
            if packet.size:
                units = nal_units(bytes(packet), stream.codec_context.extradata)
                bits = _Bits(next(unit for unit in units if unit[0] & 31 in (1, 5))[1:20])
                numbers.append([bits.variable() for _ in range(3)][2])
                sizes.append(packet.size)
    return sizes, next((i for i, own in enumerate(numbers) if own != numbers[0]), len(numbers))


def print_costs(out: Path, whole: Path) -> None:
    """Prints, for each clip with a head, bytes and SSIM, and those of the clip encoded whole."""
    import io

    import av

    others = {row["clip_id"]: row for row in clip_rows(whole).to_pylist()}
    print("| clip | frames | in the head | head, KiB | same frames in the source | in the clip "
          "encoded whole | clip, KiB | whole | SSIM of the head | whole |")  # fmt: skip
    for row, mp4 in with_heads(out):
        other = file_of(whole, others[row["clip_id"]])
        sizes, n_head = packets_of(io.BytesIO(mp4))
        theirs, _ = packets_of(io.BytesIO(other))
        first = row["start_frame"]
        with av.open(row["source_uri"], mode="r") as container:
            packets = sorted((p.pts, p.size) for p in container.demux(video=0) if p.size)
        source = sum(size for _, size in packets[first : first + n_head])
        meant = lumas(row["source_uri"], first, n_head)
        shown, shown_whole = (
            float(np.mean([ssim(a, b) for a, b in zip(meant, lumas(file, 0, n_head), strict=True)]))
            for file in (io.BytesIO(mp4), io.BytesIO(other))
        )
        n_bytes = [sum(sizes[:n_head]), source, sum(theirs[:n_head]), len(mp4), len(other)]
        print(
            f"| {Path(row['source_uri']).name}:{first} | {len(sizes)} | {n_head} | "
            + " | ".join(str(round(n / 1024)) for n in n_bytes)
            + f" | {shown:.4f} | {shown_whole:.4f} |",
            flush=True,
        )


def lumas(file: Any, first: int, n: int) -> list[NDArray[np.float32]]:  # noqa: ANN401
    """Returns the luma of every sixth of `n` frames."""
    import av

    found: list[NDArray[np.float32]] = []
    with av.open(file, mode="r") as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index >= first + n:
                break
            if index >= first and (index - first) % 6 == 0:
                found.append(luma(frame))
    return found


def luma(frame: Any) -> NDArray[np.float32]:  # noqa: ANN401
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width].astype(np.float32)


def ssim(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    import cv2

    def mean(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(cv2.GaussianBlur(x, (11, 11), 1.5), np.float32)

    mean_a, mean_b = mean(a), mean(b)
    spread_a, spread_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    shared = mean(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_a * mean_b + c1) * (2 * shared + c2)
    return float((above / ((mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2))).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("clips", "read", "loader", "cost"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("sources", type=Path, nargs="*")
    parser.add_argument("--readers", default=sys.executable, help="interpreter with the readers")
    parser.add_argument("--reader", help="reads by this reader only, in this process")
    args = parser.parse_args()
    if args.what == "clips":
        make_clips(args.folder, *args.sources)
    elif args.what == "loader":
        by_dataset(args.folder)
    elif args.what == "cost":
        print_costs(args.folder, *args.sources)
    elif args.reader in OTHERS:
        for name, found in OTHERS[args.reader][1](args.folder).items():
            show(name, found, 0)
    elif args.reader:
        print(json.dumps(read_by(args.folder, args.reader)))
    elif args.what == "read":
        read_all(args.folder, args.readers)


if __name__ == "__main__":
    main()
