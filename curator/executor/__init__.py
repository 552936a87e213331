"""Runs work in this process, in a child process, or on Ray."""
