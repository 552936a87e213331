"""`curate export`: to be."""

import argparse


def add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds nothing yet."""
