"""Names the objects of this package under an output root; it removes and overwrites no others.

An output root may have objects of users and other programs, such as originals and notes. Objects of
a run have names with hashes of settings and contents, so others do not have such names by chance.
Some have fixed names that readers expect, such as `shards/README.md`. An object with any other
name does not belong to this package, in any folder.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice

from curator.storage import ObjectInfo, Store
from curator.storage.file_walk import is_hidden

logger = logging.getLogger(__name__)

CONFIG, SETTINGS = "config.json", ("recipe", "fingerprints", "format")
"""Settings of the newest commit: the object, and fields of the summary that are in it."""
SUMMARY = "summary.json"
"""Written last; a run with a summary is finished."""
LEASE = "lease.json"
"""Names the run that is writing. The run removes it at its end."""
PLAN, PROGRESS = "plan.json", "progress.json"
"""The estimate of `curate plan` for a run; the progress of a run that is writing or has failed."""
SHARDS, SNAPSHOTS = "shards", "snapshots"
SIDES = "side"
"""Folder, below that of the shards, of tars with members of one family."""
REMOVED, LEARNED, MARKS = "removed", "learned", "marks"
"""Folders of removal records, of the model of `curate learn`, and of marks by hand."""
VIEWS = "views"
"""Folder with a folder for each view: a choice of a snapshot's samples, with indexes of them."""
VIEW_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Names of views."""
PROOFS = "proofs"
"""Folder of the results of `curate prove`, an object for each rule."""
COPIES = "copies"
"""Folder with copies of marks, of the model of `curate learn`, and of footage of removals."""
LEARNED_MODEL = f"{LEARNED}/suitability.json"
CUTS = "cuts"
"""Folder of written clips until a commit; parts with clips that rules on columns reject stay."""
VALUES, FAMILIES = "values", "families"
"""Folders of values of families: as `CUTS`, and permanently."""
FRAME_PARTS, REPLIES = "frames", "replies"
"""Folders of frames for captions until a commit, and of replies of captioners."""
INDEX = "index"
"""Folder with the keys of parts, one object per folder of parts."""
MANIFEST, DATASET = f"{SHARDS}/manifest.json", f"{SHARDS}/dataset.parquet"
"""The list of shards, and the table of their samples."""
NEXT_MANIFEST = f"{SHARDS}/manifest.next.json"
"""The manifest of a commit that is under way, or did not finish."""

ENERGON_SPLITS, ENERGON_COUNTS = ".nv-meta/split.yaml", ".nv-meta/.info.json"
"""Paths below a folder of shards: the tars of each split, and the sample count of each tar."""


def copy_name(name: str) -> str:
    """Returns the name of an object's copy."""
    return f"{COPIES}/{name}"


class FolderLifetime(StrEnum):
    """How long the objects of a folder stay."""

    TABLE = "table"
    """While the newest snapshot has them. They are its copies for readers of a whole folder."""
    NAMED = "named"
    """While a snapshot names them."""
    FINGERPRINTED = "fingerprinted"
    """While the run has the same fingerprint."""
    RUN = "run"
    """Until a run has finished."""
    CACHE = "cache"
    """Until a user removes them, because another recipe may need them again."""
    FIXED = "fixed"
    """Until a run overwrites them."""
    KEPT = "kept"
    """Until `curate clean` removes them."""
    RECORD = "record"
    """Permanently."""


class OnRemoval(StrEnum):
    """What `curate remove` does with the objects of a folder."""

    ROWS = "rows"
    """It takes rows, keys and texts of removed footage out of each object."""
    OBJECT = "object"
    """It deletes each object that has a row or a key of removed footage: runs make it again."""
    FOLDER = "folder"
    """It deletes all objects, because each mixes the footage of all clips: runs make them again."""
    UNNAMED = "unnamed"
    """It writes new objects, and deletes those that no snapshot names then."""
    SPECIAL = "special"
    """It has its own code: reports, and objects that no run can make again."""


