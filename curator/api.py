"""Curation from Python: start a run, and read the clips of a finished one.

Nothing here prints or ends the process; what goes wrong is a `CuratorError`, and what the logger
`curator` says is the caller's to show.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.retrieval.clip_search import ClipSearch
from curator.retrieval.clip_search import FoundClip as FoundClip
from curator.review.finished_run import Finished, open_finished
from curator.runs.lease import held
from curator.runs.start import check_run, start_run

Place = str | os.PathLike[str]
"""A path, or `s3://bucket/prefix`."""


def run(
    sources: Place | Sequence[Place],
    out: Place,
    recipe: Place | None = None,
    overrides: Sequence[str] = (),
    *,
    workers: int | None = None,
    ray_address: str | None = None,
    shared_out: bool = False,
    place: Mapping[str, str] | None = None,
    limit: int | None = None,
    replace: bool = False,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """Curates sources, as `curate run` does.

    Args:
        sources: Files, folders, globs, addresses or manifests.
        out: Folder or `s3://bucket/prefix` for all results.
        recipe: Name from `curate recipes`, or a YAML file; None for the recipe that made `out`, and
            for a new `out` `quickstart`. What changes in the recipe of `out` is logged.
        overrides: `key=value` each, such as `filters.motion.min=0.3`.
        workers: Most processes of a stage; None for one per core, and on a cluster for as many as
            there is work for.
        ray_address: Ray cluster to run on; None for this machine. Ray must not be connected in this
            process.
        shared_out: All nodes of the cluster see `out` and the sources under the same paths.
        place: On a cluster, the custom resource of Ray on whose nodes a stage runs, by its name.
        limit: Only the first so many sources; None for all.
        replace: Whether OUT is to hold these sources alone. Else they are added to those of earlier
            runs, and the run is refused where clips would be lost because their sources cannot be
            read or cut again.
        memory_bytes: What columns of clips may take; the rest waits in temporary files. None for a
            quarter of the machine's.

    Returns:
        What `summary.json` holds.

    Raises:
        RecipeError: A key or value of the recipe is wrong.
        UsageError: A place, a model, a package or a server is missing, or clips would be lost
            without `replace`. Nothing in the shards was changed.
        CuratorError: The run broke off; the same call goes on from what was done.
    """
    named = [sources] if isinstance(sources, str | os.PathLike) else sources
    places = [os.fspath(source) for source in named]
    store, loaded = check_run(
        places,
        os.fspath(out),
        recipe=None if recipe is None else os.fspath(recipe),
        overrides=overrides,
        ray_address=ray_address,
        shared_out=shared_out,
    )
    with (
        held(store, "run") as lease,
        Progress(io.StringIO(), live=False) as progress,
        Engine(address=ray_address, workers=workers, place=place) as engine,
    ):
        return start_run(
            store,
            loaded,
            places,
            engine,
            progress,
            lease,
            limit=limit,
            replace=replace,
            memory_bytes=memory_bytes,
        )


def read_clips(out: Place, snapshot: int | None = None) -> "ClipTable":
    """Opens the clips of a finished run.

    Args:
        out: Folder or `s3://bucket/prefix` of the run.
        snapshot: Number of a snapshot, from `curate snapshots`; None for the newest.

    Raises:
        UsageError: There is no finished run or no such snapshot, or one that this version cannot
            read.
    """
    return ClipTable(finished=open_finished(os.fspath(out), snapshot))


def search(
    out: Place,
    *,
    clip: str | None = None,
    picture: Place | None = None,
    video: Place | None = None,
    text: str | None = None,
    k: int = 20,
    where: str | None = None,
    rejected: bool = False,
    snapshot: int | None = None,
) -> list[FoundClip]:
    """Finds clips by one of four queries, the nearest first, as `curate search` does.

    `ClipSearch` of `curator.retrieval.clip_search` asks many queries of an output opened once.

    Args:
        out: Folder or `s3://bucket/prefix` of the run; it is not changed.
        clip: Id of a clip, or a beginning that no other clip has.
        picture: Image file.
        video: Video file, or its address.
        text: What clips are to show; needs CLIP.
        k: Most clips.
        where: SQL condition over columns of `clips`.
        rejected: Whether rejected clips are found too.
        snapshot: Number of a snapshot; None for the newest.

    Raises:
        UsageError: There is not one query, or it cannot be used; the message says what was
            expected.
    """
    queries = {"clip": clip, "picture": picture, "video": video, "text": text}
    given = {by: query for by, query in queries.items() if query is not None}
    if len(given) != 1:
        raise UsageError(
            f"queries are {', '.join(given) or 'none'}; expected one of {', '.join(queries)}"
        )
    ((by, query),) = given.items()
    clips = ClipSearch.open(os.fspath(out), snapshot, rejected=rejected)
    return clips.find(by, os.fspath(query), k, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTable:
    """The clips of a finished run."""

    finished: Finished

    def to_arrow(self, *, rejected: bool = False) -> pa.Table:
        """Rows of the table `clips`: decisions, scores, captions, metadata and places.

        Args:
            rejected: Whether clips that were rejected are in it too.
        """
        clips = self.finished.clips
        return clips if rejected else clips.filter(pc.equal(clips["decision"], "kept"))

    def to_ray(self) -> Any:  # noqa: ANN401 - Ray is imported in `loading` alone
        """The kept clips as a Ray dataset: rows of `to_arrow` with `mp4`, the bytes of the clip.

        Bytes are read by Ray's tasks; all nodes must reach the output.

        Raises:
            UsageError: Ray Data is not installed, or Ray was not started.
        """
        # Imported here: it needs torch.
        from curator.loading.ray_decoding import ray_clip_files

        return ray_clip_files(self.finished.store, self.to_arrow())
