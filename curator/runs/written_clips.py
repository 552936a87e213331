"""Rejects clips after the cut, and again in later runs without another cut.

The table `clips` has the facts of a written clip that was rejected, such as its size and the hash
of its MP4, but no tar has its bytes. While the reason still holds, nothing is cut or decoded.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.annotator_worker import may_pass
from curator.buckets import BucketClasses, bucket_of
from curator.fingerprints import fingerprint
from curator.records.clips import Reason, format_of
from curator.stage import AnyAnnotator
from curator.storage import Store
from curator.storage.metadata_columns import PREFIX
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRows, fields_of, reject
from curator.tables.long_columns import take_rows
from curator.tables.mark_table import Mark
from curator.tables.output_format import existing
from curator.tables.removal_records import Removals

ANNOTATED_BY = "annotated_by"
"""Key of the summary: by reason of failure, a fingerprint of all that an annotator depends on."""
_FORM = ("width", "height", "n_frames", "format")
_AS_WRITTEN = ("clip_id", "mp4_sha256", *_FORM)
_OF_CAPTIONS = ("caption", "caption_model", "caption_failure")
_FAILED = ("clip_id", "reason", "reason_detail", *_OF_CAPTIONS)


def reject_as_written(clips: ClipRows, removals: Removals, buckets: BucketClasses) -> None:
    """Rejects kept clips with the MP4 bytes of a removed clip, and clips that fit no bucket.

    `without_removed` drops most clips of removed footage before the cut, by hashes of frames, which
    footage with frozen pictures lacks.
    """
    numbers = clips.kept_numbers()
    written = take_rows(clips.table(fields_of(clips.schema, _AS_WRITTEN)), pa.array(numbers))
    for row, reason, detail in _unwanted(written, removals, buckets):
        reject(clips[int(numbers[row])], reason, detail=detail)


def reject_as_before(
    clips: ClipRows,
    written: pa.Table,
    removals: Removals,
    buckets: BucketClasses,
    failed: pa.Table,
) -> pa.Array:
    """Rejects kept clips that the last run rejected after the cut.

    Args:
        clips: Clips of the run.
        written: Ids and facts of clips that the last run wrote and rejected.
        removals: Removed footage.
        buckets: Classes of the buckets.
        failed: Rows of `still_failed`.

    Returns:
        bool [rows of `written`]: whether the clip was rejected.
    """
    is_rejected = np.zeros(written.num_rows, bool)
    numbers = pc.index_in(written["clip_id"], value_set=clips.column("clip_id")).to_numpy()
    for row, reason, detail in _unwanted(written, removals, buckets):
        is_rejected[row] = True
        reject(clips[int(numbers[row])], reason, detail=detail)
    at = pc.index_in(failed["clip_id"], value_set=written["clip_id"].combine_chunks())
    for row, before in zip(at.to_pylist(), failed.to_pylist(), strict=True):
        if row is not None and not is_rejected[row]:
            is_rejected[row] = True
            clip = clips[int(numbers[row])]
            for name in _OF_CAPTIONS:
                setattr(clip, name, before[name])
            reject(clip, before["reason"], detail=before["reason_detail"])
    return pa.array(is_rejected)


def _unwanted(
    written: pa.Table, removals: Removals, buckets: BucketClasses
) -> Iterator[tuple[int, Reason, str]]:
    """Yields the rows of clips that may not be packed, as they were written."""
    removed = pa.array(sorted(removals.mp4), pa.string())
    is_removed = pc.is_in(written["mp4_sha256"], value_set=removed).to_numpy(False)
    forms = list(zip(*(written[name].to_pylist() for name in _FORM), strict=True))
    fits = {
        (w, h, n, kind): bucket_of(w, h, n, buckets, is_still=format_of(kind) != "mp4") is not None
        for w, h, n, kind in set(forms)
    }
    for row, form in enumerate(forms):
        if is_removed[row]:
            yield row, Reason.REMOVED, "`curate remove` took this MP4 out of OUT"
        elif not fits[form]:
            width, height, n_frames, _ = form
            yield row, Reason.NO_BUCKET, f"{width}x{height}, {n_frames} frames as written"


def annotated_by(
    stages: Sequence[AnyAnnotator], decided: Mapping[str, Any], marks: Mapping[str, Mark]
) -> dict[str, str]:
    """Returns a fingerprint of all that each required annotator depends on, by reason of failure.

    `decided` has the fingerprints of the run. A changed file of an annotator counts as a change,
    even if its results, and so its version, stay as they are. Metadata is no part of it, so
    annotators of metadata are left out.
    """
    marked = sorted((name, repr(mark)) for name, mark in marks.items())
    return {
        stage.failed_reason: fingerprint("annotated", dict(decided), marked, _code_of(stage))
        for stage in stages
        if stage.required and not any(name.startswith(PREFIX) for name in stage.reads_columns())
    }


def _code_of(stage: AnyAnnotator) -> list[str]:
    """Returns the texts of the modules that define an annotator and its bases."""
    modules = [sys.modules.get(base.__module__) for base in type(stage).__mro__]
    paths = {getattr(module, "__file__", None) for module in modules}
    return [
        Path(path).read_text("utf-8", "replace")
        for path in sorted(filter(None, paths))
        if inspect.getmodulename(path) is not None and Path(path).is_file()
    ]


def still_failed(
    store: Store, previous: Mapping[str, Any], annotated: Mapping[str, str]
) -> pa.Table:
    """Returns the clips on which annotators failed in the last run, and would fail again.

    `annotated` is from `annotated_by`. A failure that may pass is none, such as a lack of memory.
    """
    before = previous.get(ANNOTATED_BY, {})
    same = [reason for reason, value in annotated.items() if before.get(reason) == value]
    schema = pa.schema([(name, pa.string()) for name in _FAILED])
    tables = [schema.empty_table()]
    for name in existing(store, previous, "clips") if same else ():
        rows = read_parquet(store, name, _FAILED)
        rows = rows.filter(pc.is_in(rows["reason"], value_set=pa.array(same, pa.string())))
        fails = [not may_pass(detail or "") for detail in rows["reason_detail"].to_pylist()]
        tables.append(rows.filter(pa.array(fails, pa.bool_())).cast(schema))
    return pa.concat_tables(tables)
