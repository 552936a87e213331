#!/usr/bin/env python3
"""Counts what one thing of each kind costs in the package: its own lines, and others that name it.

    house_changes.py REVISION...

Each kind of change is counted on one that is there: where the file has its own lines, and in which
other modules of `curator/` a line names it. Documentation and tests are not counted.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import arguments

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of change, and one of its kind."""

    kind: str
    example: str
    own: str
    """Folder or file of its own under `curator/`; empty for none."""
    named: str
    """What a line that knows of it has, as a regular expression."""


CHANGES = (
    Change("measure", "stillness", "measures/stillness.py", r"\bstillness\b"),
    Change("filter", "select", "stages/select", r"stages\.select|SelectStage|SelectConfig"),
    Change("exporter", "cogvideo", "export/cogvideo.py", r"export\.cogvideo|\"cogvideo"),
    Change(
        "captioner", "transformers", "stages/caption/captioners/local_model.py",
        r"local_model|LocalCaptioner",
    ),
    Change(
        "annotator", "vectors of captions", "stages/caption/caption_embeddings.py",
        r"text_vector|TEXT_VECTOR|text\.npy|caption_embeddings|CaptionEmbeddings",
    ),
    Change("store", "gs://, az://", "storage/cloud_service.py", r"cloud_service"),
    Change("column", "copy_frames", "", r"copy_frames"),
    Change("command", "explain", "commands/explain.py", r"\"explain\"|commands\.explain"),
)  # fmt: skip


def git(*arguments: str) -> str:
    """What git prints; nothing where it finds nothing."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def count(change: Change, revision: str) -> dict[str, Any]:
    """Returns own files and lines, and other files and their lines that name it."""
    own = f"curator/{change.own}" if change.own else "no such file"
    names = git("ls-tree", "-r", "--name-only", revision, "--", own).split()
    files = [name for name in names if name.endswith(".py") and not name.endswith("__init__.py")]
    lines = sum(git("show", f"{revision}:{name}").count("\n") for name in files)
    others = git("grep", "-cE", change.named, revision, "--", "curator/*.py", f":!{own}")
    found = dict(line.split(":")[1:] for line in others.splitlines())
    n_named = sum(map(int, found.values()))
    return {"own_files": len(files), "own_lines": lines, "others": sorted(found), "named": n_named}


def main() -> None:
    """Prints a row for each change and revision, and JSON as the last line."""
    parser = arguments(__doc__)
    parser.add_argument("revisions", nargs="+")
    revisions = parser.parse_args().revisions
    found = {}
    for change in CHANGES:
        for revision in revisions:
            one = found[f"{change.kind} {revision}"] = count(change, revision)
            others = " ".join(name.removeprefix("curator/") for name in one["others"])
            print(
                f"{change.kind:10} {change.example:20} {revision:10} own {one['own_files']} files, "
                f"{one['own_lines']:4} lines; named in {one['named']:2} lines of {others}"
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
