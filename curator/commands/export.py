"""`curate export`: writes the clips of OUT in the format of another loader."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from curator.commands.arguments import LateParser, add_snapshot, positive
from curator.commands.terminal_line import TerminalLine
from curator.errors import CuratorError

if TYPE_CHECKING:
    from curator.export import Exported

OWN = "format."
"""What `dest` of an option of a format begins with."""

NUMBERS = (int, int | None, float, float | None)


HELP = "write the clips of OUT in the form that another loader takes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sets how the command's arguments are added: finding the formats takes time."""
    assert isinstance(parser, LateParser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "What stands at the destination with the same bytes is not written again.\n\n"
        "Exit codes: 0 finished; 2 usage, nothing was done; 1 broken off by the storage or by a\n"
        "damaged shard (`curate verify` says more); the same command goes on."
    )
    parser.add_late = _add_late


def _add_late(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
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
    parser.add_argument(
        "--format",
        required=True,
        help="one of those above; or a format of your own, package.module:Class or the name of an "
        "entry point in curate.exporters",
    )
    parser.add_argument("--split", choices=("train", "val"), help="only this one (default: both)")
    parser.add_argument(
        "--bucket",
        action="append",
        metavar="NAME",
        help="only this one, such as 720p_16-9_121f; may be repeated (default: all)",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="shards read at once (default: one per core, at most 16)",
    )
    add_snapshot(parser)
    try:
        _add_formats(parser, arguments)
    except CuratorError as error:
        parser.error(str(error))


def _add_formats(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Adds the options of this package's formats, or of the named external one."""
    from curator.export.formats import FORMATS, load_format

    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("--format")
    name = asked.parse_known_args(arguments)[0].format
    names = list(FORMATS) if name is None or name in FORMATS else [name]
    exporters = {name: load_format(name)[0] for name in names}
    lines = [f"  {name:14}{exporter.about}" for name, exporter in exporters.items()]
    parser.description = "\n".join(["Formats:", *lines])
    having: dict[str, list[str]] = {}
    for name, exporter in exporters.items():
        for key in exporter.options_type.model_fields:
            having.setdefault(key, []).append(name)
    for key, formats in having.items():
        field = exporters[formats[0]].options_type.model_fields[key]
        shape: dict[str, Any] = {"metavar": "N" if field.annotation in NUMBERS else "VALUE"}
        parser.add_argument(
            f"--{key.replace('_', '-')}",
            dest=f"{OWN}{key}",
            default=argparse.SUPPRESS,
            help=f"{', '.join(formats)}: {field.description or ''}".replace("%", "%%"),
            **({"action": "store_true"} if field.annotation is bool else shape),
        )


def main(options: argparse.Namespace) -> int:
    from curator.export import export

    given = vars(options)
    with TerminalLine() as shown:
        exported = export(
            options.out,
            options.destination,
            options.format,
            splits=("train", "val") if options.split is None else (options.split,),
            buckets=options.bucket,
            workers=options.workers,
            snapshot=options.snapshot,
            options={k.removeprefix(OWN): v for k, v in given.items() if k.startswith(OWN)},
            progress=lambda e: shown(f"{e.n_clips} clips, {e.n_bytes / 1e6:.0f} MB written"),
        )
    print(as_text(exported, options.destination, options.format))
    return 0


def as_text(exported: "Exported", destination: str, format: str) -> str:
    """Describes the export, for people."""
    lines = [
        f"{destination}: {exported.n_clips} clips as {format}; {exported.n_objects} objects "
        f"written ({exported.n_bytes / 1e6:.1f} MB), {exported.n_reused} stood already"
    ]
    if exported.records is not None:
        lines.append(f"{exported.n_records} {exported.records}")
    if exported.origin is not None:
        lines.append(
            " ".join(f"{name} {value}" for name, value in exported.origin.items() if value)
        )
    if exported.manifest_problem is not None:
        lines.append(
            f"no manifest ({exported.manifest_problem}): all tars that are there were taken, and "
            "whether these are all is not known"
        )
    if exported.left_members:
        lines.append(
            f"{', '.join(exported.left_members)} of each sample is left out: {format} has no place "
            "for it; read it from the tars"
        )
    if exported.n_short:
        lines.append(f"{exported.n_short} clips have too few frames and were left out")
    if exported.n_without_text:
        lines.append(f"{exported.n_without_text} clips have an empty caption")
    if exported.n_measured:
        lines.append(
            f"{exported.n_measured} captions are composed of measurements, and no model wrote them "
            "(caption.captioner is measured); `curate recaption` has a model write captions"
        )
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
