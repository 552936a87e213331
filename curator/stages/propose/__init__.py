"""Turns measurements into shots and candidate clips with scores."""
