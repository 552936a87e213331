"""The contract of captioners, which answer requests about the frames of a clip.

Your own captioner is one class. Name it in the recipe as `caption.captioner:
my_package.mine:MyCaptioner`, or by the entry point group `curate.captioners`. It gets frames and
the words of a prompt, and returns text. Schema, rules, repairs, retries, stored replies and
decisions are the same for every captioner. For an example, see `examples/captioner.py`.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from curator.errors import CuratorError
from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered
from curator.stages.caption.captioners.dialog_batches import BatchModel, SizedRequest
from curator.stages.caption.captioners.request_limit import RequestLimit

if TYPE_CHECKING:
    from curator.stages.caption.config import ModelConfig

logger = logging.getLogger(__name__)


class Place(StrEnum):
    """Where a captioner runs."""

    SERVICE = "service"
    """Somewhere else. A small run asks from the driver and a large one from a few workers,
    `in_flight` requests at a time in all."""
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
        self.request_limit = RequestLimit(config.in_flight)

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
        """Answers one request; where it is a service, several threads call it at the same time.

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

    def batches(self) -> BatchModel:
        """Returns the model that runs this captioner in a worker."""
        return SingleRequests(self)

    def answer_in_time(
        self, request: Request, frames: Frames, deadline: Callable[[], float]
    ) -> Reply:
        """Calls `answer` when a slot of `request_limit` is free; many threads call it at a time.

        Args:
            request: As for `answer`.
            frames: As for `answer`.
            deadline: Called when the request first gets a slot; returns when to end tries and
                waits, on `time.monotonic` in seconds.

        Raises:
            CuratorError: The run cannot continue.
            CancelledError: Requests were cancelled.
        """
        self.request_limit.acquire()
        try:
            if time.monotonic() >= deadline():
                return Reply(failure=Unanswered.OVER_BUDGET, detail="nothing sent", n_tries=0)
            return reply_of(self, request, frames)
        finally:
            self.request_limit.release()

    def cancel_requests(self) -> None:
        """Ends all waits; running requests end too where they can."""
        self.request_limit.close()


class SingleRequests(BatchModel):
    """A captioner in a worker, which answers one request at a time."""

    def __init__(self, captioner: Captioner) -> None:
        captioner.setup()
        self._captioner = captioner

    def answer(self, batch: list[SizedRequest]) -> Iterator[tuple[SizedRequest, Reply]]:
        """As `BatchModel.answer`."""
        for sized in batch:
            yield sized, reply_of(self._captioner, sized.request, sized.frames)


def reply_of(captioner: Captioner, request: Request, frames: Frames) -> Reply:
    """Returns the reply of a captioner; any exception except CuratorError fails the request."""
    begun_s = time.monotonic()
    try:
        answer = captioner.answer(request, frames)
    except CuratorError:
        raise
    except Exception as error:
        logger.exception("captioner %s failed", type(captioner).__qualname__)
        detail = f"{type(error).__name__}: {error}"
        return Reply(failure=Unanswered.CAPTIONER_ERROR, detail=detail)
    if isinstance(answer, Reply):
        return answer
    text = orjson.dumps(dict(answer)).decode() if isinstance(answer, Mapping) else answer
    return Reply(text=text, seconds=time.monotonic() - begun_s)
