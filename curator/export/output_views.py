"""Makes views: indexes over some samples of the tars of a snapshot, for each reader of the tars.

No tar is read or copied, because the rows of `dataset.parquet` say where each member is. What each
reader needs to skip the other samples of the tars:

- webshart and SimpleTuner read a folder of indexes instead of those next to the tars.
- diffusion-pipe skips members that `captions.json` does not name. The file must lie next to the
  tars, so a folder has links to them.
- Megatron-Energon skips the samples under `exclude` in `split.yaml`.
- wids reads whole tars. The index has the numbers of the samples, for a `Subset`.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.reader_indexes import CAPTIONS, caption_lines, captions_file, members_file
from curator.dataset.shard_index import (
    DATASET_SCHEMA,
    DescribedTar,
    current_rows,
    energon_files,
    known_tars,
    rows_by_tar,
    wids_file,
)
from curator.dataset.tar_reader import SPLITS, members_name
from curator.errors import DamagedError, UsageError
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.fenced_store import Digest
from curator.tables.json_objects import read_json
from curator.tables.kept_clips import selected_clips
from curator.tables.mark_table import read_marks
from curator.tables.out_layout import SHARDS
from curator.tables.output_format import read_current_summary
from curator.tables.parts import parquet_by_content, with_column
from curator.tables.snapshot_store import INDEXES, NUMBER, read_snapshot, snapshot_numbers
from curator.tables.view_store import (
    ROWS,
    VIEW,
    View,
    check_view_name,
    read_view,
    view_key,
    view_objects,
)

logger = logging.getLogger(__name__)

_CHOSEN = ("name", "snapshot", "where", "split", "buckets", "marks", "created_at")
"""Fields of a view that do not follow from its samples."""
_WRITERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The samples of a view, by options of `curate views`; None and empty choose all."""

    where: str | None = None
    split: str | None = None
    buckets: Sequence[str] = ()
    marks: str | None = None


def make_view(
    store: Store,
    name: str,
    choice: Choice,
    *,
    snapshot: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> View:
    """Writes a view of a snapshot, None for the newest, in place of a view of the same name.

    `check` raises if this process may no longer write.

    Raises:
        UsageError: The root has no finished run or no such snapshot, the condition is wrong, or no
            sample is chosen.
    """
    check_view_name(name)
    number = read_current_summary(store, snapshot)[NUMBER]
    samples = SnapshotSamples.read(store, number)
    rows = _chosen(store, samples.rows, choice, number)
    if not rows.num_rows:
        raise UsageError(
            f"view {name!r}: no sample of snapshot {number} of {store.uri} is chosen; expected at "
            f"least one of {samples.rows.num_rows}"
        )
    facts = {
        "name": name,
        "snapshot": number,
        "where": choice.where,
        "split": choice.split,
        "buckets": list(choice.buckets),
        "marks": choice.marks,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    check()
    # Until all files are those of this choice, no reader finds a view.
    store.delete([view_key(name, VIEW)])
    view, named = write_view(store, facts, rows, samples)
    store.delete(set(view_objects(store)[name]) - named)
    return view


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSamples:
    """The samples of a snapshot: rows of its `dataset.parquet`, and its tars by name."""

    rows: pa.Table
    tars: Mapping[str, DescribedTar]

    @classmethod
    def read(cls, store: Store, number: int) -> "SnapshotSamples":
        """Reads them; raises as `read_snapshot`, and `DamagedError`."""
        indexes = read_snapshot(store, number)[INDEXES]
        return cls(
            rows=current_rows(read_parquet(store, indexes["dataset"])),
            tars=known_tars(read_json(store, indexes["manifest"])),
        )


def _chosen(store: Store, rows: pa.Table, choice: Choice, number: int) -> pa.Table:
    if choice.split is not None:
        rows = rows.filter(pc.equal(rows["split"], choice.split))
    if choice.buckets:
        there = rows["bucket"].unique().to_pylist()
        if unknown := sorted(set(choice.buckets).difference(there)):
            raise UsageError(
                f"no samples in the bucket {unknown[0]!r}; expected of: "
                f"{', '.join(sorted(there)) or 'none'}"
            )
        rows = _among(rows, "bucket", choice.buckets)
    if choice.marks is not None:
        marks = read_marks(store).values()
        of = [mark.clip_id for mark in marks if choice.marks in (mark.verdict, mark.label)]
        rows = _among(rows, "clip_id", of)
    if choice.where is not None:
        clips = selected_clips(store, choice.where, snapshot=number)
        rows = _among(rows, "clip_id", clips["clip_id"].to_pylist())
    return rows


def _among(rows: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows[column], value_set=pa.array(values, pa.string())))


def write_view(
    store: Store, facts: Mapping[str, Any], rows: pa.Table, samples: SnapshotSamples
) -> tuple[View, set[str]]:
    """Writes the files of a view, `view.json` last; unchanged files stay as they are.

    Args:
        store: Output root.
        facts: Fields of `View` that the choice gives.
        rows: The samples of the view, out of `samples`.
        samples: All samples of the snapshot.

    Returns:
        The view, and the names of its objects.
    """
    name = facts["name"]
    by_tar = rows_by_tar(rows)
    tars = [samples.tars[tar] for tar in by_tar]
    files = {ROWS: parquet_by_content([rows], DATASET_SCHEMA, view_key(name, ROWS))[1]}
    files |= dict(_indexes(by_tar, tars, rows, samples.rows))
    view = View(
        **facts,
        counts=_counts(rows),
        tars=[tar.name for tar in tars],
        files={file: Digest.of(data).as_dict() for file, data in sorted(files.items())},
    )
    there = {info.key: info for info in store.list(view_key(name))}
    contents = {view_key(name, file): data for file, data in files.items()}
    changed = [k for k, data in contents.items() if not store.holds(there.get(k), data)]
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda key: store.write(key, contents[key]), changed))
    last = view_key(name, VIEW)
    links = _link_tars(store, view)
    if changed or not store.holds(there.get(last), view.to_json()):
        store.write(last, view.to_json())
    return view, {*contents, *links, last}


