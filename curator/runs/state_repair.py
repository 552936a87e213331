"""State that is damaged is removed, so that a run finds it missing and makes it again."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from curator.errors import DamagedError
from curator.runs.object_repair import restored
from curator.stages.commit.commit_run import alone
from curator.storage import Store
from curator.tables.checksums import is_damaged
from curator.tables.fenced_store import FencedStore
from curator.tables.out_layout import CONFIG, LAYOUT, SHARDS, FolderLifetime, is_own
from curator.tables.parts import SUMMARY

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FOR_GOOD = {name for name, life in LAYOUT.items() if life is FolderLifetime.RECORD}
ALL = frozenset(LAYOUT) - {SHARDS, "report", *_FOR_GOOD} | {SUMMARY, CONFIG}
"""Folders and objects that `curate run` makes again."""
CACHES = frozenset(
    name for name, life in LAYOUT.items() if life is FolderLifetime.CACHE and name != "tracks"
) | {"frames"}
"""Folders that `curate recaption` makes again, which has no sources."""
ROUNDS = 2 * len(ALL)
"""Kinds of damage that one command repairs; more is a store that cannot be trusted."""
_READERS = 8


def with_repair(
    store: Store,
    work: Callable[[], T],
    kinds: frozenset[str],
    *,
    check: Callable[[], None] = alone,
) -> T:
    """Does some work, again after each removal of what it found damaged.

    Args:
        store: Output root.
        work: Can be done again at any time: it goes on from what is stored.
        kinds: Folders and objects that it makes again: `ALL` or `CACHES`.
        check: Raises if nothing may be removed any more.

    Raises:
        DamagedError: An object of another kind is damaged, or one that is missing is needed.
    """
    for _ in range(ROUNDS):
        try:
            return work()
        except DamagedError as error:
            check()
            if not _remove(store, error, kinds, check):
                raise
    return work()


def _remove(
    store: Store, error: DamagedError, kinds: frozenset[str], check: Callable[[], None]
) -> bool:
    """Removes the damaged objects of the kind that an error names; says whether there were any.

    Those of which the newest snapshot has an equal copy are written again.
    """
    if error.name.split("/")[0] not in kinds:
        return False
    folder = error.name.rpartition("/")[0]
    # An object at the root is a kind of its own.
    prefix = f"{folder}/" if folder else error.name
    names = [info.key for info in store.list(prefix) if is_own(info.key)]
    with ThreadPoolExecutor(_READERS) as pool:
        answers = pool.map(partial(is_damaged, store), names)
        damaged = [name for name, is_so in zip(names, answers, strict=True) if is_so]
    if not damaged:
        return False
    logger.warning(
        "damaged objects in %s/%s: %d of %d, such as %s (%s); they are removed, and what they held "
        "is made again",
        store.uri,
        folder or error.name,
        len(damaged),
        len(names),
        error.name if error.name in damaged else damaged[0],
        error.why,
    )
    whole = restored(FencedStore(store, check), damaged)
    store.delete([name for name in damaged if name not in whole])
    return True
