"""Commands over a finished run: `explain`, `tune`, `mark`, `learn`, `view`, `search`, `report`."""

import argparse
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from curator.errors import UsageError
from curator.installation import install_extra
from curator.number_text import amount
from curator.tools.commands.arguments import (
    EXIT_FAILED,
    EXIT_OK,
    MEMORY,
    OUT,
    SNAPSHOT,
    Option,
    Result,
    always,
    check_out_first,
    command,
    fraction,
    one_of,
    option,
    positive,
)

_PORT = 8787
_VERDICT: dict[str, Any] = {"action": "store_const", "dest": "verdict"}


def _html(name: str) -> Option:
    return option(
        "--html FILE",
        f"path of the page (default: OUT/report/{name}, or ./{name} if OUT is s3://)",
    )


def _rerun(out: str, changes: Sequence[str]) -> str:
    settings = " ".join(f"--set {shlex.quote(change)}" for change in changes)
    return f"curate run SOURCE... {shlex.quote(out)} {settings}"


@command(
    "explain why a clip was kept or rejected, and what would keep it",
    OUT,
    option(
        "[CLIP_ID]",
        "id of a clip, or an unambiguous beginning of the id; or the address of a source "
        "(default: list the first clips)",
        dest="clip",
    ),
    SNAPSHOT,
    only_prints=always,
)
def explain(options: argparse.Namespace) -> Result:
    from curator.tools.review import clip_explanation
    from curator.tools.review.finished_run import open_finished

    check_out_first(options.out, filter(None, [options.clip]), "explain {out} {other}")
    finished = open_finished(options.out, options.snapshot)
    if options.clip is None:
        print(clip_explanation.listing(finished))
        return Result(clip_explanation.listed_clips(finished))
    if (source := clip_explanation.find_source(finished, options.clip)) is not None:
        text = clip_explanation.source_text(source)
        print(text)
        return Result({"source": source, "text": text})
    text = clip_explanation.explain(finished, options.clip)
    print(text)
    return Result({"clip": clip_explanation.clip_facts(finished, options.clip), "text": text})


@command(
    "predict which clips other bounds would keep and drop",
    OUT,
    option(
        "CHANGE...",
        "score.bound=value, such as motion.min=0.02, sharpness.drop_lowest=0.2 or "
        "noise.max=null; keys of dedup and select in full, such as select.max_per_group=100, and "
        "semantic.reject and semantic.reject_from",
        dest="changes",
    ),
    _html("tune.html"),
    SNAPSHOT,
    option(
        "--rules-only",
        "do not repeat deduplication and selection: faster with many clips, but approximate",
    ),
    MEMORY,
    description="Decides about the clips of a finished run by other bounds, from stored scores. "
    "Decodes nothing, and does not change the run. Writes a page with clips on either side of the "
    "bounds.",
)
def tune(options: argparse.Namespace) -> Result:
    from curator.tools.review import bound_tuning
    from curator.tools.review.bound_tuning import put_page, render_tune
    from curator.tools.review.finished_run import open_finished

    check_out_first(options.out, options.changes, "tune {out} {other}")
    finished = open_finished(options.out, options.snapshot, memory_bytes=options.memory)
    tuned = bound_tuning.tune(finished, options.changes, rules_only=options.rules_only)
    where = put_page(finished.store, render_tune(tuned), options.html, "tune.html")
    print(*bound_tuning.summary_lines(tuned), sep="\n")
    print(f"{where}  clips on either side of the bounds")
    rerun = _rerun(options.out, tuned.changes)
    print(f"to apply: {rerun}")
    return Result({**bound_tuning.tuned_facts(tuned), "page": where, "command": rerun})


