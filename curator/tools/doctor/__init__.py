"""`curate doctor`: checks this machine, and gives remedies.

A check returns its finding as text, or a `Fault`. A separate process tries actions that could
crash, hang or use much memory (`probe_process.py`).
"""
