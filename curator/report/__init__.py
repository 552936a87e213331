"""What a run left, for people to look at: one HTML page that needs nothing else."""

from curator.report.page import MAX_PER_GROUP, render_report, shown_clips

__all__ = ["MAX_PER_GROUP", "render_report", "shown_clips"]
