"""`curate verify` and `curate export`, which read the shards of OUT."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from curator.errors import CuratorError, raised_as
from curator.number_text import amount
from curator.tools.commands.arguments import (
    EXIT_FAILED,
    EXIT_OK,
    OUT,
    SHARDS,
    SHARDS_AT_ONCE,
    SNAPSHOT,
    CommandParser,
    Result,
    command,
    option,
    terminal_line,
)

if TYPE_CHECKING:
    from curator.export import Exported
    from curator.tables.view_store import View
    from curator.tools.verify import ProvenRemoved, Verified
    from curator.tools.verify.defects import Defect
    from curator.tools.verify.findings import Outcome


def _frames(text: str) -> int | str:
    if text in ("all", "none"):
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}; expected all, none or a whole number")
    return int(text) or "none"


@command(
    "check shards, indexes and tables under OUT, and say what is wrong",
    SHARDS,
    option(
        "--frames all|N|none",
        "decode all clips, N clips or no clip; bytes and headers of all clips are always "
        "checked (default: %(default)s)",
        _frames,
        default=100,
    ),
    option("--seed SEED", "chooses the N clips to decode (default: %(default)s)", int, default=0),
    SHARDS_AT_ONCE,
    option(
        "--sources",
        "also hash every source that still exists, and compare it with the table `sources`",
    ),
    option(
        "--removed",
        "instead search all that is under OUT for ids, clips, pictures, captions and sources of "
        "footage that `curate remove` took out",
    ),
    SNAPSHOT,
    description="Reads every shard once and compares manifest, hashes, indexes, samples and tables "
    "with each other; changes nothing.",
    epilog="Exit codes: 0 nothing is wrong, perhaps with warnings; 3 something is wrong; 2 OUT has "
    "no shards (with --removed: no records of removals), or an argument is wrong.",
)
def verify(options: argparse.Namespace) -> Result:
    """Checks shards, or proves removals; returns `EXIT_FAILED` if something is wrong."""
    from curator.errors import StorageError, UsageError
    from curator.storage import open_store
    from curator.tables.snapshot_store import older_tars_line, summary_or_none
    from curator.tools.verify import verify as verify_all
    from curator.tools.verify import verify_removed

    outcome: Verified | ProvenRemoved
    with terminal_line(quiet=options.json) as shown:
        if options.removed:
            outcome = verify_removed(
                options.out,
                progress=lambda n, n_bytes: shown(f"{amount(n, 'object')}, {_mb(n_bytes)}"),
            )
            facts = {**asdict(outcome), "is_well": outcome.is_well}
            lines = _removed_lines(outcome)
        else:
            with raised_as(UsageError, StorageError):
                outcome = verify_all(
                    options.out,
                    frames=options.frames,
                    seed=options.seed,
                    workers=options.workers,
                    sources=options.sources,
                    snapshot=options.snapshot,
                    progress=lambda n_shards, n_samples, n_bytes: shown(
                        f"{amount(n_shards, 'shard')}, {amount(n_samples, 'clip')}, {_mb(n_bytes)}"
                    ),
                    hashed=lambda n, n_total: shown(f"{n} of {amount(n_total, 'source')}"),
                )
            facts, lines = _verified_facts(outcome), _verified_lines(outcome)
    print(*lines, sep="\n")
    if options.snapshot is None:
        store = open_store(options.out)
        if (summary := summary_or_none(store)) and (older := older_tars_line(store, summary)):
            print(older)
    return Result(facts, EXIT_OK if outcome.is_well else EXIT_FAILED)


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB"


def _defect_lines(found: "Iterable[Defect]", outcome: "Outcome") -> Iterator[str]:
    """Yields lines for each object at fault, and for each code with more findings than are kept."""
    for defect in found:
        cause, n_findings = defect.findings[0], len(defect.findings)
        codes = ", ".join(dict.fromkeys(str(finding.code) for finding in defect.findings))
        yield f"{'warning' if defect.is_warning else 'wrong'} {codes}: {defect.path}"
        part = cause.path.partition("#")[2]
        yield f"    found {cause.found}; expected {cause.expected}" + (f" ({part})" if part else "")
        at_least = "at least " if defect.is_truncated(outcome.counts) else ""
        if n_samples := len(defect.samples):
            such_as = ", such as" if n_samples > 1 else ":"
            affected = f"{amount(n_samples, 'sample')} affected{such_as} {min(defect.samples)}"
            yield f"    {at_least}{affected}"
        if n_findings > 1:
            yield f"    {n_findings} findings, which --json lists"
        yield f"    {cause.remedy}"
    listed = Counter(str(finding.code) for finding in outcome.findings)
    for code, n_found in outcome.counts.items():
        if n_found > listed[code]:
            yield f"{code}: {n_found} findings; the first {listed[code]} are counted above"


def _removed_lines(proven: "ProvenRemoved") -> Iterator[str]:
    from curator.tools.verify.defects import defects

    yield from _defect_lines(defects(proven.findings), proven)
    read = ", ".join(f"{kind}: {number}" for kind, number in proven.read.items())
    n_found, n_skipped = proven.n_found, proven.n_not_searched
    yield (
        f"{proven.uri}: {proven.n_bytes / 1e6:.1f} MB read ({read}), compared with "
        f"{amount(proven.n_records, 'record')} of removals: "
        + (f"{n_found} found" if n_found else "nothing of what was removed is there")
        + (f"; {n_skipped} not searched, so this does not cover them" if n_skipped else "")
    )
    yield "not looked for: " + "; ".join(proven.outside)


def _verified_facts(verified: "Verified") -> dict[str, Any]:
    return {
        "out": verified.uri,
        "is_well": verified.is_well,
        "shards": verified.n_shards,
        "samples": verified.n_samples,
        "decoded": verified.n_decoded,
        "bytes": verified.n_bytes,
        "sources": verified.n_sources,
        "counts": verified.counts,
        "findings": [
            {"code": f.code, "warning": f.is_warning, **asdict(f)} for f in verified.findings
        ],
    }


def _verified_lines(verified: "Verified") -> Iterator[str]:
    from curator.tools.verify.defects import defects

    found = defects(verified.findings)
    yield from _defect_lines(found, verified)
    wrong = [defect for defect in found if not defect.is_warning]
    at_least = "at least " if any(defect.is_truncated(verified.counts) for defect in wrong) else ""
    yield (
        f"{verified.uri}: {amount(verified.n_shards, 'shard')}, "
        f"{amount(verified.n_samples, 'clip')}, {verified.n_bytes / 1e6:.1f} MB read, "
        f"{amount(verified.n_decoded, 'clip')} decoded"
        + (f", {amount(verified.n_sources, 'source')} hashed: " if verified.n_sources else ": ")
        + ("all is well" if verified.is_well else f"{at_least}{amount(len(wrong), 'object')} wrong")
    )


_OF_FORMAT = "format."
"""Prefix of `dest` of the options of formats."""
_NUMBERS = (int, int | None, float, float | None)


def _find_formats_late(parser: "argparse._ActionsContainer") -> None:
    """Delays the options of formats until the command is parsed, because finding them is slow."""
    assert isinstance(parser, CommandParser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_late = _add_formats


def _add_formats(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Adds the options of the built-in formats, or of the named external format."""
    from curator.export.exporter import FORMATS, load_format
    from curator.field_docs import description_of

    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("--format")
    name = asked.parse_known_args(arguments)[0].format
    names = list(FORMATS) if name is None or name in FORMATS else [name]
    try:
        exporters = {name: load_format(name)[0] for name in names}
    except CuratorError as error:
        parser.error(str(error))
    width = max(map(len, exporters)) + 2
    lines = [f"  {name:{width}}{exporter.about}" for name, exporter in exporters.items()]
    parser.description = "\n".join(["Formats:", *lines])
    having: dict[str, list[str]] = {}
    for name, exporter in exporters.items():
        for key in exporter.options_type.model_fields:
            having.setdefault(key, []).append(name)
    for key, formats in having.items():
        options_type = exporters[formats[0]].options_type
        field = options_type.model_fields[key]
        metavar = " N" if field.annotation in _NUMBERS else " VALUE"
        usage = f"--{key.replace('_', '-')}{'' if field.annotation is bool else metavar}"
        help = f"{', '.join(formats)}: {description_of(options_type, key)}".replace("%", "%%")
        option(usage, help, dest=f"{_OF_FORMAT}{key}", default=argparse.SUPPRESS)(parser)


