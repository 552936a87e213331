"""Annotation of clips by vision-language models: what is asked, of whom, and what comes of it."""
