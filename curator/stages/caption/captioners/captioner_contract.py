"""The contract of captioners, which answer requests about the frames of a clip, and their list.

Your own captioner is one class. Name it in the recipe as `caption.captioner:
my_package.mine:MyCaptioner`, or by the entry point group `curate.captioners`. It gets frames and
the words of a prompt, and returns text. Schema, rules, repairs, retries, stored replies and
decisions are the same for every captioner. For an example, see `examples/captioner.py`.
"""

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import iscoroutinefunction
from math import inf
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import orjson

from curator.errors import CuratorError, RecipeError, unknown_key
from curator.extensions import Extension, Kind, entry_point_names, load_extension
from curator.stages.caption.caption_records import Frames, Reply, Request, Role, Unanswered

if TYPE_CHECKING:
    from curator.stages.caption.config import CaptionConfig, ModelConfig

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF_S = 60.0
# Not from the recipe's seed: two runs must not retry in step.
_RANDOM = random.Random()
Size = tuple[int, int]
"""Width and height in pixels."""


class Place(StrEnum):
    """Where a captioner runs."""

    SERVICE = "service"
    """Somewhere else. A small run asks from the driver and a large one from a few workers,
    `in_flight` requests at a time in all."""
    WORKER = "worker"
    """In workers, which load it once: for models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRequest:
    """A request with its frames and its length."""

    request: Request
    frames: Frames = field(repr=False)
    n_tokens: int = 0
    """Approximate tokens of the prompt with its pictures."""
    sizes: tuple[Size, ...] = ()


class RequestLimit:
    """The requests that may run at one service; shared by threads.

    Additive increase, multiplicative decrease, with a known cut: a server that refuses a request
    can take as many as are still running. So one burst of 429 finds its capacity, where halving
    would need several, and each later one costs a single refused request.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self._n_running = 0
        self._opens_s = 0.0
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def acquire(self, until: float = inf) -> bool:
        """Waits for a slot, at most until a time of `time.monotonic`; returns whether it has one.

        Raises `CancelledError` where the limit is closed.
        """
        with self._changed:
            while True:
                self.check_open()
                now = time.monotonic()
                if now >= self._opens_s and self._n_running < int(self.limit):
                    self._n_running += 1
                    return True
                if now >= until:
                    return False
                waits_s = [end - now for end in (until, self._opens_s) if end > now]
                self._changed.wait(min(threading.TIMEOUT_MAX, *waits_s))

    def release(self) -> None:
        """Frees the slot for the next request."""
        with self._changed:
            self._n_running -= 1
            self._changed.notify()

    def went_well(self) -> None:
        """Adds one slot after as many answers as there are slots."""
        with self._changed:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)
            self._changed.notify()

    def was_refused(self, wait_s: float) -> None:
        """Cuts the slots: the server refused a request, which keeps its slot, or is unreachable.

        If no other request is running, the server takes none at all, so the next one waits
        `wait_s`.
        """
        with self._changed:
            n_others = self._n_running - 1
            self.limit = max(1.0, min(self.limit, float(n_others)))
            if n_others == 0:
                self._opens_s = max(self._opens_s, time.monotonic() + wait_s)

    def sleep(self, wait_s: float) -> None:
        """Waits before a retry; raises errors as `acquire`."""
        self._closed.wait(wait_s)
        self.check_open()

    def check_open(self) -> None:
        """Raises errors as `acquire`."""
        if self._closed.is_set():
            raise CancelledError

    def close(self) -> None:
        """Ends all waits: they raise CancelledError."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()


def backoff_s(n_tries: int, asked_s: float | None, *, first_s: float = 1.0) -> float:
    """Returns the wait after `n_tries` tries, at least the server's request `asked_s`.

    It doubles with each try, and is random, so that clients do not come together.
    """
    if asked_s is not None:
        return asked_s + _RANDOM.uniform(0, min(1.0, 0.1 * asked_s))
    longest = min(_LONGEST_BACKOFF_S, first_s * 2.0 ** min(n_tries - 1, 30))
    return _RANDOM.uniform(longest / 2, longest)


class Captioner(ABC):
    """Answers requests. `version` is raised when the same request would get another answer.

    Args:
        config: Section `caption` or `caption.judge` of the recipe: model, url, seed and the like.
        section: Name of the section, for messages.

    Attributes:
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

        `trial` has frames as large and as many as a request; None while no model may run yet.

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

    def sized(self, request: Request, frames: Frames) -> SizedRequest | Reply:
        """Returns the measured request, or the reply if it cannot be answered; in a worker."""
        return SizedRequest(request=request, frames=frames)

    def next_batch(
        self, pending: Sequence[SizedRequest]
    ) -> tuple[list[SizedRequest], list[SizedRequest]]:
        """Returns the next batch and the requests left, which are none if they fill no batch."""
        return list(pending[:1]), list(pending[1:])

    def answer_batch(self, batch: list[SizedRequest]) -> Iterator[tuple[SizedRequest, Reply]]:
        """Answers a batch in a worker; yields each reply as soon as it is ready."""
        for sized in batch:
            yield sized, _reply_of(self, sized.request, sized.frames)

    def answer_in_time(
        self, request: Request, frames: Frames, deadline: Callable[[], float]
    ) -> Reply:
        """Calls `answer` when a slot of `request_limit` is free; many threads call it at a time.

        `deadline` is called when the request first gets a slot. It returns when to end tries and
        waits, on `time.monotonic` in seconds.

        Raises:
            CuratorError: The run cannot continue.
            CancelledError: Requests were cancelled.
        """
        self.request_limit.acquire()
        try:
            if time.monotonic() >= deadline():
                return Reply(failure=Unanswered.OVER_BUDGET, detail="nothing sent", n_tries=0)
            return _reply_of(self, request, frames)
        finally:
            self.request_limit.release()

    def cancel_requests(self) -> None:
        """Ends all waits; running requests end too where they can."""
        self.request_limit.close()


