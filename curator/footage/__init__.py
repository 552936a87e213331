"""Footage made by code, for `curate demo`; the pipeline itself uses nothing of it."""
