"""The contract of captioners: what answers requests about the frames of a clip.

A captioner of your own is one class, named in the recipe as `caption.captioner:
my_package.mine:MyCaptioner`, or by the entry point group `curate.captioners`. It gets frames and
the words of a prompt, and returns text. Schema, rules, repairs, retries, stored replies and
decisions are the same for every captioner. `examples/captioner.py` is one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from curator.stages.caption.caption_records import Frames, Reply, Request

if TYPE_CHECKING:
    from curator.stages.caption.captioners.dialog_batches import BatchModel
    from curator.stages.caption.captioners.dialog_pump import Client
    from curator.stages.caption.config import ModelConfig


class Place(StrEnum):
    """Where a captioner runs."""

    DRIVER = "driver"
    """In threads of the driver, `in_flight` requests at a time: for services."""
    WORKER = "worker"
    """In workers, which load it once: for models."""


class Captioner(ABC):
    """Answers requests.

    Args:
        config: Section `caption` or `caption.judge` of the recipe: model, url, seed and the like.
        section: Its name, for messages.

    Attributes:
        version: Raised when the same request would get another answer. Replies of another version
            are not used.
        place: Where it runs.
        gpus: GPUs of one worker, on machines that have any.
        memory_bytes: Memory of one worker.
    """

    version: ClassVar[int | str] = 1
    place: ClassVar[Place] = Place.WORKER
    gpus: ClassVar[float] = 0.0
    memory_bytes: ClassVar[int] = 2 << 30

    def __init__(self, config: "ModelConfig", *, section: str = "caption") -> None:
        self.config = config
        self.section = section

    def check(self, trial: Frames | None) -> None:  # noqa: B027 - optional
        """Checks before any work that requests can be answered.

        Args:
            trial: Frames as large and as many as a request has, for a first question; None where
                no model may be asked yet.

        Raises:
            CuratorError: They cannot; the message says what to do.
        """

    def setup(self) -> None:  # noqa: B027 - optional
        """Runs once in a process, before its first request: loads models."""

    @abstractmethod
    def answer(self, request: Request, frames: Frames) -> str | Mapping[str, Any] | Reply:
        """Answers one request; in the driver, several threads call it at the same time.

        Args:
            request: `system` and `turns` are the words; `schema` is the JSON Schema of the answer,
                or None for plain text; `sampling` has the seed.
            frames: JPEGs, or arrays by `frames.arrays()`, with their times.

        Returns:
            The model's text, or the fields of its JSON, or a reply with token counts or a failure.

        Raises:
            CuratorError: The run cannot go on. Any other exception fails this request alone.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Runs when a process needs the captioner no more."""

    def client(self) -> "Client":
        """What asks this captioner in the driver."""
        from curator.stages.caption.captioners.answered_requests import ThreadClient

        return ThreadClient(self)

    def batches(self) -> "BatchModel":
        """What asks this captioner in a worker."""
        from curator.stages.caption.captioners.answered_requests import SingleRequests

        return SingleRequests(self)
