"""What the newest snapshot of an output names, as against what only earlier ones do."""

import json
from pathlib import Path

from curator.storage import open_store


def earlier_objects(out: str | Path) -> set[str]:
    """Names of the objects that only earlier snapshots name; none where no run was finished."""
    store = open_store(str(out))
    if not store.exists("summary.json"):
        return set()
    return set(json.loads(store.read("summary.json")).get("earlier", ()))
