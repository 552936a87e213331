"""What a run stores under its output root: schemas, parts, and the list of all that is there."""
