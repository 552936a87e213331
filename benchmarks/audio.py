"""What measuring the audio costs in the one decode, and whether its levels are right.

    python benchmarks/audio.py FILE... [--apart DIR]

`--apart` adds a copy of the first file whose audio lies behind all of its pictures. For each file:
CPU-seconds of decoding the video alone and with its audio, in turns; what the reader was asked for
in both cases; the level against FFmpeg's `volumedetect`; and, where the file can be cut into
segments of 30 s, how far their levels are from those of the whole.
"""

import argparse
import io
import json
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from measure import machine
from numpy.typing import NDArray

from curator.media.audio_level import LevelMeter, join_levels, level_meter
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.media.source_segments import NotInSegmentsError, plan_segments, seek_to

TURNS = 5
SEGMENT_S = 30.0
OVERLAP = 112


class CountingFile(io.FileIO):
    """Counts what is read, and how often reading goes on elsewhere."""

    n_bytes = n_jumps = 0
    _expected = 0

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Reads and counts."""
        self.n_jumps += self.tell() != self._expected
        count = super().readinto(buffer) or 0
        self.n_bytes += count
        self._expected = self.tell()
        return count

    def read(self, size: int | None = -1) -> bytes:
        """Reads and counts."""
        self.n_jumps += self.tell() != self._expected
        data = super().read(-1 if size is None else size) or b""
        self.n_bytes += len(data)
        self._expected = self.tell()
        return data


def decoded(path: Path, *, hears: bool) -> tuple[dict[str, float], LevelMeter | None]:
    """Decodes a file once; gives CPU-seconds, bytes and jumps, and what heard it."""
    with (
        CountingFile(str(path)) as file,
        open_container(file, path.name, n_bytes=path.stat().st_size) as container,
    ):
        video = video_stream(container, path.name)
        meter = level_meter(container, video) if hears else None
        frames = FrameReader(container, video, path.name, threads=1, max_pixels=10**9, audio=meter)
        begun_s = time.process_time()
        n_frames = sum(1 for _ in frames)
        cpu_s = time.process_time() - begun_s
        assert frames.report.end_pts is not None
        seconds = float(frames.report.end_pts * frames.time_base)
        spent = {"cpu_s": cpu_s, "bytes": file.n_bytes, "jumps": file.n_jumps,
                 "frames": n_frames, "seconds": seconds}  # fmt: skip
        if meter is not None:
            spent["audio_s"] = meter.cpu_s
        return spent, meter


def segment_levels(path: Path) -> tuple[int, NDArray[np.float32], bool] | None:
    """Levels of a file's segments, joined; None where it has none. Decodes no video."""
    size = path.stat().st_size
    try:
        with path.open("rb") as reader:
            plan = plan_segments(reader, path.name, n_bytes=size, limit_s=SEGMENT_S,
                                 shared_frames=OVERLAP, max_pixels=10**9)  # fmt: skip
    except NotInSegmentsError:
        return None
    pieces = []
    for segment in plan:
        with path.open("rb") as reader, open_container(reader, "s", n_bytes=size) as container:
            video = video_stream(container, "s")
            meter = level_meter(container, video, begins_within=segment.number > 0)
            assert meter is not None
            if segment.number:
                seek_to(container, video, segment.start_pts)
            n_shared = 0
            for packet in container.demux([video, meter.stream]):
                if packet.stream is meter.stream:
                    meter.take(packet)
                elif segment.end_pts is not None and packet.pts is not None:
                    n_shared += packet.pts >= segment.end_pts
                    if n_shared > OVERLAP:
                        break
            pieces.append(meter.levels())
    return join_levels(pieces)


def volumedetect(path: Path) -> float | None:
    """The mean volume that FFmpeg reports, dBFS."""
    command = ["ffmpeg", "-hide_banner", "-i", str(path), "-vn", "-af", "volumedetect",
               "-f", "null", "-"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"mean_volume: (\S+) dB", done.stderr)
    return float(found[1]) if found else None


