"""Counts the clips of an export of which LTX-2's own dataset class reads the sound.

    curate export OUT DEST --format folder
    python benchmarks/sound_ltx2.py CHECKOUT DEST/train

CHECKOUT is one of LTX-2. `MediaDataset` of its `process_videos.py` reads each MP4 with
`with_audio=True`, as its preparation of latents does; models are stubs. It needs `torchaudio` and
`torchcodec`, with FFmpeg's libraries. The sound that it returns is compared with what PyAV decodes:
its length, and the correlation without a lag.
"""

import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from trainer_adapters import module, stub

STUBS = ("ltx_core.model", "ltx_trainer.model_loader", "pillow_heif")
FRAMES = (121, 97, 81, 49, 25, 17, 9)


def sound_of(path: Path) -> NDArray[np.float32] | None:
    """Returns the sound of a file, float32 [channels, samples]; None for none."""
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return None
        resampler = av.AudioResampler("fltp")
        parts = [
            own.to_ndarray()
            for frame in container.decode(audio=0)
            for own in resampler.resample(frame)
        ]
    return np.concatenate(parts, axis=1) if parts else None


def main() -> None:
    """Prints the counts."""
    checkout, folder = map(Path, sys.argv[1:3])
    packages = checkout / "packages"
    stub(*STUBS)
    videos: Any = module(
        "process_videos", packages / "ltx-trainer/scripts", packages / "ltx-trainer/src",
        packages / "ltx-core/src",
    )  # fmt: skip
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    counts = dict.fromkeys(("clips", "with_sound", "read", "silent_read", "too_short"), 0)
    worst_length_s, least_correlation = 0.0, 1.0
    for row in rows:
        path = folder / row["video"]
        frames = next((n for n in FRAMES if n <= row["num_frames"]), None)
        if frames is None:
            counts["too_short"] += 1
            continue
        index = folder / "sound.jsonl"
        index.write_text(json.dumps({"video": row["video"], "caption": "x"}) + "\n")
        item = videos.MediaDataset(
            dataset_file=index, main_media_column="video", video_column="video",
            resolution_buckets=[(frames, 64, 64)], with_audio=True,
        )[0]  # fmt: skip
        own = sound_of(path)
        counts["clips"] += 1
        counts["with_sound"] += own is not None
        if "audio" not in item or own is None:
            continue
        counts["read"] += 1
        read = np.asarray(item["audio"]["waveform"], np.float32)
        rate = int(item["audio"]["sample_rate"])
        wanted_s = frames / float(row["fps"])
        worst_length_s = max(worst_length_s, abs(read.shape[-1] / rate - wanted_s))
        a, b = (x[0, : int(min(own.shape[-1], wanted_s * rate))] for x in (read, own))
        if not np.any(b):
            counts["silent_read"] += 1
            continue
        correlation = float(np.corrcoef(a[: len(b)], b[: len(a)])[0, 1])
        least_correlation = min(least_correlation, correlation)
    (folder / "sound.jsonl").unlink(missing_ok=True)
    lengths = {"worst_length_s": round(worst_length_s, 5)}
    print(json.dumps(counts | lengths | {"least_correlation": round(least_correlation, 6)}))


if __name__ == "__main__":
    main()
