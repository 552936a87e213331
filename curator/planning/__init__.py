"""What a run would take: sources are sampled, run and extrapolated."""
