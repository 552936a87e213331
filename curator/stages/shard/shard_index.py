"""The indexes of the tars, for each kind of reader.

Next to each tar are `.tar.idx` (Megatron-Energon) and `.meta.jsonl`; under `shards/` are
`.nv-meta/*` (Megatron-Energon, for all buckets and for each), `wids-<split>.json` (wids),
`dataset.parquet` (tables of clips, as Open-Sora's loaders take them), `README.md` (Hugging Face
`datasets`, for all buckets and for each) and `manifest.json`, which is written after them and names
all others. Names in them are relative to their folder, so that it can be moved.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from curator.stages.shard.dataset_card import CARD, dataset_card
from curator.stages.shard.sample import Sample
from curator.stages.shard.shard_plan import ShardPlan, TarLayout
from curator.stages.shard.tar_reader import (
    COLUMNS,
    SPLITS,
    Declared,
    Split,
    declared_families,
)
from curator.tables.checksums import sealed_json
from curator.tables.out_layout import DATASET as DATASET_KEY
from curator.tables.out_layout import MANIFEST, SHARDS
from curator.tables.parts import parquet_by_content, rows_to_table
from curator.tables.sample_members import MEMBERS, MEMBERS_SCHEMA

MANIFEST_VERSION = 1
DATASET = "dataset.parquet"

ENERGON_VERSION = "7.4.1"
"""The release of Megatron-Energon whose files these are."""

DATASET_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("path", pa.string()),
        ("shard", pa.string()),
        ("split", pa.string()),
        ("bucket", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("text", pa.string()),
        ("num_frames", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("aspect_ratio", pa.float64()),
        ("resolution", pa.int64()),
        ("fps", pa.float64()),
        ("duration", pa.float64()),
        ("source_id", pa.string()),
        ("source_uri", pa.string()),
        ("sha256", pa.string()),
    ]
)
"""A row per sample, in the order of the tars. `path` is `<tar>#<key>.mp4`; `offset`, `bytes` and
`sha256` are those of the MP4 in the tar; `aspect_ratio` is height by width, `resolution` height
times width, `duration` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """Size and hashes, in hex, of a tar, its index and its metadata."""

    bytes: int
    sha256: str
    md5: str
    """For wids, which knows no other hash."""
    idx_sha256: str
    meta_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedTar:
    """The facts of a tar in readers' indexes; its name is relative to `shards/`."""

    name: str
    split: str
    n_samples: int
    n_bytes: int
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShard:
    """A finished tar."""

    plan: ShardPlan
    layout: TarLayout
    facts: ShardFacts

    @property
    def name(self) -> str:
        """Name relative to `shards/`."""
        return self.plan.name.removeprefix(f"{SHARDS}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTar:
    """What the files that describe all shards say of a tar; its name is relative to `shards/`."""

    name: str
    bucket: str
    split: Split
    samples: int
    frames: int
    seconds: float
    facts: ShardFacts

    def entry(self) -> dict[str, Any]:
        """Returns its entry in the manifest."""
        names = ("name", "bucket", "split", "samples", "frames")
        return {name: getattr(self, name) for name in names} | asdict(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierShards:
    """The shards of earlier generations, which stay as they are.

    Attributes:
        facts: Entries of the summary, by name.
        tars: For the files that describe all shards, by name.
        dataset: Rows of `dataset.parquet`, in the order of the tars.
        declared: As the manifest has it.
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
        tars = list(described_tars(manifest, dataset).values())
        declared = declared_families(manifest)
        return cls(facts=summary["shards"], tars=tars, dataset=dataset, declared=declared)

    def rows(self) -> dict[str, pa.Table]:
        """Returns the rows of each tar, by its name relative to `shards/`."""
        runs = pc.run_end_encode(self.dataset["shard"].combine_chunks())
        ends = runs.run_ends.to_pylist()
        starts = [0, *ends]
        return {
            name: self.dataset.slice(start, end - start)
            for name, start, end in zip(runs.values.to_pylist(), starts, ends, strict=False)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMembers:
    """Optional members of samples, as a dataset card names them."""

    with_embedding: bool = False
    with_id: bool = False
    with_annotation: bool = False


def members_by_tar(entries: Iterable[Mapping[str, Any]]) -> dict[str, SampleMembers]:
    """Returns the optional members of each tar's first sample, by its name relative to `shards/`.

    Args:
        entries: Of a summary; those of older versions say nothing of some members.
    """
    own = SampleMembers.__slots__
    return {
        entry["name"].removeprefix(f"{SHARDS}/"): SampleMembers(
            **{name: entry.get("members", {}).get(name, False) for name in own}
        )
        for entry in entries
    }


def index_bytes(offsets: Sequence[int]) -> bytes:
    """Encodes offsets of samples' first headers and of the last one's end, uint64 little-endian."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def meta_lines(plan: ShardPlan) -> bytes:
    """Returns a line per sample: its JSON."""
    return b"".join(sample.json() + b"\n" for sample in plan.samples)


def set_files(
    shards: Sequence[WrittenShard],
    before: EarlierShards | None = None,
    *,
    columns: Declared = MappingProxyType({}),
    seed: int,
    fingerprint: str,
    made_by: str,
    scores: Iterable[str] = (),
) -> dict[str, bytes]:
    """Returns the files that describe all shards together, which are sorted by name.

    They are by name under the output root, in writing order: the manifest is the last. `columns`
    has families of columns by name.
    """
    new = {shard.name: shard for shard in shards}
    rows = before.rows() if before is not None else {}
    members = members_by_tar(before.facts) if before is not None else {}
    tars = [*(before.tars if before is not None else ()), *map(_described, shards)]
    tars.sort(key=lambda tar: tar.name)
    tables = (rows[tar.name] if tar.name in rows else dataset_table(new[tar.name]) for tar in tars)
    declared = {**(before.declared if before is not None else {}), **columns}
    for shard in shards:
        for sample in shard.plan.samples:
            for member in sample.stored:
                if member.suffix not in declared:
                    declared[member.suffix] = member.version.to_json()
    return described_files(
        tars,
        parquet_by_content(tables, DATASET_SCHEMA, DATASET_KEY)[1],
        lambda name: members.get(name) or members_of(new[name].plan.samples[0]),
        declared=declared,
        seed=seed,
        fingerprint=fingerprint,
        made_by=made_by,
        scores=scores,
    )


def described_files(
    tars: Sequence[DescribedTar],
    dataset: bytes,
    members: Callable[[str], SampleMembers],
    *,
    declared: Declared,
    seed: int,
    fingerprint: str,
    made_by: str,
    scores: Iterable[str],
) -> dict[str, bytes]:
    """As `set_files`, for tars of which only the facts are known.

    Args:
        tars: Sorted by name.
        dataset: Table of their samples.
        members: Gives the optional members of the first sample of a tar by name.
        declared: Families, by member or name.
        seed: Of the order of samples.
        fingerprint: Fingerprint of the recipe.
        made_by: Version.
        scores: Names of the scores in the JSON of samples.
    """
    files = {DATASET: dataset, **dict(_files(tars, members, declared, scores))}
    manifest = {
        "version": MANIFEST_VERSION,
        "made_by": made_by,
        "recipe_fingerprint": fingerprint,
        "seed": seed,
        "counts": _counts(tars),
        **_families(declared),
        "shards": [tar.entry() for tar in tars],
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(files.items())
        },
    }
    named = {f"{SHARDS}/{name}": data for name, data in files.items()}
    return named | {MANIFEST: sealed_json(manifest, _json, MANIFEST)}


def _families(declared: Declared) -> dict[str, dict[str, Any]]:
    """Returns declarations as a manifest has them: families of members, and of columns."""
    by_place: dict[str, dict[str, Any]] = {}
    for name, value in sorted(declared.items()):
        by_place.setdefault(MEMBERS if value["member"] else COLUMNS, {})[name] = value
    return by_place


def known_facts(manifest: Mapping[str, Any]) -> dict[str, ShardFacts]:
    """Returns sizes and hashes of the tars in a manifest, by name under the output root.

    The manifest of another version gives none.
    """
    if manifest.get("version") != MANIFEST_VERSION:
        return {}
    names = ShardFacts.__dataclass_fields__
    return {
        f"{SHARDS}/{entry['name']}": ShardFacts(**{name: entry[name] for name in names})
        for entry in manifest["shards"]
        if all(name in entry for name in names)
    }


def members_table(shards: Iterable[WrittenShard]) -> Iterator[pa.Table]:
    """Yields the rows of `members` of some tars, a tar at a time."""
    for shard in shards:
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
                for sample in shard.plan.samples
                for member, distance in sample.distances()
            ),
            MEMBERS_SCHEMA,
        )


