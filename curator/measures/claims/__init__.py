"""Claims that captions make, with one file per kind, and their verdicts by measurements."""
