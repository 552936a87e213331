"""Captioners: vision-language models behind a server or in the worker."""
