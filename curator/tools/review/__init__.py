"""Reviews a finished run: explains and marks clips, tries other bounds, learns a score."""
