"""What an annotator of very many clips costs the driver: memory and CPU a clip.

    PYTHONPATH=benchmarks python benchmarks/annotator_scale.py N [--folder FOLDER]

The annotator reads a caption and leaves 64 numbers, so nearly all time is that of the scheduler.
"""

import io
import resource
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from measure import arguments, tell
from numpy.typing import NDArray

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.family import Array, Family, Scope
from curator.scheduler import Scheduler
from curator.stage import Annotator, ClipFacts, SampledClip, StageConfig
from curator.storage.local_store import LocalStore
from curator.tables.clip_locations import Location, located_bytes
from curator.tables.family_store import FamilyStore

N_READ = 300


class Lengths(Annotator[StageConfig]):
    """The length of a caption, 64 times."""

    name, version, batch = "lengths", 1, 256
    families = (Family("lengths", Scope.CLIP, Array("f32", ("d",)), member="lengths.npy"),)
    frames = ()
    columns = ("caption",)

    def process(self, unit: Sequence[SampledClip]) -> list[NDArray[np.float32]]:
        """Returns float32 [64] for each clip."""
        return [np.full(64, len(clip.facts.columns["caption"]), np.float32) for clip in unit]


class MadeClips:
    """N clips that are nowhere."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, number: int) -> tuple[ClipFacts, str, Location]:
        facts = ClipFacts(
            clip_id=f"{number:016x}", source_id=f"{number // 20:016x}", n_frames=100,
            fps=Fraction(30), width=1280, height=720,
            columns={"caption": f"caption no. {number}, as long as a short caption usually is"},
        )  # fmt: skip
        where = Location(name=f"shards/{number // 100}.tar", offset=number, n_bytes=100_000)
        return facts, f"{number:064x}", where

    def ids(self) -> pa.Array:
        """Returns the ids of all."""
        return pa.array([f"{number:016x}" for number in range(self._n)])


def main() -> None:
    """Annotates twice, and prints JSON."""
    parser = arguments(__doc__)
    parser.add_argument("n", type=int)
    parser.add_argument("--folder")
    options = parser.parse_args()
    found: dict[str, Any] = {"clips": options.n}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store, clips = LocalStore(folder), MadeClips(options.n)
        with Engine(address=None, workers=2) as engine:
            for name in ("first", "again"):
                progress = Progress(io.StringIO(), live=False)
                scheduler = Scheduler(FamilyStore(store), engine, progress)
                begun, begun_cpu = time.perf_counter(), time.process_time()
                made = scheduler.annotate([Lengths(StageConfig())], clips)
                found[name] = {
                    "made": made.n_made.total(),
                    "driver_us_a_clip": 1e6 * (time.process_time() - begun_cpu) / options.n,
                    "wall_us_a_clip": 1e6 * (time.perf_counter() - begun) / options.n,
                }
        begun = time.perf_counter()
        for number in range(min(N_READ, options.n)):
            (member,) = made.members.of(f"{number:016x}")
            located_bytes(store, member.where)
        found["ms_a_value_read"] = 1e3 * (time.perf_counter() - begun) / min(N_READ, options.n)
    found["driver_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tell(found)


if __name__ == "__main__":
    # Workers import the class by the name of its module.
    from annotator_scale import main as run

    run()
