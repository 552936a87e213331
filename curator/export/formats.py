"""The formats of this package, and how formats of users are found."""

from collections.abc import Mapping

from pydantic import ValidationError

from curator.errors import RecipeError, UsageError
from curator.export.exporter import Exporter, ExporterOptions
from curator.extensions import Extension, Kind, load_extension

FORMATS: Mapping[str, str] = {
    "cosmos": "curator.export.cosmos:Cosmos",
    "opensora": "curator.export.opensora:OpenSora",
    "cogvideo": "curator.export.cogvideo:CogVideo",
    "mds": "curator.export.mds:Mds",
    "parquet": "curator.export.parquet_table:ParquetTables",
    "frames": "curator.export.frame_tars:FrameTars",
    "energon": "curator.export.tar_indexes:Energon",
    "wids": "curator.export.tar_indexes:Wids",
    "conversations": "curator.export.conversations:Conversations",
    "preferences": "curator.export.preferences:Preferences",
}
"""Dotted paths of this package's formats by name, as users name theirs; imported on use."""


ExporterType = type[Exporter[ExporterOptions, object]]


def load_format(name: str) -> tuple[ExporterType, Extension]:
    """Finds a format by its name in `FORMATS`, `package.module:Class`, or entry point.

    Returns the class, and its origin.

    Raises:
        UsageError: The format does not exist, cannot be loaded, or is no exporter.
    """
    try:
        extension = load_extension(Kind.EXPORTER, name, FORMATS)
    except RecipeError as error:
        raise UsageError(str(error)) from error
    if not issubclass(extension.target, Exporter):
        raise UsageError(f"{name!r} is no exporter: it does not derive from {Exporter.__module__}")
    return extension.target, extension


def checked_options(name: str, given: Mapping[str, object]) -> ExporterOptions:
    """Returns the checked options of a format.

    Raises:
        UsageError: The format has no such option, or the value is wrong.
    """
    options_type = load_format(name)[0].options_type
    for key in given:
        if key not in options_type.model_fields:
            having = [f for f in FORMATS if key in load_format(f)[0].options_type.model_fields]
            raise UsageError(
                f"the format {name} has no option {key!r}; "
                + (f"those that have it: {', '.join(having)}" if having else "no format has it")
            )
    try:
        return options_type(**given)
    except ValidationError as error:
        first = error.errors()[0]
        key, message = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}: {key} is {given[key]!r}: {message}") from error
