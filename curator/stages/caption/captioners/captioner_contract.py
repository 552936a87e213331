"""The contract of captioners, which answer requests about frames, and the built-in captioners.

A custom captioner is one class, which gets frames and the text of a prompt, and returns text. Name
the class in the recipe, as `caption.captioner: my_package.mine:MyCaptioner`, or by an entry point
of the group `curate.captioners`. Schema, rules, repairs, retries, stored replies and decisions are
the same for every captioner. `examples/captioner.py` is an example.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
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


class Place(StrEnum):
    """Where a captioner runs."""

    SERVICE = "service"
    """At a service. A small run sends requests from the driver, a large run from a few workers; in
    total, at most `in_flight` requests run at a time."""
    WORKER = "worker"
    """In workers, each of which loads the model once, and sends it one request at a time."""


class RequestLimit:
    """Limits the concurrent requests to one service; threads share the limit.

    N answers under a limit of N raise the limit by one. A refusal lowers the limit to the number of
    other running requests, which the server can take. So one burst of 429 finds the capacity, where
    halving would need several bursts, and each later refusal costs a single request.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self._n_running = 0
        self._opens_s = 0.0
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def acquire(self, until: float = inf) -> bool:
        """Waits for a slot, at most until a time of `time.monotonic`; returns whether it got one.

        Raises `CancelledError` if the limit is closed.
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
        """Frees a slot for the next request."""
        with self._changed:
            self._n_running -= 1
            self._changed.notify()

    def went_well(self) -> None:
        """Notes an answer, which raises the limit a little."""
        with self._changed:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)
            self._changed.notify()

    def was_refused(self, wait_s: float) -> None:
        """Lowers the limit after a refusal or a failed connection of a request that has its slot.

        The limit becomes the number of other running requests. If no other request is running, the
        next request waits `wait_s`.
        """
        with self._changed:
            n_others = self._n_running - 1
            self.limit = max(1.0, min(self.limit, float(n_others)))
            if n_others == 0:
                self._opens_s = max(self._opens_s, time.monotonic() + wait_s)

    def sleep(self, wait_s: float) -> None:
        """Waits before a retry; raises as `acquire`."""
        self._closed.wait(wait_s)
        self.check_open()

    def check_open(self) -> None:
        """Raises `CancelledError` if the limit is closed."""
        if self._closed.is_set():
            raise CancelledError

    def close(self) -> None:
        """Ends all waits, which raise `CancelledError`."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()


class Captioner(ABC):
    """Answers requests. Raise `version` when the same request would get another answer.

    Args:
        config: The section `caption` or `caption.judge` of the recipe, with model, url and seed.
        section: Name of the section, for messages.

    Attributes:
        place: Where the captioner runs.
        gpus: GPUs of one worker, if GPUs are available.
        cpus: Cores of one worker without a GPU.
        memory_bytes: Memory of one worker.
        n_models: Models in the worker: one, or another one for the judge.
        most_frames: Frames of the largest request.
        child_cpu_s: CPU-seconds of its child processes so far.
    """

    version: ClassVar[int | str] = 1
    place: ClassVar[Place] = Place.WORKER
    gpus: ClassVar[float] = 0.0
    cpus: ClassVar[float] = 1.0
    memory_bytes: ClassVar[int] = 2 << 30

    def __init__(self, config: "ModelConfig", *, section: str = "caption") -> None:
        self.config = config
        self.section = section
        self.n_models = self.most_frames = 1
        self.child_cpu_s = 0.0
        is_service = self.place is Place.SERVICE
        self.request_limit = RequestLimit(config.in_flight if is_service else 1)

    def check(self, trial: Frames | None) -> None:  # noqa: B027 - optional
        """Checks, before any work, that the captioner can answer requests.

        `trial` has as many frames as the largest request; None forbids a trial request.

        Raises:
            CuratorError: The captioner cannot answer; the message gives the remedy.
        """

    def setup(self) -> None:  # noqa: B027 - optional
        """Runs once in a process, before its first request, to load models."""

    @abstractmethod
    def answer(self, request: Request, frames: Frames) -> str | Mapping[str, Any] | Reply:
        """Answers one request, in any thread; those of a service run at the same time.

        Args:
            request: `system` and `turns` are the text; `schema` is the JSON Schema of the answer,
                or None for plain text; `sampling` has the seed.
            frames: JPEGs, or arrays by `frames.arrays()`, with their times.

        Returns:
            The model's text, the fields of its JSON, or a reply with token counts or a failure.

        Raises:
            CuratorError: The run cannot continue. Any other exception fails this request alone.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Runs when a process no longer needs the captioner."""

    def answer_in_time(
        self, request: Request, frames: Frames, deadline: Callable[[], float]
    ) -> Reply:
        """Calls `answer` in a slot of `request_limit`; many threads call this at the same time.

        `deadline` is called when the request first gets a slot. It returns the `time.monotonic` at
        which tries and waits end, in seconds.

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

    @property
    def about(self) -> str:
        """What the log of the run says once; empty for nothing."""
        return ""

    def cancel_requests(self) -> None:
        """Ends all waits, and running requests if possible."""
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

    `target` is the class of a captioner with a model; `needs` are required settings.
    """

    about: str
    target: str | None = None
    needs: tuple[str, ...] = ()


