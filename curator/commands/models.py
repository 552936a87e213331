"""`curate models`: lists, fetches and verifies model weights."""

import argparse
from collections.abc import Sequence

from curator.models.catalogue import ModelEntry
from curator.models.weight_store import ModelStore


def run_models(options: argparse.Namespace) -> int:
    """Runs `list`, `pull` or `verify`.

    Args:
        options: `task`, `names`, `models`, and for `pull` also `source`.

    Returns:
        0, or 1 if a model that was to be verified is not the one that the catalogue names.

    Raises:
        ModelError: A name is unknown, or a model cannot be fetched.
    """
    store = ModelStore.at(options.models)
    entries = [store.catalogue.find(name) for name in options.names]
    match options.task:
        case "list":
            print(listing(store, entries or list(store.catalogue.entries.values())))
        case "pull":
            for entry in entries:
                print(f"{entry.name}: {store.pull(entry, options.source)}, verified", flush=True)
                _hint(store, entry)
        case "verify":
            return _verify(store, entries)
    return 0


def listing(store: ModelStore, entries: Sequence[ModelEntry]) -> str:
    """Models with their kind, size, state on this machine, licence and source, for people."""
    lines = [f"models folder: {store.folder}" + (f", from {store.mirror}" if store.mirror else "")]
    for entry in entries:
        n_bytes = entry.total_bytes
        size = f"{n_bytes / 1e6:.1f} MB" if n_bytes is not None else "size unknown"
        lines += [
            f"{entry.name}  [{entry.kind}, {size}, {store.quick_state(entry)}]",
            f"    {entry.about}" + (f"; reads {entry.reads}" if entry.reads else ""),
            f"    {entry.source}; {entry.licence}",
            *(
                f"    {part.file + ': ' if entry.also else ''}sha256 "
                f"{part.sha256 or 'unknown: recorded at the first pull'}"
                for part in entry.parts
            ),
        ]
    return "\n".join(lines)


def _hint(store: ModelStore, entry: ModelEntry) -> None:
    if entry.reads is not None:
        clip = store.catalogue.find(entry.reads, "clip")
        if store.quick_state(clip) == "missing":
            print(f"it reads embeddings of {clip.name}: `curate models pull {clip.name}`")


def _verify(store: ModelStore, entries: Sequence[ModelEntry]) -> int:
    """Hashes the named models, or all that are here; says how each stands."""
    wrong = 0
    for entry in entries or list(store.catalogue.entries.values()):
        state = store.state(entry, again=True)
        wrong += state == "differs" or (state == "missing" and bool(entries))
        if state != "missing" or entries:
            print(f"{entry.name}: {state} ({store.path(entry)})")
    return 1 if wrong else 0