def described_tars(manifest: Mapping[str, Any], dataset: pa.Table) -> dict[str, DescribedTar]:
    """Returns the tars of a manifest, by name relative to `shards/`.

    Args:
        manifest: As `known_facts` takes it.
        dataset: Rows of `dataset.parquet`, in the order of the tars.
    """
    facts = known_facts(manifest)
    seconds = _seconds(dataset)
    return {
        entry["name"]: DescribedTar(
            **{name: entry[name] for name in ("name", "bucket", "split", "samples", "frames")},
            seconds=seconds.get(entry["name"], 0.0),
            facts=facts[f"{SHARDS}/{entry['name']}"],
        )
        for entry in manifest["shards"]
    }


def _seconds(dataset: pa.Table) -> dict[str, float]:
    """Returns the seconds of each tar, added in the order of its samples."""
    sums: dict[str, float] = {}
    rows = zip(dataset["shard"].to_pylist(), dataset["duration"].to_pylist(), strict=True)
    for name, seconds in rows:
        sums[name] = sums.get(name, 0) + seconds
    return sums


def dataset_table(shard: WrittenShard) -> pa.Table:
    """Returns the rows of a tar in `dataset.parquet`."""
    rows = []
    for sample, offset in zip(shard.plan.samples, shard.layout.mp4_starts, strict=True):
        json_text, text, sha256 = sample.texts()
        facts = orjson.loads(json_text)
        rows.append(
            {
                "clip_id": sample.key,
                "path": f"{shard.name}#{sample.key}.mp4",
                "shard": shard.name,
                "split": sample.split,
                "bucket": shard.plan.bucket,
                "offset": offset,
                "bytes": sample.mp4_bytes,
                "text": text.decode(),
                "num_frames": facts["n_frames"],
                "height": facts["height"],
                "width": facts["width"],
                "aspect_ratio": facts["height"] / facts["width"],
                "resolution": facts["height"] * facts["width"],
                "fps": facts["fps"],
                "duration": facts["duration"],
                "source_id": facts["source_id"],
                "source_uri": facts["source_uri"],
                "sha256": sha256.decode(),
            }
        )
    return rows_to_table(rows, DATASET_SCHEMA)


