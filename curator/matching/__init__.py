"""Compares two clips: whether they show the same footage, where, and how it was edited.

Pure functions. `verify_pair` compares two records `ClipFootage` and returns a `Match`, or None.
"""
