"""Rejects clips that show the same footage as a better clip."""