@dataclass(frozen=True, slots=True)
class StoredKind:
    """The objects of one folder of an output root.

    Attributes:
        folder: Name of the folder.
        lifetime: How long the objects stay.
        on_removal: What `curate remove` does with the objects.
        named: Expression for names below the folder that have hashes; empty for none.
        fixed: Expression for names below the folder that readers expect; empty for none.
        footage: Columns with the ids of the clips or sources that an object has footage of. If a
            removal changes only some rows, it reads these columns first; without columns, it reads
            the whole object.
        used: Column whose values a snapshot or a candidate must have. Rows with other values may
            be about removed clips, so a removal treats them as such; empty for none.
    """

    folder: str
    lifetime: FolderLifetime
    on_removal: OnRemoval
    named: str = ""
    fixed: str = ""
    footage: tuple[str, ...] = ()
    used: str = ""


TABLES = (
    "sources", "shots", "clips", "embeddings", "clip_embeddings", "annotations", "sidecars",
    "members",
)  # fmt: skip
_PART = r"[0-9a-f]{16}-[0-9a-f]{16}\.parquet"
_TABLE_PART = r"part-\d{5,}-[0-9a-f]{12}\.parquet"
_TEMPORARY = r"\.tmp-(?:check-)?[0-9a-f]{16}"
_BUCKET = r"\d+p_\d+-\d+_\d+f(?:_[^/]+)?"
_ENERGON = r"\.nv-meta/(?:\.info\.json|split\.yaml|dataset\.yaml|index\.sqlite|index\.uuid)"
_OF_FAMILY, _CLIP = rf"[a-z0-9_]+/{_PART}", ("clip_id",)
_OF_VIEW = (
    rf"view\.json|dataset\.parquet|wids-(?:train|val)\.json|energon/{_ENERGON}"
    r"|(?:webshart|diffusion-pipe)/(?:train|val)/[^/]+/"
    r"(?:captions\.json|(?:train|val)-\d{6,}-[0-9a-f]{8}\.(?:json|tar))"
)
_RANDOM, _FOOTAGE = r"[0-9a-f]{16}\.parquet", r"footage-[0-9a-f]{16}\.parquet"
_MODEL = re.escape(LEARNED_MODEL.removeprefix(f"{LEARNED}/"))
_LIFE, _ON = FolderLifetime, OnRemoval
KINDS = (
    # Views first: a removal finds their links to tars while the tars exist.
    StoredKind(VIEWS, _LIFE.RECORD, _ON.UNNAMED, fixed=rf"{VIEW_NAME}/(?:{_OF_VIEW})"),
    *(StoredKind(table, _LIFE.TABLE, _ON.UNNAMED, _TABLE_PART) for table in TABLES),
    StoredKind(
        SNAPSHOTS,
        _LIFE.KEPT,
        _ON.UNNAMED,
        r"\d{8}\.json|(?:manifest|dataset|removed)-[0-9a-f]{16}\.(?:json|parquet)"
        rf"|(?:{'|'.join(TABLES)})/{_TABLE_PART}",
    ),
    StoredKind(
        SHARDS,
        _LIFE.NAMED,
        _ON.UNNAMED,
        r"[^/]+/(?:train|val)-\d{6,}-[0-9a-f]{8}\.(?:tar(?:\.idx)?|meta\.jsonl|json)"
        rf"|{SIDES}/[a-z0-9_]+/[^/]+/(?:train|val)-\d{{6,}}-[0-9a-f]{{8}}\.tar(?:\.idx)?",
        fixed=r"dataset\.parquet|manifest(?:\.next)?\.json|wids-(?:train|val)\.json"
        rf"|(?:{_BUCKET}/)?(?:README\.md|captions\.json|{_ENERGON})"
        rf"|{SIDES}/[a-z0-9_]+/{_ENERGON}",
    ),
    StoredKind("candidates", _LIFE.NAMED, _ON.ROWS, rf"[a-z_]+/{_PART}"),
    StoredKind("duplicate_pairs", _LIFE.NAMED, _ON.OBJECT, _PART, footage=("clip_id", "other")),
    StoredKind("scan", _LIFE.FINGERPRINTED, _ON.ROWS, _PART),
    StoredKind("segments", _LIFE.RUN, _ON.OBJECT, _PART, footage=("source_id",)),
    StoredKind(CUTS, _LIFE.NAMED, _ON.OBJECT, _PART, footage=_CLIP, used="clip_id"),
    StoredKind(FRAME_PARTS, _LIFE.RUN, _ON.OBJECT, _PART, footage=_CLIP, used="clip_id"),
    StoredKind(VALUES, _LIFE.NAMED, _ON.OBJECT, _OF_FAMILY, footage=_CLIP, used="clip_id"),
    StoredKind("hashes", _LIFE.CACHE, _ON.ROWS, _PART),
    StoredKind("tracks", _LIFE.CACHE, _ON.ROWS, rf"[a-z_]+/{_PART}", footage=("source_id",)),
    StoredKind(
        "vectors",
        _LIFE.CACHE,
        _ON.FOLDER,
        r"cells-[0-9a-f]{16}\.npz|segment-[0-9a-f]{16}\.bin",
        fixed=r"footage\.json",
    ),
    StoredKind(REPLIES, _LIFE.CACHE, _ON.ROWS, _PART, used="key"),
    StoredKind(
        FAMILIES,
        _LIFE.CACHE,
        _ON.ROWS,
        rf"{_OF_FAMILY}|[a-z0-9_]+-[0-9a-f]{{16}}\.json",
        used="clip_id",
    ),
    # A result is of all clips, so none is true after a removal.
    StoredKind(PROOFS, _LIFE.CACHE, _ON.FOLDER, r"[0-9a-f]{16}\.json"),
    StoredKind(INDEX, _LIFE.FIXED, _ON.UNNAMED, _PART),
    StoredKind(
        "report",
        _LIFE.FIXED,
        _ON.SPECIAL,
        fixed=r"(?:index|tune|learn)\.html|previews/[0-9a-f]+\.mp4",
    ),
    StoredKind(REMOVED, _LIFE.RECORD, _ON.SPECIAL, rf"\d{{8}}(?:\.finished)?\.json|{_FOOTAGE}"),
    StoredKind(MARKS, _LIFE.RECORD, _ON.SPECIAL, _RANDOM),
    StoredKind(LEARNED, _LIFE.RECORD, _ON.SPECIAL, fixed=_MODEL),
    StoredKind(
        COPIES,
        _LIFE.RECORD,
        _ON.SPECIAL,
        rf"(?:{MARKS}/{_RANDOM}|{REMOVED}/{_FOOTAGE}|{LEARNED}/{_MODEL})(?:\.receipt\.json)?",
    ),
)
"""All that this package stores in folders of an output root."""
LAYOUT = {kind.folder: kind.lifetime for kind in KINDS}
"""All folders of an output root, with the lifetime of their objects."""
OWN_FOLDERS = frozenset(LAYOUT)
_FEW_OBJECTS = 10_000
"""A listing of this many objects takes fewer requests than a listing of each folder."""


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_HASHED = _any_of(
    (
        *(f"{kind.folder}/(?:{kind.named})" for kind in KINDS if kind.named),
        rf"(?:(?:{'|'.join(LAYOUT)})/(?:[^/]+/)*)?{_TEMPORARY}",
    )
)
_FIXED = _any_of(
    (
        *map(re.escape, (SUMMARY, CONFIG, LEASE, PLAN, PROGRESS)),
        *(f"{kind.folder}/(?:{kind.fixed})" for kind in KINDS if kind.fixed),
    )
)


