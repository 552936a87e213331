"""Makes numbered films with rows, and exports their clips for `lerobot_reader.py`.

python benchmarks/lerobot_export.py DEST
"""

import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from counted_rows import N_FRAMES, RECIPE, WithRows, stages, write_csv, write_films

from curator.cli import main as curate


def main() -> None:
    """Exports clips of 25 frames/s, whose rows have the number that a frame shows, and its half."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_films(folder / "in")
        (folder / "in" / "vfr.mkv").unlink()
        write_csv(folder / "in", ("long.mp4", "short.mp4"), lost=N_FRAMES + 1)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        place = WithRows(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        with redirect_stdout(sys.stderr):
            place.run(stages())
        curate(["export", str(place.out), sys.argv[1], "--format", "lerobot"])


if __name__ == "__main__":
    main()
