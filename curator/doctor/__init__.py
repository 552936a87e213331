"""`curate doctor`: checks this machine, and gives remedies.

Each check is a function that returns rows. A separate process tries actions
that could crash, hang or take memory (`probe_process.py`).
"""
