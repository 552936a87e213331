"""Makes the indexes of the tars, for each kind of reader.

Next to each tar are `.tar.idx` (Megatron-Energon), `.meta.jsonl` and `.json` (webshart). Under
`shards/` are `wids-<split>.json` (wids), `dataset.parquet` (the table of clips that Open-Sora's
loaders read) and `manifest.json`, which names all other files and is written last. `shards/` and
the folder of each bucket have `.nv-meta/*` (Megatron-Energon) and `README.md` (Hugging Face
`datasets`); the folder of a bucket also has `captions.json` (diffusion-pipe). Names in an index
are relative to its folder, so that the folder can be moved.
"""

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.dataset.dataset_card import CARD, dataset_card
from curator.dataset.reader_indexes import (
    CAPTIONS,
    caption_lines,
    captions_file,
    energon_database,
    member_columns,
    side_rows,
)
from curator.dataset.sample import Sample
from curator.dataset.shard_plan import ShardPlan
from curator.dataset.side_plan import SidePlan
from curator.dataset.tar_reader import (
    COLUMNS,
    SPLITS,
    Declared,
    Split,
    declared_families,
)
from curator.family import Family, Place
from curator.records.clips import CLIP_FORMATS, WINDOWED, ClipFormat
from curator.tables.fenced_store import Digest
from curator.tables.json_objects import sealed_json
from curator.tables.out_layout import DATASET as DATASET_KEY
from curator.tables.out_layout import MANIFEST, SHARDS, SIDES
from curator.tables.parts import columns_schema, parquet_by_content, rows_to_table
from curator.tables.sample_members import MEMBERS, MEMBERS_SCHEMA, StoredMember

MANIFEST_VERSION = 1
DATASET = "dataset.parquet"

ENERGON_VERSION = "7.4.1"
"""The release of Megatron-Energon that defines the format of these indexes."""

DATASET_SCHEMA = columns_schema(
    ("clip_id path shard split bucket", pa.string()),
    ("offset bytes", pa.int64()),
    ("text", pa.string()),
    ("num_frames", pa.int64()),
    ("height width", pa.int32()),
    ("aspect_ratio", pa.float64()),
    ("resolution", pa.int64()),
    ("fps duration", pa.float64()),
    ("source_id source_uri sha256", pa.string()),
    ("license", pa.string()),
    ("members", pa.string()),
    ("member_bytes", pa.list_(pa.int64())),
    (
        "side_members",
        pa.list_(pa.struct(columns_schema(("member", pa.string()), ("offset bytes", pa.int64())))),
    ),
)
"""One row per sample, in the order of the tars. `path` is `<tar>#<key>.mp4`, of a still image with
its own suffix. `offset`, `bytes` and `sha256` describe this member. `aspect_ratio` is height /
width, `resolution` is height * width in pixels, `duration` is in seconds. `members` has the
suffixes of the sample's members, separated by spaces, in the order of the tar, and `member_bytes`
their sizes. `side_members` has the members in side tars, which the manifest names: where each
begins there, and its size. All three are null in outputs of older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTar:
    """The facts about a tar for the files that describe all shards.

    Attributes:
        name: Relative to `shards/`.
        medium: The medium of all its samples.
        members: Whether the first sample has each optional member, by option of `dataset_card`.
        md5: For wids, which reads no other hash. All hashes are in hex.
    """

    name: str
    bucket: str
    split: Split
    medium: str = ""
    samples: int
    frames: int = 0
    seconds: float = 0.0
    members: Mapping[str, bool] = field(default_factory=dict)
    bytes: int
    sha256: str = ""
    md5: str = ""
    idx_sha256: str = ""
    meta_sha256: str = ""
    members_sha256: str = ""
    """Empty for a tar of an older version, next to which lies no index for webshart."""
    sides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name, size, number of members and hashes of the side tar with each member."""

    @classmethod
    def of(cls, plan: ShardPlan, **facts: Any) -> "DescribedTar":  # noqa: ANN401
        """Returns the facts about a written tar; `facts` has its size and hashes."""
        return cls(**cls.planned(plan), **facts)

    @staticmethod
    def planned(plan: ShardPlan) -> dict[str, Any]:
        """Returns the facts that are known before the tar is written."""
        (medium,) = {sample.metadata["medium"] for sample in plan.samples}
        return {
            "name": plan.name.removeprefix(f"{SHARDS}/"),
            "bucket": plan.bucket,
            "split": plan.split,
            "medium": medium,
            "samples": len(plan.samples),
            "frames": plan.totals[0],
            "seconds": plan.totals[1],
            "members": members_of(plan.samples[0]),
        }

    def has(self, plan: ShardPlan) -> bool:
        """Returns whether the facts are of a planned tar, and of all its objects."""
        sides = {side.suffix: side_entry(side)["name"] for side in plan.sides}
        known = {suffix: side["name"] for suffix, side in self.sides.items()}
        return bool(self.members_sha256) and sides == known

    def entry(self) -> dict[str, Any]:
        """Returns the tar's entry in the manifest."""
        entry = {name: getattr(self, name) for name in (*_ENTRY, *_LATER)}
        return {name: value for name, value in entry.items() if value or name not in _LATER}


