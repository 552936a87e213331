"""Kills the driver after each mutation of the output root, checks the root, and runs again.

    python benchmarks/kill_points.py [--scenarios "first run" growth "changed recipe" recaption]
    python benchmarks/kill_points.py --server http://127.0.0.1:5905 --bucket s3://NAME [--ray]

One run of each scenario counts the mutations. Then, for each mutation (with `--every K` for each
K-th), another process repeats the run from the same initial output, and SIGKILL ends it right after
that mutation. After each kill, `curate verify` must end with 0, or with 2 if nothing was committed
yet. Every index must name only existing tars with the promised samples. The same command must then
end with 0, the same shards and tables, and no finding.

In a folder, mutations are objects that the driver writes and removes. Workers also write parts,
which no reader reads. In a bucket (S3, or a container of `az://`), a proxy counts the requests of
all processes that change an object, except the lease and temporary objects. The proxy refuses the
request after the mutation, and kills the driver. `--ray` runs the work on Ray workers.
"""

import hashlib
import io
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tests_path  # noqa: F401
from fault_proxy import FaultProxy
from measure import arguments, sets, tell
from recorded_runs import CHANGED, SETTINGS

from curator.cli import main
from curator.storage import open_store
from curator.storage.base import TEMPORARY_PREFIX
from curator.storage.local_store import LocalStore
from curator.tables.out_layout import LEASE

COMPARED = ("shards/", "sources/", "clips/", "shots/", "embeddings/")
PRELOADED = [
    "curator.cli",
    "curator.runs.curation",
    "curator.runs.recaptioning",
    "curator.tools.verify",
]
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "az": "AZURE_STORAGE_ENDPOINT"}
State = Mapping[str, bytes]
"""Objects by key."""


def run_killed(
    arguments: list[str],
    last: int | None,
    environment: dict[str, str],
    pipe: Any,  # noqa: ANN401
) -> None:
    """Runs a command; kills this process after mutation `last`, or sends the total number."""
    create, delete = LocalStore.create, LocalStore.delete
    write_new, replace = LocalStore.write_new, LocalStore.replace
    n_done = 0

    def count() -> None:
        nonlocal n_done
        if n_done == last:
            os.kill(os.getpid(), signal.SIGKILL)
        n_done += 1

    @contextmanager
    def counted(self: LocalStore, key: str) -> Iterator[Any]:
        with create(self, key) as stream:
            yield stream
        count()

    def conditional(call: Any) -> Any:  # noqa: ANN401
        def counted_too(self: LocalStore, key: str, *more: Any) -> Any:  # noqa: ANN401
            done = call(self, key, *more)
            if done is not None and key != LEASE:
                count()
            return done

        return counted_too

    def removed(self: LocalStore, keys: Iterable[str]) -> None:
        for key in keys:
            is_there = self.exists(key)
            delete(self, [key])
            if is_there:
                count()

    if environment:
        os.environ.update(environment)
    else:
        LocalStore.create, LocalStore.delete = counted, removed  # type: ignore[method-assign]
        LocalStore.write_new, LocalStore.replace = map(conditional, (write_new, replace))  # type: ignore[method-assign]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(arguments)
    pipe.send((code, n_done, said.getvalue()[-2000:]))


class Kills:
    """Runs commands in separate processes, and kills them."""

    def __init__(self, context: Any, proxy: FaultProxy | None, variable: str) -> None:  # noqa: ANN401
        self._context, self._proxy = context, proxy
        self._environment = {}
        if proxy:
            # In an address of Azure, the path is the account.
            self._environment[variable] = proxy.url + urlsplit(proxy.server).path
        self.n_mutations = 0
        """Mutations of the last command that was not killed."""

    def __call__(self, arguments: list[str], last: int | None = None) -> tuple[int, str] | None:
        """Returns exit code and output, or None if the process was killed."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=run_killed, args=(arguments, last, self._environment, sender)
        )
        counter = Counter(process, last)
        if self._proxy:
            self._proxy.refuse = counter
        process.start()
        sender.close()
        sent = None
        with suppress(EOFError):
            sent = receiver.recv()
        process.join()
        if sent is None and process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"{arguments} ended with {process.exitcode}")
        if sent is None:
            return None
        self.n_mutations = counter.n_done if self._proxy else sent[1]
        return sent[0], sent[2]


class Counter:
    """Counts requests that change an object; kills a process at the request after `last`."""

    def __init__(self, process: Any, last: int | None) -> None:  # noqa: ANN401
        self._process, self._last = process, last
        self.n_done = 0

    def __call__(self, number: int, method: str, path: str) -> str | None:
        """Implements `fault_proxy.Refusal`."""
        name = path.partition("?")[0].rpartition("/")[2]
        if method in ("GET", "HEAD") or name == LEASE or name.startswith(TEMPORARY_PREFIX):
            return None
        if self.n_done == (self._last + 1 if self._last is not None else None):
            self._last = None  # Workers that outlive the driver may continue.
            os.kill(self._process.pid, signal.SIGKILL)
            return "AccessDenied"
        self.n_done += 1
        return None


def read(out: str) -> State:
    """Returns the objects of an output root."""
    store = open_store(out)
    return {info.key: store.read(info.key) for info in store.list()}


def restore(out: str, state: State) -> None:
    """Makes an output root hold exactly these objects."""
    store, there = open_store(out), read(out)
    if store.is_local:
        shutil.rmtree(out, ignore_errors=True)
        there = {}
    store.delete(sorted(there.keys() - state.keys()))
    for key, data in state.items():
        if there.get(key) != data:
            store.write(key, data)


def check_indexes(out: str) -> None:
    """Reads the output as each kind of reader does."""
    from index_readers import check_readers

    if open_store(out).is_local:
        check_readers(Path(out))
        return
    with tempfile.TemporaryDirectory() as mirror:
        restore(mirror, read(out))
        check_readers(Path(mirror))


def objects(state: State) -> dict[str, str]:
    """Returns hashes of the objects that must be identical."""
    return {
        key: hashlib.sha256(data).hexdigest()
        for key, data in state.items()
        if key.startswith(COMPARED)
    }


def verified(out: str) -> tuple[int, str]:
    """Returns exit code and output of `curate verify`."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(["verify", out, "--frames", "none"])
    return code, said.getvalue()


