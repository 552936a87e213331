"""Synthetic videos for `curate demo`; the pipeline does not use this package."""
