"""Probes sources without decoding them."""
