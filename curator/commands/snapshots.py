"""`curate snapshots`: lists the snapshots of OUT."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from curator.commands.arguments import EXIT_OK

HELP = "list the snapshots of OUT: what each commit changed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists the snapshots of OUT, the newest first. Each commit adds one; `--snapshot N` of "
        "other commands reads one, and `curate clean` removes old ones."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument("--json", action="store_true", help="print a JSON object per snapshot")


def main(options: argparse.Namespace) -> int:
    from curator.errors import DamagedError
    from curator.storage import open_store
    from curator.tables.snapshot_store import MADE, NUMBER, listed_snapshots, require_snapshots

    store = open_store(options.out)
    require_snapshots(store)
    snapshots = list(listed_snapshots(store))
    # Each is compared with the next older one that can be read.
    readable = [summary for _, summary in snapshots if not isinstance(summary, DamagedError)]
    before = iter([*readable[1:], {}])
    for number, summary in snapshots:
        if isinstance(summary, DamagedError):
            print(f"{number:>6}  damaged: {summary}")
            continue
        older = next(before)
        changes = list(_changes(older["recipe"], summary["recipe"])) if older else []
        counts = summary["counts"]
        facts = {
            NUMBER: number,
            MADE: summary[MADE],
            "generations": summary.get("judged", {}).get("generation", 1),
            "sources": counts["sources"],
            "clips": counts["clips"],
            "kept": counts["kept"],
            "kept_s": summary["kept_s"],
            "shards": len(summary["shards"]),
            "bytes": sum(shard["bytes"] for shard in summary["shards"]),
            "new_shards": len(_shards(summary) - _shards(older)),
            "recipe_changes": changes,
        }
        print(json.dumps(facts) if options.json else _line(facts))
    return EXIT_OK


def _line(facts: Mapping[str, Any]) -> str:
    changes = f"  {', '.join(facts['recipe_changes'])}" if facts["recipe_changes"] else ""
    n = facts["generations"]
    of = f" of {n} generations" if n > 1 else ""
    return (
        f"{facts['snapshot']:>6}  {facts['made']}  {facts['sources']} sources{of}, "
        f"{facts['kept']} of {facts['clips']} clips kept ({facts['kept_s'] / 3600:.2f} h), "
        f"{facts['shards']} tars ({facts['new_shards']} new, {facts['bytes'] / 1e9:.2f} GB in all)"
        f"{changes}"
    )


def _shards(summary: Mapping[str, Any]) -> set[str]:
    return {shard["name"] for shard in summary.get("shards", ())}


def _changes(before: object, now: object, key: str = "") -> Iterator[str]:
    """Yields what differs between two recipes, as `key: old -> new`."""
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            below = f"{key}.{name}" if key else str(name)
            yield from _changes(before.get(name), now.get(name), below)
        return
    yield f"{key}: {json.dumps(before)} -> {json.dumps(now)}"
