"""Selects a share or a number of clips per group."""
