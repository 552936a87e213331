"""Looks up whether the sources exist that a rerun needs to make damaged objects again."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.tar_reader import FOLDER
from curator.errors import CuratorError, ErrorCode, SourceError
from curator.number_text import amount
from curator.storage import Store
from curator.storage.source_reader import stat_source
from curator.tables.checksums import read_parquet
from curator.tables.snapshot_store import own_part
from curator.tools.verify.findings import RERUN

MAX_LOOKED_UP = 200
"""Most requests of one check for the existence of sources."""
_PER_TAR = 20
_THREADS = 16
_SOURCES = ("uri", "outcome")
_COLUMNS = ("shard", "source_uri", "decision")
_AGAIN = (
    "move the object out of the output, keep it, and run `curate run` again with the same recipe, "
    "which makes it again from the sources of its clips ({n}): {looked_up}"
)
_KEEP = (
    "keep the object, and restore it from a backup; a rerun could not make it again: {looked_up}"
)
_KEEP_RESULTS = (
    "keep what is there, and restore the object from a backup; {looked_up}. `curate run` with the "
    "same recipe makes again what the other sources and the stored results give; without "
    "`--replace` it drops no clip"
)


def remedies_of_tars(store: Store, parts: Iterable[str], tars: Collection[str]) -> dict[str, str]:
    """Returns for each tar, named relative to the shards, how to get its objects back.

    `parts` are the parts of the table `clips`. A rerun is a remedy only where the sources that were
    looked up exist.
    """
    clips = _clips_by_source(store, parts, frozenset(tars))
    chosen = chain.from_iterable(islice(clips[tar], _PER_TAR) for tar in sorted(clips))
    uris = list(islice(dict.fromkeys(chosen), MAX_LOOKED_UP))
    with ThreadPoolExecutor(_THREADS) as pool:
        states = dict(zip(uris, pool.map(_state, uris), strict=True))
    return {tar: _remedy(clips.get(tar, Counter()), states) for tar in tars}


def remedy_of_results(store: Store, parts: Iterable[str]) -> str:
    """Returns how to get damaged tables or candidates back; `parts` are those of `sources`.

    A rerun makes them again, and needs the sources of what was not stored otherwise.
    """
    uris: list[str] = []
    for part in parts:
        table = _read(store, own_part(part), _SOURCES) or _read(store, part, _SOURCES)
        if table is not None:
            is_done = pc.fill_null(pc.equal(table["outcome"], "done"), False)
            uris += table.filter(is_done)["uri"].to_pylist()
    chosen = uris[:MAX_LOOKED_UP]
    with ThreadPoolExecutor(_THREADS) as pool:
        absent = [uri for uri, state in zip(chosen, pool.map(_state, chosen), strict=True)
                  if state != "there"]  # fmt: skip
    if not chosen:
        return _KEEP.format(looked_up="the sources are not known")
    words = f"{len(chosen)} of {amount(len(uris), 'source')} were looked up, and "
    if absent:
        words += f"{len(absent)} cannot be read, such as {absent[0]}"
        return _KEEP_RESULTS.format(looked_up=words)
    return f"{RERUN} ({words}all of these exist)"


def _clips_by_source(
    store: Store, parts: Iterable[str], tars: frozenset[str]
) -> Mapping[str, Counter[str]]:
    """Counts the kept clips of some tars by the address of their source."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        table = _read(store, own_part(part), _COLUMNS) or _read(store, part, _COLUMNS)
        if table is None:
            # The part has its own finding; clips of other parts are known.
            continue
        is_of_tars = pc.is_in(table["shard"], value_set=pa.array([FOLDER + tar for tar in tars]))
        for row in table.filter(is_of_tars).to_pylist():
            if row["decision"] == "kept" and row["source_uri"] is not None:
                counts[row["shard"].removeprefix(FOLDER)][row["source_uri"]] += 1
    return counts


def _read(store: Store, part: str, columns: Sequence[str]) -> pa.Table | None:
    try:
        return read_parquet(store, part, columns)
    except CuratorError:
        return None


def _state(uri: str) -> str:
    """Returns `there`, `gone`, or `unknown` if the storage does not answer."""
    try:
        stat_source(uri)
    except SourceError as error:
        return "gone" if error.code is ErrorCode.VANISHED else "unknown"
    except (CuratorError, OSError):
        return "unknown"
    return "there"


def _remedy(clips: Counter[str], states: Mapping[str, str]) -> str:
    by_state: defaultdict[str, list[str]] = defaultdict(list)
    for uri in clips:
        if uri in states:
            by_state[states[uri]].append(uri)
    n_looked_up = sum(map(len, by_state.values()))
    scope = f"{n_looked_up} of its {amount(len(clips), 'source')} were looked up, and "
    for state, words in (("gone", "no longer exist"), ("unknown", "cannot be read now")):
        if uris := by_state[state]:
            n_clips = sum(clips[uri] for uri in uris)
            words = f"{scope}{len(uris)} {words}, such as {uris[0]} ({amount(n_clips, 'clip')})"
            return _KEEP.format(looked_up=words)
    if not n_looked_up:
        return _KEEP.format(looked_up="the sources of its clips are not known")
    words = f"{scope}all of these exist"
    return _AGAIN.format(n=amount(clips.total(), "clip"), looked_up=words)
