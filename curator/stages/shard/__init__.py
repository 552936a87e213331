"""Packs written clips into WebDataset tars."""
