"""Writes the clips of an output root in the formats of other loaders."""

from curator.export.exporter import FORMATS
from curator.export.job import Exported, export

__all__ = ["FORMATS", "Exported", "export"]
