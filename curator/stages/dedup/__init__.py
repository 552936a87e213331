"""Rejects clips that show the footage of a better clip."""
