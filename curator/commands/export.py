"""`curate export`: writes the clips of OUT in the form that another loader takes."""

import argparse
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curator.export import Exported

FORMATS = (
    "cosmos", "opensora", "cogvideo", "mds", "parquet", "frames", "energon", "wids",
    "conversations", "preferences",
)  # fmt: skip
"""As in `curator.export.export_options`, which is not imported for the command line alone."""
RECORDS = {
    "cogvideo": "captions",
    "conversations": "questions with answers, a record each",
    "preferences": "pairs of answers, a record each",
}
"""What `Exported.n_records` counts, by format."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "export",
        help="write the clips of OUT in the form that another loader takes",
        description="cosmos: <split>/videos/*.mp4 and <split>/metas/*.txt, for the post-training "
        "of Cosmos-Predict2 and 2.5. opensora: tables with path, text, num_frames, height, width, "
        "aspect_ratio, resolution and fps, and the videos. cogvideo: <split>/videos/*.mp4, "
        "<split>/labels/*.txt, and lists of both, for the fine-tuning of CogVideo and for "
        "finetrainers. mds: MosaicML's StreamingDataset. "
        "parquet: a row per clip, for Ray Data and datasets. frames: WebDataset of pictures at one "
        "size. energon, wids: their indexes beside the shards. conversations: questions and "
        "answers about clips in JSONL, for post-training of vision-language models. preferences: "
        "chosen and rejected answers of judged annotations in JSONL, for DPO. What stands at the "
        "destination with the same bytes is not written again.",
        epilog="Exit codes: 0 finished; 2 usage, nothing was done; 1 broken off by the storage or "
        "by a damaged shard (`curate verify` says more); the same command goes on.",
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        help="folder or s3://bucket/prefix of a run, or a folder with the contents of OUT/shards",
    )
    parser.add_argument(
        "destination",
        metavar="DEST",
        help="folder or s3://bucket/prefix; for energon and wids, OUT itself means beside its "
        "shards",
    )
    parser.add_argument("--format", required=True, choices=FORMATS, help="what is written")
    parser.add_argument("--split", choices=("train", "val"), help="only this one (default: both)")
    parser.add_argument(
        "--bucket",
        action="append",
        metavar="NAME",
        help="only this one, such as 720p_16-9_121f; may be repeated (default: all)",
    )
    parser.add_argument(
        "--min-frames",
        type=_positive,
        metavar="N",
        help="cosmos, opensora, cogvideo: only clips of N frames or more (default: all); for "
        "cosmos one more than the trainer's num_frames",
    )
    parser.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="shards read at once (default: one per core, at most 16)",
    )
    parser.add_argument(
        "--videos", action="store_true", help="parquet: put the MP4s into the tables"
    )
    parser.add_argument(
        "--relative",
        action="store_true",
        help="opensora, conversations, preferences: name files relative to DEST (default: in full, "
        "as loaders open them)",
    )
    parser.add_argument(
        "--min-margin",
        type=int,
        choices=(1, 2, 3, 4),
        default=1,
        help="preferences: least difference of a pair's scores (default: %(default)s)",
    )
    parser.add_argument(
        "--size",
        type=_size,
        default=(256, 256),
        metavar="WxH",
        help="frames: size of the pictures in px, cut around the middle (default: 256x256)",
    )
    parser.add_argument(
        "--pictures",
        choices=("npz", "webp"),
        default="npz",
        help="frames: one array per clip, or a lossy file per frame (default: %(default)s)",
    )
    parser.add_argument(
        "--max-frames",
        type=_positive,
        metavar="N",
        help="frames: only the first N of each clip (default: all)",
    )
    parser.add_argument(
        "--quality",
        type=_quality,
        default=90,
        metavar="N",
        help="frames: of webp, 1 to 100 (default: %(default)s)",
    )
    parser.set_defaults(action=run_export)


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1")
    return number


def _quality(text: str) -> int:
    number = _positive(text)
    if number > 100:
        raise argparse.ArgumentTypeError(f"{text!r}; expected 1 to 100")
    return number


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a size such as 256x256")
    if not (1 <= int(width) <= 8192 and 1 <= int(height) <= 8192):
        raise argparse.ArgumentTypeError(f"{text!r}; expected sides of 1 to 8192 px")
    return int(width), int(height)


def run_export(options: argparse.Namespace) -> int:
    """Runs the command.

    Args:
        options: What `add_export` adds.

    Returns:
        0.
    """
    from curator.export import ExportOptions, export

    shown = _Shown() if sys.stderr.isatty() else None
    wanted = ExportOptions(
        format=options.format,
        splits=("train", "val") if options.split is None else (options.split,),
        buckets=None if options.bucket is None else tuple(options.bucket),
        min_frames=options.min_frames,
        workers=options.workers,
        with_videos=options.videos,
        relative_paths=options.relative,
        size_px=options.size,
        pictures=options.pictures,
        max_frames=options.max_frames,
        webp_quality=options.quality,
        min_margin=options.min_margin,
    )
    try:
        if shown is None:
            exported = export(options.out, options.destination, wanted)
        else:
            exported = export(options.out, options.destination, wanted, progress=shown)
    finally:
        if shown is not None:
            shown.clear()
    print(as_text(exported, options.destination, options.format))
    return 0


def as_text(exported: "Exported", destination: str, format: str) -> str:
    """What was done, for people."""
    lines = [
        f"{destination}: {exported.n_clips} clips as {format}; {exported.n_objects} objects "
        f"written ({exported.n_bytes / 1e6:.1f} MB), {exported.n_standing} stood already"
    ]
    if format in RECORDS:
        lines.append(f"{exported.n_records} {RECORDS[format]}")
    if exported.manifest_problem is not None:
        lines.append(
            f"no manifest ({exported.manifest_problem}): all tars that are there were taken, and "
            "whether these are all is not known"
        )
    if exported.n_short:
        lines.append(f"{exported.n_short} clips have too few frames and were left out")
    if exported.n_without_text:
        lines.append(f"{exported.n_without_text} clips have an empty caption")
    if exported.n_left_out:
        lines.append(
            f"{exported.n_left_out} pairs are left out: their frames are not in the clip as written"
        )
    if exported.n_others:
        lines.append(
            f"{exported.n_others} objects at the destination are of another export; a loader "
            "takes them too: delete them, or choose an empty destination"
        )
    return "\n".join(lines)


class _Shown:
    """Writes how far it is to the terminal, twice a second at most."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, exported: "Exported") -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.5
            words = f"{exported.n_clips} clips, {exported.n_bytes / 1e6:.0f} MB written"
            print(f"\r{words}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        print("\r\033[K", end="", file=sys.stderr)
