"""The report of a run: one self-contained HTML page, and a trace."""

from curator.tools.report.page import (
    MAX_PER_GROUP,
    PREVIEWS,
    render_report,
    shown_clips,
    trace_json,
)

__all__ = ["MAX_PER_GROUP", "PREVIEWS", "render_report", "shown_clips", "trace_json"]
