"""Writes the clips that survived."""