def scenario(
    kills: Kills, name: str, begun: State, out: str, arguments: list[str], every: int
) -> dict[str, Any]:
    """Kills at each mutation; then leaves the result of the whole run in `out`."""
    restore(out, begun)
    code, said = kills(arguments) or (None, "")
    if code:
        raise RuntimeError(f"{name}: {said}")
    n_mutations, finished = kills.n_mutations, read(out)
    expected = objects(finished)
    wrong, seconds, under_way = [], [], 0
    for last in range(0, n_mutations, every):
        restore(out, begun)
        if kills(arguments, last) is not None:
            # The last request, or a request that only some runs make.
            print(f"{name}: mutation {last} of {n_mutations} was the last", file=sys.stderr)
            continue
        where = f"{name}, after mutation {last}"
        try:
            check_indexes(out)
        except (AssertionError, OSError, KeyError) as error:
            wrong.append(f"{where}: {error!r}")
        keys = read(out).keys()
        is_visible = any(re.fullmatch(r"snapshots/\d{8}\.json", key) for key in keys)
        under_way += "shards/manifest.next.json" in keys
        code, said = verified(out)
        if code != (0 if is_visible else 2):
            wrong.append(f"{where}: verify ends with {code}: {said}")
        start = time.monotonic()
        code, said = kills(arguments) or (None, "")
        seconds.append(time.monotonic() - start)
        if code or objects(read(out)) != expected:
            wrong.append(f"{where}: the rerun ends with {code}: {said}")
        code, said = verified(out)
        if code or "warning" in said:
            wrong.append(f"{where}, rerun: verify: {said}")
        print(
            f"{name}: {last + 1} of {n_mutations}, {len(wrong)} wrong", file=sys.stderr, flush=True
        )
    restore(out, finished)
    return {
        "mutations": n_mutations,
        "kills": len(seconds),
        "commit_under_way": under_way,
        "wrong": wrong,
        "rerun_s_median": round(statistics.median(seconds), 2),
    }


def run() -> None:
    """Runs all scenarios, each on the output of the previous one."""
    from film_makers import write_video
    from film_shots import moving_texture

    parser = arguments(__doc__)
    names = ["first run", "growth", "changed recipe", "recaption"]
    parser.add_argument("--scenarios", nargs="+", default=names, choices=names)
    parser.add_argument("--server", help="address of a server of S3 or Azure Blob Storage")
    parser.add_argument("--bucket", help="s3://NAME or az://NAME of an empty bucket there")
    parser.add_argument("--ray", action="store_true", help="two workers of Ray")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="use each K-th mutation")
    options = parser.parse_args()
    variable = ENDPOINTS[options.bucket.partition(":")[0]] if options.bucket else ""
    if options.server:
        os.environ[variable] = options.server
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with (
        tempfile.TemporaryDirectory() as temporary,
        FaultProxy(server=options.server or "", share=0) as proxy,
    ):
        kills = Kills(context, proxy if options.server else None, variable)
        sources, out = Path(temporary, "in"), f"{options.bucket or temporary}/out"
        sources.mkdir()
        settings = sets(*SETTINGS)
        changed = sets(*CHANGED)
        workers = ["--workers", "2"] if options.ray else []
        command = ["run", str(sources), out, *settings, *workers]
        commands = {
            "first run": command,
            "growth": command,
            "changed recipe": [*command, *changed],
            "recaption": ["recaption", out, "--set", "caption.enabled=false", *workers],
        }
        results = {}
        for name, words in commands.items():
            for number in {"first run": (1, 2), "growth": (3,)}.get(name, ()):
                frames = moving_texture(50, seed=number, width_px=160, height_px=120)
                write_video(sources / f"{number}.mp4", frames, fps=Fraction(25))
            if name in options.scenarios:
                results[name] = scenario(kills, name, read(out), out, words, options.every)
            else:
                kills(words)
        restore(out, {})
    for name, found in results.items():
        print(f"{name:16} {found['kills']:4} kills, {found['commit_under_way']:3} in a commit, "
              f"{len(found['wrong'])} wrong, rerun {found['rerun_s_median']} s")  # fmt: skip
    tell(results)
    sys.exit(bool(any(found["wrong"] for found in results.values())))


if __name__ == "__main__":
    run()
