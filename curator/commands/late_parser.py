"""A command's parser whose arguments are added when the command is used."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any


class LateParser(argparse.ArgumentParser):
    """Adds arguments that take long to find, or depend on others, when it parses."""

    add_late: Callable[[argparse.ArgumentParser, Sequence[str]], None] | None = None
    """Adds them; called once, with the parser and the command's arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Parses, with all arguments."""
        add_late, self.add_late = self.add_late, None
        if add_late is not None:
            add_late(self, args or ())
        return super().parse_known_args(args, namespace)
