"""`curate doctor`: checks this machine, and gives remedies.

A check returns what it found as text, or a `Fault`. A separate process tries actions that could
crash, hang or take memory (`probe_process.py`).
"""
