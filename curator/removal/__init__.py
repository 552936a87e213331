"""Takes footage out of an output root for good: `curate remove`."""
