"""Measures reading topics of MCAP files: time per message, and what damage does.

    python benchmarks/mcap_rows.py [--messages N] [--damages N]

A damage is a flipped bit, eight random or set bytes, or up to 49 bytes that are missing. A result
is right if the file is refused, or if all rows are as they were.
"""

import argparse
import io
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mcap.writer import CompressionType, IndexType

from curator.storage.mcap_topics import McapFileError, read_topic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from made_mcaps import START_NS, TOPIC, write_json, write_ros2

WRITERS: dict[str, Callable[..., Path]] = {
    "JSON, zstd": write_json,
    "ROS 2, LZ4": write_ros2,
    "JSON, no compression": partial(write_json, compression=CompressionType.NONE),
    "JSON, no chunks": partial(write_json, use_chunking=False, enable_data_crcs=True),
    "JSON, no summary": partial(
        write_json, index_types=IndexType.NONE, repeat_channels=False, repeat_schemas=False,
        use_statistics=False, use_summary_offsets=False, enable_data_crcs=True,
    ),
}  # fmt: skip

read = partial(
    read_topic, topic=TOPIC, time="header.stamp", fields=["number", "position"], unit="ns"
)


def damaged(whole: bytes, random: np.random.Generator) -> bytes:
    """The file with one damage."""
    data, at = bytearray(whole), int(random.integers(len(whole)))
    kind = random.integers(4)
    if kind == 0:
        data[at] ^= 1 << int(random.integers(8))
    elif kind == 1:
        data[at : at + 8] = random.bytes(8)
    elif kind == 2:
        data[at : at + 8] = b"\xff" * 8
    else:
        del data[at : at + int(random.integers(1, 50))]
    return bytes(data)


def main() -> None:
    """Prints a table, and JSON as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--damages", type=int, default=1000)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "a.mcap")
        for layout, write in WRITERS.items():
            rows = [(START_NS + 10**6 * k, k) for k in range(options.messages)]
            # Imports take a second.
            read(io.BytesIO(write(path, rows[:1]).read_bytes()))
            many = write(path, rows, chunk_size=1 << 20)
            start = time.process_time()
            n_rows = read(io.BytesIO(many.read_bytes())).num_rows
            us = (time.process_time() - start) / n_rows * 1e6
            whole = write(path, [(START_NS + 10**6 * k, k) for k in range(200)]).read_bytes()
            expected, random = read(io.BytesIO(whole)), np.random.default_rng(0)
            found = Counter[str]()
            for _ in range(options.damages):
                data = damaged(whole, random)
                try:
                    is_same = read(io.BytesIO(data)).equals(expected)
                    found["same" if is_same else "wrong"] += 1
                except McapFileError:
                    found["refused"] += 1
            results.append({"layout": layout, "us": round(us, 1), **found})
            print(layout, f"{us:.1f} us", dict(found), sep=" | ")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
