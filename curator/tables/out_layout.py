"""Which objects under an output root are this package's: it removes and writes over no others.

An output root may hold what others put there: originals, notes, indexes of other programs. What a
run writes has names that nothing else has by chance, with hashes of settings and contents, except
for some that readers expect, such as `shards/README.md`. Whatever has another name is not of
this package, wherever it lies.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from itertools import chain, islice

from curator.storage import ObjectInfo, Store
from curator.storage.file_walk import is_hidden
from curator.tables.parts import SUMMARY

logger = logging.getLogger(__name__)

CONFIG = "config.json"
LEASE = "lease.json"
"""Names the run that is writing; gone when that has ended."""
PLAN, PROGRESS = "plan.json", "progress.json"
"""What `curate plan` expects of a run; how far the run is that is writing, or that broke off."""
SHARDS, SNAPSHOTS = "shards", "snapshots"
REMOVED, LEARNED, MARKS = "removed", "learned", "marks"
"""Folders of records of what `curate remove` took out, of what `curate learn` made of marks, and of
what people decided about clips by hand."""
LEARNED_MODEL = f"{LEARNED}/suitability.json"
VALUES, FAMILIES = "values", "families"
"""Folders of values of families: until a commit, and for good."""
INDEX = "index"
"""Folder of the keys of parts, an object for each folder of parts."""
MANIFEST, DATASET = f"{SHARDS}/manifest.json", f"{SHARDS}/dataset.parquet"
"""What the shards hold, and the table of their samples."""
NEXT_MANIFEST = f"{SHARDS}/manifest.next.json"
"""The manifest of a commit that is under way, or was broken off."""

ENERGON_SPLITS, ENERGON_COUNTS = ".nv-meta/split.yaml", ".nv-meta/.info.json"
"""Of the shards below their parent folder: the tars of each split, and the samples of each tar."""


class FolderLifetime(StrEnum):
    """How long the objects of a folder stay."""

    TABLE = "table"
    """While the newest snapshot has them: they are its copies for readers of a whole folder."""
    NAMED = "named"
    """While a snapshot names them."""
    FINGERPRINTED = "fingerprinted"
    """While their fingerprint is the run's."""
    RUN = "run"
    """Until a run has finished."""
    CACHE = "cache"
    """Until somebody removes them: another recipe may need them again."""
    FIXED = "fixed"
    """They are written over."""
    KEPT = "kept"
    """Until `curate clean` removes them."""
    RECORD = "record"
    """For good."""


TABLES = (
    "sources", "shots", "clips", "embeddings", "clip_embeddings", "annotations", "sidecars",
    "members",
)  # fmt: skip
_FOLDERS = {
    FolderLifetime.TABLE: TABLES,
    FolderLifetime.NAMED: ("candidates", "alike", SHARDS),
    FolderLifetime.FINGERPRINTED: ("scan",),
    FolderLifetime.RUN: ("segments", "cuts", "frames", VALUES),
    FolderLifetime.CACHE: (
        "hashes", "tracks", "vectors", "alignments", "text_embeddings", "replies", FAMILIES,
    ),
    FolderLifetime.FIXED: (INDEX, "report"),
    FolderLifetime.KEPT: (SNAPSHOTS,),
    FolderLifetime.RECORD: (REMOVED, MARKS, LEARNED),
}  # fmt: skip
LAYOUT = {name: life for life, names in _FOLDERS.items() for name in names}
"""All folders of an output root, and how long their objects stay."""
OWN_FOLDERS = frozenset(LAYOUT)
_CLEARED = tuple(map(FolderLifetime, ("table", "named", "fingerprinted", "run")))
_NO_PARTS = {
    *TABLES, "candidates", "vectors", "report", SHARDS, SNAPSHOTS, REMOVED, MARKS, LEARNED,
}  # fmt: skip
_STAGES = tuple(name for name in LAYOUT if name not in _NO_PARTS)
"""Folders of parts, which are named by two hashes."""

