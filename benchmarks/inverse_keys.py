#!/usr/bin/env python3
"""Measures what repeats over the clips of a source, and what storing it once saves.

    inverse_keys.py FOLDER [--clips 100000] [--out OUT]

Without --out, a run is made over a corpus of `tests/made_corpus.py` in FOLDER: 50 clips a source,
with metadata. With it, the tables of a finished run are measured.

Tables: columns *of the source* have one value for all clips of each source, others *repeat* if they
have at most half as many values as rows. Sizes are of plain Arrow columns, of column chunks as
stored, and of each distinct value once, in a table of its own, with a key of 32 bits per row.
Each table is also written with a dictionary for all columns, and as the package does.

Batches: what goes from a worker to the trainer, each value for each sample and each value once.
"""

import argparse
import io
import json
import pickle
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tests_path  # noqa: F401
import torch
from measure import machine

from curator.loading.batch_values import caption_embeddings, packed
from curator.tables.checksums import sealed_parquet
from curator.tables.parts import to_parquet

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

TABLES = (
    "clips", "shots", "annotations", "sidecars", "embeddings", "candidates/clips",
    "candidates/shots", "candidates/sources", "candidates/vectors", "shards/dataset.parquet",
    "tracks/frames", "tracks/motion", "tracks/audio",
)  # fmt: skip
PRETENDED_BYTES = 100
"""A made corpus has no tracks, but an object in their place."""
ROUNDS = 5
BATCHES = (8, 32)
TOKENS, DIM = 512, 4096
N_TEXTS, TEXT_CHARS = 8, 60


def main() -> None:
    """Measures; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where a corpus is made, or is already")
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="a finished run")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    out = options.out or made(options.folder / f"inverse-{options.clips}", options.clips)
    tables = {name: table for name in TABLES if (table := read(out / name)) is not None}
    clips = tables["clips"]
    found: dict[str, Any] = {
        "tables": {name: table_case(table, clips) for name, table in tables.items()},
        "metadata": table_case(with_texts(clips), clips),
        "json": json_case(out),
        "captions": caption_case(tables["shards/dataset.parquet"]),
        "batches": [batch_case(n, n_texts, out) for n in BATCHES for n_texts in (n, n // 4, 1)],
    }
    show(found)
    print(json.dumps({"rows": clips.num_rows, **found, **machine()}))


def made(out: Path, n: int) -> Path:
    """A finished run over a made corpus."""
    import made_corpus

    if not (out / "summary.json").exists():
        recipe = made_corpus.recipe_of([*made_corpus.SETTINGS, *made_corpus.META_SETTINGS])
        made_corpus.make(out, n, recipe)
        made_corpus.execute(out, recipe, -(-n // made_corpus.PER_SOURCE), meta=True)
    return out


def read(place: Path) -> pa.Table | None:
    """All rows of a table, one chunk to a column; None for none."""
    files = [place] if place.suffix else sorted(place.glob("*.parquet"))
    files = [file for file in files if file.stat().st_size > PRETENDED_BYTES]
    tables = [pq.ParquetFile(file).read().replace_schema_metadata(None) for file in files]
    whole = pa.concat_tables(tables).combine_chunks() if tables else None
    return whole if whole is not None and whole.num_rows else None


def with_texts(clips: pa.Table) -> pa.Table:
    """The table with metadata of sources: texts, as columns of a manifest give them."""
    ids = clips["source_id"].combine_chunks().dictionary_encode()
    rng = np.random.default_rng(0)
    for number in range(N_TEXTS):
        texts = [rng.bytes(TEXT_CHARS // 2).hex() for _ in ids.dictionary]
        clips = clips.append_column(f"meta.text_{number}", pa.array(texts).take(ids.indices))
    return clips


def table_case(table: pa.Table, clips: pa.Table) -> dict[str, Any]:
    """Bytes of a table, and of what repeats in it."""
    n = table.num_rows
    data = {"dictionaries": with_dictionaries(table), "now": to_parquet(table, "clips")}
    of_source, repeating = repeats(table, clips)
    stored, before = chunk_bytes(data["now"]), chunk_bytes(data["dictionaries"])
    found: dict[str, Any] = {
        "rows": n,
        "bytes": {name: len(one) for name, one in data.items()},
        "write_cpu_s": {
            "dictionaries": cpu(lambda: with_dictionaries(table)),
            "now": cpu(lambda: to_parquet(table, "clips")),
        },
        "read_cpu_s": {name: cpu(lambda one=one: opened(one)) for name, one in data.items()},
        "columns": {
            name: [table[name].nbytes, before[name], stored[name]] for name in table.column_names
        },
    }
    keyed = [("of_source", of_source, True), ("repeating", repeating, False)]
    for kind, names, is_one_key in keyed:
        found[kind] = {
            "columns": len(names),
            "plain": sum(table[name].nbytes for name in names),
            "stored": sum(stored[name] for name in names),
            "once": once(table, names, clips, is_one_key=is_one_key),
        }
    texts = [name for name in (*of_source, *repeating) if pa.types.is_string(table[name].type)]
    coded = opened(data["now"], read_dictionary=texts)
    found["memory"] = {
        "plain": table.nbytes,
        "dictionary": coded.nbytes,
        "read_cpu_s": cpu(lambda: opened(data["now"], read_dictionary=texts)),
    }
    return found


def with_dictionaries(table: pa.Table) -> bytes:
    """Parquet as the package does, but with a dictionary for each column."""
    return sealed_parquet(
        lambda writer: writer.write_table(table, row_group_size=65_536),
        table.schema,
        compression="zstd",
    )


def opened(data: bytes, **options: Any) -> pa.Table:  # noqa: ANN401 - as pyarrow's
    """All rows of Parquet bytes."""
    return pq.ParquetFile(pa.BufferReader(data), **options).read(use_threads=False)


def chunk_bytes(data: bytes) -> dict[str, int]:
    """Stored bytes by column."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    names = sorted(pq.read_schema(pa.BufferReader(data)).names, key=len, reverse=True)
    found: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            path = f"{chunk.path_in_schema}."
            owner = next(name for name in names if path.startswith(f"{name}."))
            found[owner] += chunk.total_compressed_size
    return dict(found)


