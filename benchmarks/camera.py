"""Camera tags, rates and jitter on footage made by code, whose camera is known.

    python benchmarks/camera.py                      # the scored set, three minutes
    python benchmarks/camera.py --pictures fit       # the set on which thresholds were chosen
    python benchmarks/camera.py --objects 0.2        # only with objects on a fifth of the frame
    python benchmarks/camera.py --files a.mp4 b.mp4  # what real files get

Each clip is filmed, encoded as H.264 at CRF 26, and analyzed by the stage itself, without the shot
network. Scoring convention: a clip is right when its set of tags is exactly the true one; per tag,
each clip is one decision. Prints tables, then JSON as the last line.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
from camera_footage import CameraCase, Motion, path_of, write_case
from measure import machine
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from samples import analyzed

from curator.measures.camera import camera_tags
from curator.measures.camera_fit import fitted_flow
from curator.measures.clip_view import ClipView
from curator.measures.motion import DenseFlow
from curator.measures.score_list import BUILT_IN
from curator.records.clips import Span
from curator.records.tracks import Track

PICTURES = {
    "fit": ("coffee", "motorcycle", "texture:1", "brick", "grass"),
    "score": ("astronaut", "cat", "texture:2", "coins", "hubble"),
}
OBJECTS = (0.0, 0.2, 0.35)
RATES = ("pan_rate", "tilt_rate", "zoom_rate", "roll_rate")


def cases(pictures: str, object_share: float) -> list[CameraCase]:
    """The clips of one set."""
    made: list[CameraCase] = []
    seed = {"fit": 0, "score": 10_000}[pictures] + round(1000 * object_share)

    def add(
        name: str, motion: Motion, *tags: str, noise: float = 2.0, flicker: float = 0.0
    ) -> None:
        number = len(made)
        made.append(
            CameraCase(
                name=name,
                picture=PICTURES[pictures][number % len(PICTURES[pictures])],
                motion=motion,
                tags=frozenset(tags),
                object_share=object_share,
                noise=noise,
                flicker=flicker,
                seed=seed + number,
            )
        )

    for noise, flicker in ((2.0, 0.0), (8.0, 0.0), (4.0, 0.08), (12.0, 0.15)):
        add("static", Motion(), "static", noise=noise, flicker=flicker)
    for speed in (0.04, 0.15, 0.5, 1.5):
        add("pan", Motion(pan=speed, ease=0.3), "pan_right")
        add("pan", Motion(pan=-speed), "pan_left")
        add("tilt", Motion(tilt=speed, ease=0.3), "tilt_up")
        add("tilt", Motion(tilt=-speed), "tilt_down")
    for zoom in (0.03, 0.1, 0.3):
        add("zoom", Motion(zoom=zoom), "zoom_in")
        add("zoom", Motion(zoom=-zoom), "zoom_out")
    for roll in (3.0, 12.0, 40.0):
        add("roll", Motion(roll=roll), "roll")
        add("roll", Motion(roll=-roll), "roll")
    for shake, tag in ((0.003, "handheld"), (0.006, "handheld"), (0.025, "shaky"), (0.05, "shaky")):
        add("shake", Motion(shake=shake), tag)
    for shake, tag in ((0.003, "handheld"), (0.006, "handheld"), (0.025, "shaky")):
        pan = 0.2 if tag == "handheld" else 0.6
        add("shake and pan", Motion(shake=shake, pan=pan), tag, "pan_right")
    add("pan and tilt", Motion(pan=0.2, tilt=0.2), "pan_right", "tilt_up")
    add("pan and zoom", Motion(pan=0.2, zoom=0.2), "pan_right", "zoom_in")
    return made


def view_of(track: Track) -> ClipView:
    """All of a file as one clip."""
    return ClipView(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))


def true_rates(case: CameraCase, track: Track) -> NDArray[np.float64]:
    """The camera between the frames of each pair, [S, 4] in the signals' units."""
    times = (track.frame_pts - track.frame_pts[0]) * float(track.time_base)
    begin, end = times[track.sample_frame], times[track.sample_pair_frame]
    rates: NDArray[np.float64] = (path_of(case, end) - path_of(case, begin)) / (end - begin)[
        :, None
    ]
    rates[:, 3] = np.degrees(rates[:, 3])
    return rates


