"""The life of a run, from the check before it to its commit."""
