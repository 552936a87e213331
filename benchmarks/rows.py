"""Checks that each drawn frame has the row of the source's frame that it shows.

    python benchmarks/rows.py [--windows N]

Films with their number in each frame have rows with the same numbers, in no order, up to 0.4 of a
frame from the frame's time; each fifth frame has none. Clips are copied and encoded, trimmed, and
written at other rates. A window is right if each of its frames has its own number, or NaN.
"""

import argparse
import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from counted_rows import LOST, RECIPE, WithRows, stages, write_csv, write_films

CASES: dict[str, tuple[str, ...]] = {
    "own rate": (),
    "10 frames/s": ("cut.fps=10", "cut.most_repeated=1"),
    "30 frames/s, trimmed to 20 frames": (
        "cut.fps=30", "cut.most_repeated=1", "cut.length_frames=20",
    ),
    "windows of 17 at 16/s": ("propose.windows=[17@16]", "cut.most_repeated=1"),
    "all encoded": ("cut.mode=encode",),
}  # fmt: skip
DRAWS: tuple[dict[str, float], ...] = ({}, {"stride": 2}, {"fps": 11.0})


def main() -> None:
    """Prints a table, and JSON as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=1000)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_films(folder / "in")
        write_csv(folder / "in")
        (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        place = WithRows(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        n_each = -(-options.windows // (len(CASES) * len(DRAWS)))
        for case, settings in CASES.items():
            with redirect_stdout(sys.stderr):
                place.run(stages(), *settings)
            for draw in DRAWS:
                right, wrong = place.counted(n_each, **draw)
                results.append({"case": case, **draw, "right": right, "wrong": wrong})
    print(f"Each frame whose number is a multiple of {LOST} has no row.\n")
    print("| clips | drawn | right windows | wrong |\n|---|---|---|---|")
    for row in results:
        drawn = next((f"{k} {row[k]:g}" for k in ("stride", "fps") if k in row), "all frames")
        print(f"| {row['case']} | {drawn} | {row['right']} | {row['wrong']} |")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
