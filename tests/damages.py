"""Damage to the objects of a finished output, and what the next command makes of it."""

import hashlib
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[bytes], bytes | None]


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] if data else data


DAMAGES: dict[str, Damage] = {
    "deleted": lambda data: None,
    "emptied": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "flipped in the middle": lambda data: _flipped(data, len(data) // 2),
    "flipped near the end": lambda data: _flipped(data, max(0, len(data) - 150)),
}
"""By name; None for an object that is gone."""


def damage(path: Path, how: str) -> None:
    """Damages a file as a disk would, or an object that is replaced."""
    data = DAMAGES[how](path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def objects(out: Path) -> list[str]:
    """Names of all objects under an output root, sorted."""
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def shards(out: Path) -> dict[str, str]:
    """SHA-256 of each object under `shards/`."""
    return {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest()
        for name in objects(out)
        if name.startswith("shards/")
    }
