"""What works on this machine, what does not, and the remedy: `curate doctor`.

Each check is a function from a `Host` (or from places) to rows. What could crash, hang or take
memory is asked in a process of its own (`inside.py`).
"""
