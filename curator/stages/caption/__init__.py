"""Annotates clips, by a vision-language model or from measurements."""
