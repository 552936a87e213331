"""Numbers generations, which are groups of sources with one pass, and tells when they are stale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.pipeline import Graph
from curator.recipe import FOLLOW_SIZE, Recipe
from curator.records.time_spans import spans_from_json
from curator.run_config import RunConfig
from curator.stage import Phase
from curator.stages.shard.reusable_shards import ReusableShards
from curator.storage import Store
from curator.storage.metadata_columns import PREFIX, is_metadata
from curator.tables.checksums import read_parquet
from curator.tables.clip_groups import group_texts
from curator.tables.out_layout import listed
from curator.tables.output_format import existing
from curator.tables.schemas import SOURCES_SCHEMA
from curator.tables.snapshot_store import CANDIDATES, DECIDED_WITH, INDEXES
from curator.tables.source_metadata import SourceMetadata, span_name
from curator.tables.source_table import SourceTable, without_copies

CARRIED = "sources_of_earlier_runs"
"""Key of `work` in the summary: number of sources that stay although the run does not name them."""
FINGERPRINT, GENERATION = "fingerprint", "generation"
"""Fields of `decided_with`: a fingerprint, and the number of the last generation."""
_CAPTIONS = "captions"
_CAPTIONERS = "captioners"
_SHORT = 0.5
"""If the last sources fill less than this share of a generation, they join the one before."""


@dataclass(frozen=True, slots=True)
class Generations:
    """The numbers of the generations of a run, ascending.

    Attributes:
        earlier: Generations of earlier runs that still have sources.
        new: Generations that get new sources. In `exact` mode, the first may also be in `earlier`.
    """

    earlier: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def last_earlier(self) -> int:
        """The last generation of earlier runs; 0 for none."""
        return max(self.earlier, default=0)

    def place(self, number: int) -> tuple[int, int]:
        """Returns the place of a generation among all that have sources, and how many these are.

        Numbers may have gaps, because the sources of a generation may be gone. A pass that only
        commits, because no source is new, is of no generation: (1, 1).
        """
        numbers = sorted({*self.earlier, *self.new})
        return (numbers.index(number) + 1, len(numbers)) if number in numbers else (1, 1)

    @classmethod
    def of(
        cls,
        sources: SourceTable,
        earlier: pa.Table,
        config: RunConfig,
        metadata: SourceMetadata,
    ) -> "Generations":
        """Numbers the sources of a run; `earlier` has the rows of `sources` of the last run."""
        contents = sources.by_content()
        groups = group_texts(metadata.joined(contents, "uri"))
        if groups is not None:
            contents = contents.append_column("group", groups)
        numbers = numbered(contents, earlier, config)
        sources.set_generations(numbers)
        is_known = pc.is_in(numbers["source_id"], value_set=earlier["source_id"])
        old, new = (
            sorted(numbers["generation"].filter(mask).unique().to_pylist())
            for mask in (is_known, pc.invert(is_known))
        )
        return cls(earlier=tuple(old), new=tuple(new))


def last_sources(store: Store, previous: Mapping[str, Any]) -> pa.Table:
    """Returns the rows of `sources` that the newest summary names."""
    parts = [read_parquet(store, name) for name in existing(store, previous, "sources")]
    if not parts:
        return SOURCES_SCHEMA.empty_table()
    # Parts may have different columns of metadata.
    return pa.concat_tables([*parts, SOURCES_SCHEMA.empty_table()], promote_options="default")


def carry(earlier: pa.Table, sources: SourceTable, metadata: SourceMetadata) -> int:
    """Adds earlier sources unless a run has their address or content; returns how many it added."""
    rows = sources.carry(earlier)
    names = [name for name in rows.column_names if name.startswith(PREFIX)]
    for row in rows.select(["uri", "spans", *names]).to_pylist() if names else ():
        uri, spans = row.pop("uri"), row.pop("spans")
        metadata.add(uri, {name: value for name, value in row.items() if value is not None})
        for span, values in spans_from_json(spans).items():
            metadata.add(span_name(uri, span), values)
    return int(rows.num_rows)


def why_stale(
    store: Store,
    previous: Mapping[str, Any],
    sources: SourceTable,
    metadata: SourceMetadata,
    earlier: pa.Table,
    reusable: ReusableShards,
    present: Mapping[str, Any],
) -> str | None:
    """Returns why the run must decide again about clips of earlier runs; None if it need not.

    Args:
        store: Output root.
        previous: Summary of the newest snapshot.
        sources: Sources of the run.
        metadata: Metadata of the sources.
        earlier: Rows of `sources` of the last run.
        reusable: Tars that exist.
        present: Fingerprints of this run, from `decided_with`.
    """
    before = previous.get(DECIDED_WITH, {})
    if before.get(FINGERPRINT) != present[FINGERPRINT]:
        return "the recipe, this version, or the columns of metadata changed"
    sections, _ = present[_CAPTIONS]
    if _of_captions(previous["recipe"], previous["extensions"], sections) != present[_CAPTIONS]:
        return f"the section {', '.join(sections)} of the recipe changed"
    contents = sources.by_content()
    there = pc.is_in(earlier["source_id"], value_set=contents["source_id"])
    gone = earlier.filter(pc.invert(there))
    if gone.num_rows:
        first = gone["uri"][0].as_py()
        return f"sources that are gone or have other content: {gone.num_rows}, such as {first}"
    changed = _described_otherwise(metadata.joined(contents, "uri"), without_copies(earlier))
    if changed:
        return f"sources with other metadata or spans: {len(changed)}, such as {changed[0]}"
    named = {name for shard in previous["shards"] for name in shard["versions"]}
    lost = sorted(named.difference(reusable.sizes))
    named = {*previous[INDEXES].values(), *chain.from_iterable(previous["tables"].values())}
    named |= set(previous.get(CANDIDATES, ()))
    folders = {name.partition("/")[0] for name in named}
    lost += sorted(named.difference(*listed(store, folders).values()))
    return f"{store.uri}/{lost[0]} is missing or damaged" if lost else None


def _described_otherwise(contents: pa.Table, earlier: pa.Table) -> list[str]:
    """Returns addresses of earlier sources with changed metadata or spans; each content once."""
    place = pc.index_in(earlier["source_id"], value_set=contents["source_id"])
    is_other = np.zeros(earlier.num_rows, bool)
    for name in ("spans", *filter(is_metadata, contents.column_names)):
        before = earlier[name]
        now = contents[name].take(place).cast(before.type)
        if not before.equals(now):
            pairs = zip(before.to_pylist(), now.to_pylist(), strict=True)
            is_other |= [old != new for old, new in pairs]
    uris: list[str] = earlier["uri"].filter(pa.array(is_other)).to_pylist()
    return uris


def decided_with(
    recipe: Recipe,
    graph: Graph,
    fingerprints: Mapping[str, str],
    extensions: Sequence[Mapping[str, Any]],
    metadata: pa.Schema,
) -> dict[str, Any]:
    """Returns fingerprints of all that decides about clips and shards, except the sources.

    `extensions` are classes from outside this package, `metadata` has the columns of metadata.
    """
    remade = [stage for stage in graph if stage.is_remade]
    sections = sorted({section for stage in remade for section in stage.sections})
    settings = recipe.model_dump(mode="json", exclude={"run", "about", FOLLOW_SIZE, *sections})
    others = [extension for extension in extensions if extension["kind"] != _CAPTIONERS]
    own = {stage.name for stage in remade}
    stage_fingerprints = {name: value for name, value in fingerprints.items() if name not in own}
    # New settings of captions add or remove annotators, and are no reason to decide again.
    added = {stage.name for stage in remade if stage.phase is Phase.ANNOTATE}
    versions = {stage.name: stage.version for stage in graph if stage.name not in added}
    columns = sorted((field.name, str(field.type)) for field in metadata)
    # The manifest has one declaration for the values of a family in all generations.
    declared = {
        name: version.to_json()
        for stage in graph.annotators()
        if stage.name not in added
        for name, version in stage.versions().items()
    }
    return {
        FINGERPRINT: fingerprint(
            "decided_with",
            settings,
            stage_fingerprints,
            versions,
            others,
            columns,
            *([declared] if declared else []),
        ),
        _CAPTIONS: _of_captions(recipe.model_dump(mode="json"), extensions, sections),
    }


def _of_captions(
    recipe: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]], sections: Iterable[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the settings that determine captions; `curate recaption` changes only these."""
    own = [dict(extension) for extension in extensions if extension["kind"] == _CAPTIONERS]
    return {section: recipe.get(section) for section in sections}, own


