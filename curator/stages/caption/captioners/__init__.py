"""Captioners: vision-language models at a server or in the worker."""
