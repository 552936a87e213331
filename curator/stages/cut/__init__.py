"""Writes the kept clips."""
