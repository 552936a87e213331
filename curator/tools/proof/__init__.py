"""Tests by training whether a rule of the recipe improves a tokenizer: `curate prove`."""
