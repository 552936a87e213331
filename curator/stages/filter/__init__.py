"""Judges candidate clips by the rules of the recipe."""