def keys_of(column: pa.ChunkedArray) -> pa.Array:
    """A number for each distinct value; rows of equal values have the same."""
    values = column.combine_chunks()
    if pa.types.is_nested(values.type):
        values = pa.array([json.dumps(value) for value in values.to_pylist()])
    return values.dictionary_encode(null_encoding="encode").indices


def sources_of(table: pa.Table, clips: pa.Table) -> pa.Array | None:
    """The source of each row."""
    if "source_id" in table.column_names:
        return table["source_id"].combine_chunks()
    if "clip_id" not in table.column_names:
        return None
    rows = pc.index_in(table["clip_id"], value_set=clips["clip_id"].combine_chunks())
    return clips["source_id"].combine_chunks().take(rows.combine_chunks())


def repeats(table: pa.Table, clips: pa.Table) -> tuple[list[str], list[str]]:
    """Columns with one value for each source, and others that repeat; empty columns aside."""
    sources = sources_of(table, clips)
    of_source: list[str] = []
    repeating: list[str] = []
    if sources is None or len(sources.unique()) == len(sources):
        return of_source, repeating
    for name in table.column_names:
        column = table[name]
        if column.null_count == len(column):
            continue
        keys = keys_of(column)
        n_values = len(keys.unique())
        pairs = pa.table({"source": sources, "key": keys}).group_by(["source", "key"])
        if n_values > 1 and pairs.aggregate([]).num_rows == len(sources.unique()):
            of_source.append(name)
        elif 2 * n_values <= len(column) and not pa.types.is_floating(column.type):
            repeating.append(name)
    return of_source, repeating


def once(table: pa.Table, names: Sequence[str], clips: pa.Table, *, is_one_key: bool) -> int:
    """Bytes of distinct values and of the keys to them: one key for all columns, or one each."""
    if not names:
        return 0
    groups = [list(names)] if is_one_key else [[name] for name in names]
    total = 0
    for group in groups:
        keys = keys_of(
            pa.chunked_array([sources_of(table, clips)]) if is_one_key else table[group[0]]
        )
        first = np.unique(keys.to_numpy(), return_index=True)[1]
        distinct = to_parquet(table.select(group).take(pa.array(first)), "clips")
        key = to_parquet(pa.table({"key": keys.cast(pa.int32())}), "clips")
        total += sum(chunk_bytes(distinct).values()) + sum(chunk_bytes(key).values())
    return total


def cpu(call: Callable[[], object]) -> float:
    """Median CPU-seconds of a call."""
    spent = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return round(statistics.median(spent), 4)


