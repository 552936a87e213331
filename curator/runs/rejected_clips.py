"""Keeps the MP4s and members of clips that rules on annotators' columns rejected.

Such clips are in no tar. Their parts stay while a snapshot names them, and a run with other bounds
finds them as it finds the parts of a killed run, so it writes and annotates no clip again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.executor.cpu_accounting import CpuClock
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import Step
from curator.family import Lifetime
from curator.packing import pack
from curator.records.clips import Clip
from curator.runs.commit_run import no_lease_check
from curator.runs.run_context import RunContext
from curator.scheduler import UnitRunner
from curator.stage import Resources
from curator.storage import Store
from curator.tables.clip_locations import Location, located_bytes
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.family_store import FamilyStore, NewValue
from curator.tables.fenced_store import Digest, FencedStore
from curator.tables.out_layout import CUTS, VALUES
from curator.tables.parts import Parts, rows_to_table
from curator.tables.sample_members import StoredMember
from curator.tables.schemas import CUT_SCHEMA

UNIT_BYTES = 64 << 20
"""Most bytes of a unit, unless a clip alone has more."""
UNIT_CLIPS = 256
_FACTS = [name for name in CUT_SCHEMA.names if name != "mp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedClip:
    """A clip of which some bytes are in tars, or in parts with bytes of kept clips.

    Attributes:
        facts: Values of `CUT_SCHEMA` without `mp4`.
        mp4: Location of the MP4; None if it stays there.
        members: Members that do not stay where they are.
    """

    source_id: str
    facts: Mapping[str, Any]
    cut_fingerprint: str
    mp4: Location | None
    members: tuple[StoredMember, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes to copy."""
        mp4 = 0 if self.mp4 is None else self.mp4.n_bytes
        return mp4 + sum(member.n_bytes for member in self.members)


def keep_rejected(
    run: RunContext,
    clips: ClipRows,
    ids: Sequence[str],
    locations: Mapping[str, Location],
    members: Callable[[Clip], Sequence[StoredMember]],
) -> set[str]:
    """Stores MP4s and members of some clips in parts of their own; returns the parts' names."""
    if not ids:
        return set()
    is_own = pc.is_in(clips.column("clip_id"), value_set=pa.array(ids, pa.string()))
    rows = [clips[number] for number in pc.indices_nonzero(is_own).to_pylist()]
    of_clip = {row.clip_id: _in_values(members(row)) for row in rows}
    own = set(ids)
    own.update(member.key for some in of_clip.values() for member in some)
    held = {locations[clip_id].name for clip_id in ids}
    held.update(member.where.name for some in of_clip.values() for member in some)
    stay = {name for name in held if _has_only(run.store, name, own)}
    to_copy = (_rejected(row, locations[row.clip_id], of_clip[row.clip_id], stay) for row in rows)
    work = [clip for clip in to_copy if clip.mp4 is not None or clip.members]
    units = pack(
        work,
        max_items=UNIT_CLIPS,
        weight=lambda clip: float(clip.n_bytes),
        max_weight=float(UNIT_BYTES),
    )
    runner = UnitRunner(run.engine, run.log.progress)
    step = Step(
        make=_Keeper, settings={"store": run.store}, resources=Resources(), names=("store",)
    )
    for written in runner.run(
        [step], units, placement="child" if run.engine.is_small(len(work), 0.0) else "ray"
    ):
        # The commit does not read these objects for their hashes.
        run.fenced.written |= written
        stay.update(written)
    run.log.cpu_s.update(runner.cpu_s)
    return stay


def _in_values(members: Iterable[StoredMember]) -> list[StoredMember]:
    """Returns the members that a commit would remove with the values of the run."""
    return [m for m in members if m.version.family.lifetime is Lifetime.RUN and m.suffix]


def _has_only(store: Store, name: str, own: set[str]) -> bool:
    """Returns whether an object is a part with bytes of these clips or values alone."""
    if name.partition("/")[0] not in (CUTS, VALUES):
        return False
    return {key.partition(" ")[0] for key in Parts(store, "", "").keys(name)} <= own


def _rejected(
    row: ClipRow, where: Location, members: Iterable[StoredMember], stay: set[str]
) -> RejectedClip:
    return RejectedClip(
        source_id=row.source_id,
        facts={name: row.value(name) for name in _FACTS},
        cut_fingerprint=row.value("cut_fingerprint"),
        mp4=None if where.name in stay else where,
        members=tuple(member for member in members if member.where.name not in stay),
    )


class _Keeper:
    """The worker: copies bytes of clips into parts of their own."""

    def __init__(self, *, store: Store) -> None:
        self._store = FencedStore(store, no_lease_check)
        self._clock = CpuClock()

    def __call__(self, unit: Sequence[RejectedClip]) -> UnitResult[dict[str, Digest]]:
        """Returns the digests of the parts that it wrote, by name."""
        spent = self._clock.begin()
        self._store.written.clear()
        self._keep_mp4s(unit)
        self._keep_members(unit)
        cpu_s = self._clock.end(spent, rest="store")
        return UnitResult(results=dict(self._store.written), cpu_s=cpu_s, n_items=len(unit))

    def _keep_mp4s(self, unit: Sequence[RejectedClip]) -> None:
        by_fingerprint = defaultdict[str, list[RejectedClip]](list)
        for clip in unit:
            if clip.mp4 is not None:
                by_fingerprint[clip.cut_fingerprint].append(clip)
        for fingerprint, clips in by_fingerprint.items():
            rows = [
                {**clip.facts, "mp4": located_bytes(self._store, clip.mp4)}
                for clip in clips
                if clip.mp4 is not None
            ]
            # With the hash, parts of one name have the same bytes.
            keys = [f"{row['clip_id']} {row['mp4_sha256']}" for row in rows]
            table = rows_to_table(rows, CUT_SCHEMA)
            Parts(self._store, CUTS, fingerprint).write(table, keys, one_row_groups=True)

    def _keep_members(self, unit: Sequence[RejectedClip]) -> None:
        by_family = defaultdict[str, list[tuple[RejectedClip, StoredMember]]](list)
        for clip in unit:
            for member in clip.members:
                by_family[member.version.fingerprint].append((clip, member))
        for some in by_family.values():
            values = [
                NewValue(
                    key=member.key,
                    clip_id=clip.facts["clip_id"],
                    source_id=clip.source_id,
                    data=located_bytes(self._store, member.where),
                )
                for clip, member in some
            ]
            FamilyStore(self._store).put(some[0][1].version, values)