@command(
    "write the clips of OUT in the layout of another loader",
    SHARDS,
    option(
        "DEST",
        "folder or s3://bucket/prefix; for energon and wids, OUT adds files next to its shards",
        dest="destination",
    ),
    option(
        "--format FORMAT",
        "a format listed above, or a custom format: package.module:Class or the name of an entry "
        "point in curate.exporters",
        required=True,
    ),
    option("--split", "export only this split (default: both)", choices=("train", "val")),
    option(
        "--bucket NAME",
        "export only this bucket, such as 720p_16-9_121f; may be repeated (default: all)",
        action="append",
    ),
    option(
        "--where CONDITION",
        "export only clips that satisfy a SQL condition over columns of the table `clips`, such as "
        '"motion > 0.3 and n_faces = 0"; needs the extra sql (default: all)',
    ),
    SHARDS_AT_ONCE,
    SNAPSHOT,
    _find_formats_late,
    epilog="Objects that exist at the destination with the same bytes are not written again.\n\n"
    "Exit codes: 0 finished; 2 wrong usage, nothing was done; 1 broken off by the storage or by a\n"
    "damaged shard (`curate verify` says more); after 1, the same command resumes the export.",
)
def export(options: argparse.Namespace) -> Result:
    from curator import export

    given = vars(options).items()
    with terminal_line() as shown:
        exported = export.export(
            options.out,
            options.destination,
            options.format,
            splits=("train", "val") if options.split is None else (options.split,),
            buckets=options.bucket,
            where=options.where,
            workers=options.workers,
            snapshot=options.snapshot,
            options={k.removeprefix(_OF_FORMAT): v for k, v in given if k.startswith(_OF_FORMAT)},
            progress=lambda e: shown(f"{amount(e.n_clips, 'clip')}, {_mb(e.n_bytes)} written"),
        )
    print(*_exported_lines(exported, options.destination, options.format), sep="\n")
    place = {"destination": options.destination, "format": options.format}
    counts = {f.name: getattr(exported, f.name) for f in fields(exported) if f.repr}
    return Result(place | counts)


