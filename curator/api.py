"""Curation from Python: starts a run, and reads the clips of a finished run.

These functions do not end the process, and print nothing but the progress of a run in a notebook.
They raise `CuratorError`, and write messages to the logger `curator`.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.number_text import amount, clock, length, moment
from curator.recipe import Overrides
from curator.runs.lease import acquire_lease
from curator.runs.output_recipe import choose_recipe
from curator.runs.start import check_run, start_run
from curator.tables.disk_table import taken
from curator.tables.snapshot_store import NUMBER
from curator.tools.retrieval.clip_search import ClipSearch, TextMatch
from curator.tools.retrieval.clip_search import FoundClip as FoundClip
from curator.tools.review.finished_run import Finished, open_finished

Place = str | os.PathLike[str]
"""A path, or `s3://bucket/prefix`."""
_RECIPE = "a name, a path as a text, or a mapping of sections"
_SHOWN = 10
"""Most clips that a notebook shows of a table."""
_LINE = 120
"""Characters of the line of progress in a notebook; a longer line would wrap."""


def run(
    sources: Place | Sequence[Place],
    out: Place,
    recipe: Place | Mapping[str, Any] | None = None,
    overrides: Overrides = (),
    *,
    workers: int | None = None,
    ray_address: str | None = None,
    shared_out: bool = False,
    place: Mapping[str, str] | None = None,
    limit: int | None = None,
    replace: bool = False,
    memory_bytes: int | None = None,
    progress: bool | Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Curates sources as `curate run` does.

    Example: `curator.run("videos/", "out/", overrides={"cut": {"size": "1280x720", "fps": 24}})`

    Args:
        sources: Files, folders, globs, addresses or manifests.
        out: Folder or `s3://bucket/prefix` for all results.
        recipe: Name from `curate recipes`, a YAML file, or the contents of such a file as a
            mapping. None: the recipe of `out`, or `quickstart` for a new `out`. Changes to the
            recipe of `out` are logged.
        overrides: Changes of the recipe: a mapping of dotted keys, or of sections and keys, to
            values, such as `{"filters.motion.min": 0.3}`; or texts `key=value`.
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
        progress: Whether to print one line that is updated in place; None to print it in a notebook
            only. A function gets the state of the run about twice a second, from a thread: the
            mapping has `stage`, `done` of `items`, `elapsed_s`, and `left_s` by stage or None. The
            first exception of the function is logged, and the run continues.

    Returns:
        The contents of `summary.json`.

    Raises:
        RecipeError: A key or value of the recipe is wrong.
        UsageError: A place, a model, a package or a server is missing, or clips would be lost
            without `replace`. The shards are unchanged.
        CuratorError: The run broke off. The same call resumes from the stored results.
    """
    named = sources if isinstance(sources, Sequence) and not isinstance(sources, str) else [sources]
    places = [_text(source, "sources", "paths or addresses as texts") for source in named]
    for name, value in (("workers", workers), ("limit", limit), ("memory_bytes", memory_bytes)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"{name} is {value!r}; expected a whole number from 1, or None")
    if not isinstance(overrides, Mapping | Sequence):
        raise UsageError(f"overrides is {overrides!r}; expected a mapping, or a list of texts")
    root = _text(out, "out")
    if recipe is not None and not isinstance(recipe, Mapping):
        recipe = _text(recipe, "recipe", _RECIPE)
    chosen = choose_recipe(root, recipe, overrides)
    store = check_run(places, root, chosen, ray_address=ray_address, shared_out=shared_out)
    with (
        acquire_lease(store, "run") as lease,
        _shown(progress) as shown,
        Engine(address=ray_address, workers=workers, place=place) as engine,
    ):
        return start_run(
            store,
            chosen.recipe,
            places,
            engine,
            shown,
            lease,
            limit=limit,
            replace=replace,
            memory_bytes=memory_bytes,
        )


