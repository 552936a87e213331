"""Makes shots and scored candidate clips from tracks."""
