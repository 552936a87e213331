"""Kills the driver after each single mutation of the output root, looks, and runs again.

    python benchmarks/kill_points.py [--scenarios "first run" growth "changed recipe" recaption]

For each scenario the objects that the driver writes and removes are counted in one run. Then, for
each of them, a process of its own does the same run over the same begun output and is killed by
SIGKILL right after that write or removal. After each kill: `curate verify` must end with 0 (or with
2 where nothing was committed yet), every index must name only tars that are there with the samples
that it promises, and the same command must end with 0, the same shards and tables and no finding.
Objects that workers write are not counted: they are parts, which no reader reads.
"""

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any

import tests_path  # noqa: F401
from faults.test_one_consistent_set import CHANGED, SETTINGS

from curator.cli import main
from curator.storage.local_store import LocalStore

COMPARED = ("shards", "sources", "clips", "shots", "embeddings")
PRELOADED = ["curator.cli", "curator.runs.curation", "curator.runs.recaptioning", "curator.verify"]


def run_killed(arguments: list[str], last: int | None, pipe: Any) -> None:  # noqa: ANN401
    """Runs a command; kills this process after mutation `last`, or sends the number of all."""
    create, delete = LocalStore.create, LocalStore.delete
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

    def removed(self: LocalStore, keys: Iterable[str]) -> None:
        for key in keys:
            is_there = self.exists(key)
            delete(self, [key])
            if is_there:
                count()

    LocalStore.create, LocalStore.delete = counted, removed  # type: ignore[method-assign, assignment]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(arguments)
    pipe.send((code, n_done, said.getvalue()[-2000:]))


def in_process(context: Any, arguments: list[str], last: int | None = None) -> Any:  # noqa: ANN401
    """What `run_killed` sends; None where its process was killed."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_killed, args=(arguments, last, sender))
    process.start()
    sender.close()
    try:
        sent = receiver.recv()
    except EOFError:
        sent = None
    process.join()
    if sent is None and process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"{arguments} ended with {process.exitcode}")
    return sent


def objects(out: Path) -> dict[str, str]:
    """Hashes of what must be the same."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in COMPARED
        for path in sorted((out / folder).rglob("*"))
        if path.is_file() and not path.name.startswith(".tmp")
    }


def verified(out: Path) -> tuple[int, str]:
    """Exit code and words of `curate verify`."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(["verify", str(out), "--frames", "none"])
    return code, said.getvalue()


def scenario(context: Any, name: str, begun: Path, out: Path, arguments: list[str]) -> Any:  # noqa: ANN401
    """Kills at each mutation; `out` is what `arguments` name."""
    from index_readers import check_readers

    def begin() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(begun, out)

    begin()
    code, n_mutations, said = in_process(context, arguments)
    if code:
        raise RuntimeError(f"{name}: {said}")
    expected, finished = objects(out), out.with_name(f"{name} finished")
    shutil.copytree(out, finished)
    wrong, seconds, under_way = [], [], 0
    for last in range(n_mutations):
        begin()
        if in_process(context, arguments, last) is not None:
            raise RuntimeError(f"{name}: mutation {last} of {n_mutations} did not come")
        try:
            check_readers(out)
        except (AssertionError, OSError, KeyError) as error:
            wrong.append(f"{name}, after mutation {last}: {error!r}")
        is_visible = any((out / "shards").glob("manifest*.json"))
        under_way += (out / "shards/manifest.next.json").exists()
        code, said = verified(out)
        if code != (0 if is_visible else 2):
            wrong.append(f"{name}, after mutation {last}: verify ends with {code}: {said}")
        start = time.monotonic()
        code, _, said = in_process(context, arguments)
        seconds.append(time.monotonic() - start)
        if code or objects(out) != expected:
            wrong.append(f"{name}, rerun after mutation {last}: {code}, {said}")
        code, said = verified(out)
        if code or "warning" in said:
            wrong.append(f"{name}, rerun after mutation {last}: verify: {said}")
        print(f"{name}: {last + 1} of {n_mutations}, {len(wrong)} wrong", file=sys.stderr)
    return finished, {
        "kills": n_mutations,
        "commit_under_way": under_way,
        "wrong": wrong,
        "rerun_s_median": round(statistics.median(seconds), 2),
    }


def run() -> None:
    """Does all scenarios, each over the output of the one before."""
    from film_makers import write_video
    from film_shots import moving_texture

    parser = argparse.ArgumentParser(description=__doc__)
    names = ["first run", "growth", "changed recipe", "recaption"]
    parser.add_argument("--scenarios", nargs="+", default=names, choices=names)
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as temporary:
        sources, out = Path(temporary, "in"), Path(temporary, "out")
        sources.mkdir()
        begun = Path(temporary, "begun")
        begun.mkdir()
        command = ["run", str(sources), str(out)]
        command += [part for setting in SETTINGS for part in ("--set", setting)]
        changed = [part for setting in CHANGED for part in ("--set", setting)]
        commands = {
            "first run": command,
            "growth": command,
            "changed recipe": [*command, *changed],
            "recaption": ["recaption", str(out), "--set", "caption.enabled=false"],
        }
        results = {}
        for name, arguments in commands.items():
            for number in {"first run": (1, 2), "growth": (3,)}.get(name, ()):
                frames = moving_texture(50, seed=number, width_px=160, height_px=120)
                write_video(sources / f"{number}.mp4", frames, fps=Fraction(25))
            if name in options.scenarios:
                begun, results[name] = scenario(context, name, begun, out, arguments)
            else:
                shutil.rmtree(out, ignore_errors=True)
                shutil.copytree(begun, out)
                in_process(context, arguments)
                begun = shutil.copytree(out, out.with_name(f"{name} finished"))
    for name, found in results.items():
        print(f"{name:16} {found['kills']:4} kills, {found['commit_under_way']:3} in a commit, "
              f"{len(found['wrong'])} wrong, rerun {found['rerun_s_median']} s")  # fmt: skip
    print(json.dumps(results))
    sys.exit(bool(any(found["wrong"] for found in results.values())))


if __name__ == "__main__":
    run()
