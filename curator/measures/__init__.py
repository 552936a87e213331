"""Measures: signals of frames, scores of clips, and what both mean."""
