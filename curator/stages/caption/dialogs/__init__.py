"""What is asked about a window of a clip, and how answers are read."""
