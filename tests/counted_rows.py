"""Films whose frames show their number, with rows that have the same numbers, and their outputs."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import yaml
from film_makers import write_video
from made_cuts import Film
from numbered_films import number_of, numbered
from place import Place

from curator.loading import ClipDataset, ClipLoader

N_FRAMES, RATE_HZ = 130, 25
LOST = 5
"""Every fifth frame has no row."""
RECIPE = {
    "propose": {"min_s": 0.5, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [9], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip
STAGE: dict[str, Any] = {
    "table": "{stem}.csv", "time": "t", "unit": "ms", "columns": ["number", "half"]
}  # fmt: skip


def frame_times_s(path: Path) -> list[float]:
    """The times of the frames of a film, from its first one."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pts = sorted(p.pts for p in container.demux(stream) if p.pts is not None)
        assert stream.time_base is not None
        return [float((each - pts[0]) * stream.time_base) for each in pts]


def rows_of(path: Path, lost: int = LOST) -> list[tuple[float, int, float]]:
    """A row for each frame but every fifth, in no order, up to 0.4 of a frame from its time.

    `lost` is the distance of frames without a row, or more than the frames for none.
    """
    times_s = frame_times_s(path)
    rng = np.random.default_rng(len(path.name))
    rows = []
    for number, at_s in enumerate(times_s):
        near_s = min(abs(at_s - other) for n, other in enumerate(times_s) if n != number)
        if number % lost:
            rows.append(((at_s + rng.uniform(-0.4, 0.4) * near_s) * 1000, number, number / 2))
    rng.shuffle(rows)
    return [(float(t), int(number), float(half)) for t, number, half in rows]


def tall(n_frames: int) -> Iterator[Film]:
    """Yields numbered frames of a shape that no bucket crops through the numbers."""
    for film in numbered(n_frames):
        yield np.concatenate([film, np.full_like(film, 90)])


def write_films(folder: Path) -> None:
    """Films of a constant rate, with few key frames and with many, and of a variable rate."""
    folder.mkdir()
    for name, gop in (("long", 250), ("short", 12)):
        write_video(
            folder / f"{name}.mp4", tall(N_FRAMES), fps=Fraction(RATE_HZ), gop=gop, bframes=0,
            options={"x264-params": "scenecut=0"},
        )  # fmt: skip
    steps = np.random.default_rng(2).integers(20, 60, N_FRAMES)
    write_video(
        folder / "vfr.mkv", tall(N_FRAMES), pts=(1400 + np.cumsum(steps)).tolist(),
        time_base=Fraction(1, 1000),
    )  # fmt: skip


def write_csv(
    folder: Path, names: Sequence[str] = ("long.mp4", "short.mp4", "vfr.mkv"), lost: int = LOST
) -> None:
    """Writes a table beside each film."""
    for name in names:
        with (folder / name).with_suffix(".csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["note", "half", "t", "number"])
            writer.writerows(
                ["x", half, t, number] for t, number, half in rows_of(folder / name, lost)
            )


@dataclass(frozen=True)
class WithRows(Place):
    """Numbered films with rows of numbers, and an output whose samples have them."""

    settings = ()  # type: ignore[assignment]
    recipe: str = ""

    def counted(self, n_windows: int, **options: Any) -> tuple[int, int]:  # noqa: ANN401
        """Draws windows, epoch by epoch; returns those with the rows of their frames, and others.

        `options` are of `ClipDataset`.
        """
        given: dict[str, Any] = {
            "frames": 5,
            "seed": 3,
            "members": {"rows": {"columns": "number, half"}},
        }
        dataset = ClipDataset(str(self.out), batch_size=1, **(given | options))
        n_right, n_wrong, epoch = 0, 0, 0
        while n_right + n_wrong < n_windows:
            dataset.set_epoch(epoch)
            for batch in ClipLoader(dataset, num_workers=0):
                shown = [
                    number_of(frame.permute(1, 2, 0).numpy())
                    for frame in batch["video"][0].movedim(1, 0)
                ]
                numbers = np.where(np.array(shown) % LOST, shown, np.nan)
                expected = np.stack([numbers, numbers / 2], axis=1)
                is_right = np.array_equal(batch["rows"][0].numpy(), expected, equal_nan=True)
                n_right, n_wrong = n_right + is_right, n_wrong + (not is_right)
            epoch += 1
        return n_right, n_wrong


def stages(**changes: object) -> str:
    """The setting with the annotator."""
    config = yaml.safe_dump({**STAGE, **changes}, default_flow_style=True, width=1000).strip()
    return f"stages=[{{use: rows, config: {config}}}]"
