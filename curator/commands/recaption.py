"""`curate recaption`: annotates the clips of a finished run anew."""

import argparse
from functools import partial
from typing import Any

from curator.commands.arguments import (
    add_cluster,
    add_memory,
    add_overrides,
    engine_of,
)
from curator.commands.failure_limit import add_max_failed, failures_exit_code
from curator.executor.termination import ends_in_peace, ends_when_asked

HELP = "annotate the clips of a finished run anew, without touching a pixel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Asks about the clips that a finished run kept, as --set says, and puts new texts into its "
        "shards and tables. Clips stay as they are: nothing is analyzed, cut or encoded, sources "
        "are not read, and what was answered before is not asked again."
    )
    parser.epilog = (
        "Clips that answers reject leave the shards; those that other answers would have kept come "
        "back with `curate run`. Exit codes as for `curate run`."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    add_overrides(
        parser,
        "change one key of the run's recipe, such as caption.seed=1; keys of caption alone; "
        "may be repeated",
    )
    add_cluster(
        parser,
        address="as for `curate run`",
        shared="all nodes of the cluster see OUT under the same path; without, a cluster needs "
        "s3://",
    )
    add_memory(parser)
    add_max_failed(parser, "windows, or of the clips for want of an annotation,")


def main(options: argparse.Namespace) -> int:
    from curator.executor.progress import Progress
    from curator.runs.lease import held
    from curator.runs.progress_report import reported
    from curator.runs.recaptioning import Recaption
    from curator.runs.repair import CACHES, with_repair
    from curator.runs.start import check_captions, check_shared, check_writable
    from curator.storage import open_store
    from curator.tables.output_format import read_current_summary

    check_shared((options.out,), ray_address=options.ray_address, shared_out=options.shared_out)
    store = open_store(options.out)
    read_current_summary(store)
    check_writable(store)
    with (
        ends_when_asked(),
        held(store, "recaption") as lease,
        Progress() as progress,
        engine_of(options) as engine,
        ends_in_peace(),
    ):
        lease.follow(engine.heartbeat)
        recaption = Recaption(
            store,
            options.overrides,
            engine,
            progress,
            check=lease.check,
            memory_bytes=options.memory,
        )
        check_captions(recaption.recipe, asks_server=False)
        with reported(store, progress, partial(lease.check, beats=False)):
            summary = with_repair(store, recaption.execute, CACHES, check=lease.check)
    print(outcome_text(summary, store.uri))
    return failures_exit_code(
        store, summary, options.max_failed, clip_reasons=("not_annotated",), sources=False
    )


def outcome_text(summary: dict[str, Any], uri: str) -> str:
    """Describes the outcome in a few lines for people."""
    work, counts = summary["work"], summary["counts"]
    windows = work.get("caption_windows", 0)
    lines = [
        f"{counts['kept']} clips in {len(summary['shards'])} shards, of which "
        f"{work['shards_written']} had to be written"
    ]
    if n_rejected := work["clips_rejected"]:
        from curator.records.clips import Reason

        by_answers = (Reason.ANSWER_UNWANTED, Reason.NOT_ANNOTATED, Reason.JUDGED_TOO_LOW)
        reasons = [name for name in by_answers if counts["by_reason"].get(name)]
        lines.append(f"{n_rejected} clips rejected now by answers ({', '.join(reasons)})")
    if windows and summary["recipe"]["caption"]["captioner"] not in ("measured", "metadata"):
        failed = sum(n for name, n in work.items() if name.startswith("caption_failed_"))
        lines.append(
            f"{windows} windows: {work['caption_windows_asked']} asked now, "
            f"{windows - work['caption_windows_asked']} answered before; {failed} without an answer"
        )
    return "\n".join([*lines, f"{uri}/report/index.html  captions to look at"])
