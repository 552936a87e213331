#!/usr/bin/env python3
"""Reads shards from S3 as a loader does, and measures samples, requests and bytes.

    loading_s3.py s3://bucket/prefix [--upload OUT] [--rounds 5] [--delay-ms 0 30] [--decode]

The server is that of AWS_ENDPOINT_URL, with credentials from the environment. `--upload` first puts
the folder OUT/shards there (made by code if OUT does not exist). One process reads an epoch of
samples, without decoding them (or with, by --decode): `curator.loading` with its shuffle
of 64 samples and without, and webdataset on presigned addresses, which it fetches by `curl`, with
the same shuffle. Rounds alternate. `--delay-ms` holds each request up for so long in a proxy, as a
server at some distance would.

Waiting is the share of the time that was not CPU-time of this process; a process that decodes
beside its fetching waits less.
"""

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from loading import BATCH, FRAMES, SIZE, from_sample, make_shards
from measure import arguments, tell

from curator.loading import ClipDataset
from curator.loading.window_decoder import ClipWindow
from curator.storage import open_store
from curator.storage.s3_client import client


def delaying_proxy(server: str, delay_s: float) -> str:
    """Starts a process that passes connections on, what clients send a little late.

    Args:
        server: Address, http://host:port.
        delay_s: By how much.

    Returns:
        The address of the proxy.
    """
    told, tell = multiprocessing.Pipe(duplex=False)
    proxy = multiprocessing.Process(
        target=lambda: asyncio.run(_serve(server, delay_s, tell)), daemon=True
    )
    proxy.start()
    address: str = told.recv()
    return address


async def _serve(server: str, delay_s: float, tell: Connection) -> None:
    parts = urlsplit(server)

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(_copy(reader, to_server, delay_s), _copy(from_server, writer, 0.0))

    listening = await asyncio.start_server(passed, "127.0.0.1", 0)
    tell.send("http://{}:{}".format(*listening.sockets[0].getsockname()))
    await listening.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            if delay_s:
                await asyncio.sleep(delay_s)
            writer.write(data)
            await writer.drain()
    writer.close()


class Requests:
    """Counts the requests of this process's client, and the bytes that were asked for."""

    def __init__(self) -> None:
        self.n, self.n_bytes = 0, 0
        client().meta.events.register("after-call.s3", self._count)

    def _count(self, parsed: dict[str, Any], **_: object) -> None:
        self.n += 1
        self.n_bytes += parsed.get("ContentLength", 0)


def upload(out: Path, uri: str) -> None:
    """Puts the shards under the address, in place of what is there."""
    if not out.exists():
        make_shards(out, 12)
    store = open_store(f"{uri}/shards")
    bucket = uri.removeprefix("s3://").partition("/")[0]
    client().create_bucket(Bucket=bucket)
    for path in sorted((out / "shards").rglob("*")):
        if path.is_file():
            store.write(str(path.relative_to(out / "shards")), path.read_bytes())


def curate(uri: str, shuffle: int, decode: bool) -> Iterator[int]:
    """Bytes of the samples' MP4s, by `curator.loading`."""
    dataset = ClipDataset(uri, batch_size=BATCH, frames=FRAMES, size=(SIZE, SIZE), shuffle=shuffle)
    read: list[int] = []

    def note(clip: ClipWindow, _: object) -> None:
        read.append(len(clip.mp4))

    if decode:
        for batch in dataset:
            yield from (0 for _ in batch["key"])
        return
    with mock.patch("curator.loading.dataset.decode_window", note):
        for _ in dataset:
            yield from read
            read.clear()


def plain(uri: str, decode: bool) -> Iterator[int]:
    """The same by webdataset, whose way to addresses is a process of `curl`."""
    import webdataset

    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    names = [found.key for found in open_store(uri).list() if found.key.endswith(".tar")]
    urls = [
        client().generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": f"{prefix}/{name}"}
        )
        for name in names
    ]
    source = webdataset.WebDataset(
        [f"pipe:curl -s -f -L '{url}'" for url in urls], shardshuffle=len(urls), seed=0
    )
    for sample in source.shuffle(64):
        if decode:
            from_sample(sample)
        yield len(sample["mp4"])


def one_round(read: Callable[[], Iterator[int]]) -> dict[str, float]:
    """An epoch."""
    requests = Requests()
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    first_s, n, n_bytes = None, 0, 0
    for size in read():
        first_s = first_s or time.perf_counter() - begun_s
        n, n_bytes = n + 1, n_bytes + size
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    return {
        "samples": n,
        "samples_per_s": n / wall_s,
        "first_s": first_s or 0.0,
        "waiting": max(0.0, 1 - cpu_s / wall_s),
        "cpu_ms": 1e3 * cpu_s / n,
        "requests": requests.n / n,
        "fetched": requests.n_bytes / n_bytes if n_bytes else 0.0,
    }


def main() -> None:
    """Uploads, measures, and prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("uri", help="s3://bucket/prefix")
    parser.add_argument("--upload", type=Path, help="folder OUT to put there first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, nargs="*", default=[0.0, 30.0])
    parser.add_argument("--decode", action="store_true", help="decode the windows too")
    args = parser.parse_args()
    server = os.environ["AWS_ENDPOINT_URL"]
    if args.upload:
        upload(args.upload, args.uri.rstrip("/"))
    readers = {
        "curator.loading, shuffle=64": lambda: curate(args.uri, 64, args.decode),
        "curator.loading, shuffle=0": lambda: curate(args.uri, 0, args.decode),
        "webdataset": lambda: plain(args.uri, args.decode),
    }
    result: dict[str, Any] = {}
    for delay_ms in args.delay_ms:
        address = delaying_proxy(server, delay_ms / 1e3) if delay_ms else server
        os.environ["AWS_ENDPOINT_URL"] = address
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
        for number in range(args.rounds):
            for name, read in readers.items():
                rows[name].append(one_round(read))
                print(delay_ms, number, name, rows[name][-1], flush=True)
        result[f"{delay_ms:g} ms"] = {
            name: {
                key: [pick(row[key] for row in found) for pick in (statistics.median, min, max)]
                for key in found[0]
            }
            for name, found in rows.items()
        }
    keys = "samples_per_s", "first_s", "waiting", "cpu_ms", "requests", "fetched"
    for delay, found in result.items():
        print(f"\n{delay:<28}" + "".join(f"{key:>24}" for key in keys))
        for name, row in found.items():
            cells = ("{:.2f} ({:.2f}-{:.2f})".format(*row[key]) for key in keys)
            print(f"{name:<28}" + "".join(f"{cell:>24}" for cell in cells))
    tell({"decode": args.decode, "delays": result})


if __name__ == "__main__":
    main()
