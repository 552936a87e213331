"""Measures what a start costs: help, mistakes, imports by process, and the run of one short video.

Each checkout is measured in turn, so that other work on the machine reaches all of them. Bytecode
is written by a first round, which does not count, as after an installation that compiles it.
"""

import json
import os
import statistics
from pathlib import Path

import av
import cv2
import numpy as np
from measure import arguments, in_checkout, sets, tell, work_folder

DRIVER = (
    "import curator.cli, curator.runs.start, curator.runs.dry_run, curator.runs.curation, "
    "curator.tools.report.funnel, curator.tools.telemetry.run_metrics"
)
"""What the process of the command imports until its first source is scanned."""
SANDBOX = (
    "import curator.executor.sandbox_main, curator.stages.scan.stage, torch, cv2, "
    "curator.stages.analyze.stage"
)
SECONDS, FPS, SIZE = 5, 24, (1280, 720)
STEP_S = 0.02
"""Time between readings of processes, which is the precision of wall times."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("checkouts", type=Path, nargs="+", help="folders of checkouts")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, dict[str, list[float]]] = {}
    with work_folder(None) as folder:
        source = folder / "clip.mp4"
        write_clip(source)
        for number in range(options.repeats + 1):
            for checkout in options.checkouts:
                names = found.setdefault(str(checkout), {})
                for name, value in costs(checkout.resolve(), source, folder / f"out{number}"):
                    if number:
                        names.setdefault(name, []).append(round(value, 2))
    rows = list(next(iter(found.values())))
    print(f"| | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for row in rows:
        cells = (f"{statistics.median(of[row]):.2f} (least {min(of[row]):.2f})"
                 for of in found.values())  # fmt: skip
        print(f"| {row} | {' | '.join(cells)} |")
    tell({"found": found})


def costs(checkout: Path, source: Path, out: Path) -> list[tuple[str, float]]:
    """Returns the rows of the table with their values, for one round."""
    own = out.with_name(f"{out.name}-{abs(hash(checkout)):x}")
    curate = ("-m", "curator.cli", "run")
    clean = in_checkout(checkout, ["-m", "curator.cli", "--help"], interval_s=STEP_S)
    rows = [("`curate --help`, CPU-s", clean.cpu_s)]
    for name, places, changes in (
        ("a wrong `--set`, CPU-s", (source, own), sets("cut.nothing=1")),
        ("a missing source, CPU-s", (f"{source}.gone", own), []),
    ):
        command = [*curate, *map(str, places), *changes]
        rows.append((name, refused(checkout, command)))
    for name, code in (("driver", DRIVER), ("sandbox", SANDBOX)):
        imports = in_checkout(checkout, ["-c", code], interval_s=STEP_S)
        rows.append((f"imports of the {name}, CPU-s", imports.cpu_s))
    run = in_checkout(checkout, [*curate, str(source), str(own)], interval_s=STEP_S)
    parts = json.loads((own / "summary.json").read_text())["cpu_seconds"]
    rows += [("a run of 5 s of video, wall s", run.wall_s), ("of all processes, CPU-s", run.cpu_s)]
    rows += [(f"of this: {name}", parts[name]) for name in ("driver", "start_up", "shot_network")]
    return rows


def refused(checkout: Path, command: list[str]) -> float:
    """Returns the CPU-seconds of a command that must exit with 2."""
    checked = f"import sys; from curator.cli import main; sys.exit(main({command[2:]!r}) != 2)"
    return in_checkout(checkout, ["-c", checked], interval_s=STEP_S).cpu_s


def write_clip(path: Path) -> None:
    """Writes a film of one shot: a camera that pans over a smooth picture."""
    grain = np.random.default_rng(0).integers(0, 256, (40, 90, 3), dtype=np.uint8)
    picture = cv2.resize(
        grain, (SIZE[0] + 2 * SECONDS * FPS, SIZE[1]), interpolation=cv2.INTER_CUBIC
    )
    with av.open(path, "w") as film:
        stream = film.add_stream("libx264", rate=FPS, options={"crf": "18", "threads": "1"})
        stream.width, stream.height = SIZE
        for left in range(0, 2 * SECONDS * FPS, 2):
            shown = picture[:, left : left + SIZE[0]].astype(np.uint8)
            film.mux(stream.encode(av.VideoFrame.from_ndarray(shown, "rgb24")))
        film.mux(stream.encode(None))


if __name__ == "__main__":
    main()
