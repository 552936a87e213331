"""Decodes written clips for the stages that look at frames."""
