"""The report of a run: one self-contained HTML page."""

from curator.tools.report.page import (
    MAX_PER_GROUP,
    PREVIEWS,
    render_report,
    shown_clips,
)

__all__ = ["MAX_PER_GROUP", "PREVIEWS", "render_report", "shown_clips"]
