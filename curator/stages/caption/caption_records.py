"""Records of captioning: windows, requests, replies, answers and annotations.

Only `Frames` holds pixels: a dialog can be replayed from stored replies without decoding anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from curator.fingerprints import fingerprint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Role = Literal["captioner", "judge"]
"""Which model a request is for."""


class Unanswered(StrEnum):
    """Why a window has no annotation. Public: written to `annotations.failure`."""

    TIMED_OUT = "timed_out"
    """The server did not answer within `caption.timeout_s`, as often as it was tried."""
    SERVER_ERROR = "server_error"
    """The server answered with an error of its own (5xx), or broke the connection."""
    RATE_LIMITED = "rate_limited"
    """The server took no more requests (429), as often as it was tried."""
    OVER_BUDGET = "over_budget"
    """The clip took longer than `caption.budget_s`, all its requests together."""
    REFUSED_REQUEST = "refused_request"
    """The server or model cannot take the request: too long, or pictures that it does not read."""
    OUT_OF_MEMORY = "out_of_memory"
    """The model in the worker does not fit this window, even alone."""
    CAPTIONER_ERROR = "captioner_error"
    """The recipe's own captioner raised an exception."""
    NO_FRAMES = "no_frames"
    """The clip has no frames: it cannot be decoded or read."""
    EMPTY = "empty"
    CUT_OFF = "cut_off"
    """The answer ended at `caption.max_tokens`."""
    REPEATED = "repeated"
    """The same phrase again and again."""
    REFUSAL = "refusal"
    """The model declines to answer."""
    WRONG_LANGUAGE = "wrong_language"
    META_PHRASE = "meta_phrase"
    """It speaks of "the image" or "the video" and not of what is seen."""
    BAD_ANSWER = "bad_answer"
    """Not the JSON that was asked for, after one request to mend it too."""


