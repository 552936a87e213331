"""Counts attempts outside the workers, so that the counts survive a worker's death."""

import contextlib
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from curator.storage.scratch import full_disk_named

_DONE = "done"


class FileLedger:
    """Counts attempts in a folder of their own, to which all processes involved can write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._n_read, self._n_done, self._seconds = 0, 0, 0.0

    def begin(self, key: str) -> int:
        """Notes that work on a key begins; returns the number of this attempt, from 1."""
        with full_disk_named(), self._file(key).open("ab") as file:
            file.write(b".")
            return file.tell()

    def end(self, key: str, seconds: float) -> None:
        """Notes that work on a key ended, with the seconds of video in it."""
        self._file(key).unlink(missing_ok=True)
        with full_disk_named(), (self._folder / _DONE).open("a") as file:
            file.write(f"{seconds}\n")

    def progress(self) -> tuple[int, float]:
        """Returns the number of keys that ended, and their seconds of video."""
        with contextlib.suppress(FileNotFoundError), (self._folder / _DONE).open("rb") as file:
            file.seek(self._n_read)
            lines = file.read().split(b"\n")[:-1]
            self._n_read += sum(len(line) + 1 for line in lines)
            self._n_done += len(lines)
            self._seconds += sum(map(float, lines))
        return self._n_done, self._seconds

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class LedgerActor:
    """The counts of a cluster of several nodes, in a Ray actor."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self._begun: Counter[str] = Counter()
        self._n_done, self._seconds = 0, 0.0

    def begin(self, key: str) -> int:
        """Counts an attempt."""
        self._begun[key] += 1
        return self._begun[key]

    def end(self, key: str, seconds: float) -> None:
        """Forgets the attempts of a key that ended."""
        self._begun.pop(key, None)
        self._n_done += 1
        self._seconds += seconds

    def progress(self) -> tuple[int, float]:
        """Returns the number of keys that ended, and their seconds of video."""
        return self._n_done, self._seconds


class ActorLedger:
    """A worker's side of a `LedgerActor`."""

    def __init__(self, actor: Any) -> None:  # noqa: ANN401
        self._actor = actor

    def reset(self) -> None:
        """Forgets everything: another chain begins."""
        self._actor.reset.remote()

    def begin(self, key: str) -> int:
        """Counts an attempt, as `FileLedger.begin`."""
        import ray

        number: int = ray.get(self._actor.begin.remote(key))
        return number

    def end(self, key: str, seconds: float) -> None:
        """Records the end, as `FileLedger.end`; does not wait.

        An actor takes the calls of one worker in order, so it records this before the next attempt.
        """
        self._actor.end.remote(key, seconds)

    def progress(self) -> tuple[int, float]:
        """Returns the number of keys that ended, and their seconds of video."""
        import ray

        done: tuple[int, float] = ray.get(self._actor.progress.remote())
        return done


AttemptLedger = FileLedger | ActorLedger
