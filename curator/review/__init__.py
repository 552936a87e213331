"""Looking at a finished run: why a clip ended as it did, and what other bounds would do."""
