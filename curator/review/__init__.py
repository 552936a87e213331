"""Reviews a finished run: explains clips, and tries other bounds."""