def _exported_lines(exported: "Exported", destination: str, format: str) -> Iterator[str]:
    yield (
        f"{destination}: {amount(exported.n_clips, 'clip')} as {format}; "
        f"{amount(exported.n_objects, 'object')} written ({exported.n_bytes / 1e6:.1f} MB), "
        f"{exported.n_reused} existed already"
        + (f", {exported.n_linked} linked or copied by the server" if exported.n_linked else "")
    )
    if exported.records is not None:
        yield f"{exported.records}: {exported.n_records}"
    yield from exported.notes
    if exported.origin is not None:
        yield " ".join(f"{name} {value}" for name, value in exported.origin.items() if value)
    if exported.manifest_problem is not None:
        yield (
            f"no manifest ({exported.manifest_problem}): existing tars were exported; some may "
            "be missing"
        )
    if exported.left_members:
        yield (
            f"left out of each sample: {', '.join(exported.left_members)}, because {format} has no "
            "place for such members; read them from the tars"
        )
    for n, noun, words in (
        (exported.n_unselected, "clip", "left out because they do not meet --where"),
        (exported.n_other_media, "clip", f"left out: {format} holds no clips of their medium"),
        (exported.n_short, "clip", "left out for too few frames"),
        (exported.n_lacking, "clip", f"left out because they lack values that {format} holds"),
        (exported.n_without_text, "clip", "with an empty caption"),
        (
            exported.n_measured,
            "caption",
            "composed of measurements, not written by a model (caption.captioner is measured); "
            "`curate recaption` has a model write captions",
        ),
        (
            exported.n_others,
            "object",
            "of another export at the destination, which a loader would read too: delete all of "
            "them, or choose an empty destination",
        ),
    ):
        if n:
            yield f"{amount(n, noun)} {words}"