def _reply_of(captioner: Captioner, request: Request, frames: Frames) -> Reply:
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


class BuiltIn(NamedTuple):
    """A captioner of this package.

    `target` is its class, imported on use, if it has a model; `needs` are keys of the recipe.
    """

    about: str
    target: str | None = None
    needs: tuple[str, ...] = ()


CAPTIONERS: Mapping[str, BuiltIn] = {
    "measured": BuiltIn(about="puts a caption together from what was measured, and asks no model"),
    "metadata": BuiltIn(
        about="puts one together from a file beside the source and from what was measured, and "
        "asks no model either"
    ),
    "openai": BuiltIn(
        about="asks a server that speaks OpenAI's protocol (vLLM, SGLang, NIM, hosted)",
        target="curator.stages.caption.captioners.chat_server:ServerCaptioner",
        needs=("model", "url"),
    ),
    "transformers": BuiltIn(
        about="loads the model in the worker",
        target="curator.stages.caption.captioners.local_model:LocalCaptioner",
        needs=("model",),
    ),
}
"""Captioners by their name in recipes."""


def name_problem(name: str) -> str | None:
    """Says why a captioner's name is wrong, or returns None. Imports no captioner."""
    if name in CAPTIONERS or ":" in name or name in (others := entry_point_names(Kind.CAPTIONER)):
        return None
    problem = unknown_key(name, [*CAPTIONERS, *others], "captioner")
    return f"{problem}; a class of your own is named package.module:Class"


def captioner_class(name: str) -> type[Captioner]:
    """Returns the class of a captioner that uses a model.

    Raises:
        RecipeError: An external class cannot be loaded.
    """
    if name in CAPTIONERS:
        built_in: type[Captioner] = resolve_name(str(CAPTIONERS[name].target))
        return built_in
    external = load_extension(Kind.CAPTIONER, name).target
    if not issubclass(external, Captioner):
        raise RecipeError(
            f"caption.captioner {name!r} is no Captioner; expected a subclass of "
            "curator.stages.caption.captioners.captioner_contract.Captioner"
        )
    if iscoroutinefunction(external.answer) or callable(getattr(external, "client", None)):
        raise RecipeError(
            f"caption.captioner {name!r} answers asynchronously (by `client` or an async "
            "`answer`); expected a plain method `answer`, which several threads may call"
        )
    return external


def captioners_of(config: "CaptionConfig") -> dict[Role, Captioner]:
    """Makes captioner and judge of a recipe; raises errors as `captioner_class`."""
    captioner = captioner_class(config.captioner)
    by_role: dict[Role, Captioner] = {"captioner": captioner(config)}
    if config.judge is not None:
        by_role["judge"] = captioner(config.judge, section="caption.judge")
    return by_role


def captioner_extensions(name: str) -> list[Extension]:
    """Returns the captioner if it comes from outside this package."""
    return [] if name in CAPTIONERS else [load_extension(Kind.CAPTIONER, name)]


def outside_version(name: str) -> tuple[str, ...]:
    """Returns class and version of an external captioner, for fingerprints; empty if built in."""
    return tuple(
        str(value)
        for extension in captioner_extensions(name)
        for value in (extension.path, getattr(extension.target, "version", None))
    )
