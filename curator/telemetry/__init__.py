"""What other programs read of a run while it runs: numbers for Prometheus, spans."""
