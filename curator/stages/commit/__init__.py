"""Publishes the results of a run to readers."""
