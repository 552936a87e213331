"""Exports Prometheus metrics and OpenTelemetry spans of a run under way."""
