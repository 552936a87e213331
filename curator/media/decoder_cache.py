"""Decoders of a GPU that wait for the next stream of their form.

Making one means a parser, a session with the engine and surfaces: vLLM's authors found it to be the
largest part of a short request. It has not been measured here. One that was told of a stream's end
goes on with the next stream, as far as is known; where it does not, its user says so, and none is
kept from then on.
"""

import logging
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

MOST = 4
"""Decoders that are kept: by its surfaces one of 1080p may hold some 60 MB of the GPU's memory."""

logger = logging.getLogger(__name__)


class KeptDecoders:
    """The decoders of one process that are not in use."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._are_kept = True

    def take(self, form: Hashable) -> Any | None:  # noqa: ANN401
        """A decoder of this form that was used before, now the caller's; None if there is none."""
        return self._kept.pop(form, None)

    def keep(self, form: Hashable, decoder: Any) -> None:  # noqa: ANN401
        """Takes back a decoder whose stream has ended, and gave all of its frames."""
        if not self._are_kept:
            return
        self._kept[form] = decoder
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def give_up(self) -> None:
        """Says that a used decoder failed where a new one does not."""
        self._are_kept = False
        self._kept.clear()
        logger.warning("a used decoder failed where a new one does not: none is reused")