def folders_of(*values: FolderLifetime | OnRemoval) -> tuple[str, ...]:
    """Returns the folders with one of these lifetimes, or of these treatments by a removal."""
    return tuple(k.folder for k in KINDS if k.lifetime in values or k.on_removal in values)


def is_own(key: str) -> bool:
    """Returns whether an object, finished or not, has a name of this package."""
    return _HASHED.fullmatch(key) is not None or _FIXED.fullmatch(key) is not None


def is_unfinished(key: str) -> bool:
    """Returns whether a file has the name of a file that this package is writing."""
    return re.fullmatch(_TEMPORARY, key.rpartition("/")[2]) is not None


def has_fixed_path(key: str) -> bool:
    """Returns whether an object has a fixed name of this package, without a hash."""
    return _FIXED.fullmatch(key) is not None


def leftovers(
    store: Store, current: Collection[str], folders: Iterable[str], fingerprints: Mapping[str, str]
) -> list[str]:
    """Returns objects in some folders that a finished run does not need.

    `current` has the names that the run needs; `fingerprints` has the current fingerprint of each
    folder with the lifetime `FINGERPRINTED`.
    """
    old: list[str] = []
    # Other folders have no leftovers, so the function does not list them.
    cleared = {*folders_of(_LIFE.TABLE, _LIFE.NAMED, _LIFE.FINGERPRINTED, _LIFE.RUN)}
    cleared = cleared.intersection(folders)
    for folder, keys in listed(store, cleared).items():
        match LAYOUT[folder]:
            case FolderLifetime.TABLE | FolderLifetime.NAMED:
                old += [key for key in keys if key not in current]
            case FolderLifetime.FINGERPRINTED:
                prefix = f"{folder}/{fingerprints[folder]}-"
                old += [key for key in keys if not key.startswith(prefix)]
            case FolderLifetime.RUN:
                old += keys
    return old


