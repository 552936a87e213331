"""Plans a run: runs a sample of the sources, and extrapolates its cost to all sources."""
