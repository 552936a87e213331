"""Containers, decoding and encoding through FFmpeg libraries (PyAV)."""
