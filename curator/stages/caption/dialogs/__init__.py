"""Dialogs about windows: prompts, requests, and how answers are read and checked."""
