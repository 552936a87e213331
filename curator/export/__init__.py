"""Writes the clips of an output root in the forms that other loaders take."""

from curator.export.options import FORMATS, Exported, ExportOptions
from curator.export.write import export

__all__ = ["FORMATS", "ExportOptions", "Exported", "export"]
