"""Annotators of this package: values that trainings read. Each is one file with its settings."""
