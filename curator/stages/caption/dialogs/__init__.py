"""Dialogs about windows: prompts, requests, and the parsing and checks of answers."""