CAPTIONERS: Mapping[str, BuiltIn] = {
    "measured": BuiltIn(about="composes a caption from measurements, without a model"),
    "metadata": BuiltIn(
        about="composes a caption from a file next to the source and from measurements, without a "
        "model"
    ),
    "column": BuiltIn(
        about="takes the captions that sources have in a column of metadata (caption.column)",
        needs=("column",),
    ),
    "openai": BuiltIn(
        about="sends requests to a server with OpenAI's API (vLLM, SGLang, NIM, hosted)",
        target="curator.stages.caption.captioners.chat_server:ServerCaptioner",
        needs=("model", "url"),
    ),
    "local": BuiltIn(
        about="starts a server for the model on this machine: vLLM, or transformers",
        target="curator.stages.caption.captioners.local_server:LocalCaptioner",
        needs=("model",),
    ),
}
"""Captioners by their name in recipes."""


def name_problem(name: str) -> str | None:
    """Returns why a captioner's name is wrong, or None; imports no captioner."""
    if name in CAPTIONERS or ":" in name or name in (others := entry_point_names(Kind.CAPTIONER)):
        return None
    problem = unknown_key(name, [*CAPTIONERS, *others], "captioner")
    return f"{problem}; a custom class has the form package.module:Class"


def captioner_class(name: str) -> type[Captioner]:
    """Returns the class of a captioner that uses a model.

    Raises:
        RecipeError: A custom class cannot be loaded, or is no `Captioner`.
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
    """Makes captioner and judge of a recipe; in a worker, they share a model with equal settings.

    Raises as `captioner_class`.
    """
    captioner, judge = captioner_class(config.captioner), config.judge
    by_role: dict[Role, Captioner] = {"captioner": captioner(config)}
    if judge is not None:
        named = ("model", "revision", "frames_as")
        is_shared = all(getattr(judge, name) == getattr(config, name) for name in named)
        by_role["judge"] = by_role["captioner"]
        if captioner.place is Place.SERVICE or not is_shared:
            by_role["judge"] = captioner(judge, section="caption.judge")
    models = set(by_role.values())
    for model in models:
        model.n_models, model.most_frames = len(models), config.most_frames
    return by_role


def captioner_extensions(name: str) -> list[Extension]:
    """Returns the captioner as an extension; empty for a built-in captioner."""
    return [] if name in CAPTIONERS else [load_extension(Kind.CAPTIONER, name)]


def outside_version(name: str) -> tuple[str, ...]:
    """Returns class and version of a custom captioner, for fingerprints; else empty."""
    return tuple(
        str(value)
        for extension in captioner_extensions(name)
        for value in (extension.path, getattr(extension.target, "version", None))
    )
