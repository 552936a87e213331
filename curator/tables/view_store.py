"""Views: named choices of a snapshot's samples, each with indexes of its own, in `views/<name>/`.

    views/<name>/view.json          what the view chose, and the hashes of its files; written last
    views/<name>/dataset.parquet    its rows of the snapshot's table of samples
    views/<name>/<reader>           indexes for readers of tars

No run changes a view. A view keeps its snapshot, as a reader would: `clean` removes no snapshot
that a view names, nor a newer one. `curate remove` makes each view again, without what it removes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from curator.errors import DamagedError, UsageError
from curator.storage import Store
from curator.tables.json_objects import read_json, sealed_json, to_json
from curator.tables.out_layout import VIEW_NAME, VIEWS, is_own

VIEW, ROWS = "view.json", "dataset.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What `view.json` says.

    Attributes:
        name: Name of the folder.
        snapshot: Number of the snapshot that the samples are of.
        where: SQL condition over the table `clips`; None for no condition.
        split: `train` or `val`; None for both.
        buckets: Buckets of the samples; empty for all.
        marks: Verdict or label of the marks by hand; None for any.
        created_at: UTC, ISO 8601.
        counts: Clips, frames and seconds, and clips by split and by bucket.
        tars: Tars that hold the samples, relative to `shards/`.
        files: Size and SHA-256 of each file of the view, by name relative to its folder.
    """

    name: str
    snapshot: int
    where: str | None
    split: str | None
    buckets: Sequence[str]
    marks: str | None
    created_at: str
    counts: Mapping[str, Any]
    tars: Sequence[str]
    files: Mapping[str, Mapping[str, Any]]

    @property
    def words(self) -> str:
        """The choice as options of `curate views`."""
        options = {"--where": self.where, "--split": self.split, "--marks": self.marks}
        chosen = [f"{option} {value!r}" for option, value in options.items() if value is not None]
        return " ".join([*chosen, *(f"--bucket {name}" for name in self.buckets)])

    def to_json(self) -> bytes:
        """Returns the contents of `view.json`."""
        return sealed_json(asdict(self), to_json, view_key(self.name, VIEW))


def view_key(name: str, file: str = "") -> str:
    """Returns the name of a file of a view under the output root."""
    return f"{VIEWS}/{name}/{file}"


def check_view_name(name: str) -> None:
    """Raises `UsageError` for a name that no folder of a view may have."""
    if re.fullmatch(VIEW_NAME, name) is None:
        raise UsageError(
            f"{name!r} is no name of a view; expected 1 to 64 letters, digits, `.`, `_` or `-`, "
            "the first a letter or digit"
        )


def view_objects(store: Store) -> dict[str, list[str]]:
    """Returns the objects of each view, by name of the view; also of views without `view.json`."""
    views: dict[str, list[str]] = {}
    for info in store.list(f"{VIEWS}/"):
        if is_own(info.key) and info.key.count("/") > 1:
            views.setdefault(info.key.split("/")[1], []).append(info.key)
    return views


def view_names(store: Store) -> list[str]:
    """Returns the names of all whole views, sorted; a killed `curate views` leaves no whole one."""
    objects = view_objects(store).items()
    return sorted(name for name, keys in objects if view_key(name, VIEW) in keys)


def read_view(store: Store, name: str) -> View:
    """Reads `view.json` of a view; raises `DamagedError` if it is damaged, or no view is there."""
    key = view_key(name, VIEW)
    facts = read_json(store, key)
    try:
        return View(**{field.name: facts[field.name] for field in fields(View)})
    except (KeyError, TypeError) as error:
        raise DamagedError(store.uri, key, f"not the facts of a view: {error}") from error


def read_views(store: Store) -> list[View]:
    """Reads all whole views, sorted by name.

    Raises:
        UsageError: A `view.json` is damaged, so that the snapshot that the view needs is unknown.
    """
    views = []
    for name in view_names(store):
        try:
            views.append(read_view(store, name))
        except DamagedError as error:
            raise UsageError(
                f"{error.root}/{error.name} is damaged ({error.why}), so the snapshot that the "
                f"view needs is unknown: `curate views {store.uri} --remove {name}` deletes the "
                "view"
            ) from error
    return views


def delete_view(store: Store, name: str) -> int:
    """Deletes a view, `view.json` first; returns the number of objects; 0 for no such view."""
    keys = view_objects(store).get(name, [])
    store.delete(sorted(keys, key=lambda key: not key.endswith(f"/{VIEW}")))
    return len(keys)
