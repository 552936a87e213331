"""Writes the clips of an output root in the formats of other loaders."""

from curator.export.formats import FORMATS
from curator.export.job import export
from curator.export.placement import Exported

__all__ = ["FORMATS", "Exported", "export"]