@command(
    "make, list or delete views: indexes over some samples of the tars",
    OUT,
    option("[NAME]", "name of the view to make; without a name, all views are listed"),
    option(
        "--where CONDITION",
        'SQL condition over columns of the table `clips`, such as "motion > 0.3" (default: all '
        "clips)",
    ),
    option("--split SPLIT", "only clips of train, or of val", choices=("train", "val")),
    option(
        "--bucket BUCKET", "only clips of this bucket; may be repeated", action="append", default=[]
    ),
    option("--marks MARK", "only clips that are marked keep or drop by hand, or have this label"),
    SNAPSHOT,
    option("--replace", "make the view anew if one of this name exists"),
    option("--remove NAME", "delete a view; tars and clips stay"),
    description="A view is a choice of samples under a name, with indexes over the existing tars "
    "for ClipDataset, webshart, SimpleTuner, diffusion-pipe, Megatron-Energon and wids. Views copy "
    "no clips. A view reads one snapshot, which `curate clean` keeps for it, and `curate remove` "
    "reaches every view.",
)
def views(options: argparse.Namespace) -> Result:
    from curator.errors import UsageError
    from curator.export.output_views import Choice, make_view
    from curator.runs.lease import acquire_lease
    from curator.storage import open_store
    from curator.tables.output_format import read_current_summary
    from curator.tables.removal_records import read_removals
    from curator.tables.view_store import check_view_name, delete_view, read_views, view_names

    store = open_store(options.out)
    read_current_summary(store)
    choice = Choice(
        where=options.where, split=options.split, buckets=options.bucket, marks=options.marks
    )
    is_choice = choice != Choice(buckets=[]) or options.snapshot is not None or options.replace
    if options.name is None and is_choice:
        raise UsageError("the options choose the clips of a view; expected its NAME with them")
    if options.name is not None and options.remove is not None:
        raise UsageError("--remove deletes a view, and NAME makes one; expected one of them")
    if options.remove is not None:
        check_view_name(options.remove)
        with acquire_lease(store, "views"):
            n_objects = delete_view(store, options.remove)
        if not n_objects:
            raise UsageError(
                f"{store.uri} has no view {options.remove!r}; there are: "
                f"{', '.join(view_names(store)) or 'none'}"
            )
        print(f"removed the view {options.remove}: {amount(n_objects, 'object')}")
        return Result({"removed": options.remove, "n_objects": n_objects})
    if options.name is None:
        found = read_views(store)
        for view in found:
            print(_view_line(view))
        return Result([_view_facts(view) for view in found])
    check_view_name(options.name)
    # A removal that is under way, or was killed, makes all views again at its end.
    read_removals(store).require_finished(store.uri)
    with acquire_lease(store, "views") as lease:
        if options.name in view_names(store) and not options.replace:
            raise UsageError(
                f"{store.uri} has a view {options.name!r} already; choose another name, or make it "
                "anew with --replace: a trainer that reads the view then loses its files"
            )
        view = make_view(store, options.name, choice, snapshot=options.snapshot, check=lease.check)
    print(_view_line(view), f"files: {store.uri}/views/{view.name}", sep="\n")
    return Result(_view_facts(view))


def _view_line(view: "View") -> str:
    counts, words = view.counts, view.words
    return (
        f"{view.name}: {amount(counts['clips'], 'clip')} ({counts['seconds'] / 3600:.2f} h) in "
        f"{amount(len(view.tars), 'tar')} of snapshot {view.snapshot}"
        + (f", by {words}" if words else "")
    )


def _view_facts(view: "View") -> dict[str, Any]:
    return {name: value for name, value in asdict(view).items() if name != "files"}
