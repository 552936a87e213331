"""Sources and their output: runs of small films, and what readers find."""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture
from newest import earlier_objects

from curator.cli import main
from curator.errors import StorageError
from curator.executor.engine import Engine
from curator.runs import one_pass
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK

SMALL = (
    "shard.resolutions=[120]", "filters.short_side_px.min=100", "shard.lengths=[17,33,49,121]",
)  # fmt: skip
"""Settings with which small films are kept, in few buckets."""
SHORT = (
    *SMALL, "propose.min_s=1", "dedup.enabled=false", "filters.motion.min=0.0001",
    "filters.sharpness.min=0.0001",
)  # fmt: skip
"""Settings with which all clips of short small films are kept."""
QVGA = {"width_px": 160, "height_px": 120}


def sets(settings: Iterable[str]) -> list[str]:
    """Settings as arguments; what begins with dashes is an argument already."""
    return [p for s in settings for p in ((s,) if s.startswith("--") else ("--set", s))]


def write_films(
    folder: Path, lengths: Iterable[int], *, fps: int = 25, suffix: str = ".mp4", **size: int
) -> Path:
    """Writes a moving film of each length in frames, named by its number; returns the folder."""
    folder.mkdir(exist_ok=True, parents=True)
    for number, n_frames in enumerate(lengths):
        frames = moving_texture(n_frames, seed=number, **size)
        write_video(folder / f"{number}{suffix}", frames, fps=Fraction(fps))
    return folder


@dataclass(frozen=True)
class Place:
    """A folder of sources, and the output of their last run."""

    sources: Path
    out: Path

    settings = SMALL
    recipe = "quickstart"

    def arguments(self, *more: str) -> list[str]:
        """The command of a run; `more` as of `sets`."""
        named = ["--recipe", self.recipe, str(self.sources), str(self.out)]
        return ["run", *named, *sets((*self.settings, *more))]

    def code(self, *more: str) -> int:
        return main(self.arguments(*more))

    def run(self, *more: str) -> dict[str, Any]:
        assert self.code(*more) == EXIT_OK
        return self.summary()

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return summary

    def table(self, name: str) -> list[dict[str, Any]]:
        """Rows of a table as a strict reader finds them: by the list of the summary."""
        parts = [self.out / part for part in self.summary()["tables"][name]]
        return [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]

    def clips(self, decision: str = "kept") -> list[dict[str, Any]]:
        return [clip for clip in self.table("clips") if clip["decision"] == decision]

    def sample(self, clip: Mapping[str, Any], suffix: str) -> bytes:
        """A member of a clip's sample."""
        with tarfile.open(self.out / clip["shard"]) as tar:
            member = tar.extractfile(f"{clip['key']}.{suffix}")
            assert member is not None
            return member.read()

    def files(self, *folders: str) -> dict[str, str]:
        """Digests of shards, or of folders, by name, without what only earlier snapshots name."""
        earlier = earlier_objects(self.out)
        return {
            str(path.relative_to(self.out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for folder in folders or ("shards",)
            for path in sorted((self.out / folder).rglob("*"))
            if path.is_file() and str(path.relative_to(self.out)) not in earlier
        }

    def tars(self) -> dict[str, str]:
        return {name: digest for name, digest in self.files().items() if name.endswith(".tar")}

    def copy(self, folder: Path) -> Self:
        """The same sources with a copy of the output in a folder."""
        return replace(self, out=Path(shutil.copytree(self.out, folder / "out")))

    def break_off(self, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
        """Runs to the commit, where the disk is full."""

        def fail(_: object) -> None:
            raise StorageError("full")

        with monkeypatch.context() as context:
            context.setattr(one_pass, "commit_run", fail)
            assert self.code(*more) == EXIT_BROKEN_OFF


def count_units(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets the step of each unit of a run that cuts or decodes."""
    calls: list[str] = []
    whole = Engine.run_in_driver

    def counted(self: Engine, steps: Any, units: Any) -> Iterator[Any]:  # noqa: ANN401
        name = getattr(steps[0].settings.get("stage"), "name", steps[0].make.__name__)
        for unit in units:
            if name in ("analyze", "cut", "identify", "AnnotatorWorker"):
                calls.append(name)
            yield from whole(self, steps, [unit])

    monkeypatch.setattr(Engine, "run_in_driver", counted)
    monkeypatch.setattr(Engine, "run", lambda self, steps, units, **_: counted(self, steps, units))
    return calls
