"""Groups clips by meaning, and rejects semantic duplicates."""
