"""Verified pairs of clips that show the same footage, as runs store them.

Rules and preferences, which a rerun changes, decide which clip of a pair stays, but not whether two
clips show the same footage. So pairs are stored: a changed preference or share searches nothing,
and only new clips are compared.

Shape letters: N clips, P pairs.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.matching.verify_pair import Match

PAIRS_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("other", pa.string()),
        ("place", pa.int32()),
        ("offset_s", pa.float32()),
        ("speed", pa.float32()),
        ("overlap_s", pa.float32()),
        ("share", pa.float32()),
        ("share_of_other", pa.float32()),
        ("mirrored", pa.bool_()),
        ("similarity", pa.float32()),
        ("inliers", pa.int32()),
    ]
)
"""A row per pair, as `Match` has it for `clip_id` and `other`. `place` is -1 for a clip of this
output, else the number of the place that has the other clip. A row without `other` says that a
clip was compared."""
_SETTINGS, _PLACES = b"curate.search", b"curate.places"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two clips that show the same footage."""

    clip_id: str  # a clip of this output
    other: str  # another one
    place: str = ""  # key of the place that has the other one; empty for this output
    match: Match  # clip a is `clip_id`


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicatePairs:
    """Clips that were compared, and the pairs among them."""

    settings: str  # what the search depended on
    compared: pa.Array  # string[N], clips that were compared with each other
    places: tuple[str, ...]  # keys of other places with whose clips all of them were compared
    pairs: pa.Table  # string columns of `PAIRS_SCHEMA`, rows with `other` alone

    @classmethod
    def of(cls, table: pa.Table | None, settings: str) -> "NearDuplicatePairs":
        """Returns stored pairs; none if they were searched otherwise."""
        metadata = (table.schema.metadata or {}) if table is not None else {}
        if table is None or metadata.get(_SETTINGS, b"").decode() != settings:
            empty = PAIRS_SCHEMA.empty_table()
            return cls(
                settings=settings, compared=pa.array([], pa.string()), places=(), pairs=empty
            )
        is_pair = pc.is_valid(table["other"])
        return cls(
            settings=settings,
            compared=table.filter(pc.invert(is_pair))["clip_id"].combine_chunks(),
            places=tuple(json.loads(metadata[_PLACES])),
            pairs=table.filter(is_pair).replace_schema_metadata(),
        )

    def table(self) -> pa.Table:
        """Returns them as `of` takes them."""
        n = len(self.compared)
        compared = pa.table(
            [self.compared, *(pa.nulls(n, field.type) for field in list(PAIRS_SCHEMA)[1:])],
            schema=PAIRS_SCHEMA,
        )
        metadata = {_SETTINGS: self.settings.encode(), _PLACES: json.dumps(self.places).encode()}
        return pa.concat_tables([compared, self.pairs]).replace_schema_metadata(metadata)

    def with_new(
        self, ids: pa.Array, places: Sequence[str], new: Iterable[Pair]
    ) -> "NearDuplicatePairs":
        """Returns the pairs of more clips.

        Args:
            ids: All clips that are compared now; what is stored of others is let go.
            places: Keys of all other places.
            new: Pairs that were found now.
        """
        kept = [name for name in self.places if name in places]
        renumbered = pa.array([places.index(p) if p in kept else -2 for p in self.places])
        place = self.pairs["place"]
        is_here = pc.equal(place, -1)
        if len(renumbered):
            at = pc.if_else(is_here, None, place)
            place = pc.if_else(is_here, -1, renumbered.take(at.combine_chunks()))
        stored = self.pairs.set_column(2, "place", place.cast(pa.int32()))
        stays = pc.and_(
            pc.is_in(stored["clip_id"], value_set=ids),
            pc.or_(
                pc.greater_equal(stored["place"], 0),
                pc.and_(pc.equal(stored["place"], -1), pc.is_in(stored["other"], value_set=ids)),
            ),
        )
        rows = [_row(pair, places) for pair in new]
        added = pa.Table.from_pylist(rows, PAIRS_SCHEMA)
        pairs = pa.concat_tables([stored.filter(stays).cast(PAIRS_SCHEMA), added])
        return NearDuplicatePairs(
            settings=self.settings, compared=ids, places=tuple(places), pairs=pairs
        )


def _row(pair: Pair, places: Sequence[str]) -> dict[str, object]:
    match = pair.match
    return {
        "clip_id": pair.clip_id,
        "other": pair.other,
        "place": places.index(pair.place) if pair.place else -1,
        "offset_s": match.offset_s,
        "speed": match.speed,
        "overlap_s": match.overlap_s,
        "share": match.share_a,
        "share_of_other": match.share_b,
        "mirrored": match.mirrored,
        "similarity": np.float32(match.similarity),
        "inliers": match.n_inliers,
    }
