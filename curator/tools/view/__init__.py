"""Serves the local page of a finished run: `curate view`."""
