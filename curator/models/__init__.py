"""Networks and descriptors that measure frames."""