def _files(
    tars: Sequence[DescribedTar],
    members: Callable[[str], SampleMembers],
    declared: Declared,
    scores: Iterable[str],
) -> Iterator[tuple[str, bytes]]:
    for split in SPLITS:
        yield f"wids-{split}.json", wids_file(_indexed(tar) for tar in tars if tar.split == split)
    for folder in ["", *sorted({tar.bucket for tar in tars})]:
        inside = [tar for tar in tars if folder in ("", tar.bucket)]
        prefix = f"{folder}/" if folder else ""
        for name, data in energon_files([_indexed(tar) for tar in inside], prefix):
            yield f"{prefix}.nv-meta/{name}", data
        first = members(inside[0].name) if inside else SampleMembers()
        yield f"{prefix}{CARD}", _card(inside, first, declared, prefix, scores)


def members_of(sample: Sample) -> SampleMembers:
    """Returns the optional members of a sample."""
    return SampleMembers(
        with_embedding=sample.embedding is not None,
        with_id=sample.has_id,
        with_annotation="annotation" in sample.metadata,
    )


def _card(
    tars: Sequence[DescribedTar],
    first: SampleMembers,
    declared: Declared,
    prefix: str,
    scores: Iterable[str],
) -> bytes:
    names: dict[Split, list[str]] = {split: [] for split in SPLITS}
    for tar in tars:
        names[tar.split].append(tar.name.removeprefix(prefix))
    return dataset_card(names, **asdict(first), declared=declared, scores=scores)


