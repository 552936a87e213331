"""Compares networks of two versions on a CPU: time of a picture, and whether answers are equal.

    python benchmarks/network_times.py BEFORE NOW VIDEO... [--rounds 3] [--pictures 4]

BEFORE and NOW are checkouts, which run in turn. Pictures lie evenly in each video, 640 px on the
longer side; crops for the distortion score are full-size. Set ONEDNN_MAX_CPU_ISA to see another
CPU's oneDNN; torch's other libraries do not heed it.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
from measure import arguments, commit, in_checkout, spread, tell
from numpy.typing import NDArray

LONG_SIDE_PX = 640

Array = NDArray[Any]


def pictures_of(video: str, n: int) -> Iterator[tuple[Array, Array]]:
    """Yields pictures of a video, scaled RGB and full-size luma; none if it cannot be decoded."""
    from curator.media.scale import Scaler

    with suppress(av.FFmpegError, IndexError), av.open(video) as film:
        stream = film.streams.video[0]
        length = film.duration or 0
        for part in range(n):
            film.seek(int(length * (part + 0.3) / n))
            for frame in islice(film.decode(stream), 1):
                scale = LONG_SIDE_PX / max(frame.width, frame.height)
                width, height = (
                    max(2, round(side * scale)) for side in (frame.width, frame.height)
                )
                rgb = Scaler(width, height, method="area").rgb_HWC(frame)
                yield rgb, frame.to_ndarray(format="gray")


def networks() -> dict[str, Callable[[Array, Array], Callable[[], Array]]]:
    """Returns functions that prepare a picture and return the call to measure."""
    from curator.models.distortion_network import DistortionNetwork, crops_of, read_corners
    from curator.models.scene_network import SceneNetwork, scene_picture
    from curator.models.text_detector import TextDetector

    scenes = SceneNetwork()
    distortion = DistortionNetwork(scenes)

    def text(**options: Any) -> Callable[[Array, Array], Callable[[], Array]]:  # noqa: ANN401
        detector = TextDetector(**options)
        return lambda rgb, _: lambda: detector.host_map(rgb)

    def scene(rgb: Array, _: Array) -> Callable[[], Array]:
        picture = scene_picture(rgb)
        return lambda: scenes.embed([picture])

    def damage(_: Array, luma: Array) -> Callable[[], Array]:
        crops = crops_of(luma, read_corners((0, luma.shape[0], 0, luma.shape[1])))
        return lambda: distortion.embed([crops])

    return {
        "text": text(precision="auto"),
        "text without gate": text(precision="auto", is_gated=False),
        "text, float32": text(),
        "text, float32, without gate": text(is_gated=False),
        "scene vector": scene,
        "distortion": damage,
    }


def measure_here(videos: list[str], n: int, answers: Path) -> None:
    """Prints mean milliseconds by network as JSON, and stores the answers."""
    import torch

    from curator.executor.freed_memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    pictures = [picture for video in videos for picture in pictures_of(video, n)]
    found: dict[str, Any] = {}
    for name, prepare in networks().items():
        calls = [prepare(*picture) for picture in pictures]
        for call in calls[:8]:
            call()
        begun_s = time.thread_time()
        made = [call() for call in calls]
        found[name] = round((time.thread_time() - begun_s) / len(calls) * 1000, 2)
        np.savez(answers / f"{name}.npz", *made)
    print(json.dumps(found | {"pictures": len(pictures)}))


def compared(name: str, before: Path, now: Path) -> tuple[int, int, float]:
    """Returns the number of pictures, how many have equal answers, and the largest difference."""
    with np.load(before / f"{name}.npz") as old, np.load(now / f"{name}.npz") as new:
        pairs = [(old[key].astype(np.float64), new[key].astype(np.float64)) for key in old.files]
    n_equal = sum(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    largest = max(float(np.nan_to_num(np.abs(a - b)).max(initial=0)) for a, b in pairs)
    return len(pairs), n_equal, largest


def main() -> None:
    """Measures and prints a table."""
    parser = arguments(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("now", type=Path)
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=4, help="pictures of a video")
    parser.add_argument("--answers", type=Path, help="measures here: folder for answers")
    given = parser.parse_args()
    if given.answers:
        measure_here(given.videos, given.pictures, given.answers)
        return
    rows: dict[str, dict[str, list[float]]] = {}
    videos = [str(Path(video).resolve()) for video in given.videos]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            for side in ("before", "now"):
                answers = Path(folder, side)
                answers.mkdir(exist_ok=True)
                checkout = getattr(given, side).resolve()
                command = [str(Path(__file__).resolve()), str(given.before), str(given.now)]
                command += [*videos, "--pictures", str(given.pictures), "--answers", str(answers)]
                cost = in_checkout(checkout, command)
                last = json.loads(cost.output.splitlines()[-1])
                for name in last.keys() - {"pictures"}:
                    rows.setdefault(name, {}).setdefault(side, []).append(last[name])
        results = {}
        print("| CPU-ms of a picture, median (range) | before | now | equal | largest difference |")
        print("|---|---:|---:|---:|---:|")
        for name in sorted(rows):
            n, n_equal, largest = compared(name, Path(folder, "before"), Path(folder, "now"))
            times = " | ".join(spread(rows[name][side], ".1f") for side in ("before", "now"))
            print(f"| {name} | {times} | {n_equal} of {n} | {largest:.2g} |")
            results[name] = {**rows[name], "pictures": n, "equal": n_equal, "largest": largest}
    tell({"before": commit(given.before), "now": commit(given.now), "networks": results})


if __name__ == "__main__":
    main()
