"""What it costs to ask a server for captions: our client on urllib3, and the `openai` package.

For each client, in a process of its own: CPU-seconds and memory of its start, then CPU-milliseconds
per request of 430 KB (8 JPEGs in base64) with 1, 32 and 256 requests in flight, from frames in
memory to the text of the answer. The server is the tests' fake one, in a process of its own, so
that CPU-seconds are the client's alone.

    python benchmarks/captioner_transport.py [--rounds 5] [--before CHECKOUT]

`--before` measures the client of another checkout too, by that checkout's own copy of this script.
"""

import argparse
import asyncio
import base64
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLIENTS = ("curator", "openai")
IN_FLIGHT = {1: 60, 32: 320, 256: 512}
"""Requests that are made, by how many are in flight."""
N_FRAMES, FRAME_BYTES = 8, 40_000


def jpegs() -> list[bytes]:
    """Pictures that the server can read, with bytes after their end up to `FRAME_BYTES`."""
    sys.path.insert(0, str(ROOT / "tests"))
    from marked import marked_jpeg

    rest = os.urandom(FRAME_BYTES)
    return [(marked_jpeg(1, frame) + rest)[:FRAME_BYTES] for frame in range(N_FRAMES)]


def rss_mib() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


Ask = Callable[[int], Awaitable[str]]
Loads = dict[str, dict[str, list[float]]]


async def in_tasks(ask: Ask, in_flight: int, n: int) -> None:
    """Makes `n` requests in tasks of one event loop."""
    numbers = iter(range(n))

    async def worker() -> None:
        for number in numbers:
            assert await ask(number)

    await asyncio.gather(*(worker() for _ in range(in_flight)))


def all_loads(make: Callable[[int, int], None], rounds: int) -> Loads:
    """CPU-milliseconds and requests per second, by requests in flight.

    `make` gets the requests in flight, and how many to make.
    """
    found: Loads = {}
    make(32, 64)
    for _ in range(rounds):
        for in_flight, n in IN_FLIGHT.items():
            cpu, wall = time.process_time(), time.monotonic()
            make(in_flight, n)
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            for name, value in (("cpu_ms", 1000 * cpu / n), ("per_s", n / wall)):
                found.setdefault(str(in_flight), {}).setdefault(name, []).append(value)
    return found


def with_curator(url: str, rounds: int, pictures: list[bytes], started: list[float]) -> Loads:
    from curator.stages.caption.caption_records import (
        Frames,
        Request,
        Sampling,
        Task,
        Turn,
        Window,
    )
    from curator.stages.caption.captioners.chat_server import ServerCaptioner
    from curator.stages.caption.config import ModelConfig

    config = ModelConfig(model="tiny-vlm", url=url, in_flight=256)
    frames = Frames(jpegs=tuple(pictures), times_s=tuple(map(float, range(len(pictures)))))
    window = Window(index=0, start_frame=0, end_frame=8, shown=tuple(range(8)))
    task = Task(clip_id="clip", content="content", window=window, fps=1.0)
    server = ServerCaptioner(config)
    server.setup()
    started += [time.process_time(), rss_mib()]

    def ask(number: int) -> str:
        request = Request(
            role="captioner",
            model="tiny-vlm",
            task=task,
            system="",
            turns=(Turn(role="user", text=f"Describe {number}."),),
            sampling=Sampling(max_tokens=64, temperature=0.2, top_p=0.9, seed=number),
        )
        return server.answer(request, frames).text

    def make(in_flight: int, n: int) -> None:
        with ThreadPoolExecutor(in_flight) as pool:
            assert all(pool.map(ask, range(n)))

    return all_loads(make, rounds)


def with_openai(url: str, rounds: int, pictures: list[bytes], started: list[float]) -> Loads:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=180)
    started += [time.process_time(), rss_mib()]

    async def ask(number: int) -> str:
        content: Any = []
        for time_s, jpeg in enumerate(pictures):
            content.append({"type": "text", "text": f"at {time_s} s"})
            image = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
            content.append({"type": "image_url", "image_url": {"url": image}})
        content.append({"type": "text", "text": f"Describe {number}."})
        answer = await client.chat.completions.create(
            model="tiny-vlm",
            messages=[{"role": "user", "content": content}],
            max_tokens=64,
            temperature=0.2,
            top_p=0.9,
            seed=number,
        )
        return answer.choices[0].message.content or ""

    with asyncio.Runner() as loop:
        return all_loads(lambda in_flight, n: loop.run(in_tasks(ask, in_flight, n)), rounds)


def one(client: str, url: str, rounds: int) -> None:
    """Measures one client in this process; prints JSON."""
    pictures = jpegs()
    started: list[float] = []
    before = [time.process_time(), rss_mib()]
    run = with_curator if client == "curator" else with_openai
    loads = run(url, rounds, pictures, started)
    print(
        json.dumps(
            {
                "start_cpu_s": started[0] - before[0],
                "start_mib": started[1] - before[1],
                "most_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "loads": loads,
            }
        )
    )


def installed_mib(packages: tuple[str, ...]) -> float:
    """Size of installed packages."""
    total = 0
    for name in packages:
        for path in files(name) or ():
            located = Path(str(path.locate()))
            total += located.stat().st_size if located.is_file() else 0
    return total / 2**20


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Measures both clients in turn; prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        client, url = options.one
        one(client, url, options.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        script = ROOT / "tests" / "fake_server.py"
        command = [sys.executable, str(script), "0", str(Path(folder) / "journal"), "{}"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        results = {}
        environment = os.environ | {"NO_PROXY": "127.0.0.1"}
        try:
            clients = {client: (Path(__file__), client) for client in CLIENTS}
            if options.before is not None:
                script = options.before / "benchmarks" / Path(__file__).name
                clients = {"before": (script, "curator")} | clients
            for client, (script, name) in clients.items():
                again = [sys.executable, str(script), "--rounds", str(options.rounds)]
                done = subprocess.run(
                    [*again, "--one", name, url],
                    env=environment | {"PYTHONPATH": str(script.parents[1])},
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                results[client] = json.loads(done.stdout.splitlines()[-1])
        finally:
            server.kill()
    sizes = {
        "aiohttp, before": ("aiohttp", "multidict", "yarl", "frozenlist", "aiosignal", "propcache"),
        "urllib3": ("urllib3",),
        "openai": ("openai", "httpx2", "httpcore2", "h11", "anyio", "jiter", "sniffio"),
    }
    for name, packages in sizes.items():
        there = versions(packages)
        print(f"{name}: {installed_mib(tuple(there)):.1f} MiB installed; {there}")
    print(f"{'client':<10}{'start':>9}{'memory':>10}{'most':>10}" + "".join(
        f"{f'{n} in flight':>32}" for n in IN_FLIGHT))  # fmt: skip
    for client, found in results.items():
        row = f"{client:<10}{found['start_cpu_s']:>7.2f} s{found['start_mib']:>6.0f} MiB"
        row += f"{found['most_mib']:>6.0f} MiB"
        for load in found["loads"].values():
            cpu = load["cpu_ms"]
            row += f"{statistics.median(cpu):>9.2f} ms ({min(cpu):.2f} to {max(cpu):.2f})"
            row += f" {statistics.median(load['per_s']):.0f}/s"
        print(row)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