def lines_of(out: Path) -> list[bytes]:
    """The JSON of samples."""
    files = sorted((out / "shards").glob("*/*.meta.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines()]


def json_case(out: Path) -> dict[str, int]:
    """Bytes of the samples' JSON, and of its fields that have one value for each source."""
    lines = lines_of(out)
    samples = [orjson.loads(line) for line in lines]
    values: dict[str, dict[str, set[bytes]]] = {}
    size: Counter[str] = Counter()
    for sample in samples:
        for name, value in sample.items():
            said = orjson.dumps(value)
            size[name] += len(name) + 4 + len(said)
            values.setdefault(name, {}).setdefault(sample["source_id"], set()).add(said)
    same = [name for name, by_source in values.items() if max(map(len, by_source.values())) == 1]
    once_each = sum(
        len(name) + 4 + len(v) for name in same for vs in values[name].values() for v in vs
    )
    packed_lines = pa.Codec("zstd").compress(b"\n".join(lines))
    return {
        "samples": len(samples),
        "sources": len({sample["source_id"] for sample in samples}),
        "bytes": sum(map(len, lines)) + len(lines),
        "of_source": sum(size[name] for name in same),
        "of_source_once": once_each,
        "zstd": len(packed_lines),
    }


def caption_case(dataset: pa.Table) -> dict[str, Any]:
    """Distinct captions of all samples, and of batches in the order of the tars."""
    texts = dataset["text"].to_pylist()
    found: dict[str, Any] = {"samples": len(texts), "distinct": len(set(texts))}
    for n in BATCHES:
        batches = list(_batches(texts, n))
        found[f"distinct_of_{n}"] = round(statistics.mean(len(set(one)) for one in batches), 2)
        sources = list(_batches(dataset["source_id"].to_pylist(), n))
        found[f"sources_of_{n}"] = round(statistics.mean(len(set(one)) for one in sources), 2)
    return found


def _batches(values: Sequence[str], n: int) -> Iterator[Sequence[str]]:
    return (values[k : k + n] for k in range(0, max(1, len(values) - n + 1), n))


def batch_case(n: int, n_texts: int, out: Path) -> dict[str, Any]:
    """Bytes and CPU-seconds of a batch of n samples with n_texts captions."""
    rng = np.random.default_rng(0)
    vectors = []
    for _ in range(n_texts):
        npy = io.BytesIO()
        np.save(npy, rng.standard_normal((TOKENS, DIM), np.float32).astype(np.float16))
        vectors.append(npy.getvalue())
    stored = [bytes(bytearray(vectors[k % n_texts])) for k in range(n)]
    facts = [orjson.loads(line) for line in lines_of(out)[:n]]

    def sent(*, is_once: bool) -> int:
        if is_once:
            found: object = caption_embeddings(stored)
        else:
            found = [torch.from_numpy(np.load(io.BytesIO(data))) for data in stored]
        return len(packed({"video": torch.empty(0), "caption_embedding": found}).rest)

    return {
        "samples": n,
        "captions": n_texts,
        "video": n * 3 * 17 * 256 * 256,
        "json": len(pickle.dumps(facts, pickle.HIGHEST_PROTOCOL)),
        "each": sent(is_once=False),
        "once": sent(is_once=True),
        "each_cpu_s": cpu(lambda: sent(is_once=False)),
        "once_cpu_s": cpu(lambda: sent(is_once=True)),
    }


def show(found: dict[str, Any]) -> None:
    """Prints tables for people."""
    print(f"{'bytes a row':<24}{'rows':>8}{'dict.':>9}{'now':>9}   "
          f"{'of the source: columns, plain, stored, once':<46}"
          f"repeating: columns, plain, stored, once")  # fmt: skip
    for name, one in [*found["tables"].items(), ("clips with 8 texts", found["metadata"])]:
        n = one["rows"]
        shown = [
            f"{part['columns']:>8}{part['plain'] / n:>10.1f}{part['stored'] / n:>10.2f}"
            f"{part['once'] / n:>10.2f}"
            for part in (one["of_source"], one["repeating"])
        ]
        each = [one["bytes"][kind] / n for kind in ("dictionaries", "now")]
        print(f"{name:<24}{n:>8}{each[0]:>9.1f}{each[1]:>9.1f}   {'   '.join(shown)}")
    print("CPU-s: write with dictionaries, now; read with dictionaries, now, strings as keys; "
          "bytes a row in memory: plain, strings as keys")  # fmt: skip
    for name, one in [*found["tables"].items(), ("clips with 8 texts", found["metadata"])]:
        times = [*one["write_cpu_s"].values(), *one["read_cpu_s"].values()]
        memory = one["memory"]
        shown_times = "".join(f"{t:>9.4f}" for t in [*times, memory["read_cpu_s"]])
        sizes = "".join(f"{memory[kind] / one['rows']:>9.1f}" for kind in ("plain", "dictionary"))
        print(f"{name:<24}{shown_times}{sizes}")
    print("json", found["json"])
    print("captions", found["captions"])
    for batch in found["batches"]:
        print("batch", batch)


if __name__ == "__main__":
    main()