def scored(pictures: str, shares: list[float]) -> dict[str, object]:
    """Films, analyzes and scores the sets; prints what went wrong and the tables."""
    exact: dict[tuple[float, str], list[bool]] = defaultdict(list)
    tags: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    errors: dict[float, list[NDArray[np.float64]]] = defaultdict(list)
    unknown: dict[float, list[float]] = defaultdict(list)
    decisions = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for share in shares:
            for case in cases(pictures, share):
                path = Path(folder) / "case.mp4"
                write_case(case, path)
                track = analyzed(path)
                found = set(camera_tags(view_of(track)))
                exact[share, case.name].append(found == case.tags)
                for tag in found | case.tags:
                    tags[tag][0] += tag in found and tag in case.tags
                    tags[tag][1] += tag in found and tag not in case.tags
                    tags[tag][2] += tag not in found and tag in case.tags
                decisions += 10
                wrong += len(found ^ case.tags)
                measured = np.stack([track.signals[name] for name in RATES], axis=1)
                errors[share].append(np.abs(measured - true_rates(case, track)))
                unknown[share].append(float(np.isnan(measured[:, 0]).mean()))
                if found != case.tags:
                    print(
                        f"  wrong: {case.name} {case.motion} over {case.picture}, objects {share}: "
                        f"{sorted(found)}"
                    )
    report = _tables(exact, tags, errors, unknown, shares)
    report["per_tag_accuracy"] = round(1 - wrong / decisions, 4)
    print(f"\naccuracy over {decisions} decisions (10 tags a clip): {report['per_tag_accuracy']}")
    return report


def _tables(
    exact: dict[tuple[float, str], list[bool]],
    tags: dict[str, list[int]],
    errors: dict[float, list[NDArray[np.float64]]],
    unknown: dict[float, list[float]],
    shares: list[float],
) -> dict[str, object]:
    print("\nclips whose tags are exactly right, by objects' part of the frame")
    names = list(dict.fromkeys(name for _, name in exact))
    print(f"{'camera':16s}" + "".join(f"{share:>12}" for share in shares))
    for name in names:
        cells = [exact[share, name] for share in shares]
        print(f"{name:16s}" + "".join(f"{sum(cell):>9}/{len(cell)}" for cell in cells))
    totals = {
        share: float(np.mean([x for name in names for x in exact[share, name]])) for share in shares
    }
    print(f"{'all':16s}" + "".join(f"{totals[share]:12.3f}" for share in shares))
    print("\ntag          precision  recall  of")
    for tag, (right, false, missed) in sorted(tags.items()):
        precision, recall = right / max(1, right + false), right / max(1, right + missed)
        print(f"{tag:12s} {precision:9.2f} {recall:7.2f} {right + missed:3d}")
    print("\nerror of a sample: median, 95th percentile; samples without a model")
    for share in shares:
        together = np.concatenate(errors[share])
        text = "  ".join(
            f"{name} {np.nanmedian(column):.4f} {np.nanquantile(column, 0.95):.4f}"
            for name, column in zip(RATES, together.T, strict=True)
        )
        print(f"objects {share}: {text}  none {np.mean(unknown[share]):.3f}")
    return {"exact": {str(share): round(totals[share], 4) for share in shares}, "tags": dict(tags)}


def cost_ms() -> dict[str, float]:
    """CPU-milliseconds of a sample: of flow alone, and with the camera's model."""
    rng = np.random.default_rng(0)
    picture = cv2.GaussianBlur(rng.integers(0, 256, (200, 340)).astype(np.float32), (0, 0), 2)
    picture = np.clip((picture - 127) * 6 + 127, 0, 255).astype(np.uint8)
    before, after = picture[:180, :320].copy(), picture[4:184, 6:326].copy()
    dense = DenseFlow()
    costs: dict[str, list[float]] = defaultdict(list)
    for _ in range(60):
        for name, work in (
            ("flow", lambda: dense.between(before, after)),
            ("flow_and_camera", lambda: fitted_flow(dense, before, after)),
        ):
            begun = time.process_time()
            work()
            costs[name].append(1000 * (time.process_time() - begun))
    return {name: round(float(np.median(values)), 3) for name, values in costs.items()}


def show_files(paths: list[Path]) -> None:
    """What real files get."""
    for path in paths:
        track = analyzed(path)
        view = view_of(track)
        scores = BUILT_IN.score_clip(track, view.span)
        names = ("camera_motion", "object_motion", "camera_jitter", "camera_share", *RATES)
        values = "  ".join(
            f"{name} {'none' if scores[name] is None else format(scores[name], '.3f')}"
            for name in names
        )
        print(f"{path.name}: {', '.join(camera_tags(view)) or 'no tags'}\n    {values}")


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pictures", choices=PICTURES, default="score", help="which set")
    parser.add_argument(
        "--objects", type=float, nargs="+", default=list(OBJECTS), help="parts of the frame"
    )
    parser.add_argument("--files", type=Path, nargs="+", help="real files instead of made clips")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    if args.files:
        show_files(args.files)
        return
    report = scored(args.pictures, args.objects) | {"cost_ms": cost_ms(), "machine": machine()}
    print(f"CPU-ms of a sample: {report['cost_ms']}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
