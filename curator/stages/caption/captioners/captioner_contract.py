"""The contract of captioners, which answer requests about the frames of a clip.

Your own captioner is one class. Name it in the recipe as `caption.captioner:
my_package.mine:MyCaptioner`, or by the entry point group `curate.captioners`. It gets frames and
the words of a prompt, and returns text. Schema, rules, repairs, retries, stored replies and
decisions are the same for every captioner. For an example, see `examples/captioner.py`.
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
        section: Name of the section, for messages.

    Attributes:
        version: Raise it when the same request would get another answer. Replies of other versions
            are not used.
        place: Where the captioner runs.
        gpus: GPUs of one worker, on machines with GPUs.
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
            trial: Frames as large and as many as in a request, for a first question; None while no
                model may run yet.

        Raises:
            CuratorError: Requests cannot be answered; the message gives the remedy.
        """

    def setup(self) -> None:  # noqa: B027 - optional
        """Runs once in a process, before its first request, to load models."""

    @abstractmethod
    def answer(self, request: Request, frames: Frames) -> str | Mapping[str, Any] | Reply:
        """Answers one request; in the driver, several threads call it at the same time.

        Args:
            request: `system` and `turns` are the words; `schema` is the JSON Schema of the answer,
                or None for plain text; `sampling` has the seed.
            frames: JPEGs, or arrays by `frames.arrays()`, with their times.

        Returns:
            The model's text, the fields of its JSON, or a reply with token counts or a failure.

        Raises:
            CuratorError: The run cannot continue. Any other exception fails this request alone.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Runs when a process no longer needs the captioner."""

    def client(self) -> "Client":
        """Returns the client that runs this captioner in the driver."""
        from curator.stages.caption.captioners.answered_requests import ThreadClient

        return ThreadClient(self)

    def batches(self) -> "BatchModel":
        """Returns the model that runs this captioner in a worker."""
        from curator.stages.caption.captioners.answered_requests import SingleRequests

        return SingleRequests(self)
