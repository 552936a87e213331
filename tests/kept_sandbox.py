"""The sandboxed process of this test process: one serves the runs of many tests.

Each run would start its own, for two CPU-seconds of imports, and end it. A run gets a fresh one
where anything that the process took from its parent at its start has changed.
"""

import os
import tempfile
from collections.abc import Sequence

from curator.executor.sandbox import importable_code
from curator.executor.sandboxed_process import KEPT_FAMILIES, KEPT_VARIABLES, process_sandbox


class KeptSandbox:
    """Stands for the box in an `Engine`, which loads modules into it and stops it."""

    def __init__(self) -> None:
        self._began_with: object = None

    def load(self, modules: Sequence[str]) -> None:
        """Imports modules; in a fresh process if this one's surroundings are others now."""
        if self._began_with != (now := surroundings()):
            process_sandbox().stop()
            self._began_with = now
        process_sandbox().load(modules)

    def stop(self) -> None:
        """Ends the process only if the next run could not use it."""
        if self._began_with != surroundings():
            process_sandbox().stop()
            self._began_with = None


def surroundings() -> object:
    """What a box takes from its parent when it starts: variables, folders, plug-ins."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_FAMILIES)
    }
    return kept, tempfile.gettempdir(), importable_code()