def _described(shard: WrittenShard) -> DescribedTar:
    n_frames, seconds = shard.plan.totals
    return DescribedTar(
        name=shard.name,
        bucket=shard.plan.bucket,
        split=shard.plan.split,
        samples=len(shard.plan.samples),
        frames=n_frames,
        seconds=seconds,
        facts=shard.facts,
    )


def _indexed(tar: DescribedTar) -> IndexedTar:
    return IndexedTar(
        name=tar.name,
        split=tar.split,
        n_samples=tar.samples,
        n_bytes=tar.facts.bytes,
        md5=tar.facts.md5,
    )


def wids_file(tars: Iterable[IndexedTar]) -> bytes:
    """Returns an index for wids of one split's tars, with addresses relative to it."""
    return _json(
        {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "shardlist": [
                {
                    "url": tar.name,
                    "md5sum": tar.md5,
                    "nsamples": tar.n_samples,
                    "filesize": tar.n_bytes,
                }
                for tar in tars
            ],
        }
    )


def energon_files(tars: Sequence[IndexedTar], prefix: str) -> Iterator[tuple[str, bytes]]:
    """Returns the files of a `.nv-meta` by their names in it.

    `tars` are all below its parent folder; `prefix` is that folder with a final slash, or empty:
    names of tars are relative to it.
    """
    names = [tar.name.removeprefix(prefix) for tar in tars]
    counts = {name: tar.n_samples for name, tar in zip(names, tars, strict=True)}
    parts: dict[str, list[str]] = {
        split: [n for n, tar in zip(names, tars, strict=True) if tar.split == split]
        for split in SPLITS
    }
    yield "split.yaml", _split_yaml(parts)
    # All members unchanged: the trainer defines the sample made of them.
    yield "dataset.yaml", b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    # Last: while the splits change, it has the counts of the old and the new tars.
    yield ".info.json", _json({"energon_version": ENERGON_VERSION, "shard_counts": counts})


def _counts(tars: Sequence[DescribedTar]) -> dict[str, Any]:
    buckets = sorted({tar.bucket for tar in tars})
    return _totals(tars) | {
        "by_split": {
            split: _totals([tar for tar in tars if tar.split == split]) for split in SPLITS
        },
        "by_bucket": {
            bucket: _totals([tar for tar in tars if tar.bucket == bucket]) for bucket in buckets
        },
    }


def _totals(tars: Sequence[DescribedTar]) -> dict[str, Any]:
    return {
        "shards": len(tars),
        "samples": sum(tar.samples for tar in tars),
        "frames": sum(tar.frames for tar in tars),
        "bytes": sum(tar.facts.bytes for tar in tars),
        "seconds": round(sum(tar.seconds for tar in tars), 3),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _split_yaml(parts: Mapping[str, Sequence[str]]) -> bytes:
    """By hand: names of tars need no quotes, and writers of YAML take seconds for many."""
    lines = ["split_parts:"]
    for split, names in parts.items():
        lines += [f"  {split}:" if names else f"  {split}: []", *(f"  - {name}" for name in names)]
    return "\n".join([*lines, "exclude: []", ""]).encode()
