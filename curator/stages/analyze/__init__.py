"""Decodes each source once and stores what was measured."""
