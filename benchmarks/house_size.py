#!/usr/bin/env python3
"""Counts lines, modules and functions at git revisions.

    house_size.py REVISION [REVISION ...]

Lines are those that `wc -l` counts in `.py` files, modules and functions those of `curator/`. A
function's length goes from `def` to its last line, with its docstring.
"""

import ast
import io
import json
import statistics
import subprocess
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from measure import arguments

ROOT = Path(__file__).parents[1]
LONG_LINES = 60


def modules(revision: str, folder: str) -> dict[str, str]:
    """Text of each module of a folder at a revision, by path."""
    command = ["git", "archive", revision, folder]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.name.endswith(".py"):
                file = tar.extractfile(member)
                found[member.name] = file.read().decode() if file is not None else ""
    return found


def functions(path: str, text: str) -> list[tuple[int, str]]:
    """Length and name of each function of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return [((node.end_lineno or 0) - node.lineno + 1, f"{path}:{node.name}") for node in nodes]


def sizes(revision: str) -> dict[str, Any]:
    """What is counted at one revision."""
    texts = modules(revision, "curator")
    lines = {path: text.count("\n") for path, text in texts.items()}
    folders: Counter[str] = Counter()
    for path, n in lines.items():
        parts = PurePosixPath(path).parts
        folders[parts[1] if len(parts) > 2 else "(modules at the top)"] += n
    long = sorted((f for path, text in texts.items() for f in functions(path, text)), reverse=True)
    name = ["git", "rev-parse", "--short", revision]
    return {
        "revision": subprocess.run(name, cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "lines": sum(lines.values()),
        **{
            f"lines of {folder}": sum(t.count("\n") for t in modules(revision, folder).values())
            for folder in ("tests", "benchmarks")
        },
        "modules": len(texts),
        "median module": int(statistics.median(lines.values())),
        "longest module": max((n, path) for path, n in lines.items()),
        "functions": len(long),
        "median function": int(statistics.median(n for n, _ in long)),
        f"functions above {LONG_LINES} lines": sum(n > LONG_LINES for n, _ in long),
        "longest function": long[0],
        "folders": dict(sorted(folders.items())),
    }


def main() -> None:
    """Counts and prints."""
    parser = arguments(__doc__)
    parser.add_argument("revisions", nargs="+")
    found = [sizes(revision) for revision in parser.parse_args().revisions]
    for name in found[0]:
        if name != "folders":
            print(f"{name:28}", *(f"{_short(one[name]):>44}" for one in found))
    for folder in sorted({name for one in found for name in one["folders"]}):
        print(f"  {folder:26}", *(f"{one['folders'].get(folder, 0):44}" for one in found))
    print(json.dumps(found))


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"{value[0]} {value[1].removeprefix('curator/')[-38:]}"
    return str(value)


if __name__ == "__main__":
    main()