@command(
    "keep or drop clips by hand, and label or caption them",
    OUT,
    option("[CLIP_ID...]", "ids, or beginnings that no other clip has", dest="clips"),
    one_of(
        option(
            "--keep",
            "keep clips, whatever rules on scores, duplicates, clusters and selection say",
            **_VERDICT,
            const="keep",
        ),
        option("--drop", "reject clips as marked_drop", **_VERDICT, const="drop"),
    ),
    option("--label TEXT", "at most 100 characters"),
    option("--note TEXT", "at most 10,000 characters"),
    option("--caption TEXT", "replaces the caption"),
    option("--clear", "forget earlier marks of the clips"),
    option(
        "--csv FILE",
        "take marks from a CSV with the columns clip_id, verdict, label, note, caption; an "
        "empty cell changes nothing",
    ),
    option("--list", "print all marks as such a CSV"),
    option(
        "--give-up-lost",
        "continue without marks, or a model of `curate learn`, that are lost with their copies",
    ),
    description="Stores your decisions about clips of a finished run. The next `curate run` "
    "honours them (run.marks: override). Fields of an earlier mark stay unless you set them.",
    only_prints=lambda options: options.list and not (options.csv or options.clips),
)
def mark(options: argparse.Namespace) -> Result:
    from curator.storage import open_store
    from curator.tables.lasting_objects import give_up_lasting
    from curator.tables.mark_table import read_marks
    from curator.tables.out_layout import has_results
    from curator.tables.output_format import refuse_other_format
    from curator.tools.review.clip_marking import CONTENT, mark_clips, marks_csv, read_csv

    check_out_first(options.out, options.clips, "mark {out} {other} ...")
    store = open_store(options.out)
    refuse_other_format(store)
    if options.give_up_lost:
        given_up = give_up_lasting(store)
        print(*(given_up or ["no marks are lost, and no model of `curate learn`"]), sep="\n")
        return Result({"given_up": given_up})
    fields = {n: getattr(options, n) for n in CONTENT if options.clear or getattr(options, n)}
    if options.clear and any(getattr(options, name) for name in CONTENT):
        raise UsageError("--clear forgets the whole mark; expected --clear, or what to mark with")
    if bool(options.clips) != bool(fields) or not (options.clips or options.csv or options.list):
        raise UsageError(
            "expected ids of clips, and --keep, --drop, --label, --note, --caption or --clear; or "
            "--csv, or --list"
        )
    of_file = read_csv(options.csv) if options.csv else []
    changes = [*((name, fields) for name in options.clips), *of_file]
    n_clips = 0
    if changes:
        n_clips = mark_clips(store, changes)
        if not options.list:
            done = "marks cleared of" if options.clear else "marked"
            print(f"{done} {amount(n_clips, 'clip')}; the next `curate run` honours this")
    elif not has_results(store):
        raise UsageError(
            f"{store.uri} has no results of `curate run`; expected OUT of a finished run"
        )
    if options.list:
        marks = read_marks(store).values()
        print(marks_csv(marks), end="")
        return Result({"marked": n_clips, "marks": [asdict(mark) for mark in marks]})
    return Result({"marked": n_clips})


@command(
    "learn a score from clips that you marked as keep and drop",
    OUT,
    option("--label LABEL", "use only marks with this label (default: all)"),
    option(
        "--min BOUND",
        "bound of suitability whose effect the page shows (default: 0.5)",
        fraction,
        default=0.5,
    ),
    _html("learn.html"),
    option("--dry-run", "write neither model nor page"),
    MEMORY,
    description="Learns from 50 to 500 marks (`curate mark`) to predict from stored scores and "
    "vectors whether you keep a clip. Writes the model to OUT/learned/suitability.json. If the "
    "model is not better than the best single score, exits with 3 and writes nothing.",
)
def learn(options: argparse.Namespace) -> Result:
    from curator.tables.lasting_objects import lasting_names, repair_lasting, write_lasting
    from curator.tables.out_layout import LEARNED_MODEL, MARKS
    from curator.tools.review.bound_tuning import put_page, render_tune
    from curator.tools.review.finished_run import open_finished
    from curator.tools.review.score_learning import LEAST_LIKELY, learn_suitability, tuned_by

    finished = open_finished(options.out, memory_bytes=options.memory)
    if not options.dry_run:
        # This command writes a lost model anew.
        repair_lasting(finished.store, lasting_names(finished.store, (MARKS,)))
    score, learned, lines = learn_suitability(finished, options.label)
    print(*lines, sep="\n")
    facts: dict[str, Any] = {
        "auc": learned.auc,
        "single_auc": learned.single_auc,
        "gain": learned.gain,
        "likely": learned.likely,
        "single": learned.single,
        "calibration_error": learned.calibration_error,
        "text": "\n".join(lines),
        "model": None,
        "page": None,
        "command": None,
    }
    if learned.likely < LEAST_LIKELY:
        print(
            "curate: nothing is written: the model is not clearly better than one score; mark more "
            f"clips, of other recordings, or bound {learned.single}",
            file=sys.stderr,
        )
        return Result(facts, EXIT_FAILED)
    if options.dry_run:
        return Result(facts)
    tuned = tuned_by(finished, score, options.min)
    write_lasting(finished.store, LEARNED_MODEL, score.to_json(), entries=len(score.curves))
    where = put_page(finished.store, render_tune(tuned, lines), options.html, "learn.html")
    print(f"{where}  effect of the bound {options.min:g}")
    model = f"{finished.store.uri}/{LEARNED_MODEL}"
    rerun = _rerun(options.out, (f"suitability.model={model}", *tuned.changes))
    print(f"to apply: {rerun}")
    return Result(facts | {"model": model, "page": where, "command": rerun})


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a port, 0 to 65535")
    return int(text)