_ENTRY = (
    "name", "bucket", "split", "medium", "samples", "frames", "bytes", "sha256", "md5",
    "idx_sha256", "meta_sha256",
)  # fmt: skip
_LATER = ("members_sha256", "sides")
"""Fields that a manifest has only for some tars; manifests of older versions lack them."""
Shards = Sequence[tuple[ShardPlan, DescribedTar]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierShards:
    """The shards of earlier generations, which stay as they are.

    Attributes:
        facts: The shards' entries in the summary, sorted by name.
        tars: The tars, sorted by name.
        dataset: Rows of `dataset.parquet`, in the order of the tars.
        declared: Declarations of families in the manifest.
    """

    facts: Sequence[Mapping[str, Any]]
    tars: Sequence[DescribedTar]
    dataset: pa.Table
    declared: Declared

    @classmethod
    def of(
        cls, summary: Mapping[str, Any], manifest: Mapping[str, Any], dataset: pa.Table
    ) -> "EarlierShards":
        """Returns the shards of a snapshot."""
        entries = summary["shards"]
        return cls(
            facts=entries,
            tars=list(described_tars(manifest, dataset, entries).values()),
            dataset=current_rows(dataset),
            declared=declared_families(manifest),
        )


def rows_by_tar(dataset: pa.Table) -> dict[str, pa.Table]:
    """Returns the rows of each tar, by its name relative to `shards/`; they are in its order."""
    coded = dataset["shard"].dictionary_encode().combine_chunks()
    runs = pc.run_end_encode(coded.indices)
    names = coded.dictionary.take(runs.values).to_pylist()
    ends = runs.run_ends.to_pylist()
    return {
        name: dataset.slice(start, end - start)
        for name, start, end in zip(names, [0, *ends], ends, strict=False)
    }


def index_bytes(offsets: Sequence[int]) -> bytes:
    """Encodes a `TarLayout`'s `offsets` as uint64, little-endian."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def meta_lines(plan: ShardPlan) -> bytes:
    """Returns the JSON of each sample, one line each."""
    return b"".join(sample.json() + b"\n" for sample in plan.samples)


def set_files(
    shards: Shards,
    before: EarlierShards | None = None,
    *,
    columns: Declared = MappingProxyType({}),
    seed: int,
    fingerprint: str,
    made_by: str,
    scores: Iterable[str] = (),
) -> dict[str, bytes]:
    """Returns the files that describe all shards, by name under the output root.

    The files are in the order of writing, the manifest last. `columns` has declarations of families
    of columns by name.
    """
    plans = {tar.name: plan for plan, tar in shards}
    rows = rows_by_tar(before.dataset) if before is not None else {}
    tars = [*(before.tars if before is not None else ()), *(tar for _, tar in shards)]
    tars.sort(key=lambda tar: tar.name)
    tables = (rows[t.name] if t.name in rows else dataset_table(plans[t.name]) for t in tars)
    declared = {**(before.declared if before is not None else {}), **columns}
    for plan in plans.values():
        for member in chain.from_iterable((*s.stored, *s.side_members) for s in plan.samples):
            if member.suffix not in declared:
                declared[member.suffix] = member.version.to_json()
    return described_files(
        tars,
        parquet_by_content(tables, DATASET_SCHEMA, DATASET_KEY)[1],
        declared=declared,
        seed=seed,
        fingerprint=fingerprint,
        made_by=made_by,
        scores=scores,
    )


def described_files(
    tars: Sequence[DescribedTar],
    dataset: bytes,
    *,
    declared: Declared,
    seed: int,
    fingerprint: str,
    made_by: str,
    scores: Iterable[str],
) -> dict[str, bytes]:
    """Does the same as `set_files`, from facts about tars (sorted by name) instead of plans.

    `dataset` has the bytes of `dataset.parquet`. `declared` has declarations of families, by member
    or name. `scores` are the names of the scores in the JSON of samples.
    """
    files = {DATASET: dataset, **dict(_files(tars, dataset, declared, scores))}
    by_place: dict[str, dict[str, Any]] = {}
    for name, value in sorted(declared.items()):
        by_place.setdefault(MEMBERS if value["member"] else COLUMNS, {})[name] = value
    buckets = sorted({tar.bucket for tar in tars})
    counts = _totals(tars) | {
        "by_split": {split: _totals(t for t in tars if t.split == split) for split in SPLITS},
        "by_bucket": {name: _totals(t for t in tars if t.bucket == name) for name in buckets},
    }
    manifest = {
        "version": MANIFEST_VERSION,
        "made_by": made_by,
        "recipe_fingerprint": fingerprint,
        "seed": seed,
        "counts": counts,
        **by_place,
        "shards": [tar.entry() for tar in tars],
        "files": {name: Digest.of(data).as_dict() for name, data in sorted(files.items())},
    }
    named = {f"{SHARDS}/{name}": data for name, data in files.items()}
    return named | {MANIFEST: sealed_json(manifest, _json, MANIFEST)}


def _totals(tars: Iterable[DescribedTar]) -> dict[str, Any]:
    tars = list(tars)
    return {
        "shards": len(tars),
        "samples": sum(tar.samples for tar in tars),
        "frames": sum(tar.frames for tar in tars),
        "bytes": sum(tar.bytes for tar in tars),
        "seconds": round(sum(tar.seconds for tar in tars), 3),
    }


def known_tars(manifest: Mapping[str, Any]) -> dict[str, DescribedTar]:
    """Returns tars of a manifest, by name relative to `shards/`; none if its version differs."""
    if manifest.get("version") != MANIFEST_VERSION:
        return {}
    return {
        entry["name"]: DescribedTar(
            **{name: entry[name] for name in (*_ENTRY, *_LATER) if name in entry}
        )
        for entry in manifest["shards"]
        if all(name in entry for name in _ENTRY)
    }


def described_tars(
    manifest: Mapping[str, Any], dataset: pa.Table, entries: Iterable[Mapping[str, Any]]
) -> dict[str, DescribedTar]:
    """Returns the tars of a snapshot, by name relative to `shards/`.

    `dataset` is in the order of the tars. `entries` are those of the summary.
    """
    tars, seconds = known_tars(manifest), defaultdict[str, float](float)
    # The order of the samples fixes the rounding of the sums.
    for name, duration in zip(
        *(dataset[n].to_pylist() for n in ("shard", "duration")), strict=True
    ):
        seconds[name] += duration
    members = {entry["name"].removeprefix(f"{SHARDS}/"): entry["members"] for entry in entries}
    return {
        entry["name"]: replace(
            tars[entry["name"]],
            seconds=seconds[entry["name"]],
            members=members[entry["name"]],
        )
        for entry in manifest["shards"]
    }


def members_of(sample: Sample) -> dict[str, bool]:
    """Returns whether a sample has each optional member, by option of `dataset_card`."""
    return {
        "with_embedding": sample.embedding is not None,
        "with_id": sample.has_id,
        "with_annotation": "annotation" in sample.metadata,
        "with_windows": WINDOWED[0] in sample.metadata,
    }


def members_table(plans: Iterable[ShardPlan]) -> Iterator[pa.Table]:
    """Yields the rows of the table `members`, one table per tar."""
    for plan in plans:
        yield rows_to_table(
            (
                {
                    "clip_id": sample.key,
                    "member": member.suffix,
                    "family": member.version.family.name,
                    "fingerprint": member.version.fingerprint,
                    "key": member.key,
                    "mp4_distance": distance,
                    "bytes": member.n_bytes,
                }
                for sample in plan.samples
                for member, distance in (*sample.distances(), *_side_members(sample))
            ),
            MEMBERS_SCHEMA,
        )


def _side_members(sample: Sample) -> Iterator[tuple[StoredMember, None]]:
    return ((member, None) for member in sample.side_members)


def _bucket_captions(dataset: bytes) -> dict[str, bytes]:
    """Returns `captions.json` of each bucket with clips for training; reads rows in batches."""
    lines: defaultdict[str, list[bytes]] = defaultdict(list)
    columns = ["bucket", "split", "path", "text"]
    for batch in pq.ParquetFile(pa.BufferReader(dataset)).iter_batches(columns=columns):
        rows = of_training(pa.Table.from_batches([batch]))
        for bucket in rows["bucket"].unique().to_pylist():
            lines[bucket] += caption_lines(rows.filter(pc.equal(rows["bucket"], bucket)))
    return {bucket: captions_file(own) for bucket, own in lines.items()}


def current_rows(dataset: pa.Table) -> pa.Table:
    """Returns rows of `dataset.parquet` with all columns, null where an older version lacks one."""
    for column in DATASET_SCHEMA:
        if column.name not in dataset.column_names:
            dataset = dataset.append_column(column, pa.nulls(dataset.num_rows, column.type))
    return dataset.select(DATASET_SCHEMA.names).cast(DATASET_SCHEMA)


def dataset_table(plan: ShardPlan) -> pa.Table:
    """Returns the rows of a tar in `dataset.parquet`."""
    shard = plan.name.removeprefix(f"{SHARDS}/")
    rows = []
    sides = {side.suffix: side for side in plan.sides}
    for sample, offset in zip(plan.samples, plan.layout.mp4_starts, strict=True):
        json_text, text, _ = sample.texts()
        row = sample_row(shard, sample.key, orjson.loads(json_text), text.decode())
        place = {"offset": offset, "bytes": sample.mp4_bytes}
        side_members = [
            sides[value.suffix].place(sample.key, value) for value in sample.side_members
        ]
        rows.append(row | place | member_columns(sample.members()) | {"side_members": side_members})
    return rows_to_table(rows, DATASET_SCHEMA)


def side_entry(side: SidePlan) -> dict[str, Any]:
    """Returns what is known of a side tar before it is written."""
    name = side.name.removeprefix(f"{SHARDS}/")
    return {"name": name, "samples": len(side.values), "bytes": side.n_bytes}


def sample_row(shard: str, key: str, fields: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Returns the columns of `dataset.parquet` that a sample's JSON and caption determine.

    `shard` is the name of the sample's tar, relative to `shards/`; `text` is the caption.
    """
    bucket, _, name = shard.rpartition("/")
    height, width = fields["height"], fields["width"]
    return {
        "clip_id": key,
        "path": f"{shard}#{key}.{fields.get('format', 'mp4')}",
        "shard": shard,
        "split": "val" if name.startswith("val-") else "train",
        "bucket": bucket,
        "text": text,
        "num_frames": fields["n_frames"],
        "height": height,
        "width": width,
        "aspect_ratio": height / width,
        "resolution": height * width,
        "fps": fields["fps"],
        "duration": fields.get("duration"),
        "source_id": fields["source_id"],
        "source_uri": fields.get("source_uri"),
        "sha256": fields["mp4_sha256"],
        "license": fields.get("license"),
    }


def _files(
    tars: Sequence[DescribedTar], dataset: bytes, declared: Declared, scores: Iterable[str]
) -> Iterator[tuple[str, bytes]]:
    # Without captions, which are most of a row.
    there = pq.read_schema(pa.BufferReader(dataset)).names
    columns = [name for name in there if name not in ("text", "path", "source_uri", "sha256")]
    rows = pq.read_table(pa.BufferReader(dataset), columns=columns)
    captions = _bucket_captions(dataset)
    for split in SPLITS:
        yield f"wids-{split}.json", wids_file(tar for tar in tars if tar.split == split)
    for folder in ["", *sorted({tar.bucket for tar in tars})]:
        inside = [tar for tar in tars if folder in ("", tar.bucket)]
        own = rows.filter(pc.equal(rows["bucket"], folder)) if folder else rows
        prefix = f"{folder}/" if folder else ""
        for name, data in energon_files(inside, own, prefix=prefix):
            yield f"{prefix}.nv-meta/{name}", data
        if folder:
            yield f"{prefix}{CAPTIONS}", captions.get(folder, captions_file(()))
        first: Mapping[str, Any] = inside[0].members if inside else {}
        names = by_split(inside, prefix)
        yield (
            f"{prefix}{CARD}",
            dataset_card(
                names,
                declared=declared,
                scores=scores,
                formats=_formats(own),
                licenses=_licenses(own),
                **first,
            ),
        )
    yield from _side_files(tars, rows, declared)


def _licenses(rows: pa.Table) -> dict[str, int]:
    """Returns the number of samples by licence, of those with one; the most first."""
    if "license" not in rows.column_names:
        return {}
    counts = Counter(rows["license"].drop_null().to_pylist())
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _formats(rows: pa.Table) -> tuple[ClipFormat, ...]:
    """Returns the formats of the clips' files; rows of older versions name no members."""
    if "members" not in rows.column_names:
        return ("mp4",)
    suffixes = {s for text in rows["members"].unique().to_pylist() for s in (text or "").split(" ")}
    return tuple(name for name in CLIP_FORMATS if name in suffixes) or ("mp4",)


def _side_files(
    tars: Sequence[DescribedTar], rows: pa.Table, declared: Declared
) -> Iterator[tuple[str, bytes]]:
    """Yields the files by which Megatron-Energon joins families in side tars with the samples."""
    families = {suffix: Family.from_json(value) for suffix, value in declared.items()}
    for suffix, family in sorted(families.items()):
        if family.place is not Place.SIDE or not any(suffix in tar.sides for tar in tars):
            continue
        own = [
            DescribedTar(
                name=tar.sides[suffix]["name"], bucket=tar.bucket, split=tar.split,
                samples=tar.sides[suffix]["samples"], bytes=tar.sides[suffix]["bytes"],
            )
            for tar in tars
            if suffix in tar.sides
        ]  # fmt: skip
        prefix = f"{SIDES}/{family.name}/"
        names = {tar.name: tar.sides[suffix]["name"] for tar in tars if suffix in tar.sides}
        places = side_rows(rows, suffix, names)
        for name, data in energon_files(own, places, prefix=prefix):
            yield f"{prefix}.nv-meta/{name}", data


def of_training(rows: pa.Table) -> pa.Table:
    """Returns the rows of `train`: who trains on a folder must not train on clips of `val`."""
    return rows.filter(pc.equal(rows["split"], "train"))


def by_split(tars: Iterable[DescribedTar], prefix: str) -> dict[Split, list[str]]:
    """Returns the names of the tars of each split; removes `prefix` from the names."""
    names: dict[Split, list[str]] = {split: [] for split in SPLITS}
    for tar in tars:
        names[tar.split].append(tar.name.removeprefix(prefix))
    return names


def wids_file(tars: Iterable[DescribedTar], **further: object) -> bytes:
    """Returns the wids index of one split's tars, with addresses relative to the index.

    wids ignores `further` fields, and gives them to programs as `ShardListDataset.spec`.
    """
    fields = {"url": "name", "md5sum": "md5", "nsamples": "samples", "filesize": "bytes"}
    listed = [{field: getattr(tar, name) for field, name in fields.items()} for tar in tars]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}
    # Of many numbers, indented JSON takes a second.
    return orjson.dumps(index | further) + b"\n" if further else _json(index)


