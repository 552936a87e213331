"""GPU decoders that wait for the next stream of their form.

Making one means a parser, a session with the engine and surfaces: vLLM's authors found it to be the
largest part of a short request. It has not been measured here. A decoder is believed to take the
next stream after an end of stream; if one does not, none is kept from then on.
"""

import logging
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

MOST = 4
"""Most decoders kept: the surfaces of one at 1080p may take some 60 MB of the GPU's memory."""

logger = logging.getLogger(__name__)


class KeptDecoders:
    """The idle decoders of one process."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._are_kept = True

    def take(self, form: Hashable) -> Any | None:  # noqa: ANN401
        """Hands over a used decoder of this form, or None."""
        return self._kept.pop(form, None)

    def keep(self, form: Hashable, decoder: Any) -> None:  # noqa: ANN401
        """Takes back a decoder that gave all frames of its stream."""
        if not self._are_kept:
            return
        self._kept[form] = decoder
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def give_up(self) -> None:
        """Stops keeping decoders, because a used one failed where a new one does not."""
        self._are_kept = False
        self._kept.clear()
        logger.warning("a used decoder failed where a new one does not: none is reused")
