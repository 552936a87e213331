"""Networks and descriptors of frames and texts, and their weights."""
