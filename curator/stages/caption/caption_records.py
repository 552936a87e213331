"""Records of captioning: windows, requests, replies, answers and annotations.

Only `Frames` holds pixels, so stored replies can replay a dialog without decoding anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from curator.fingerprints import fingerprint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Role = Literal["captioner", "judge"]


class Unanswered(StrEnum):
    """Why a window has no annotation. Public: the column `annotations.failure`."""

    TIMED_OUT = "timed_out"
    """The last try got no answer within `caption.timeout_s`."""
    SERVER_ERROR = "server_error"
    """The last try got 5xx, 408, 425 or an unreadable answer, or the connection broke."""
    RATE_LIMITED = "rate_limited"
    """The server refused the last try with 429."""
    OVER_BUDGET = "over_budget"
    """All requests of the clip together took longer than `caption.budget_s`."""
    REFUSED_REQUEST = "refused_request"
    """The request is too long, or the server or model cannot read its pictures."""
    OUT_OF_MEMORY = "out_of_memory"
    """This window alone exceeds the memory of a worker."""
    CAPTIONER_ERROR = "captioner_error"
    """A custom captioner raised an exception."""
    NO_FRAMES = "no_frames"
    """The clip cannot be decoded or read."""
    EMPTY = "empty"
    CUT_OFF = "cut_off"
    """The answer ended at `max_tokens`, or a caption breaks off in a sentence."""
    REPEATED = "repeated"
    """The answer repeats a phrase."""
    REFUSAL = "refusal"
    WRONG_LANGUAGE = "wrong_language"
    META_PHRASE = "meta_phrase"
    """The answer mentions "the image" or "the video" instead of its content."""
    BAD_ANSWER = "bad_answer"
    """The answer is not the requested JSON, even after one repair request."""


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
"""Failures that are not stored, because another run may succeed. A server may accept a refused
request after its limits were raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a clip that is annotated on its own: half-open frame numbers of the clip."""

    index: int
    start_frame: int
    end_frame: int
    shown: tuple[int, ...]
    """Frames for the model, ascending."""
    is_event: bool = False
    """Whether the window surrounds an event; all other windows divide the clip evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a source, from its sidecar."""

    start_s: float
    """Seconds from the source's first frame."""
    end_s: float
    """Equals the start of a momentary event."""
    label: str
    """One of `caption.events`."""
    about: str = ""
    """Description, from the sidecar."""
    values: Mapping[str, str | float | bool] = field(default_factory=dict)
    """Values at that time, such as speed and weather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMetadata:
    """Facts about a window from metadata and measurements, without a model."""

    label: str | None
    """One of `caption.events`; None where metadata has no class."""
    events: tuple[Event, ...]
    """Events within the window, by start."""
    lists_all: bool
    """Whether the sidecar lists the source's events, and all of them could be read."""
    values: Mapping[str, str | float | bool]
    """Values such as speed and weather; the gravest event's replace the source's."""
    caption: str
    """Composed from label, events, values, length and camera motion."""
    problems: tuple[str, ...] = ()
    """One line for each unusable value in the sidecar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipMeasurements:
    """Measurements of a whole clip, against which the claims of an answer are checked.

    Attributes are those of `curator.measures.claims.claim_records.Measured`.
    """

    scores: Mapping[str, float | None]
    tags: tuple[str, ...]
    seconds: float
    width: int
    height: int
    text_lines: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A window of a clip, with the facts for its requests; the pixels are in `Frames`."""

    clip_id: str
    content: str
    """Fingerprint of the clip's pixels, and of rate, size and form of the pictures."""
    window: Window
    fps: float
    """Frame rate of the clip: frame `i` is shown at `i / fps` seconds."""
    facts: str = ""
    """Facts from measurements and metadata, as lines of text for the prompt; may be empty."""
    metadata: WindowMetadata | None = None
    """None if the recipe uses no metadata."""
    text_key: str | None = None
    """Key of the reply with the text read in the clip's pictures; None if none is read."""
    measured: ClipMeasurements | None = None
    """None without `caption.repair_contradictions`, and for a window that is a part of its clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a conversation. The frames come before the text of the first user turn."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a model samples tokens."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a model about the frames of one window."""

    role: Role
    model: str
    """Name and revision."""
    task: Task
    system: str
    """System prompt; may be empty."""
    turns: tuple[Turn, ...]
    """The last turn is the user's."""
    sampling: Sampling
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer; None for plain text."""
    frames_as: str | None = None
    """Form of the judge's frames, if it differs from the captioner's, which `content` covers."""
    key: str = field(init=False)
    """Hash of all inputs of the answer: pixels, model, text, sampling, schema."""

    def __post_init__(self) -> None:
        asked = [self.role, self.model, self.task.content, self.task.window.shown, self.system]
        turns = [(turn.role, turn.text) for turn in self.turns]
        sampling = [getattr(self.sampling, name) for name in Sampling.__slots__]
        way = [] if self.frames_as is None else [self.frames_as]
        key = fingerprint("request-1", *asked, turns, sampling, self.schema, *way)
        object.__setattr__(self, "key", key)


def trial_request(model: str) -> Request:
    """Returns a trial request; any answer to it will do."""
    window = Window(index=0, start_frame=0, end_frame=1, shown=(0,))
    return Request(
        role="captioner",
        model=model,
        task=Task(clip_id="check", content="check", window=window, fps=1.0),
        system="",
        turns=(Turn(role="user", text="Answer yes."),),
        sampling=Sampling(max_tokens=16, temperature=0.0, top_p=1.0, seed=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The pictures of one window: the frames `Window.shown`, in order."""

    jpegs: tuple[bytes, ...] = field(repr=False)
    times_s: tuple[float, ...]
    """Seconds from the clip's start."""

    def arrays(self) -> "list[NDArray[np.uint8]]":
        """Returns the pictures, uint8 RGB [H, W, 3] each."""
        import cv2
        import numpy as np

        coded = (np.frombuffer(jpeg, np.uint8) for jpeg in self.jpegs)
        return [np.asarray(cv2.imdecode(image, 1), np.uint8)[:, :, ::-1] for image in coded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to a request: a text, or the reason for its absence."""

    text: str = ""
    is_whole: bool = True
    """False if the reply ended at `max_tokens`."""
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    """Duration of the last try, or of the model's batch, without the wait for a slot."""
    n_tries: int = 1
    failure: Unanswered | None = None
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether another try would give the same reply; only final replies are stored."""
        return self.failure not in TRANSIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model's answer about a window, in typed fields; None for fields that were not requested."""

    short: str | None = None
    medium: str | None = None
    long: str | None = None
    structured: Mapping[str, Any] | None = None
    """Subjects, actions, setting, camera, style, text."""
    content_type: str | None = None
    answers: Mapping[str, bool] = field(default_factory=dict)
    """Yes or no, by name of the question."""
    safety: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Custom fields of the prompt."""


ANSWER_FIELDS = tuple(field.name for field in fields(Answer))
JSON_FIELDS = ("structured", "answers", "extra")
"""Fields that tables hold as JSON."""

SCORES = ("faithfulness", "completeness", "correctness")
"""Scores of a judge, 1 to 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCandidate:
    """A candidate answer for a window, with the judge's scores, 1 to 5."""

    answer: Answer
    reply_key: str
    faithfulness: int | None = None
    completeness: int | None = None
    correctness: int | None = None
    why: str = ""
    """The judge's reason, one line."""

    @property
    def score(self) -> int | None:
        """The lowest of the three scores; None if a score is missing."""
        scores = [score for name in SCORES if (score := getattr(self, name)) is not None]
        return min(scores) if len(scores) == len(SCORES) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The annotation of a window: an answer, or the reason for its absence."""

    task: Task
    answer: Answer | None = None
    failure: Unanswered | None = None
    detail: str = ""
    candidates: tuple[AnswerCandidate, ...] = ()
    """All valid candidates by seed; stored annotations leave out an only one without scores."""
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Rejected answers after which another request was sent, by reason."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Failed candidates of a window that has an answer, by reason."""
    n_unscored: int = 0
    """Candidates without readable scores from the judge."""
    request_keys: tuple[str, ...] = ()
    """All requests of the window, in order."""
    tokens_in: int = 0
    tokens_out: int = 0

    def __post_init__(self) -> None:
        if (self.answer is None) == (self.failure is None):
            raise ValueError(f"{self.task}: expected either an answer or a failure")
