#!/usr/bin/env python3
"""Compares the results of two checkouts: clips, decisions, scores, captions, and samples' members.

    house.py BASE NEW --out DIR [--media DIR] [--some N] [--films DIR] [--keep-base DIR]
             [--only CASE ...]

BASE and NEW are checkouts; both run in processes of their own, with this interpreter. There are
four cases: the demo's footage as `curate demo` runs it, the same with captions by a server that
answers by what it is sent, the labelled test videos, and two edited films. The differences that are
meant are listed in `RENAMED` and `NOT_COMPARED`; added columns are allowed. All other differences
are printed, and the exit code is 1. CPU-seconds are those of a run with all its children.
"""

import argparse
import hashlib
import json
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from caption_server import filled
from measure import machine, measured

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

RENAMED = {"loudness_db": "audio_rms_db"}
"""Columns and keys with a new name: what was measured is an RMS level, not a loudness."""

NOT_COMPARED = {
    "cut_fingerprint": "names settings and version of the cut, and is derived in another way",
    "version": "a file's version has its size, both times and inode, and not one time alone",
}
"""Columns and keys whose values may differ, and why."""

HASH_OF_TAR = re.compile(r"-[0-9a-f]{8}(?=\.tar)")
"""Is left out of the names of tars: a key of the JSON in them was renamed."""

MOST_CHARACTERS = 4000
"""Of a value that is longer, such as a vector, the hash is compared."""

KEYS = {
    "sources": ("uri",),
    "shots": ("source_id", "shot"),
    "clips": ("clip_id",),
    "embeddings": ("clip_id",),
    "clip_embeddings": ("clip_id",),
    "annotations": ("clip_id", "window"),
    "sidecars": ("source_uri",),
    "members": ("clip_id", "member"),
}
"""Columns that name a row of a table."""

COUNTS = ("counts", "rules", "video_s", "kept_s")
"""Parts of `summary.json` that are compared."""

NOTES = (".json", ".md")
"""Suffixes of files beside the test videos."""

CAPTIONER = (
    "caption.captioner=openai", "caption.model=named", "caption.window_frames=48",
    "caption.window_remainder=24", "caption.frames=4", "caption.read_text=false",
)  # fmt: skip

MAKE_DEMO = """
import sys
from pathlib import Path
try:
    from curator.footage.demo_films import make_demo
except ModuleNotFoundError:  # e0fe287
    from curator.footage.demo import make_demo
make_demo(Path(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sources that are curated, and changes of the recipe."""

    name: str
    sources: tuple[Path, ...]
    settings: tuple[str, ...] = ()


Facts = dict[str, dict[str, dict[str, Any]]]
"""What a run left: table, row, column."""


class Answers(BaseHTTPRequestHandler):
    """A server of a model whose answers follow from pictures, text and schema alone."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "named", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "yes"
        if "response_format" in asked:
            said = json.dumps([asked["messages"], asked.get("seed")], sort_keys=True)
            tag = hashlib.sha256(said.encode()).hexdigest()[:6]
            schema = asked["response_format"]["json_schema"]["schema"]
            text = json.dumps(filled(schema, "thing", tag))
        message = {"role": "assistant", "content": text}
        self._send(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": "named",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 2000, "completion_tokens": 300, "total_tokens": 2300},
            }
        )

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def _send(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def answering() -> Iterator[str]:
    """Runs the server; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def in_checkout(
    checkout: Path, arguments: Sequence[str], *, interval_s: float = 0.25
) -> tuple[float, float]:
    """Runs Python on a checkout.

    Args:
        checkout: Which version.
        arguments: Of Python.
        interval_s: Time between readings of /proc, and the precision of wall seconds.

    Returns:
        CPU-seconds and wall seconds. Of the two ways to count CPU-seconds, each misses some: that
        of children the daemons of Ray, and readings of /proc the ends of processes.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["env", "-C", "/", f"PYTHONPATH={checkout}", sys.executable, *arguments]
    cost = measured(command, interval_s=interval_s)
    if cost.code != 0:
        raise SystemExit(f"{checkout}: {' '.join(arguments)}: {cost.code}\n{cost.output}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    reaped_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(max(cost.cpu_s, reaped_s), 2), round(cost.wall_s, 2)


def run_case(case: Case, checkout: Path, out: Path) -> dict[str, Any]:
    """Curates a case anew; gives its cost and what it left."""
    shutil.rmtree(out, ignore_errors=True)
    changes = [part for change in case.settings for part in ("--set", change)]
    sources = [str(path) for path in case.sources]
    command = ["-m", "curator.cli", "run", *sources, str(out), *changes]
    cpu_s, wall_s = in_checkout(checkout, command)
    return {"commit": commit(checkout), "cpu_s": cpu_s, "wall_s": wall_s, "facts": facts(out)}


def commit(checkout: Path) -> str:
    """Commit of a checkout, with a mark where files were changed since."""
    git = ["git", "-C", str(checkout)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
    return name.stdout.strip() + ("+" if changed else "")


def facts(out: Path) -> Facts:
    """What a run left, in rows that can be compared."""
    summary = json.loads((out / "summary.json").read_text())
    found: Facts = {"summary": {name: flat({"is": summary[name]}) for name in COUNTS}}
    for name, key in KEYS.items():
        parts = summary["tables"].get(name)
        if parts:
            table = pa.concat_tables(pq.read_table(out / part) for part in parts)
            found[name] = rows(table, key)
    found["dataset"] = rows(pq.read_table(out / "shards" / "dataset.parquet"), ("clip_id",))
    found |= {"sample members": {}, "sample JSON": {}}
    for tar in sorted((out / "shards").rglob("*.tar")):
        with tarfile.open(tar) as opened:
            for member in opened:
                data = opened.extractfile(member).read()
                key, _, suffix = member.name.partition(".")
                if suffix == "json":
                    found["sample JSON"][key] = flat(json.loads(data))
                    continue
                digest = hashlib.sha256(data).hexdigest()
                found["sample members"].setdefault(key, {})[suffix] = digest
    return found


def rows(table: pa.Table, key: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rows by their key, in their order."""
    return {" ".join(str(row[name]) for name in key): flat(row) for row in table.to_pylist()}


