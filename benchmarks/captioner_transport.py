"""What it costs to ask a server for captions: our client on aiohttp, and the `openai` package.

For each client, in a process of its own: CPU-seconds and memory of its start, then CPU-milliseconds
per request of 430 KB (8 JPEGs in base64) with 1, 32 and 256 requests in flight, from frames in
memory to the text of the answer. The server is the tests' fake one, in a process of its own, so
that CPU-seconds are the client's alone.

    python benchmarks/captioner_transport.py [--rounds 5]
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
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

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


async def measured(ask: Ask, in_flight: int, n: int) -> dict[str, float]:
    """CPU-milliseconds and requests per second of `n` requests."""
    numbers = iter(range(n))

    async def worker() -> None:
        for number in numbers:
            assert await ask(number)

    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    return {"cpu_ms": 1000 * cpu / n, "per_s": n / wall}


async def all_loads(ask: Ask, rounds: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    await measured(ask, 32, 64)
    for _ in range(rounds):
        for in_flight, n in IN_FLIGHT.items():
            for name, value in (await measured(ask, in_flight, n)).items():
                found.setdefault(str(in_flight), {}).setdefault(name, []).append(value)
    return found


async def with_curator(url: str, rounds: int, pictures: list[bytes], started: list[float]) -> dict:
    from curator.stages.caption.caption_records import (
        Frames,
        Request,
        Sampling,
        Task,
        Turn,
        Window,
    )
    from curator.stages.caption.captioners.chat_server import ServerClient
    from curator.stages.caption.config import ModelConfig

    config = ModelConfig(model="tiny-vlm", url=url, in_flight=256)
    frames = Frames(jpegs=tuple(pictures), times_s=tuple(map(float, range(len(pictures)))))
    window = Window(index=0, start_frame=0, end_frame=8, shown=tuple(range(8)))
    task = Task(clip_id="clip", content="content", window=window, fps=1.0)
    async with ServerClient(config) as client:
        started += [time.process_time(), rss_mib()]

        async def ask(number: int) -> str:
            request = Request(
                role="captioner",
                model="tiny-vlm",
                task=task,
                system="",
                turns=(Turn(role="user", text=f"Describe {number}."),),
                sampling=Sampling(max_tokens=64, temperature=0.2, top_p=0.9, seed=number),
            )
            return (await client.ask(request, frames)).text

        return await all_loads(ask, rounds)


async def with_openai(url: str, rounds: int, pictures: list[bytes], started: list[float]) -> dict:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=180) as client:
        started += [time.process_time(), rss_mib()]

        async def ask(number: int) -> str:
            content: list = []
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

        return await all_loads(ask, rounds)


def one(client: str, url: str, rounds: int) -> None:
    """Measures one client in this process; prints JSON."""
    pictures = jpegs()
    started: list[float] = []
    before = [time.process_time(), rss_mib()]
    run = with_curator if client == "curator" else with_openai
    loads = asyncio.run(run(url, rounds, pictures, started))
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
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one, options.rounds)
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
            for client in CLIENTS:
                again = [sys.executable, __file__, "--rounds", str(options.rounds)]
                done = subprocess.run(
                    [*again, "--one", client, url],
                    env=environment,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                results[client] = json.loads(done.stdout.splitlines()[-1])
        finally:
            server.kill()
    sizes = {
        "aiohttp": ("aiohttp", "multidict", "yarl", "frozenlist", "aiosignal", "propcache"),
        "openai": ("openai", "httpx2", "httpcore2", "h11", "anyio", "jiter", "sniffio"),
    }
    for name, packages in sizes.items():
        there = versions(packages)
        print(f"{name}: {installed_mib(tuple(there)):.1f} MiB installed; {there}")
    print(f"{'client':<10}{'start':>9}{'memory':>10}{'most':>10}" + "".join(
        f"{f'{n} in flight':>26}" for n in IN_FLIGHT))  # fmt: skip
    for client, found in results.items():
        row = f"{client:<10}{found['start_cpu_s']:>7.2f} s{found['start_mib']:>6.0f} MiB"
        row += f"{found['most_mib']:>6.0f} MiB"
        for load in found["loads"].values():
            cpu = load["cpu_ms"]
            row += f"{statistics.median(cpu):>9.2f} ms ({min(cpu):.2f} to {max(cpu):.2f})"
        print(row)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
