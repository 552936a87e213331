"""Several cameras of one event: a common clock, and clips that are cut at the same instants."""
