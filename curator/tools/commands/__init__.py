"""The verbs of the command line. A decorated function does what one says, and has its name."""