def energon_files(
    tars: Sequence[DescribedTar], rows: pa.Table, *, prefix: str, exclude: Sequence[str] = ()
) -> Iterator[tuple[str, bytes]]:
    """Yields the name and contents of each file in a folder `.nv-meta`.

    `tars` are all tars below the parent folder of `.nv-meta`, and `rows` their rows of
    `dataset.parquet`. `prefix` is the path of this parent folder under `shards/`, with a final
    slash, or empty; names in the files are relative to it. `exclude` has the samples that readers
    skip, as `<tar>/<key>`.
    """
    counts = {tar.name.removeprefix(prefix): tar.samples for tar in tars}
    # A library's YAML writer takes seconds for many tars, and their names need no quotes.
    lines = ["split_parts:"]
    for split, names in by_split(tars, prefix).items():
        lines += [f"  {split}:" if names else f"  {split}: []", *(f"  - {name}" for name in names)]
    lines += ["exclude:" if exclude else "exclude: []", *(f"- {name}" for name in exclude)]
    yield "split.yaml", "\n".join([*lines, ""]).encode()
    # `CrudeWebdataset` passes all members unchanged: the trainer makes its samples from them.
    yield "dataset.yaml", b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    yield from energon_database(rows, [tar.name for tar in tars]).items()
    # The counts come after the splits: until then, a commit keeps counts of old and new tars.
    yield ".info.json", _json({"energon_version": ENERGON_VERSION, "shard_counts": counts})


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
