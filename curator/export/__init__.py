"""Writes the clips of an output root in the forms that other loaders take."""

from curator.export.clip_export import export
from curator.export.export_options import FORMATS, Exported, ExportOptions

__all__ = ["FORMATS", "ExportOptions", "Exported", "export"]