TRANSIENT = frozenset(
    {
        Unanswered.TIMED_OUT,
        Unanswered.SERVER_ERROR,
        Unanswered.RATE_LIMITED,
        Unanswered.OVER_BUDGET,
        Unanswered.REFUSED_REQUEST,
        Unanswered.OUT_OF_MEMORY,
        Unanswered.CAPTIONER_ERROR,
        Unanswered.NO_FRAMES,
    }
)
"""Failures that another run may not see again: they are not stored as answered. A request that a
server refuses may be one that it takes after its limits were raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a clip that is annotated: frames of the clip as written, half-open."""

    index: int
    start_frame: int
    end_frame: int
    shown: tuple[int, ...]
    """Frames that are shown to the model, ascending."""
    is_event: bool = False
    """Whether it lies around an event, and not in the even division of the clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that the owner of a source says to happen in it."""

    start_s: float
    """From the source's first frame."""
    end_s: float
    """Equal to the start where only a moment is given."""
    label: str
    """One of `caption.events`."""
    about: str = ""
    """What the owner writes about it."""
    values: Mapping[str, str | float | bool] = field(default_factory=dict)
    """Speed, weather and the like at that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What metadata and measurements say about a window, without a model."""

    label: str | None
    """Its class, one of `caption.events`; None where metadata has none."""
    events: tuple[Event, ...]
    """Those that lie in it, by their start."""
    lists_all: bool
    """Whether metadata lists the source's events, and each of them could be read."""
    values: Mapping[str, str | float | bool]
    """Speed, weather and the like: those of its gravest event, else those of the source."""
    caption: str
    """Put together from all of that."""
    problems: tuple[str, ...] = ()
    """What of the source's metadata could not be used, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A window of a clip with all that a request needs but the pixels."""

    clip_id: str
    content: str
    """Fingerprint of the clip's pixels: source, span, crop and form."""
    window: Window
    fps: float
    """Of the clip as written: frame `i` is shown at `i / fps` seconds."""
    facts: str = ""
    """What was measured or is known, as lines of text for the prompt; empty for none."""
    known: Known | None = None
    """What metadata says; None where the recipe takes nothing from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a conversation. The frames stand before the text of the first user's turn."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a model picks its words."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a model about the frames of one window."""

    role: Role
    model: str
    """Name and revision of the model."""
    task: Task
    system: str
    """System prompt; empty for none."""
    turns: tuple[Turn, ...]
    """The last one is the user's."""
    sampling: Sampling
    schema: Mapping[str, Any] | None = None
    """JSON Schema that the answer must meet; None for plain text."""
    frames_as: str | None = None
    """How frames are sent, where it is another way than the captioner's, which is in `content`."""
    key: str = field(init=False)
    """What makes the answer: pixels, model, words, sampling. Another clip or wording, another
    key."""

    def __post_init__(self) -> None:
        """Computes the key."""
        task = self.task
        key = fingerprint(
            "request-1",
            self.role,
            self.model,
            task.content,
            task.window.shown,
            self.system,
            [(turn.role, turn.text) for turn in self.turns],
            [getattr(self.sampling, name) for name in Sampling.__slots__],
            self.schema,
            *([] if self.frames_as is None else [self.frames_as]),
        )
        object.__setattr__(self, "key", key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The pictures of one window, those of `Window.shown`, in their order."""

    jpegs: tuple[bytes, ...] = field(repr=False)
    times_s: tuple[float, ...]
    """From the clip's start."""

    def arrays(self) -> "list[NDArray[np.uint8]]":
        """The pictures, uint8 RGB [H, W, 3] each."""
        import cv2
        import numpy as np

        coded = (np.frombuffer(jpeg, np.uint8) for jpeg in self.jpegs)
        return [np.asarray(cv2.imdecode(one, 1), np.uint8)[:, :, ::-1] for one in coded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to a request: a text, or the reason why there is none."""

    text: str = ""
    is_whole: bool = True
    """False for one that ended at `max_tokens`."""
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    """From sending to the end of the answer, without the wait for a slot."""
    n_tries: int = 1
    failure: Unanswered | None = None
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the same request would get the same again; then it is stored."""
        return self.failure is None or self.failure not in TRANSIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model's answer about a window, in typed fields; None for what was not asked for."""

    short: str | None = None
    medium: str | None = None
    long: str | None = None
    structured: Mapping[str, Any] | None = None
    """Subjects, actions, setting, camera, style, text."""
    content_type: str | None = None
    answers: Mapping[str, bool] = field(default_factory=dict)
    """Yes or no, by the question's name."""
    safety: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the prompt's own schema adds."""


ANSWER_FIELDS = tuple(one.name for one in fields(Answer))
"""Fields of an answer."""
JSON_FIELDS = ("structured", "answers", "extra")
"""Those that tables hold as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One of several answers for a window, as it was judged; scores are 1 to 5."""

    answer: Answer
    reply_key: str
    faithfulness: int | None = None
    completeness: int | None = None
    correctness: int | None = None
    why: str = ""
    """The judge's line of why."""

    @property
    def score(self) -> int | None:
        """The lowest of the three; None without a judge."""
        scores = (self.faithfulness, self.completeness, self.correctness)
        return None if None in scores else min(score for score in scores if score is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The annotation of a window: an answer, or the reason why there is none."""

    task: Task
    answer: Answer | None = None
    failure: Unanswered | None = None
    detail: str = ""
    candidates: Sequence[Candidate] = ()
    """All that were whole and judged, in the order of their seeds; the answer is one of them."""
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Answers that were rejected and requested again, by reason."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Candidates without an answer where another one has one, by reason."""
    n_unscored: int = 0
    """Candidates whose judge gave no scores that can be read."""
    request_keys: tuple[str, ...] = ()
    """All requests that it took, in their order."""
    tokens_in: int = 0
    tokens_out: int = 0

    def __post_init__(self) -> None:
        """Refuses an annotation without an answer or a failure, or with both."""
        if (self.answer is None) == (self.failure is None):
            raise ValueError(f"{self.task}: expected an answer or a failure, and not both")