def measured(path: Path) -> dict[str, Any]:
    """All numbers of one file."""
    turns: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    meter = None
    for _ in range(TURNS):
        for hears in (False, True):
            spent, found = decoded(path, hears=hears)
            turns[hears].append(spent)
            meter = found or meter
    without, with_audio = turns[False][0], turns[True][0]
    if meter is None:
        raise SystemExit(f"{path} has no audio")
    first, levels = meter.levels()
    heard = levels[np.isfinite(levels)].astype(np.float64)
    row: dict[str, Any] = {
        "file": path.name,
        "codec": meter.stream.codec_context.name,
        "seconds": round(with_audio["seconds"], 2),
        "video_cpu_s_per_min": _per_minute(turns[False], "cpu_s"),
        "audio_cpu_s_per_min": _per_minute(turns[True], "audio_s"),
        "difference_cpu_s_per_min": round(
            _per_minute(turns[True], "cpu_s") - _per_minute(turns[False], "cpu_s"), 3
        ),
        "more_bytes": with_audio["bytes"] - without["bytes"],
        "more_jumps": with_audio["jumps"] - without["jumps"],
        "audio_rms_db": round(10 * float(np.log10(np.mean(10 ** (heard / 10)))), 2),
        "volumedetect_db": volumedetect(path),
        "silent": round(float(np.mean(heard < -60)), 3),
        "notes": sorted(map(str, meter.notes)),
    }
    joined = segment_levels(path)
    if joined is not None:
        start, others, is_proved = joined
        row["segments_proved"] = is_proved
        if start == first and len(others) == len(levels):
            off = np.abs(others - levels)[np.isfinite(levels)]
            row["segments_largest_db"] = round(float(off.max()), 3)
            row["segments_within_0_1_db"] = round(float((off <= 0.1).mean()), 4)
    return row


def apart(path: Path, folder: Path) -> Path:
    """A copy whose audio lies behind all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"apart_{path.stem}.mp4"
    options = {"max_interleave_delta": "1"}
    with av.open(str(path)) as source, av.open(str(out), "w", options=options) as target:
        streams = [source.streams.video[0], source.streams.audio[0]]
        copies = {s.index: target.add_stream_from_template(s) for s in streams}
        packets = [packet for packet in source.demux(streams) if packet.size]
        for packet in sorted(packets, key=lambda packet: packet.stream.index != streams[0].index):
            packet.stream = copies[packet.stream.index]
            target.mux(packet)
    return out


def _per_minute(turns: Sequence[dict[str, float]], name: str) -> float:
    values = [turn[name] / turn["seconds"] * 60 for turn in turns]
    return round(statistics.median(values), 3)


def main() -> None:
    """Measures, prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--apart", type=Path, help="folder for a copy with its audio apart")
    args = parser.parse_args()
    files = list(args.files)
    if args.apart is not None:
        files.append(apart(files[0], args.apart))
    rows = [measured(path) for path in files]
    print(f"{'file':28} {'codec':9} {'s':>6} {'video':>7} {'audio':>6} {'diff':>6} {'bytes':>6} "
          f"{'jumps':>5} {'dBFS':>7} {'ffmpeg':>7} {'seg max':>8} {'<=0.1':>6}")  # fmt: skip
    for row in rows:
        print(
            f"{row['file']:28.28} {row['codec']:9} {row['seconds']:6.1f} "
            f"{row['video_cpu_s_per_min']:7.2f} {row['audio_cpu_s_per_min']:6.3f} "
            f"{row['difference_cpu_s_per_min']:6.2f} {row['more_bytes']:6.0f} "
            f"{row['more_jumps']:5.0f} {row['audio_rms_db']:7.2f} {row['volumedetect_db']!s:>7} "
            f"{row.get('segments_largest_db', '')!s:>8} "
            f"{row.get('segments_within_0_1_db', '')!s:>6}"
        )
    print(json.dumps({"machine": machine(), "rows": rows}))


if __name__ == "__main__":
    main()
