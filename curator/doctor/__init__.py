"""What works on this machine, what does not, and the remedy: `curate doctor`.

Each check is a function from a `Host` (or from places) to rows. A process of its own tries what
could crash, hang or take memory (`probe_process.py`).
"""
