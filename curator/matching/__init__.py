"""Finds the footage that two clips share: offset, speed, length and mirroring.

All functions are pure. `verify_pair` compares two `ClipFootage` and returns a `Match` or None.
"""
