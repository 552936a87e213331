"""Makes the results of a run visible to readers."""
