"""`curate models`: lists, fetches and verifies model weights."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from curator.errors import ModelError, UsageError

if TYPE_CHECKING:
    from curator.models.catalogue import ModelEntry
    from curator.models.weight_store import ModelStore


HELP = "list, fetch and verify model weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists, fetches and verifies the weights of the models that recipes can name. `verify` "
        "exits with 1 if a file is not the one that the catalogue names."
    )
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for task, names, words in (
        ("list", "*", "the models, where they come from, and what is here"),
        ("pull", "+", "fetch models from a mirror or the hub, and verify them"),
        ("verify", "*", "hash what is here (default: all) and compare"),
    ):
        own = tasks.add_parser(task, help=words)
        own.add_argument("names", nargs=names, metavar="NAME", help="model of the catalogue")
        own.add_argument(
            "--models", metavar="PLACE",
            help="models folder, or s3://bucket/prefix (default: $CURATE_MODELS, else a folder "
            "`curate/models` in the user's cache)",
        )  # fmt: skip
        if task == "pull":
            own.add_argument(
                "--from", dest="source", metavar="PLACE",
                help="folder or s3://bucket/prefix to copy from, by NAME/FILE or FILE (default: "
                "where the catalogue says)",
            )  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Runs `list`, `pull` or `verify`; returns 1 if a verified model differs from the catalogue."""
    from curator.models.weight_store import ModelStore

    try:
        store = ModelStore.at(options.models)
        entries = [store.catalogue.find(name) for name in options.names]
        match options.task:
            case "list":
                print(listing(store, entries or list(store.catalogue.entries.values())))
            case "pull":
                for entry in entries:
                    pulled = store.pull(entry, options.source)
                    print(f"{entry.name}: {pulled}, verified", flush=True)
                    _hint(store, entry)
            case "verify":
                return _verify(store, entries)
    except ModelError as error:
        raise UsageError(str(error)) from error
    return 0


def listing(store: "ModelStore", entries: "Sequence[ModelEntry]") -> str:
    """Lists models with kind, size, state on this machine, licence and source, for people."""
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


def _hint(store: "ModelStore", entry: "ModelEntry") -> None:
    if entry.reads is not None:
        clip = store.catalogue.find(entry.reads, "clip")
        if store.quick_state(clip) == "missing":
            print(f"it reads embeddings of {clip.name}: `curate models pull {clip.name}`")


def _verify(store: "ModelStore", entries: "Sequence[ModelEntry]") -> int:
    """Hashes the named models, or all local ones, and prints the state of each."""
    wrong = 0
    for entry in entries or list(store.catalogue.entries.values()):
        state = store.state(entry, again=True)
        wrong += state == "differs" or (state == "missing" and bool(entries))
        if state != "missing" or entries:
            print(f"{entry.name}: {state} ({store.path(entry)})")
    return 1 if wrong else 0