@command(
    "look at clips in a browser, mark them, and try other bounds",
    OUT,
    option(
        "--port N",
        f"port of the server on 127.0.0.1; 0 for any free port (default: {_PORT})",
        _port,
        default=_PORT,
    ),
    SNAPSHOT,
    MEMORY,
    has_json=False,
    description="Serves a page over a finished run, only to this machine. The page stores marks in "
    "OUT and changes nothing else.",
)
def view(options: argparse.Namespace) -> int:
    try:
        from curator.tools.view.view_server import make_app, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UsageError(f"`curate view` needs {error.name}: {install_extra('view')}") from error
    from curator.storage import open_store
    from curator.tables.mark_table import MarkWriter
    from curator.tools.review.finished_run import open_finished
    from curator.tools.view.viewed_run import ViewedRun

    try:
        listener = socket.create_server(("127.0.0.1", options.port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UsageError(
            f"port {options.port} of 127.0.0.1 is not free: {why}; choose another one with --port, "
            "or --port 0"
        ) from error
    port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
    writer = MarkWriter(open_store(options.out))
    finished = open_finished(options.out, options.snapshot, memory_bytes=options.memory)
    app = make_app(ViewedRun(finished, writer), token=token, port=port)
    print(f"http://127.0.0.1:{port}/{token}/\nCtrl-C ends it", flush=True)
    serve(app, listener)
    return EXIT_OK


@command(
    "find clips by a clip, a picture, a video or a text",
    OUT,
    one_of(
        option(
            "--clip ID",
            "clips similar to a clip, named by its id or an unambiguous beginning of the id",
        ),
        option("--picture FILE", "clips with pictures similar to an image file"),
        option(
            "--video FILE",
            "clips that contain footage of a video (verified), and where; then clips with similar "
            "pictures; a file, or an address such as s3://bucket/key",
        ),
        option("--text TEXT", "clips that a text describes, or that have its words"),
        required=True,
    ),
    option(
        "--match KIND",
        "what --text is compared with: `captions` (words of captions, tags and names, and the "
        "meaning of captions), `words` (only these words), or `pictures` (needs CLIP, "
        "analyze.clip); by default, pictures if OUT has CLIP embeddings, else captions",
        choices=("captions", "words", "pictures"),
    ),
    option("-k N", "maximum number of clips (default: 20)", positive, default=20),
    option(
        "--where CONDITION",
        "only clips that satisfy a SQL condition over columns of the table `clips`, such as "
        '"motion > 0.3"',
    ),
    option("--all", "find rejected clips too"),
    option("--html FILE", "write a page that plays the clips found"),
    SNAPSHOT,
    MEMORY,
    description="Finds clips of a finished run, the nearest first. Does not change OUT.",
    only_prints=always,
)
def search(options: argparse.Namespace) -> Result:
    from curator.tools.retrieval.clip_search import ClipSearch
    from curator.tools.retrieval.search_results import as_table, match_words, render_search
    from curator.tools.review.bound_tuning import write_page

    check_out_first(options.out, filter(None, [options.clip]), "search {out} --clip {other}")
    clips = ClipSearch.open(
        options.out, options.snapshot, rejected=options.all, memory_bytes=options.memory
    )
    by = next(name for name in ClipSearch.BY if getattr(options, name) is not None)
    query = getattr(options, by)
    if options.match is not None and by != "text":
        raise UsageError(f"--match {options.match} is for --text; leave it out of --{by}")
    results = clips.find(by, query, options.k, options.where, options.match)
    print(as_table(results, by))
    if by == "text":
        match = options.match or clips.default_match
        if match == "captions" and results and not any(clip.words for clip in results):
            print(
                "no clip has a word of the text: these are the nearest by the meaning of captions"
            )
        print(match_words(match, is_chosen=options.match is not None))
    if options.html is not None:
        page = render_search(clips.finished, results, f"{by} {query}", options.where)
        where = write_page(options.html, page)
        print(f"{where}  plays the clips")
    return Result([asdict(clip) for clip in results])


@command(
    "write the report of OUT again, with moving previews of kept clips",
    OUT,
    option(
        "--rights",
        "print a summary of the kept clips by licence, origin and C2PA manifest as Markdown, and "
        "write nothing",
    ),
    description="Writes OUT/report/index.html of the newest snapshot again, and a short MP4 of "
    "each kept clip on the page. The MP4 plays while the pointer rests on the clip. The next run "
    "writes the page with still pictures again.",
    only_prints=lambda options: options.rights,
)
def report(options: argparse.Namespace) -> Result:
    from curator.executor.engine import Engine
    from curator.runs.lease import acquire_lease
    from curator.tables.removal_records import finished_removals
    from curator.tools.report.rights_summary import rights_summary, rights_text
    from curator.tools.review.clip_previews import write_report
    from curator.tools.review.finished_run import open_finished

    # Before the lease, which would be written to whatever place was named.
    finished = open_finished(options.out)
    if options.rights:
        summary = rights_summary(finished.clips, finished.sources(), finished.recipe.rights)
        print(rights_text(summary))
        return Result(summary)
    store = finished.store
    with acquire_lease(store, "report"), Engine(address=None, workers=1) as engine:
        finished_removals(store)
        n_previews = write_report(open_finished(options.out), engine)
    page = f"{store.uri}/report/index.html"
    print(f"{page}  moving previews: {n_previews}")
    return Result({"page": page, "previews": n_previews})
