"""Turns raw video into clean, captioned, de-duplicated clips in WebDataset tars, on Ray."""

__version__ = "0.1.0"