def flat(row: dict[str, Any], within: str = "") -> dict[str, Any]:
    """A row with the new names, and with the keys of objects in it as names of their own."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{within}{name}.")
        else:
            values[within + RENAMED.get(name, name)] = plain(value)
    return values


def plain(value: object) -> object:
    """A value that JSON holds; of what is long, a hash."""
    if isinstance(value, bytes) or len(text := json.dumps(value, default=str)) > MOST_CHARACTERS:
        data = value if isinstance(value, bytes) else text.encode()
        return hashlib.sha256(data).hexdigest()
    kept: object = json.loads(HASH_OF_TAR.sub("", text))
    return kept


def compare(base: Facts, new: Facts, besides: Collection[str] = NOT_COMPARED) -> dict[str, Any]:
    """Counts what is equal, and names what is not.

    Args:
        base: What a run left.
        new: What another left.
        besides: Columns that are not compared.

    Returns:
        Rows and values compared by table, added columns, and a line per kind of difference.
    """
    result: dict[str, Any] = {"compared": {}, "added": {}, "differences": []}
    for name in sorted(base.keys() | new.keys()):
        old_rows, new_rows = base.get(name), new.get(name)
        if old_rows is None or new_rows is None:
            where = "base" if new_rows is None else "new"
            result["differences"].append(f"{name}: only in {where}")
            continue
        if list(old_rows) != list(new_rows):
            result["differences"].append(_of_rows(name, list(old_rows), list(new_rows)))
        columns = {}
        for key in old_rows.keys() & new_rows.keys():
            for column, value in old_rows[key].items():
                if column not in besides:
                    equal = json.dumps(value) == json.dumps(new_rows[key].get(column, "missing"))
                    columns.setdefault(column, []).append((equal, key))
        for column, equals in columns.items():
            unequal = [key for equal, key in equals if not equal]
            if unequal:
                key = min(unequal)
                pair = f"{old_rows[key][column]!r} -> {new_rows[key].get(column, 'missing')!r}"
                result["differences"].append(
                    f"{name}.{column}: {len(unequal)} of {len(equals)} differ, first {key}: {pair}"
                )
        values = sum(len(equals) for equals in columns.values())
        result["compared"][name] = {"rows": len(old_rows), "values": values}
        had = {column for row in old_rows.values() for column in row}
        added = {column for row in new_rows.values() for column in row} - had
        if added:
            result["added"][name] = sorted(added)
    return result


def _of_rows(name: str, old: list[str], new: list[str]) -> str:
    lost, gained = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    if not lost and not gained:
        first = next(a for a, b in zip_longest(old, new) if a != b)
        return f"{name}: the same {len(old)} rows in another order, from {first}"
    return (
        f"{name}: {len(old)} rows -> {len(new)}; {len(lost)} lost {lost[:2]}, "
        f"{len(gained)} gained {gained[:2]}"
    )


def demo_footage(folder: Path, base: Path, new: Path) -> list[str]:
    """Makes the demo's films with both; gives the names of those that differ."""
    films = {}
    for checkout, name in ((base, "footage"), (new, "footage_new")):
        if checkout == new or not (folder / name).exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            in_checkout(checkout, ["-c", MAKE_DEMO, str(folder / name)])
        files = sorted((folder / name).iterdir())
        films[name] = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in files}
    names = films["footage"].keys() | films["footage_new"].keys()
    return [n for n in sorted(names) if films["footage"].get(n) != films["footage_new"].get(n)]