def listed(store: Store, folders: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of the objects in some folders of an output root, by folder."""
    by_folder: dict[str, list[str]] = {folder: [] for folder in folders}
    for key in listed_objects(store, by_folder):
        by_folder[key.partition("/")[0]].append(key)
    return by_folder


def listed_objects(store: Store, folders: Collection[str]) -> dict[str, ObjectInfo]:
    """Returns the objects in some folders of an output root, by name.

    In a bucket with few objects, one listing of all objects replaces a listing per folder.
    """
    few = list(islice(store.list(), _FEW_OBJECTS + 1)) if not store.is_local else None
    if few is None or len(few) > _FEW_OBJECTS:
        with ThreadPoolExecutor(8) as pool:
            few = [*chain(*pool.map(lambda folder: [*store.list(f"{folder}/")], folders))]
    return {info.key: info for info in few if "/" in info.key and info.key.split("/")[0] in folders}


def find_unlisted(
    store: Store, names: Iterable[str], listed: Collection[str]
) -> dict[str, ObjectInfo]:
    """Returns those objects of `names` that exist although a listing lacks them, by name.

    A listing may be stale, so it does not prove that an object is missing.
    """
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(store.find, [name for name in names if name not in listed])
        return {info.key: info for info in found if info is not None}


def remove(store: Store, keys: Iterable[str]) -> None:
    """Removes objects of older runs; warns of objects of others, which stay.

    Objects with fixed names go first, so that no index names a tar that is gone.
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
            "%d objects in folders of results are not of curate and stay, such as %s/%s; readers "
            "of these folders may mistake these objects for results: move them elsewhere",
            len(others),
            store.uri,
            others[0],
        )


def foreign_objects(store: Store) -> list[str]:
    """Returns objects in folders of results that are not of this package, without hidden objects.

    If no run has begun, all objects in these folders count as foreign.
    """
    objects = chain.from_iterable(listed(store, sorted(OWN_FOLDERS)).values())
    keys = [key for key in objects if not _has_hidden_name(key)]
    has_begun = any(map(_HASHED.fullmatch, keys))
    return [key for key in keys if not (has_begun and is_own(key))]


def has_results(store: Store) -> bool:
    """Returns whether a run has written any results under an output root."""
    objects = chain.from_iterable(store.list(f"{folder}/") for folder in OWN_FOLDERS)
    return any(_HASHED.fullmatch(info.key) for info in objects)


def _has_hidden_name(key: str) -> bool:
    return is_hidden(key.rpartition("/")[2])
