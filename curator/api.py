"""Curation from Python: starts a run, and reads the clips of a finished run.

These functions do not print or end the process. They raise `CuratorError`, and write messages to
the logger `curator`.
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
    """Curates sources as `curate run` does.

    Args:
        sources: Files, folders, globs, addresses or manifests.
        out: Folder or `s3://bucket/prefix` for all results.
        recipe: Name from `curate recipes`, or a YAML file. None: the recipe of `out`, or
            `quickstart` for a new `out`. Changes to the recipe of `out` are logged.
        overrides: `key=value` each, such as `filters.motion.min=0.3`.
        workers: Maximum of processes per stage. None: one per core, and on a cluster as many as
            the work needs.
        ray_address: Ray cluster to run on; None for this machine. Ray must not be connected in this
            process.
        shared_out: Whether all nodes of the cluster see `out` and the sources under the same paths.
        place: On a cluster, the name of a custom Ray resource for each stage name. The stage runs
            on nodes that have this resource.
        limit: Use only the first `limit` sources; None for all.
        replace: Whether `out` is to contain only these sources. If not, these sources are added to
            the sources of earlier runs. The run is then refused if clips would be lost because
            their sources cannot be read or cut again.
        memory_bytes: Memory for the columns of clips; further columns go to temporary files. None
            for a quarter of the machine's memory.

    Returns:
        The contents of `summary.json`.

    Raises:
        RecipeError: A key or value of the recipe is wrong.
        UsageError: A place, a model, a package or a server is missing, or clips would be lost
            without `replace`. The shards are unchanged.
        CuratorError: The run broke off. The same call resumes from the stored results.
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
        UsageError: `out` has no finished run or no such snapshot, or this version cannot read it.
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
    """Finds the clips that are nearest to a query, the nearest first, as `curate search` does.

    Pass exactly one of `clip`, `picture`, `video` and `text`. For many queries, open an output once
    with `curator.retrieval.clip_search.ClipSearch`.

    Args:
        out: Folder or `s3://bucket/prefix` of the run; it is not changed.
        clip: Id of a clip, or a unique prefix of its id.
        picture: Path of an image file.
        video: Path or address of a video file.
        text: Description of the clips to find; needs CLIP.
        k: Maximum of clips to return.
        where: SQL condition over columns of `clips`.
        rejected: Whether the search includes rejected clips.
        snapshot: Number of a snapshot; None for the newest.

    Raises:
        UsageError: No query or several queries are given, or the query cannot be used.
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
        """Returns rows of the table `clips`: decisions, scores, captions, metadata and places.

        Args:
            rejected: Whether to include rejected clips.
        """
        clips = self.finished.clips
        return clips if rejected else clips.filter(pc.equal(clips["decision"], "kept"))

    def to_ray(self) -> Any:  # noqa: ANN401 - Ray is imported in `loading` alone
        """Returns the kept clips as a Ray dataset: rows of `to_arrow` with the clip's bytes, `mp4`.

        Ray's tasks read the bytes, so all nodes must reach the output.

        Raises:
            UsageError: Ray Data is not installed, or Ray was not started.
        """
        # The module needs torch.
        from curator.loading.ray_decoding import ray_clip_files

        return ray_clip_files(self.finished.store, self.to_arrow())