def cases(args: argparse.Namespace, kept: Path, url: str) -> list[Case]:
    """What is run; what is missing is named and left out."""
    demo = (kept / "footage",)
    found = [
        Case(name="demo", sources=demo),
        Case(name="captioned", sources=demo, settings=(*CAPTIONER, f"caption.url={url}")),
    ]
    if args.media.is_dir() and args.some:
        videos = (p for p in args.media.rglob("*") if p.is_file() and p.suffix not in NOTES)
        some = sorted(videos, key=_name_hash)
        found.append(Case(name=f"media-{args.some}", sources=tuple(some[: args.some])))
    elif args.media.is_dir():
        found.append(Case(name="media", sources=(args.media,)))
    else:
        print(f"media: left out, {args.media} is missing")
    films = args.films or kept / "films"
    if not films.exists() and args.media.is_dir() and shutil.which("ffmpeg"):
        maker = [sys.executable, SHARED / "tools" / "make_edited_set.py", args.media, films]
        sizes = ["--films", "2", "--seconds", "40", "--height", "720"]
        subprocess.run([*map(str, maker), *sizes], check=True)
    if films.exists():
        found.append(Case(name="films", sources=(films,)))
    else:
        print("films: left out; they need the test videos, and ffmpeg")
    return [case for case in found if not args.only or case.name.partition("-")[0] in args.only]


def _name_hash(path: Path) -> str:
    return hashlib.sha256(path.name.encode()).hexdigest()


def main() -> int:
    """Runs both, compares and prints.

    Returns:
        1 if something differs that is not listed.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="for the results of runs")
    parser.add_argument("--media", type=Path, default=SHARED / "media")
    parser.add_argument("--some", type=int, help="only N of the test videos, by a hash of the name")
    parser.add_argument("--films", type=Path, help="edited films (default: made once)")
    parser.add_argument(
        "--keep-base", type=Path, help="keeps films and BASE's results, which are read when there"
    )
    parser.add_argument("--only", nargs="+", help="names of cases (default: all)")
    args = parser.parse_args()
    kept = (args.keep_base or args.out).absolute()
    kept.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "new": commit(args.new), "cases": {}}
    results["demo_films_differ"] = demo_footage(kept, args.base.absolute(), args.new.absolute())
    print(f"films of the demo that differ: {results['demo_films_differ'] or 'none'}")
    print(
        f"{'case':16} {'rows':>7} {'values':>8} {'CPU s base':>10} {'CPU s new':>10}  differences"
    )
    with answering() as url:
        for case in cases(args, kept, url):
            results["cases"][case.name] = compared(case, args, kept)
    print(json.dumps(results))
    bad = any(case["differences"] for case in results["cases"].values())
    return int(bad or bool(results["demo_films_differ"]))


def compared(case: Case, args: argparse.Namespace, kept: Path) -> dict[str, Any]:
    """Runs a case with both, prints and gives the comparison."""
    stored = kept / f"{case.name}.json"
    if stored.exists():
        base = json.loads(stored.read_text())
    else:
        base = run_case(case, args.base.absolute(), args.out.absolute() / "base")
        stored.write_text(json.dumps(base))
    # Through JSON, as what is stored was.
    new = json.loads(json.dumps(run_case(case, args.new.absolute(), args.out.absolute() / "new")))
    result = compare(base["facts"], new["facts"])
    for side, run in (("base", base), ("new", new)):
        result[side] = {name: run[name] for name in ("commit", "cpu_s", "wall_s")}
    counts = result["compared"].values()
    n_rows, n_values = (sum(c[name] for c in counts) for name in ("rows", "values"))
    print(
        f"{case.name:16} {n_rows:7} {n_values:8} {base['cpu_s']:10.1f} {new['cpu_s']:10.1f}  "
        f"{len(result['differences']) or 'none'}",
        flush=True,
    )
    for name, columns in result["added"].items():
        print(f"    added to {name}: {', '.join(columns)}")
    for line in result["differences"]:
        print(f"    {line}")
    return result


if __name__ == "__main__":
    sys.exit(main())
