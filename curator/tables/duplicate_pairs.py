"""Pairs of clips that show the same footage, as a run stores them for later runs.

Shape letters: N clips.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.matching.verify_pair import Match
from curator.tables.parts import columns_schema

PAIRS = "duplicate_pairs"
"""Family and folder of the table."""
PAIRS_SCHEMA = columns_schema(
    ("clip_id other", pa.string()),
    ("place", pa.int32()),
    ("offset_s speed overlap_s share share_of_other", pa.float32()),
    ("mirrored", pa.bool_()),
    ("similarity", pa.float32()),
    ("inliers", pa.int32()),
)
"""One row per pair: the `Match` of the clips `clip_id` and `other`. `place` is the number of the
place that has `other`; -1 for this output. A row without `other` records that `clip_id` was
compared."""
_SETTINGS, _PLACES = b"curate.search", b"curate.places"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two clips that show the same footage."""

    clip_id: str  # a clip of this output, clip a of `match`
    other: str  # id of the other clip, clip b of `match`
    place: str = ""  # key of the place that has `other`; empty for this output
    match: Match

    def row(self, places: Sequence[str]) -> dict[str, object]:
        """Returns the pair as a row of `PAIRS_SCHEMA`; `places` are the keys of all places."""
        match = self.match
        return {
            "clip_id": self.clip_id,
            "other": self.other,
            "place": places.index(self.place) if self.place else -1,
            "offset_s": match.offset_s,
            "speed": match.speed,
            "overlap_s": match.overlap_s,
            "share": match.share_a,
            "share_of_other": match.share_b,
            "mirrored": match.mirrored,
            "similarity": np.float32(match.similarity),
            "inliers": match.n_inliers,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicatePairs:
    """Clips that were compared with each other and with other places, and their pairs."""

    settings: str  # fingerprint of the settings of the search
    compared: pa.Array  # string [N], ids of the clips
    places: tuple[str, ...]  # keys of the other places
    pairs: pa.Table  # rows of `PAIRS_SCHEMA` that have `other`

    @classmethod
    def of(cls, table: pa.Table | None, settings: str) -> "NearDuplicatePairs":
        """Returns stored pairs; no pairs if other settings found them."""
        metadata = (table.schema.metadata or {}) if table is not None else {}
        if table is None or metadata.get(_SETTINGS, b"").decode() != settings:
            table, metadata = PAIRS_SCHEMA.empty_table(), {_PLACES: b"[]"}
        is_pair = pc.is_valid(table["other"])
        return cls(
            settings=settings,
            compared=table.filter(pc.invert(is_pair))["clip_id"].combine_chunks(),
            places=tuple(json.loads(metadata[_PLACES])),
            pairs=table.filter(is_pair).replace_schema_metadata(),
        )

    def table(self) -> pa.Table:
        """Returns clips and pairs as a table, from which `of` restores them."""
        nothing = (pa.nulls(len(self.compared), field.type) for field in list(PAIRS_SCHEMA)[1:])
        compared = pa.table([self.compared, *nothing], schema=PAIRS_SCHEMA)
        metadata = {_SETTINGS: self.settings.encode(), _PLACES: json.dumps(self.places).encode()}
        return pa.concat_tables([compared, self.pairs]).replace_schema_metadata(metadata)

    def with_new(
        self, ids: pa.Array, places: Sequence[str], new: Iterable[Pair]
    ) -> "NearDuplicatePairs":
        """Returns these pairs and `new` pairs, without pairs of clips or places that are gone.

        `ids` are all clips that are compared now, `places` the keys of all other places.
        """
        of_place = [places.index(key) if key in places else -2 for key in self.places]
        # Index -1, the last number, is this output.
        numbers = np.array([*of_place, -1], np.int32)
        place = numbers[self.pairs["place"].to_numpy().astype(np.int64)]
        is_own, is_other = (
            pc.is_in(self.pairs[name], value_set=ids).to_numpy() for name in ("clip_id", "other")
        )
        stays = is_own & ((place >= 0) | ((place == -1) & is_other))
        stored = self.pairs.set_column(2, "place", pa.array(place)).filter(pa.array(stays))
        added = pa.Table.from_pylist([pair.row(places) for pair in new], PAIRS_SCHEMA)
        pairs = pa.concat_tables([stored.cast(PAIRS_SCHEMA), added])
        return NearDuplicatePairs(
            settings=self.settings, compared=ids, places=tuple(places), pairs=pairs
        )
