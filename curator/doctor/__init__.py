"""`curate doctor`: checks this machine, and gives remedies.

Each check is a function from a `Host` (or from places) to rows. A separate process tries actions
that could crash, hang or take memory (`probe_process.py`).
"""
