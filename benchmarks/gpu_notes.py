"""Writes each finding of benchmarks/gpu.py to disk at once."""

import json
import os
import time
from pathlib import Path
from typing import Any

Found = dict[str, Any]

_HEAD = "| part | what | found |\n|---|---|---|\n"


class Notes:
    """Adds findings to `results.jsonl` and `results.md` of a folder.

    Args:
        folder: Folder of both files; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines, self._table = folder / "results.jsonl", folder / "results.md"

    def add(self, part: str, what: str, found: Found) -> None:
        """Writes one finding, and syncs it to disk; the finding survives a crash of the process.

        Args:
            part: Part of the benchmark.
            what: Name of the measurement.
            found: Values by name.
        """
        line = {"part": part, "what": what, "found": found, "at": round(time.time(), 1)}
        _append(self._lines, json.dumps(line) + "\n")
        words = ", ".join(f"{name} {_short(value)}" for name, value in found.items())
        head = "" if self._table.exists() else _HEAD
        _append(self._table, f"{head}| {part} | {what} | {words.replace('|', '/')} |\n")

    def found(self) -> dict[str, dict[str, Found]]:
        """Returns the latest finding of each measurement, by part and measurement."""
        if not self._lines.exists():
            return {}
        found: dict[str, dict[str, Found]] = {}
        for text in self._lines.read_text().splitlines():
            line = json.loads(text)
            found.setdefault(line["part"], {})[line["what"]] = line["found"]
        return found


def _short(value: Any) -> str:  # noqa: ANN401
    return " ".join((value if isinstance(value, str) else json.dumps(value)).split())


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
