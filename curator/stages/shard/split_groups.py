"""Puts sources into train or val, so that no group of sources that belong together is in both.

Sources with the same value of `shard.split_by` are one unit, such as the cameras of one recording.
A source whose spans have several values joins their units, because a file is in one split. Units
whose clips share footage are one group. A hash of the group decides. A group with clips in
the newest snapshot stays where they are; a group with clips in both splits goes to train, because a
model may have been trained on its clips.

Shape letters: S sources, P pairs.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.tar_reader import Split
from curator.number_text import amount, percent
from curator.stages.shard.config import ShardConfig

Sides = Mapping[str, Split]
"""The split of each source, by source id."""
Units = Sequence[str]
"""Names of the units that a source belongs to; at least one."""
Links = Iterable[tuple[str, str]]
"""Pairs of sources whose clips share footage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitGroups:
    """The splits of all sources of a run.

    Attributes:
        sides: The split of each source.
        across: Sources whose group has clips of earlier generations in both splits. Those clips
            stay where they are, so no split can take these sources.
        warnings: What a user should know about large groups and moved sources, a line each.
    """

    sides: Sides
    across: frozenset[str]
    warnings: tuple[str, ...]


def drawn_split(unit: str, config: ShardConfig) -> Split:
    """Returns the split that the hash of a unit gives; adding sources changes no other unit."""
    digest = hashlib.sha256(f"split {config.seed} {unit}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return "val" if share < config.val_share else "train"


def split_sources(
    units: Mapping[str, Units],
    config: ShardConfig,
    *,
    links: Links = (),
    committed: Sides | None = None,
    fixed: Sides | None = None,
) -> SplitGroups:
    """Splits sources.

    Args:
        units: The units of each source: its own id, or its values of `split_by`.
        config: Seed and share.
        links: Pairs of sources that share footage; sources outside `units` count too.
        committed: Splits of sources in the newest snapshot, if its settings were the same.
        fixed: Splits of sources of earlier generations, whose tars stay.
    """
    committed, fixed = committed or {}, fixed or {}
    sides: dict[str, Split] = {}
    across: set[str] = set()
    moved: list[str] = []
    groups = list(_groups(units, links))
    for group in groups:
        fixed_in, known = ({of[s] for s in group if s in of} for of in (fixed, committed))
        new = [source for source in group if source not in fixed]
        if len(fixed_in) > 1:
            across.update(new)
        side = _side(fixed_in) or _side(known)
        if side is None:
            names = (name for source in group for name in units.get(source, (source,)))
            side = drawn_split(min(names), config)
        sides |= {source: fixed.get(source, side) for source in group}
        moved += [source for source in new if committed.get(source, side) != side]
    warnings = []
    if moved:
        warnings.append(
            f"sources of the newest snapshot that move from val to train, because their group has "
            f"clips in train: {len(moved)}, such as {min(moved)}"
        )
    if across:
        warnings.append(
            f"sources that belong together with clips of earlier generations in train and in val: "
            f"{len(across)}, such as {min(across)}; they are left out as across_splits, and "
            "run.mode=exact joins them"
        )
    else:
        warnings += _large_group(groups, sides, config)
    return SplitGroups(sides=sides, across=frozenset(across), warnings=tuple(warnings))


def _side(sides: set[Split]) -> Split | None:
    return None if not sides else "train" if len(sides) > 1 else next(iter(sides))


def _groups(units: Mapping[str, Units], links: Links) -> Iterator[list[str]]:
    """Yields the sources of each group, in a fixed order."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        while (above := parent.setdefault(node, node)) != node:
            parent[node] = parent[above]
            node = parent[node]
        return node

    def unit_of(source: str) -> tuple[str, str]:
        return ("unit", units[source][0]) if source in units else ("source", source)

    for names in units.values():
        for name in names[1:]:
            parent[root(("unit", names[0]))] = root(("unit", name))
    for first, second in links:
        parent[root(unit_of(first))] = root(unit_of(second))
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for source in sorted(units):
        groups[root(unit_of(source))].append(source)
    yield from groups.values()


def _large_group(groups: Iterable[list[str]], sides: Sides, config: ShardConfig) -> Iterator[str]:
    """Yields a warning if the largest group makes the share of val impossible."""
    largest = max(groups, key=len, default=[])
    if len(largest) < 2 or not 0 < config.val_share < 1:
        return
    n_sources, share = len(sides), len(largest) / len(sides)
    is_val = sides[largest[0]] == "val"
    if share > config.val_share if is_val else 1 - share < config.val_share:
        actual = Counter(sides.values())["val"] / n_sources
        yield (
            f"{len(largest):,} of {amount(n_sources, 'source')} belong together (they share "
            f"footage, or shard.split_by) and are all in {'val' if is_val else 'train'}: val has "
            f"{percent(round(actual, 3))} of the sources, and shard.val_share is "
            f"{percent(config.val_share)}"
        )


def shared_footage(
    pairs: pa.Table | None, clips: pa.Table, earlier: pa.Table | None = None
) -> set[tuple[str, str]]:
    """Returns the pairs of different sources whose clips share footage.

    Args:
        pairs: Columns `clip_id`, `other` and `place`, -1 for two of `clips`; None for no pairs.
        clips: Columns `clip_id` and `source_id` of the clips that were compared.
        earlier: The same columns of clips of earlier generations.
    """
    if pairs is None or not pairs.num_rows:
        return set()
    ids = clips["clip_id"].combine_chunks()
    is_own = pc.equal(pairs["place"], -1)
    found: set[tuple[str, str]] = set()
    for others, of_place in ((clips, is_own), (earlier, pc.invert(is_own))):
        if others is None:
            continue
        rows = pairs.filter(of_place)
        first = pc.index_in(rows["clip_id"], value_set=ids)
        second = pc.index_in(rows["other"], value_set=others["clip_id"].combine_chunks())
        both = pc.and_(pc.is_valid(first), pc.is_valid(second))
        names = [
            np.asarray(table["source_id"].combine_chunks().take(at.filter(both).combine_chunks()))
            for table, at in ((clips, first), (others, second))
        ]
        found.update((a, b) for a, b in zip(*names, strict=True) if a != b)
    return found
