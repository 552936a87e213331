"""Which objects under an output root are this package's: it removes and writes over no others.

An output root may hold what others put there: originals, notes, indexes of other programs. What a
run writes has names that nothing else has by chance, with hashes of settings and contents, except
for some that readers expect, such as `shards/README.md`. Whatever has another name is not of
this package, wherever it lies.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from curator.storage import Store
from curator.storage.file_walk import is_hidden
from curator.tables.parts import SUMMARY

logger = logging.getLogger(__name__)

TABLES = (
    "sources", "shots", "clips", "embeddings", "clip_embeddings", "annotations", "sidecars",
)  # fmt: skip
CONFIG = "config.json"
SHARDS = "shards"
"""Folder of the shards."""

_STAGES = (
    "scan", "tracks", "segments", "cuts", "frames", "alike", "alignments", "text_embeddings",
    "replies",
)  # fmt: skip
"""Folders of parts, which are named by two hashes."""
OWN_FOLDERS = frozenset((*TABLES, *_STAGES, "candidates", "report", SHARDS))
"""Folders of an output root whose contents are this package's."""

_TWO_HASHES = r"[0-9a-f]{16}-[0-9a-f]{16}"
_TEMPORARY = r"\.tmp-(?:check-)?[0-9a-f]{16}"
_BUCKET = r"\d+p_\d+-\d+_\d+f(?:_[^/]+)?"
_HASHED = re.compile(
    "|".join(
        (
            rf"(?:{'|'.join(_STAGES)})/{_TWO_HASHES}\.parquet",
            rf"replies/{_TWO_HASHES}\.json",
            rf"(?:candidates|tracks)/[a-z_]+/{_TWO_HASHES}\.parquet",
            rf"(?:{'|'.join(TABLES)})/part-\d{{5,}}-[0-9a-f]{{12}}\.parquet",
            # Older versions named no split.
            rf"{SHARDS}/[^/]+/(?:(?:train|val)-)?\d{{6,}}-[0-9a-f]{{8}}\.(?:tar(?:\.idx)?|meta\.jsonl)",
            rf"(?:(?:{'|'.join(sorted(OWN_FOLDERS))})/(?:[^/]+/)*)?{_TEMPORARY}",
        )
    )
)
_FIXED = re.compile(
    "|".join(
        (
            rf"{re.escape(SUMMARY)}|{re.escape(CONFIG)}|report/(?:index|tune)\.html",
            rf"{SHARDS}/(?:dataset\.parquet|manifest\.json|wids-(?:train|val)\.json)",
            rf"{SHARDS}/(?:{_BUCKET}/)?"
            r"(?:README\.md|\.nv-meta/(?:\.info\.json|split\.yaml|dataset\.yaml))",
        )
    )
)


def is_own(key: str) -> bool:
    """Says whether an object has a name that this package gives.

    Args:
        key: Under an output root; also of an object that was not finished.
    """
    return _HASHED.fullmatch(key) is not None or _FIXED.fullmatch(key) is not None


def remove(store: Store, keys: Iterable[str]) -> None:
    """Removes objects of older runs; those that are not of this package stay, with a warning.

    Args:
        store: Output root.
        keys: What counts no more.
    """
    others: list[str] = []

    def own() -> Iterator[str]:
        for key in keys:
            if is_own(key):
                yield key
            elif not _has_hidden_name(key):
                others.append(key)

    store.delete(own())
    if others:
        logger.warning(
            "%d objects in folders of results are not of curate and stay, such as %s/%s; a reader "
            "of these folders may take them for results: move them elsewhere",
            len(others),
            store.uri,
            others[0],
        )


def foreign_objects(store: Store) -> list[str]:
    """Objects in folders of results that are not of this package, sorted; not hidden ones.

    Where no run has begun, that is whatever is there, but for summary and settings of a run.

    Args:
        store: Output root.
    """

    def found(folder: str) -> list[str]:
        return [info.key for info in store.list(f"{folder}/") if not _has_hidden_name(info.key)]

    with ThreadPoolExecutor(8) as pool:
        keys = [key for some in pool.map(found, sorted(OWN_FOLDERS)) for key in some]
    if any(_HASHED.fullmatch(key) for key in keys):
        return [key for key in keys if not is_own(key)]
    return keys


def _has_hidden_name(key: str) -> bool:
    return is_hidden(key.rpartition("/")[2])
