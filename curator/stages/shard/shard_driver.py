"""The driver's side of sharding: puts written clips into shards.

Existing tars stay, with the contents that the last finished run recorded. A tar appears under its
name only when it is whole, and after its index and metadata; the commit writes the files that
describe all tars, the manifest last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa

import curator
from curator.executor.engine import Engine
from curator.executor.unit_worker import PlainWorker
from curator.executor.worker import Step
from curator.records.clips import Clip
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.reusable_shards import ReusableShards
from curator.stages.shard.sample_plan import place_samples, plan_samples, shard_facts
from curator.stages.shard.shard_index import (
    EarlierShards,
    ShardFacts,
    WrittenShard,
    members_table,
    set_files,
)
from curator.stages.shard.shard_plan import ShardPlan, TarLayout, plan_shards, tar_layout
from curator.stages.shard.stage import ShardStage
from curator.stages.shard.tar_writer import ShardUnit, TarWriter, object_names
from curator.storage import Store
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows
from curator.tables.clip_vectors import Vectors
from curator.tables.out_layout import SHARDS
from curator.tables.sample_members import StoredMember
from curator.tables.schemas import declared_columns
from curator.tables.spill_file import Spill

COPIED_HERE_BYTES = 256 << 20
"""Clips that the driver puts into tars by itself."""


class Sharding:
    """Writes the shards of the kept clips.

    Args:
        fingerprint: Fingerprint of the recipe, for the manifest.
        reusable: Tars that may stay if their samples are wanted.
        before: Shards of earlier generations, which stay; None for none.
    """

    def __init__(
        self,
        store: Store,
        config: ShardConfig,
        fingerprint: str,
        engine: Engine,
        *,
        reusable: ReusableShards,
        before: EarlierShards | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._fingerprint = fingerprint
        self._engine = engine
        self._reusable = reusable
        self._before = before
        self.n_written = 0
        """Tars that had to be written."""
        self.summary: list[dict[str, Any]] = []
        """Facts of each shard, for the summary."""
        self.members: Callable[[], Iterator[pa.Table]] | None = None
        """Gives the rows of `members`; None where families declare none."""
        self.files: dict[str, bytes] = {}
        """What describes all shards, in the order in which it is to be written."""

    def shard(
        self,
        clips: ClipRows,
        locations: Mapping[str, Location],
        vectors: Vectors | None = None,
        stored_of: Callable[[Clip], Sequence[StoredMember]] | None = None,
        annotation_of: Callable[[Clip], Mapping[str, Any]] | None = None,
        generation_of: Mapping[str, int] | None = None,
    ) -> None:
        """Writes missing tars with their indexes and metadata.

        Kept rows of `clips` get the position of their samples. Samples omit embeddings, members
        of families or annotations that are None.
        """
        samples = plan_samples(
            clips,
            locations,
            self._config,
            vectors,
            stored_of=stored_of,
            annotation_of=annotation_of,
            generation_of=generation_of,
            spill=Spill(),
        )
        sizes, stored_facts = self._reusable.sizes, self._reusable.facts
        earlier = self._before.facts if self._before is not None else ()
        taken = [fact["name"] for fact in earlier]
        plans = plan_shards(samples, self._config, self._reusable.keys(), taken)
        layouts = {plan.name: tar_layout(plan) for plan in plans}
        facts: dict[str, ShardFacts] = {}
        units = []
        for plan in plans:
            missing = missing_objects(plan, layouts[plan.name], sizes)
            stored = stored_facts.get(plan.name)
            if not missing and stored is not None and stored.bytes == layouts[plan.name].n_bytes:
                facts[plan.name] = stored
            else:
                units.append(ShardUnit(plan=plan, missing=missing))
        self.n_written = sum(unit.plan.name in unit.missing for unit in units)
        facts |= dict(self._run(units))
        shards = [
            WrittenShard(plan=plan, layout=layouts[plan.name], facts=facts[plan.name])
            for plan in plans
        ]
        if any(sample.stored for plan in plans for sample in plan.samples):
            self.members = partial(members_table, shards)
        place_samples([(shard.plan, shard.layout) for shard in shards], clips)
        versions = {info.key: info.version for info in self._store.list(f"{SHARDS}/")}
        new = [
            shard_facts(shard.plan, shard.layout.n_bytes)
            | {"versions": {name: versions.get(name) for name in object_names(shard.plan)}}
            for shard in shards
        ]
        self.summary = sorted([*map(dict, earlier), *new], key=itemgetter("name"))
        made_by = f"curate {curator.__version__}"
        columns = {value["name"]: value for value in declared_columns(clips.schema).values()}
        self.files = set_files(
            shards,
            self._before,
            columns=columns,
            seed=self._config.seed,
            fingerprint=self._fingerprint,
            made_by=made_by,
            scores=clips.scores,
        )

    def _run(self, units: Sequence[ShardUnit]) -> Iterator[tuple[str, ShardFacts]]:
        stage = ShardStage(self._config, TarWriter(self._store))
        step = Step(make=PlainWorker, settings={"stage": stage}, resources=stage.resources)
        n_bytes = sum(s.mp4_bytes for u in units if u.missing for s in u.plan.samples)
        # Copying little takes less time than starting a process for it.
        is_worth_it = self._engine.is_started and n_bytes > COPIED_HERE_BYTES
        run = self._engine.run if is_worth_it else self._engine.run_here
        return run([step], units)


def missing_objects(plan: ShardPlan, layout: TarLayout, sizes: Mapping[str, int]) -> frozenset[str]:
    """Returns objects of a shard that are missing or have another size."""
    meta_bytes = sum(sample.json_bytes + 1 for sample in plan.samples)
    wanted = (layout.n_bytes, 8 * (len(plan.samples) + 1), meta_bytes)
    return frozenset(
        name
        for name, size in zip(object_names(plan), wanted, strict=True)
        if sizes.get(name) != size
    )
