"""Permanently removes footage from an output root: `curate remove`."""
