#!/usr/bin/env python3
"""Counts values that repeat over the samples of outputs, and what storing them each time costs.

    repeated_values.py OUT... [--batch 8] [--rounds 5]

- Members of tars, by suffix: bytes, and the bytes that would be left if each distinct value were
  stored once in its tar, or once in the output. A member takes a header of 512 bytes, and is padded
  to a multiple of 512. The same of the keys of the samples' JSON, without headers.
- A row group of the table `clips`: bytes of what names a clip's source, plain and as dictionary.
- The loader: CPU-milliseconds of a sample with 17 frames, and of decoding the caption's embedding,
  for each sample and once for equal ones of a batch, as `ClipDataset` does.
"""

import io
import statistics
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from measure import arguments, tell

from curator.loading import ClipDataset
from curator.loading.batch_values import caption_embeddings
from curator.stages.shard.sample import padded
from curator.stages.shard.tar_reader import BLOCK

Value = tuple[str, str, bytes, int]
"""Tar, name, content and stored bytes."""
OF_SOURCE, ROWS = ("source_uri", "source_id"), 65_536
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "dictionary": {"use_dictionary": True, "compression": "none"},
    "as_written": {"use_dictionary": True, "compression": "zstd"},
}


def main() -> None:
    """Counts and prints."""
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path, nargs="+", help="output root of `curate run`")
    parser.add_argument("--batch", type=int, default=8, help="samples of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="epochs that are timed")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for out in args.out:
        members = list(_members(out))
        vectors = [data for _, suffix, data, _ in members if suffix == "text.npy"]
        results[out.name] = found = {
            "members": _repeats(members),
            "json": _repeats(_json_values(members)),
            "clips_bytes": _parquet(out),
            "loader_ms": _loading(out, args.batch, args.rounds)
            | _decoding(vectors, args.batch, args.rounds),
        }
        print(_text(out.name, found), found["clips_bytes"], found["loader_ms"], sep="\n")
    tell(results)


def _members(out: Path) -> Iterator[Value]:
    for shard in orjson.loads((out / "shards/manifest.json").read_bytes())["shards"]:
        with tarfile.open(out / "shards" / shard["name"]) as tar:
            for info in tar:
                data = cast(IO[bytes], tar.extractfile(info)).read()
                yield shard["name"], info.name.partition(".")[2], data, BLOCK + padded(len(data))


def _json_values(members: Iterable[Value]) -> Iterator[Value]:
    for tar, suffix, data, _ in members:
        for key, value in (orjson.loads(data) if suffix == "json" else {}).items():
            said = orjson.dumps(value)
            # Quotes, a colon and a comma belong to each key.
            yield tar, key, said, len(key) + len(said) + 4


def _repeats(values: Iterable[Value]) -> dict[str, dict[str, float]]:
    """Counts and bytes by name, those of the most bytes first."""
    found: dict[str, list[tuple[str, bytes, int]]] = defaultdict(list)
    for tar, name, data, n_bytes in values:
        found[name].append((tar, data, n_bytes))
    rows: dict[str, dict[str, float]] = {}
    for name, stored in sorted(found.items(), key=lambda item: -sum(n for *_, n in item[1])):
        times = Counter(data for _, data, _ in stored)
        rows[name] = {
            "n": len(stored),
            "equal_share": sum(n for n in times.values() if n > 1) / len(stored),
            "bytes": sum(n for *_, n in stored),
            "once_in_tar": sum({(tar, data): n for tar, data, n in stored}.values()),
            "once": sum({data: n for _, data, n in stored}.values()),
        }
    return rows


def _parquet(out: Path) -> dict[str, dict[str, int]]:
    """Bytes of a row group of columns of the source, with as many clips of each source as here."""
    parts = orjson.loads((out / "summary.json").read_bytes())["tables"]["clips"]
    table = pa.concat_tables([pq.read_table(out / part, columns=[*OF_SOURCE]) for part in parts])
    found: dict[str, dict[str, int]] = {}
    for name in OF_SOURCE:
        rounds = range(ROWS // len(table) + 1)
        values = pa.array([f"{n}{value}" for n in rounds for value in table[name].to_pylist()])
        found[name] = {}
        for form, options in FORMS.items():
            file = io.BytesIO()
            pq.write_table(pa.table({name: values}).slice(0, ROWS), file, **options)
            found[name][form] = file.tell()
    return found


def _loading(out: Path, batch: int, rounds: int) -> dict[str, float]:
    data = ClipDataset(str(out), batch_size=batch, window="first")
    return {"frames": _median_ms(lambda: sum(len(one["key"]) for one in data), rounds)}


def _decoding(vectors: Sequence[bytes], batch: int, rounds: int) -> dict[str, float]:
    def decode(at_a_time: int) -> int:
        for begin in range(0, len(vectors), at_a_time):
            caption_embeddings(vectors[begin : begin + at_a_time])
        return len(vectors)

    each, once = _median_ms(lambda: decode(1), rounds), _median_ms(lambda: decode(batch), rounds)
    return {"text_each": each, "text_once_in_batch": once}


def _median_ms(work: Callable[[], int], rounds: int) -> float:
    """CPU-milliseconds a sample of work that returns their number; the first round warms up."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        n = work()
        taken.append((time.process_time() - start) / n * 1000)
    return statistics.median(taken[1:])


def _text(name: str, result: dict[str, Any]) -> str:
    lines = [f"\n## {name}\n", "| | values | equal to another | bytes | once in a tar | once |"]
    for kind in ("members", "json"):
        for key, row in result[kind].items():
            cells = f"{row['n']} | {row['equal_share']:.2f} | {row['bytes']:,}"
            lines.append(f"| {kind} {key} | {cells} | {row['once_in_tar']:,} | {row['once']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
