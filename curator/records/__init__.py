"""What passes between stages: one frozen record per step of the way."""
