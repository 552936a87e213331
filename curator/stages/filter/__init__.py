"""Applies the rules of the recipe to candidate clips."""
