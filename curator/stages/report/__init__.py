"""What a run left, for people to look at: one HTML page that needs nothing else."""

from curator.stages.report.page import render_report

__all__ = ["render_report"]