def _text(value: object, name: str, expected: str = "a path or an address as a text") -> str:
    """Returns a text or the text of a path; raises `UsageError` for another value."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; expected {expected}")
    return value


def _is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextlib.contextmanager
def _shown(wanted: bool | Callable[[dict[str, Any]], None] | None) -> Iterator[Progress]:
    """Makes the display that `progress` of `run` asks for."""
    width = 0

    def show(text: str, end: str = "") -> None:
        nonlocal width
        text = text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"
        sys.stdout.write(f"\r{text:<{width}}{end}")
        sys.stdout.flush()
        width = len(text)

    if callable(wanted):
        with Progress(listener=lambda progress: wanted(progress.state())) as progress:
            yield progress
    elif wanted or (wanted is None and _is_notebook()):
        with Progress(listener=lambda progress: show(_line(progress))) as progress:
            try:
                yield progress
            finally:
                how = "finished" if sys.exception() is None else "broken off"
                show(f"curate {clock(progress.state()['elapsed_s'])} {how}", end="\n")
    else:
        with Progress(io.StringIO(), live=False) as progress:
            yield progress


def _line(progress: Progress) -> str:
    return f"curate {clock(progress.state()['elapsed_s'])} {progress.line()}"


def read_clips(out: Place, snapshot: int | None = None) -> "ClipTable":
    """Opens the clips of a finished run.

    Args:
        out: Folder or `s3://bucket/prefix` of the run.
        snapshot: Number of a snapshot, from `curate snapshots`; None for the newest.

    Raises:
        UsageError: `out` has no finished run or no such snapshot, or this version cannot read it.
    """
    return ClipTable(finished=open_finished(_text(out, "out"), snapshot))


def search(
    out: Place,
    *,
    clip: str | None = None,
    picture: Place | None = None,
    video: Place | None = None,
    text: str | None = None,
    match: TextMatch | None = None,
    k: int = 20,
    where: str | None = None,
    rejected: bool = False,
    snapshot: int | None = None,
) -> list[FoundClip]:
    """Finds the clips that are nearest to a query, the nearest first, as `curate search` does.

    Pass exactly one of `clip`, `picture`, `video` and `text`. For many queries, open an output once
    with `curator.tools.retrieval.clip_search.ClipSearch`.

    Args:
        out: Folder or `s3://bucket/prefix` of the run; it is not changed.
        clip: Id of a clip, or a unique prefix of its id.
        picture: Path of an image file.
        video: Path or address of a video file.
        text: Description of the clips to find, or words of their captions, tags or names.
        match: What `text` is compared with, `captions`, `words` or `pictures`; by default, pictures
            if the output has CLIP embeddings, else captions.
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
    clips = ClipSearch.open(_text(out, "out"), snapshot, rejected=rejected)
    return clips.find(by, _text(query, by, "a text"), k, where, match)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClipTable:
    """The clips of a finished run."""

    finished: Finished

    def __len__(self) -> int:
        """Returns the number of kept clips."""
        return int(self.finished.summary["counts"]["kept"])

    def __repr__(self) -> str:
        """Returns the place, the snapshot, and how many clips there are, in one line."""
        summary, uri = self.finished.summary, self.finished.store.uri
        uri = uri if len(uri) <= _LINE else f"…{uri[-_LINE:]}"
        return (
            f"<ClipTable of {uri}, snapshot {summary.get(NUMBER)}: "
            f"{len(self):,} of {amount(summary['counts']['clips'], 'clip')} kept, "
            f"{length(summary.get('kept_s'))}>"
        )

    def _repr_html_(self) -> str:
        """Returns the same for a notebook, with the first kept clips."""
        names, clips = ["clip_id", "source_uri", "start_s", "end_s", "caption"], self.finished.clips
        kept = pc.indices_nonzero(pc.equal(clips["decision"], "kept"))
        rows = "".join(
            f"<tr><td><code>{row['clip_id']}</code></td><td>{escape(row['source_uri'][-60:])}</td>"
            f"<td>{moment(row['start_s'])} to {moment(row['end_s'])}</td>"
            f"<td>{escape((row['caption'] or '')[:200])}</td></tr>"
            for row in taken(clips.select(names), kept.slice(0, _SHOWN).to_pylist()).to_pylist()
        )
        head = "<tr><th>clip</th><th>source</th><th>span</th><th>caption</th></tr>"
        more = f"<p>and {len(self) - _SHOWN:,} more</p>" if len(self) > _SHOWN else ""
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>{more}"

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
