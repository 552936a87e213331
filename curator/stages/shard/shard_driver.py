"""The driver's side of sharding: puts written clips into shards.

Existing tars stay, with the contents that the last finished run recorded. A tar appears under its
name only when it is whole, and after its index and metadata; the commit writes the files that
describe all tars, the manifest last.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa

import curator
from curator.buckets import Bucket
from curator.executor.engine import Engine
from curator.executor.unit_worker import PlainWorker
from curator.executor.worker import Step
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.reusable_shards import ReusableShards
from curator.stages.shard.sample import Sample
from curator.stages.shard.sample_plan import place_samples, shard_facts
from curator.stages.shard.shard_index import DescribedTar, EarlierShards, members_table, set_files
from curator.stages.shard.shard_plan import plan_shards
from curator.stages.shard.stage import ShardStage, ShardUnit, TarWriter
from curator.storage import Store
from curator.tables.clip_rows import ClipRows
from curator.tables.out_layout import SHARDS
from curator.tables.schemas import declared_columns

COPIED_HERE_BYTES = 256 << 20
"""Clips that the driver puts into tars by itself."""


@dataclass(kw_only=True)
class Sharding:
    """Writes the shards of the kept clips.

    Attributes:
        fingerprint: Fingerprint of the recipe, for the manifest.
        reusable: Tars that may stay if their samples are wanted.
        before: Shards of earlier generations, which stay; None for none.
        n_written: Tars that had to be written.
        summary: Facts of each shard, for the summary.
        members: Gives the rows of `members`; None where families declare none.
        files: What describes all shards, in the order in which it is to be written.
    """

    store: Store
    config: ShardConfig
    fingerprint: str
    engine: Engine
    reusable: ReusableShards
    before: EarlierShards | None = None
    n_written: int = 0
    summary: list[dict[str, Any]] = field(default_factory=list)
    members: Callable[[], Iterator[pa.Table]] | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def shard(self, clips: ClipRows, samples: Iterable[tuple[Bucket, Sample]]) -> None:
        """Writes missing tars; kept rows of `clips` get the position of their samples."""
        sizes, reusable = self.reusable.sizes, self.reusable.tars
        earlier = self.before.facts if self.before is not None else ()
        taken = [entry["name"] for entry in earlier]
        plans = plan_shards(samples, self.config, self.reusable.keys(), taken)
        tars: dict[str, DescribedTar] = {}
        units = []
        for plan in plans:
            missing, stored = plan.missing(sizes), reusable.get(plan.name)
            if not missing and stored is not None and stored.bytes == plan.layout.n_bytes:
                tars[plan.name] = replace(stored, **DescribedTar.planned(plan))
            else:
                units.append(ShardUnit(plan=plan, missing=missing))
        self.n_written = sum(unit.plan.name in unit.missing for unit in units)
        tars |= {f"{SHARDS}/{tar.name}": tar for tar in self._run(units)}
        if any(sample.stored for plan in plans for sample in plan.samples):
            self.members = partial(members_table, plans)
        place_samples(plans, clips)
        versions = {info.key: info.version for info in self.store.list(f"{SHARDS}/")}
        new = [
            shard_facts(plan) | {"versions": {name: versions.get(name) for name in plan.objects}}
            for plan in plans
        ]
        self.summary = sorted([*map(dict, earlier), *new], key=itemgetter("name"))
        self.files = set_files(
            [(plan, tars[plan.name]) for plan in plans],
            self.before,
            columns={value["name"]: value for value in declared_columns(clips.schema).values()},
            seed=self.config.seed,
            fingerprint=self.fingerprint,
            made_by=f"curate {curator.__version__}",
            scores=clips.scores,
        )

    def _run(self, units: Sequence[ShardUnit]) -> Iterator[DescribedTar]:
        stage = ShardStage(self.config, TarWriter(self.store))
        step = Step(make=PlainWorker, settings={"stage": stage}, resources=stage.resources)
        n_bytes = sum(s.mp4_bytes for u in units if u.missing for s in u.plan.samples)
        # Copying little takes less time than starting a process for it.
        is_worth_it = self.engine.is_started and n_bytes > COPIED_HERE_BYTES
        run = self.engine.run if is_worth_it else self.engine.run_here
        return run([step], units)
