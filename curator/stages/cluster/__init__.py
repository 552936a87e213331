"""Groups clips by what they show, and rejects those that show the same kind of thing again."""