_FEW_OBJECTS = 10_000
"""Objects that are listed in fewer requests than there are folders."""
_TWO_HASHES = r"[0-9a-f]{16}-[0-9a-f]{16}"
_TEMPORARY = r"\.tmp-(?:check-)?[0-9a-f]{16}"
_BUCKET = r"\d+p_\d+-\d+_\d+f(?:_[^/]+)?"


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_HASHED = _any_of(
    rf"(?:{'|'.join(_STAGES)})/{_TWO_HASHES}\.parquet",
    rf"replies/{_TWO_HASHES}\.json",
    rf"(?:{VALUES}|{FAMILIES})/[a-z0-9_]+/{_TWO_HASHES}\.parquet",
    rf"{FAMILIES}/[a-z0-9_]+-[0-9a-f]{{16}}\.json",
    rf"{REMOVED}/\d{{8}}(?:\.finished)?\.json",
    rf"{REMOVED}/footage-[0-9a-f]{{16}}\.parquet",
    rf"{MARKS}/[0-9a-f]{{16}}\.parquet",
    rf"{SNAPSHOTS}/(?:\d{{8}}\.json|(?:manifest|dataset|removed)-[0-9a-f]{{16}}\.(?:json|parquet))",
    rf"(?:candidates|tracks)/[a-z_]+/{_TWO_HASHES}\.parquet",
    r"vectors/(?:cells-[0-9a-f]{16}\.npz|segment-[0-9a-f]{16}\.bin)",
    rf"(?:{SNAPSHOTS}/)?(?:{'|'.join(TABLES)})/part-\d{{5,}}-[0-9a-f]{{12}}\.parquet",
    # Older versions named no split.
    rf"{SHARDS}/[^/]+/(?:(?:train|val)-)?\d{{6,}}-[0-9a-f]{{8}}\.(?:tar(?:\.idx)?|meta\.jsonl)",
    rf"(?:(?:{'|'.join(sorted(OWN_FOLDERS))})/(?:[^/]+/)*)?{_TEMPORARY}",
)
_FIXED = _any_of(
    *map(re.escape, (SUMMARY, CONFIG, LEASE, PLAN, PROGRESS, LEARNED_MODEL)),
    r"report/(?:(?:index|tune|learn)\.html|trace\.json)",
    r"report/previews/[0-9a-f]+\.mp4",
    r"vectors/footage\.json",
    rf"{SHARDS}/(?:dataset\.parquet|manifest(?:\.next)?\.json|wids-(?:train|val)\.json)",
    rf"{SHARDS}/(?:{_BUCKET}/)?"
    r"(?:README\.md|\.nv-meta/(?:\.info\.json|split\.yaml|dataset\.yaml))",
)


def is_own(key: str) -> bool:
    """Says whether an object, finished or not, has a name that this package gives."""
    return _HASHED.fullmatch(key) is not None or _FIXED.fullmatch(key) is not None


def is_unfinished(key: str) -> bool:
    """Says whether a file has the name that this package gives to one that it is writing."""
    return re.fullmatch(_TEMPORARY, key.rpartition("/")[2]) is not None


def has_fixed_path(key: str) -> bool:
    """Says whether an object of this package has a name that follows from no content."""
    return _FIXED.fullmatch(key) is not None


def leftovers(
    store: Store, current: Collection[str], folders: Iterable[str], fingerprints: Mapping[str, str]
) -> list[str]:
    """Objects in some folders that a finished run does not need, as it does not name them.

    `fingerprints` has the current fingerprint of each folder that goes by them.
    """
    old: list[str] = []
    # Others are not listed: nothing is to be found there.
    cleared = [name for name in folders if LAYOUT[name] in _CLEARED or name == "tracks"]
    for folder, keys in listed(store, cleared).items():
        match LAYOUT[folder]:
            case FolderLifetime.TABLE | FolderLifetime.NAMED:
                old += [key for key in keys if key not in current]
            case FolderLifetime.FINGERPRINTED:
                prefix = f"{folder}/{fingerprints[folder]}-"
                old += [key for key in keys if not key.startswith(prefix)]
            case FolderLifetime.RUN:
                old += keys
            case FolderLifetime.CACHE if folder == "tracks":
                # Older versions stored all of a track in one object.
                old += [key for key in keys if key.count("/") == 1]
    return old


def listed(store: Store, folders: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of the objects in some folders of an output root, by folder."""
    by_folder: dict[str, list[str]] = {folder: [] for folder in folders}
    for key in listed_objects(store, by_folder):
        by_folder[key.partition("/")[0]].append(key)
    return by_folder


def listed_objects(store: Store, folders: Collection[str]) -> dict[str, ObjectInfo]:
    """Returns the objects in some folders of an output root, by name.

    In a bucket with few objects that is one listing of all: most folders have none or few.
    """
    few = list(islice(store.list(), _FEW_OBJECTS + 1)) if not store.is_local else None
    if few is None or len(few) > _FEW_OBJECTS:
        with ThreadPoolExecutor(8) as pool:
            few = [*chain(*pool.map(lambda folder: [*store.list(f"{folder}/")], folders))]
    return {info.key: info for info in few if "/" in info.key and info.key.split("/")[0] in folders}


def remove(store: Store, keys: Iterable[str]) -> None:
    """Removes objects of older runs; those that are not of this package stay, with a warning.

    Objects with fixed names are removed before tars, so that no index names a tar that is gone.
    """
    others: list[str] = []

    def own() -> Iterator[str]:
        for key in sorted(keys, key=lambda key: _FIXED.fullmatch(key) is None):
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
    """
    objects = chain.from_iterable(listed(store, sorted(OWN_FOLDERS)).values())
    keys = [key for key in objects if not _has_hidden_name(key)]
    has_begun = any(map(_HASHED.fullmatch, keys))
    return [key for key in keys if not (has_begun and is_own(key))]


def has_results(store: Store) -> bool:
    """Whether a run has written anything under an output root."""
    objects = chain.from_iterable(store.list(f"{folder}/") for folder in OWN_FOLDERS)
    return any(_HASHED.fullmatch(info.key) for info in objects)


def _has_hidden_name(key: str) -> bool:
    return is_hidden(key.rpartition("/")[2])
