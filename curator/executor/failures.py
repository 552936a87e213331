"""Makes the failed outcomes of items, in workers and in sandboxes."""

import logging
import traceback
from pathlib import Path
from typing import Any, Protocol

from curator.errors import ErrorCode
from curator.records.sources import Failure
from curator.stage import Stage

logger = logging.getLogger(__name__)


class SourcePart(Protocol):
    """An item of a unit, which belongs to one source."""

    @property
    def uri(self) -> str:
        """Address of the source."""
        ...


def failure(
    item: SourcePart, stage: Stage[Any, Any, Any], code: ErrorCode, message: str
) -> Failure:
    """Returns the outcome of an item that a stage could not process."""
    return Failure(uri=item.uri, stage=stage.name, code=code, message=message)


def internal_failure(item: SourcePart, stage: Stage[Any, Any, Any], error: Exception) -> Failure:
    """Logs an unforeseen error, and returns it as the outcome of the item."""
    logger.exception("%s of %r failed", stage.name, item.uri)
    message = f"{item.uri}: {type(error).__name__}: {error}; {_blame(error)}"
    return failure(item, stage, ErrorCode.INTERNAL, message)


def _blame(error: Exception) -> str:
    """Names the code that raised an error, if it is outside of curate, such as a custom stage."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(part in frame.filename for part in _OURS):
            return f"raised at {frame.filename}:{frame.lineno} in {frame.name}, outside of curate"
    return "please report it"


_OURS = (str(Path(__file__).parents[1]), "site-packages", str(Path(traceback.__file__).parent))
"""Parts of file names of this package, of installed packages and of the standard library."""