def _counts(rows: pa.Table) -> dict[str, Any]:
    def by(column: str) -> dict[str, int]:
        counted = pc.value_counts(rows[column]).to_pylist()
        return dict(sorted((row["values"], row["counts"]) for row in counted))

    return {
        "clips": rows.num_rows,
        "frames": pc.sum(rows["num_frames"]).as_py() or 0,
        "seconds": round(pc.sum(rows["duration"]).as_py() or 0.0, 3),
        "by_split": by("split"),
        "by_bucket": by("bucket"),
    }


def _indexes(
    by_tar: Mapping[str, pa.Table], tars: Sequence[DescribedTar], rows: pa.Table, every: pa.Table
) -> Iterator[tuple[str, bytes]]:
    """Yields the indexes of a view; `every` has the rows of all samples of the snapshot."""
    every = _among(every, "shard", list(by_tar))
    is_in = pc.is_in(every["clip_id"], value_set=rows["clip_id"].combine_chunks()).to_numpy()
    for split in SPLITS:
        of_split = pc.equal(every["split"], split).to_numpy()
        named = [_seen_from(tar, "../..") for tar in tars if tar.split == split]
        if named:
            numbers = np.flatnonzero(is_in[of_split]).tolist()
            yield f"wids-{split}.json", wids_file(named, samples=numbers)
        for bucket in sorted({tar.bucket for tar in tars if tar.split == split}):
            own = pc.and_(pc.equal(rows["bucket"], bucket), pc.equal(rows["split"], split))
            yield (
                f"{_folder('diffusion-pipe', split, bucket)}/{CAPTIONS}",
                captions_file(caption_lines(rows.filter(own))),
            )
    for tar in tars:
        file = members_name(tar.name.rpartition("/")[2])
        folder = _folder("webshart", tar.split, tar.bucket)
        yield f"{folder}/{file}", members_file(by_tar[tar.name], tar.bytes)
    above = f"../../../{SHARDS}/"
    others = every.filter(pa.array(~is_in)).select(["shard", "clip_id"])
    pairs = zip(*(others[column].to_pylist() for column in others.column_names), strict=True)
    prefixed = pc.binary_join_element_wise(above, rows["shard"], "")
    for file, data in energon_files(
        [_seen_from(tar, "../../..") for tar in tars],
        with_column(rows, "shard", prefixed),
        prefix="",
        exclude=[f"{above}{shard}/{key}" for shard, key in pairs],
    ):
        yield f"energon/.nv-meta/{file}", data


def _folder(reader: str, split: str, bucket: str) -> str:
    """Returns the folder of a reader that knows no splits, and reads one folder."""
    return f"{reader}/{split}/{bucket}"


def _seen_from(tar: DescribedTar, above: str) -> DescribedTar:
    """Returns a tar under its name as seen from a folder; `above` leads to the output root."""
    return replace(tar, name=f"{above}/{SHARDS}/{tar.name}")


def remake_views(
    store: Store, scrubbed: Callable[[str], str], check: Callable[[], None] = lambda: None
) -> set[str]:
    """Writes each view again from its snapshot, for `curate remove`, which changed the snapshot.

    A view that cannot be read, or whose snapshot or clips are all gone, is dropped with a warning:
    its objects are not among those that the function returns. `scrubbed` takes removed ids out of a
    condition.

    Returns:
        The names of the objects of all views.
    """
    named: set[str] = set()
    numbers = set(snapshot_numbers(store))
    for name in view_objects(store):
        check()
        try:
            view = read_view(store, name)
            keys = read_parquet(store, view_key(name, ROWS), ["clip_id"])["clip_id"].to_pylist()
        except DamagedError as error:
            logger.warning("the view %s is deleted, because it is damaged: %s", name, error)
            continue
        if view.snapshot not in numbers:
            logger.warning(
                "the view %s is deleted, because its snapshot %d is gone", name, view.snapshot
            )
            continue
        samples = SnapshotSamples.read(store, view.snapshot)
        facts = {field: getattr(view, field) for field in _CHOSEN}
        where = None if view.where is None else scrubbed(view.where)
        rows = _among(samples.rows, "clip_id", keys)
        if not rows.num_rows:
            logger.warning("the view %s is deleted, because all of its clips are removed", name)
            continue
        named |= write_view(store, {**facts, "where": where}, rows, samples)[1]
    return named


def _link_tars(store: Store, view: View) -> set[str]:
    """Links to the tars from the folders for diffusion-pipe, which reads local folders only."""
    links: set[str] = set()
    for tar in view.tars if store.is_local else ():
        bucket, _, file = tar.rpartition("/")
        key = view_key(
            view.name, f"{_folder('diffusion-pipe', file.partition('-')[0], bucket)}/{file}"
        )
        path = Path(store.uri, key)
        target = os.path.relpath(Path(store.uri, SHARDS, tar), path.parent)
        if not (path.is_symlink() and os.readlink(path) == target):
            with suppress(FileNotFoundError):
                path.unlink()
            path.symlink_to(target)
        links.add(key)
    return links