def numbered(contents: pa.Table, earlier: pa.Table, config: RunConfig) -> pa.Table:
    """Puts contents into generations; returns `source_id` and `generation` of each, from 1.

    Contents of earlier runs keep their generation. New contents follow in the order of their ids,
    and those of one group together.

    Args:
        contents: Each content once, with `source_id` and `seconds`, and perhaps with `group`.
        earlier: `source_id` and `generation` of contents of earlier runs; null counts as 1.
        config: Sets the mode and the length of a generation.
    """
    contents = contents.sort_by("source_id")
    ids, seconds = contents["source_id"].combine_chunks(), contents["seconds"].to_numpy()
    numbers = pc.fill_null(earlier["generation"].cast(pa.int32()), 1).combine_chunks()
    rows = pc.index_in(ids, value_set=earlier["source_id"])
    generation_of = (
        pc.fill_null(numbers.take(rows), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    )
    new, last = _by_group(contents, np.flatnonzero(generation_of == 0))
    number = int(generation_of.max(initial=0))
    is_growing = config.mode == "growing"
    lengths = np.bincount(generation_of, weights=seconds, minlength=number + 1)
    lengths[0] = 0.0

    def limit_s(number: int) -> float:
        """Returns the length at which a generation is full."""
        least = config.generation_hours * 3600.0
        return least if is_growing else max(least, float(lengths[:number].sum()))

    is_open = number > 0 and not is_growing and lengths[number] < limit_s(number)
    place = 0
    while place < len(new):
        if not is_open:
            number += 1
            lengths = np.append(lengths, 0.0)
        is_open = False
        limit = limit_s(number)
        ends = lengths[number] + np.cumsum(seconds[new[place:]])
        n = int(np.searchsorted(ends, limit)) + 1
        n = last[min(place + n, len(new)) - 1] + 1 - place
        rest_s = float(seconds[new[place + n :]].sum())
        if rest_s < _SHORT * limit:
            n = len(new) - place
        generation_of[new[place : place + n]] = number
        lengths[number] += float(seconds[new[place : place + n]].sum())
        place += n
    return pa.table({"source_id": ids, "generation": pa.array(generation_of, pa.int32())})


def _by_group(
    contents: pa.Table, new: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns rows with those of one group together, and for each place that of its group's end.

    A group has the place of its first row.
    """
    places = np.arange(len(new))
    if "group" not in contents.column_names:
        return new, places
    names = contents["group"].take(pa.array(new)).to_pylist()
    first: dict[str, int] = {}
    of = np.array(
        [n if name is None else first.setdefault(name, n) for n, name in enumerate(names)], np.int64
    )
    order = np.argsort(of, kind="stable")
    last = np.searchsorted(of[order], of[order], "right") - 1
    return new[order], last.astype(np.int64)
