"""Custom stages, measures, captioners and exporters, by dotted path or by entry point.

Each kind has one entry point group. A name with a colon, such as `my_package.blur:BlurFaces`, is a
dotted path. Any other name is a built-in class or an entry point of the kind.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.metadata import packages_distributions as distributions_of_packages
from types import MappingProxyType
from typing import Any

from curator.errors import CuratorError, RecipeError, place_of, unknown_key


class Kind(StrEnum):
    """Kinds of extensions; the value is the entry point group."""

    STAGE = "curate.stages"
    MEASURE = "curate.measures"
    CAPTIONER = "curate.captioners"
    EXPORTER = "curate.exporters"


_WITHOUT: Mapping[Kind, str] = MappingProxyType(
    {Kind.CAPTIONER: "; or use no class: --set caption.captioner=measured"}
)
"""By kind, the alternative to making a class importable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A class that was loaded by the name that the user gave."""

    name: str
    kind: Kind
    target: type

    @property
    def path(self) -> str:
        """The dotted path of the class."""
        return f"{self.target.__module__}:{self.target.__qualname__}"

    @property
    def origin(self) -> Mapping[str, str | None]:
        """The path and version of the class, and the distribution that installs its module.

        This is slow, because Python reads the file lists of all installed distributions.
        """
        owners = _distributions(tuple(sys.path)).get(self.target.__module__.partition(".")[0], [])
        own_version = getattr(self.target, "version", None)
        try:
            installed = version(owners[0]) if owners else None
        except PackageNotFoundError:
            installed = None
        return {
            "class": self.path,
            "version": None if own_version is None else str(own_version),
            "distribution": owners[0] if owners else None,
            "distribution_version": installed,
        }


def load_extension(
    kind: Kind, name: str, built_in: Mapping[str, str] = MappingProxyType({})
) -> Extension:
    """Loads a class by a user's name: `package.module:Class`, or an entry point of the kind.

    `built_in` maps short names to dotted paths of this package's classes, and takes precedence.
    Raises `RecipeError` if the name leads to no class; the message says what was expected.
    """
    path = built_in.get(name, name)
    target = _from_path(path, kind) if ":" in path else _from_entry_point(kind, name, built_in)
    if not isinstance(target, type):
        raise RecipeError(
            f"{name!r} is a {type(target).__name__}; expected a class for {kind.value}"
        )
    return Extension(name=name, kind=kind, target=target)


def entry_point_names(kind: Kind) -> list[str]:
    """Returns the entry point names of a kind in all installed packages, sorted."""
    return sorted(entry_points(group=kind.value).names)


def _from_path(name: str, kind: Kind) -> Any:  # noqa: ANN401
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RecipeError(
            f"{name!r} cannot be imported: {error}; make class {attribute} of module "
            f"{module_name} importable: install its package, or put its folder in PYTHONPATH, on "
            f"every node{_WITHOUT.get(kind, '')}"
        ) from error
    except Exception as error:
        # Whatever the file does when it is imported is the file's fault.
        text = str(error) if isinstance(error, CuratorError) else f"{type(error).__name__}: {error}"
        raise RecipeError(f"{name!r} cannot be imported: {text}{place_of(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise RecipeError(unknown_key(attribute, names, f"class of {module_name}")) from error


def _from_entry_point(kind: Kind, name: str, built_in: Iterable[str]) -> Any:  # noqa: ANN401
    entries: list[EntryPoint] = list(entry_points(group=kind.value, name=name))
    if not entries:
        what = f"{kind.name.lower()} or entry point of {kind.value}"
        raise RecipeError(
            unknown_key(name, [*built_in, *entry_point_names(kind)], what)
            + "; name a custom class as package.module:Class"
        )
    try:
        return entries[0].load()
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{name!r} ({entries[0].value}) cannot be loaded: {error}{_WITHOUT.get(kind, '')}"
        ) from error


@lru_cache(maxsize=1)
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Returns the distributions of each importable package; `path` is only the cache's key."""
    del path
    return distributions_of_packages()


def named(extension: Extension) -> dict[str, Any]:
    """Describes an extension for the summary."""
    return {
        "name": extension.name,
        "kind": extension.kind.value.removeprefix("curate."),
        **extension.origin,
    }
