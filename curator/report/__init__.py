"""The report of a run: one self-contained HTML page."""

from curator.report.page import MAX_PER_GROUP, render_report, shown_clips

__all__ = ["MAX_PER_GROUP", "render_report", "shown_clips"]
