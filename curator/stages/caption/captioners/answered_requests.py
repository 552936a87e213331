"""Runs captioners that answer one request at a time, in the driver or in a worker."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import orjson

from curator.errors import CuratorError
from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered
from curator.stages.caption.captioners.captioner_contract import Captioner
from curator.stages.caption.captioners.dialog_batches import SizedRequest
from curator.stages.caption.captioners.request_slots import RequestSlots

logger = logging.getLogger(__name__)


class ThreadClient:
    """Calls a captioner in the driver from `in_flight` threads."""

    def __init__(self, captioner: Captioner) -> None:
        self.slots = RequestSlots(captioner.config.in_flight)
        self._captioner = captioner
        self._pool = ThreadPoolExecutor(captioner.config.in_flight, "captioner")

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._captioner.setup)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the captioner after running requests have ended."""
        self._pool.shutdown(cancel_futures=True)
        self._captioner.close()

    async def ask(
        self,
        request: Request,
        frames: Frames,
        *,
        deadline: float | Callable[[], float] | None = None,
    ) -> Reply:
        """As `Client.ask`; a started request is not cancelled."""
        await self.slots.take(is_again=False)
        try:
            until = deadline() if callable(deadline) else deadline
            if until is not None and time.monotonic() >= until:
                return Reply(failure=Unanswered.OVER_BUDGET, detail="nothing sent", n_tries=0)
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, reply_of, self._captioner, request, frames
            )
        finally:
            self.slots.give_back()


class SingleRequests:
    """A captioner in a worker, as a model whose batches are one request each."""

    def __init__(self, captioner: Captioner) -> None:
        captioner.setup()
        self._captioner = captioner

    def sized(self, request: Request, frames: Frames) -> SizedRequest:
        """As `BatchModel.sized`."""
        return SizedRequest(request=request, frames=frames)

    def next_batch(
        self, pending: Sequence[SizedRequest]
    ) -> tuple[list[SizedRequest], list[SizedRequest]]:
        """As `BatchModel.next_batch`."""
        return list(pending[:1]), list(pending[1:])

    def fits(self, batch: Sequence[SizedRequest]) -> bool:
        """As `BatchModel.fits`."""
        return len(batch) == 1

    def prepare(self, batch: list[SizedRequest]) -> None:
        """As `BatchModel.prepare`."""

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
