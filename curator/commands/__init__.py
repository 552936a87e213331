"""The verbs of the command line, one file each.

`HELP` is the line of `curate --help`. `add_arguments` adds the arguments, and `main` does what they
say, and returns the exit code.
"""
