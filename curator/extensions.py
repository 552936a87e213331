"""What users add: stages, measures, captioners and exporters, by dotted path or by entry point.

Each kind has one entry point group. A name with a colon, such as `my_package.blur:BlurFaces`, is a
dotted path; any other name is looked up among the entry points of its kind.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.metadata import packages_distributions as distributions_of_packages
from types import MappingProxyType
from typing import Any

from curator.errors import RecipeError, unknown_key
from curator.family import FamilyError
from curator.family import __file__ as family_file


class Kind(StrEnum):
    """Kinds of extensions; the value is the entry point group."""

    STAGE = "curate.stages"
    MEASURE = "curate.measures"
    CAPTIONER = "curate.captioners"
    EXPORTER = "curate.exporters"


_WITHOUT: Mapping[Kind, str] = MappingProxyType(
    {Kind.CAPTIONER: "; or do without it: --set caption.captioner=measured, which needs no class"}
)
"""The remedy besides making a class importable, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A class that was loaded under the name that the user gave."""

    name: str
    kind: Kind
    target: type

    @property
    def path(self) -> str:
        """Its dotted path."""
        return f"{self.target.__module__}:{self.target.__qualname__}"

    @property
    def origin(self) -> Mapping[str, str | None]:
        """Its module, the distribution that brings it, and the versions of both.

        Only when asked for: to find the distribution, Python reads what each one installed.
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
    """Loads a class that a user names: `package.module:Class`, or an entry point of its kind.

    `built_in` are dotted paths of this package's own classes by short names, which come first.
    Raises `RecipeError` for a name that leads nowhere, with what was expected.
    """
    path = built_in.get(name, name)
    target = _from_path(path, kind) if ":" in path else _from_entry_point(kind, name, built_in)
    if not isinstance(target, type):
        raise RecipeError(
            f"{name!r} is a {type(target).__name__}; a class is expected for {kind.value}"
        )
    return Extension(name=name, kind=kind, target=target)


def entry_point_names(kind: Kind) -> list[str]:
    """Names under which installed packages offer extensions of a kind, sorted."""
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
    except FamilyError as error:
        place = traceback.extract_tb(error.__traceback__)
        others = (f for f in reversed(place) if f.filename not in (family_file, "<string>"))
        where = next(others, place[-1])
        raise RecipeError(
            f"{name!r} cannot be imported: {error} ({where.filename}:{where.lineno})"
        ) from error
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
            + "; a class of your own is named package.module:Class"
        )
    try:
        return entries[0].load()
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{name!r} ({entries[0].value}) cannot be loaded: {error}{_WITHOUT.get(kind, '')}"
        ) from error


@lru_cache(maxsize=1)
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Returns the distributions of each package that can be imported from `path`, `sys.path`."""
    del path
    return distributions_of_packages()


def named(extension: Extension) -> dict[str, Any]:
    """A class from outside this package, for the summary."""
    return {
        "name": extension.name,
        "kind": extension.kind.value.removeprefix("curate."),
        **extension.origin,
    }
