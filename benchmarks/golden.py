#!/usr/bin/env python3
"""Golden runs: records the output of a checkout for fixed videos, and compares two checkouts.

    golden.py make CHECKOUT GOLDEN.json [--media DIR] [--patterns GLOB ...] [--only CASE ...]
    golden.py compare GOLDEN.json OTHER.json

`make` runs the package of CHECKOUT with this interpreter, and with this script's recipes and
plug-ins. It stores the result of each step: rows of all tables, decisions, captions, members of
samples (MP4s by SHA-256), names and hashes of tars, work counts, CPU-seconds. Each case has its own
root and several steps. In `killed`, SIGKILL ends the driver twice; the result must equal that of
`quickstart`. `compare` prints each difference with a first example, and exits with 1 if there are
any. Results: benchmarks/results/golden.md.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from house import compare, facts
from measure import SHARED, arguments, commit, in_checkout, machine, sets

MEDIA = (
    "multishot/bikes.mp4", "multishot/counter.mp4", "multishot/bbb_642x642_vp9.webm",
    "multishot/nasa_13013.mp4", "multishot/chrome.mp4", "neardup/chrome_small.webm",
    "single/awesome*.mov", "single/chaplin.mp4", "single/rotate_fragmented_bbb.mp4",
    "single/sideways_iphone.mov", "single/solidWhiteRight.mp4", "single/tractor_pan_vp9.webm",
    "single/whip_pan_vfr_rot180.mp4", "neardup/carphone_*.mp4", "derived/dog_hflip.mp4",
    "derived/dog_trim_3s_7s.mp4", "derived/dog_logo_banner.mp4", "derived/dog_letterbox_4x3.mp4",
    "quality/juggle_dark.mp4", "quality/juggle_noise.mp4", "quality/still_image_5s.mp4",
    "formats/derived_vfr.mp4", "formats/derived_pcm_audio.mov", "formats/derived_mjpeg.avi",
    "formats/derived_interlaced_tff_mpeg2.ts", "formats/h265_10bit.mp4", "formats/hlg_fragment.mp4",
    "formats/tiny_10x6.mp4", "formats/vvc_undecodable.mp4", "broken/bitflips_mdat.mp4",
    "broken/truncated.mkv", "broken/audio_only.mp4", "broken/zero_byte.mp4",
    "broken/one_frame.mp4",
)  # fmt: skip
"""Patterns of short files of each kind, relative to the folder of labelled test videos."""

CLASSES = Path(__file__).parent / "golden_classes"
"""Folder of plug-ins; all checkouts use the same."""

CAPTIONER = ("caption.captioner=golden_user:Hashed", "caption.language=null")
STAGES = "{use: golden_user:NoMirrors}, {use: golden_user:Darken}"
COSMOS = ("analyze.clip=null", "filters.short_side_px.min=240", "shard.by_content_type=false",
          "shard.embedding=none", *CAPTIONER)  # fmt: skip
EVERYTHING = (
    "measures=[golden_user:Edges]", "scores={edge_share: p25}", "filters.edge_share.min=0.01",
    "filters.meta.rating={min: 1}", f"stages=[{STAGES}]", "select.by=[bucket]",
    "select.keep_fraction=0.8", "analyze.segment_s=10", "propose.crop_borders=true",
    "propose.min_s=1", "cut.hdr=tonemap", "filters.hdr.max=1", "cut.audio=aac", "cut.size=bucket",
    "shard.embedding=scene", "shard.id_member=true", "shard.max_bytes=1000000",
    "shard.resolutions=[120, 240, 480]", "caption.structured=true",
    "caption.lengths=[short, medium]", "caption.content_types=[]", *CAPTIONER,
)  # fmt: skip
GROWING = ("run.mode=growing", "run.generation_hours=0.02", "filters.sharpness.drop_lowest=0.1")

ENTRY = "import curator.cli; curator.cli.command()"
"""Code of the installed command; `python -m curator.cli` would end the interpreter differently."""
Step = tuple[str, list[str]]
Result = dict[str, Any]


def cases(videos: list[str], manifest: str, cosmos: str) -> dict[str, list[Step]]:
    """Returns the commands by case and step; OUT stands for the root of the case."""

    def run(*options: str, sources: Sequence[str] = videos) -> list[str]:
        return ["run", "--max-failed", "1", *options, *sources, "OUT"]

    verify = ("verify", ["verify", "OUT"])
    few = videos[::2]
    more = sets(f"stages=[{STAGES}, {{use: golden_latents:Latents}}]")
    return {
        "everything": [
            ("first", run(*sets(*EVERYTHING), sources=[manifest])),
            ("annotated", run(*more, sources=[manifest])),
            verify,
        ],
        "quickstart": [
            ("first", run()),
            ("again", run()),
            ("bound", run(*sets("filters.motion.min=0.05"))),
            ("captioned", ["recaption", "OUT", *sets(*CAPTIONER)]),
            ("recaptioned", ["recaption", "OUT", *sets("caption.text=short")]),
            verify,
        ],
        "killed": [("first", run())],
        "cosmos": [("first", run("--recipe", cosmos, *sets(*COSMOS)))],
        "growing": [
            *((f"addition {n + 1}", run(*sets(*GROWING), sources=few[n::3])) for n in range(3)),
            ("bound", run(*sets(*GROWING, "filters.motion.min=0.05"), sources=few[:1])),
            verify,
        ],
    }  # fmt: skip


def left_by(out: Path) -> dict[str, Any]:
    """Returns the results under the root of a step."""
    names = sorted(str(tar.relative_to(out)) for tar in (out / "shards").rglob("*.tar"))
    tars = {name: {"sha256": sha256((out / name).read_bytes()).hexdigest()} for name in names}
    work = json.loads((out / "summary.json").read_text())["work"]
    return facts(out) | {"tars": tars, "work": {"counts": work}}


def inputs(checkout: Path, work: Path, videos: list[str]) -> tuple[str, str]:
    """Writes a manifest with metadata, and recipe `cosmos` without CLIP; returns their paths."""
    manifest, recipe = work / "sources.csv", work / "cosmos.yaml"
    with manifest.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["uri", "rating", "license"])
        writer.writerows([uri, n % 9, ("cc0", "cc-by")[n % 2]] for n, uri in enumerate(videos))
    cosmos = yaml.safe_load((checkout / "pipelines" / "cosmos.yaml").read_text())
    del cosmos["semantic"], cosmos["filters"]["aesthetic"]
    recipe.write_text(json.dumps(cosmos))
    return str(manifest), str(recipe)


def killed(command: list[str], path: str, out: Path, at_files: Sequence[int]) -> None:
    """Starts a command once per entry of `at_files`; kills it when OUT has that many files."""
    for n_files in at_files:
        process = subprocess.Popen(
            [sys.executable, *command], env=os.environ | {"PYTHONPATH": path}, cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None and sum(len(n) for *_, n in os.walk(out)) < n_files:
            time.sleep(0.2)
        print(f"  killed at {n_files} files" if process.poll() is None else "  it ended before")
        process.kill()
        process.wait()


def make(options: argparse.Namespace) -> int:
    """Runs the cases; stores the results after each step. Returns 1 if a step failed."""
    checkout, work = options.checkout.absolute(), options.work.absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    videos = [
        str(path) for pattern in options.patterns for path in sorted(options.media.glob(pattern))
    ]
    steps: dict[str, Any] = {}
    found = {"commit": commit(checkout), "machine": machine(), "sources": len(videos)}
    written = inputs(checkout, work, videos)
    for case, commands in cases(videos, *written).items():
        for step, words in commands if case in (options.only or [case]) else ():
            command = ["-P", "-c", ENTRY, *words]
            command = [str(work / case) if word == "OUT" else word for word in command]
            begins = step.startswith(("first", "addition 1"))
            runs = options.begun_by if begins and options.begun_by else checkout
            path = f"{runs.absolute()}:{CLASSES}"
            if case == "killed":
                killed(command, path, work / case, [40, 120])
            result: dict[str, Any] = {}
            try:
                cost = in_checkout(Path(path), command)
                result |= {"cpu_s": cost.cpu_s, "wall_s": cost.wall_s}
            except SystemExit as error:
                lines = str(error.code).splitlines()
                result["failed"] = f"{lines[0].rpartition(' ')[2]}: {lines[-1]}"
            if step != "verify" and (work / case / "summary.json").exists():
                result["facts"] = left_by(work / case)
            steps[f"{case}, {step}"] = result
            # Written as JSON, because `compare` reads JSON.
            options.golden.write_text(json.dumps(found | {"steps": steps}))
            said = {key: value for key, value in result.items() if key != "facts"}
            print(f"{case}, {step}: {said}", flush=True)
        if not options.keep:
            shutil.rmtree(work / case, ignore_errors=True)
    if {"quickstart, first", "killed, first"} <= steps.keys():
        whole, resumed = (steps[f"{case}, first"] for case in ("quickstart", "killed"))
        for line in differing(whole, resumed, but={"work"}):
            print(f"killed and resumed differs from the whole run: {line}")
    return int(any("failed" in result for result in steps.values()))


def differing(one: Result, other: Result, but: Collection[str] = ()) -> Iterator[str]:
    """Yields one line per difference between the results of two steps."""
    if one.get("failed") != other.get("failed"):
        yield f"{one.get('failed', 'it worked')} -> {other.get('failed', 'it worked')}"
    if "facts" in one and "facts" in other:
        left, right = ({k: v for k, v in r["facts"].items() if k not in but} for r in (one, other))
        found = compare(left, right)
        yield from found["differences"]
        yield from (f"{table}: new {columns}" for table, columns in found["added"].items())


def compared(options: argparse.Namespace) -> int:
    """Prints the differences between two files of `make`. Returns 1 if there are any."""
    one, other = (json.loads(path.read_text()) for path in (options.golden, options.other))
    print(f"{one['commit']} and {other['commit']}\n{'step':28} clips  tars  CPU s      ratio")
    n_different = 0
    for name in one["steps"]:
        if name not in other["steps"]:
            continue
        left, right = one["steps"][name], other["steps"][name]
        # The remaining work of a resumed run depends on the time of the kill.
        lines = list(differing(left, right, {"work"} if name.startswith("killed") else ()))
        n_different += len(lines)
        n_clips, n_tars = (len(left.get("facts", {}).get(t, ())) for t in ("clips", "tars"))
        cpu_s = left.get("cpu_s", 0), right.get("cpu_s", 0)
        print(
            f"{name:28} {n_clips:5} {n_tars:5} {cpu_s[0]:6.1f} {cpu_s[1]:6.1f} "
            f"{cpu_s[1] / (cpu_s[0] or 1):5.2f}  {'the same' if not lines else 'DIFFERENT'}"
        )
        print(*(f"    {line}" for line in lines), sep="\n", end="\n" * bool(lines))
    print(json.dumps({"commits": [one["commit"], other["commit"]], "differences": n_different}))
    return int(bool(n_different))


def main() -> int:
    """Runs `make` or `compare`."""
    parser = arguments(__doc__)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make", help="run the cases, and store their results")
    making.add_argument("checkout", type=Path)
    making.add_argument("golden", type=Path)
    making.add_argument("--media", type=Path, default=SHARED / "media")
    making.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "golden_runs")
    making.add_argument("--patterns", nargs="+", default=MEDIA, help="globs (default: some 30)")
    making.add_argument("--only", nargs="+", help="names of cases (default: all)")
    making.add_argument("--begun-by", type=Path, help="checkout that runs each case's first step")
    making.add_argument("--keep", action="store_true", help="keep the outputs of the runs")
    making.set_defaults(run=make)
    comparing = commands.add_parser("compare", help="print the differences")
    comparing.add_argument("golden", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.set_defaults(run=compared)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
