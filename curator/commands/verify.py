"""`curate verify`: checks that the shards under OUT are those of a run."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from curator.commands.arguments import EXIT_FAILED, add_snapshot, positive
from curator.commands.terminal_line import TerminalLine

if TYPE_CHECKING:
    from curator.verify import ProvenRemoved, Verified
    from curator.verify.findings import Finding


HELP = "check shards, indexes and tables under OUT, and say what is wrong"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads every shard once and checks manifest, hashes, indexes, samples and tables against "
        "each other; changes nothing."
    )
    parser.epilog = (
        "Exit codes: 0 all is well, perhaps with warnings; 3 something is wrong; 2 there are no "
        "shards, or wrong arguments."
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        help="folder or s3://bucket/prefix of a run, or a folder with the contents of OUT/shards",
    )
    parser.add_argument(
        "--frames",
        type=_frames,
        default=100,
        metavar="all|N|none",
        help="decode all clips, N of them or none; bytes and headers of all are checked in any "
        "case (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="chooses which N are decoded (default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="shards read at once (default: one per core, at most 16)",
    )
    parser.add_argument(
        "--sources",
        action="store_true",
        help="also hash every source that still exists, and compare it with the table `sources`",
    )
    parser.add_argument(
        "--removed",
        action="store_true",
        help="instead read every object under OUT, and look for ids, clips, pictures and captions "
        "of what `curate remove` took out",
    )
    add_snapshot(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def _frames(text: str) -> int | str:
    if text in ("all", "none"):
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}; expected all, none or a whole number")
    return int(text) or "none"


def main(options: argparse.Namespace) -> int:
    """Runs the command; returns 0, or `EXIT_FAILED` if something is wrong."""
    from curator.errors import StorageError, UsageError
    from curator.verify import verify

    if options.removed:
        return _removed(options)
    try:
        with TerminalLine(quiet=options.json) as shown:
            verified = verify(
                options.out,
                frames=options.frames,
                seed=options.seed,
                workers=options.workers,
                sources=options.sources,
                snapshot=options.snapshot,
                progress=lambda n_shards, n_samples, n_bytes: shown(
                    f"{n_shards} shards, {n_samples} clips, {n_bytes / 1e6:.0f} MB"
                ),
                hashed=lambda n_sources, n_total: shown(f"{n_sources} of {n_total} sources"),
            )
    except StorageError as error:
        raise UsageError(str(error)) from error
    print(as_json(verified) if options.json else as_text(verified))
    return 0 if verified.is_well else EXIT_FAILED


def _removed(options: argparse.Namespace) -> int:
    """Proves removals; returns 0, or `EXIT_FAILED` if something was found."""
    from curator.verify import verify_removed

    with TerminalLine(quiet=options.json) as shown:
        proven = verify_removed(
            options.out,
            progress=lambda n_objects, n_bytes: shown(
                f"{n_objects} objects, {n_bytes / 1e6:.0f} MB"
            ),
        )
    if options.json:
        facts = {**asdict(proven), "is_well": proven.is_well}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print(removed_text(proven))
    return 0 if proven.is_well else EXIT_FAILED


def removed_text(proven: "ProvenRemoved") -> str:
    """Returns what was read and found, for people."""
    read = ", ".join(f"{number} {kind}" for kind, number in proven.read.items())
    n_found = sum(proven.counts.values())
    return "\n".join(
        [
            *(line for finding in proven.findings for line in _finding_lines(finding)),
            f"{proven.uri}: {proven.n_bytes / 1e6:.1f} MB read ({read}), compared with "
            f"{proven.n_records} records of removals: "
            + ("nothing of what was removed is there" if proven.is_well else f"{n_found} found"),
        ]
    )


def _finding_lines(finding: "Finding") -> list[str]:
    word = "warning" if finding.is_warning else "wrong"
    return [
        f"{word} {finding.code}: {finding.path}",
        f"    found {finding.found}; expected {finding.expected}",
        f"    {finding.remedy}",
    ]


def as_json(verified: "Verified") -> str:
    """Returns all results, for programs."""
    return json.dumps(
        {
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
        },
        indent=1,
        ensure_ascii=False,
    )


def as_text(verified: "Verified") -> str:
    """Returns all results, for people."""
    lines = []
    stored: dict[str, int] = {}
    for finding in verified.findings:
        code = str(finding.code)
        stored[code] = stored.get(code, 0) + 1
        lines += _finding_lines(finding)
    for code, n_found in verified.counts.items():
        if n_found > stored.get(code, 0):
            lines.append(f"{code}: {n_found} in all, the first {stored.get(code, 0)} are above")
    warned = {str(f.code) for f in verified.findings if f.is_warning}
    n_wrong = sum(n for code, n in verified.counts.items() if code not in warned)
    wrong = f"{n_wrong} thing{'s' if n_wrong != 1 else ''} wrong"
    lines.append(
        f"{verified.uri}: {verified.n_shards} shards, {verified.n_samples} clips, "
        f"{verified.n_bytes / 1e6:.1f} MB read, {verified.n_decoded} clips decoded"
        + (f", {verified.n_sources} sources hashed: " if verified.n_sources else ": ")
        + ("all is well" if verified.is_well else wrong)
    )
    return "\n".join(lines)
