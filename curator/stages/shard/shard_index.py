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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import pyarrow as pa

from curator.stages.shard.dataset_card import CARD, dataset_card
from curator.stages.shard.shard_plan import ShardPlan, TarLayout
from curator.stages.shard.tar_reader import SPLITS, Split
from curator.tables.checksums import sealed_json
from curator.tables.out_layout import MANIFEST, SHARDS
from curator.tables.parts import rows_to_table, tables_to_parquet

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
class Shard:
    """A finished tar."""

    plan: ShardPlan
    layout: TarLayout
    facts: ShardFacts

    @property
    def name(self) -> str:
        """Name relative to `shards/`."""
        return self.plan.name.removeprefix(f"{SHARDS}/")


def index_bytes(offsets: Sequence[int]) -> bytes:
    """Encodes offsets of samples' first headers and of the last one's end, uint64 little-endian."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def meta_lines(plan: ShardPlan) -> bytes:
    """Returns a line per sample: its JSON."""
    return b"".join(sample.json() + b"\n" for sample in plan.samples)


def set_files(shards: Sequence[Shard], *, seed: int, stamp: str, made_by: str) -> dict[str, bytes]:
    """Returns the files that describe all shards together, which are sorted by name.

    They are by name under the output root, in writing order: the manifest is the last.
    """
    files = dict(_files(shards))
    manifest = {
        "version": MANIFEST_VERSION,
        "made_by": made_by,
        "recipe_fingerprint": stamp,
        "seed": seed,
        "counts": _counts(shards),
        "shards": [_entry(shard) for shard in shards],
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(files.items())
        },
    }
    named = {f"{SHARDS}/{name}": data for name, data in files.items()}
    return named | {MANIFEST: sealed_json(manifest, _json)}


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


def dataset_table(shard: Shard) -> pa.Table:
    """Returns the rows of a tar in `dataset.parquet`."""
    rows = []
    for sample, offset in zip(shard.plan.samples, shard.layout.mp4_starts, strict=True):
        said, text, sha256 = sample.texts()
        facts = orjson.loads(said)
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


def _files(shards: Sequence[Shard]) -> Iterator[tuple[str, bytes]]:
    yield DATASET, tables_to_parquet(map(dataset_table, shards), DATASET_SCHEMA)
    for split in SPLITS:
        of_split = (_indexed(shard) for shard in shards if shard.plan.split == split)
        yield f"wids-{split}.json", wids_file(of_split)
    folders = ["", *sorted({shard.plan.bucket for shard in shards})]
    for folder in folders:
        inside = [shard for shard in shards if folder in ("", shard.plan.bucket)]
        prefix = f"{folder}/" if folder else ""
        for name, data in energon_files([_indexed(shard) for shard in inside], prefix):
            yield f"{prefix}.nv-meta/{name}", data
        yield f"{prefix}{CARD}", _card(inside, prefix)


def _card(shards: Sequence[Shard], prefix: str) -> bytes:
    names: dict[Split, list[str]] = {split: [] for split in SPLITS}
    for shard in shards:
        names[shard.plan.split].append(shard.name.removeprefix(prefix))
    first = next((shard.plan.samples[0] for shard in shards), None)
    vector = first.text_vector if first is not None else None
    return dataset_card(
        names,
        with_embedding=first is not None and first.embedding is not None,
        with_id=first is not None and first.has_id,
        with_annotation=first is not None and "annotation" in first.metadata,
        text_vector_dims=vector.n_dims if vector is not None else 0,
    )


def _indexed(shard: Shard) -> IndexedTar:
    return IndexedTar(
        name=shard.name,
        split=shard.plan.split,
        n_samples=len(shard.plan.samples),
        n_bytes=shard.facts.bytes,
        md5=shard.facts.md5,
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


def _entry(shard: Shard) -> dict[str, Any]:
    return {
        "name": shard.name,
        "bucket": shard.plan.bucket,
        "split": shard.plan.split,
        "samples": len(shard.plan.samples),
        "frames": shard.plan.totals[0],
        **asdict(shard.facts),
    }


def _counts(shards: Sequence[Shard]) -> dict[str, Any]:
    buckets = sorted({shard.plan.bucket for shard in shards})
    return _totals(shards) | {
        "by_split": {
            split: _totals([shard for shard in shards if shard.plan.split == split])
            for split in SPLITS
        },
        "by_bucket": {
            bucket: _totals([shard for shard in shards if shard.plan.bucket == bucket])
            for bucket in buckets
        },
    }


def _totals(shards: Sequence[Shard]) -> dict[str, Any]:
    return {
        "shards": len(shards),
        "samples": sum(len(shard.plan.samples) for shard in shards),
        "frames": sum(shard.plan.totals[0] for shard in shards),
        "bytes": sum(shard.facts.bytes for shard in shards),
        "seconds": round(sum(shard.plan.totals[1] for shard in shards), 3),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _split_yaml(parts: Mapping[str, Sequence[str]]) -> bytes:
    """By hand: names of tars need no quotes, and writers of YAML take seconds for many."""
    lines = ["split_parts:"]
    for split, names in parts.items():
        lines += [f"  {split}:" if names else f"  {split}: []", *(f"  - {name}" for name in names)]
    return "\n".join([*lines, "exclude: []", ""]).encode()
