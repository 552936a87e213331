"""The format of a finished run: samples, tars, indexes, snapshots and views."""
