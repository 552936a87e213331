"""The local page over a finished run: what `curate view` serves."""
