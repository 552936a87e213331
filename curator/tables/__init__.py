"""The tables under an output root: schemas, parts, and the list of all objects."""
