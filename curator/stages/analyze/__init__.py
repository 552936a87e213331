"""Decodes sources and stores the measurements as tracks."""
