"""Settings of annotation: models, prompts, frames, and decisions by answers."""

from collections.abc import Mapping
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from curator.fingerprints import fingerprint
from curator.stage import StageConfig, setting
from curator.stages.caption.captioners.captioner_contract import CAPTIONERS, name_problem
from curator.stages.caption.dialogs.prompt_files import Value, has_value, own_fields, wrong_values

ANNOTATE_VERSION = 1
"""Raise it when the same replies would give other annotations."""

METADATA_MODEL = "curate/metadata-1"
"""Model name in tables for captions from metadata."""
_NEEDED = {"model": "model to name a model", "url": "url, such as http://vlm:8000/v1"}
CaptionLength = Literal["short", "medium", "long"]


class ModelConfig(StageConfig):
    """A model and its settings. The docstrings of settings are shown to users."""

    model: str | None = setting(None, unit="name")
    """openai: the model's name at the server; transformers: repository at the hub, or folder with
    its files"""
    revision: str | None = setting(None, unit="name")
    """of the model's repository, such as a commit; part of what makes an answer another one"""
    url: str | None = setting(None, pattern=r"^https?://", unit="address")
    """openai: base address of the server, such as http://vlm:8000/v1"""
    # From the environment only, so that no recipe, table or log can hold it.
    key_from: str = setting("OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", unit="name")
    """openai: environment variable that has the server's key; not set for no key"""
    prompt: str = setting("describe", unit="name")
    """file of pipelines/prompts without its suffix, or the path of a YAML file"""
    max_tokens: int = setting(1024, ge=16, unit="tokens")
    """longest answer; one that ends here is set aside as cut off"""
    # 0.2: close to the likeliest words, but another seed still gives another answer.
    temperature: float = setting(0.2, ge=0, le=2, unit="1")
    """0 takes the likeliest word each time"""
    top_p: float = Field(0.9, gt=0, le=1)
    """share of likely words that are drawn from"""
    seed: int = Field(0, ge=0)
    """another one draws other words"""

    # 32 windows keep a server with one large GPU busy; benchmarks/captions.py.
    in_flight: int = setting(32, ge=1, le=4096, unit="requests")
    """openai: requests under way at a time; fewer while the server says 429"""
    timeout_s: float = setting(180.0, gt=0, unit="s")
    """openai: longest wait for one answer"""
    tries: int = Field(6, ge=1)
    """openai: tries of a request that meets 429, 5xx, a time-out or a broken connection, with
    growing waits between them"""
    frames_as: Literal["images", "video"] = setting("images", unit="name")
    """openai: send frames as JPEG images, or as one MP4 in a video_url, which vLLM and SGLang
    take; transformers: by the processor's input for images or for video"""
    guided: bool = setting(True, unit="true or false")
    """openai: send the JSON Schema as response_format, which keeps answers in form where the
    server can; where it refuses that, it is asked without"""
    batch_tokens: int = setting(16_384, ge=256, unit="tokens")
    """transformers: tokens of a batch, prompt and longest answer together, padding counted; halved
    when memory runs out"""

    @field_validator("url")
    @classmethod
    def _has_no_secret(cls, url: str | None) -> str | None:
        # A recipe is written to summary.json, config.json and the report.
        parts = urlsplit(url or "")
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "has a user, a password or a query, which would be written with the recipe; "
                "expected the address alone, and the key in the environment (key_from)"
            )
        return url

    @property
    def name(self) -> str:
        """Model and revision, as in tables."""
        return f"{self.model}@{self.revision}" if self.revision is not None else str(self.model)


class JudgeConfig(ModelConfig):
    """A model that scores answers."""

    captioner: str = setting("openai", unit="name")
    """that of the captions"""
    prompt: str = setting("judge", unit="name")
    """file of pipelines/prompts without its suffix, or the path of a YAML file"""
    # Cosmos 3 scores faithfulness, completeness and correctness 1 to 5 and keeps by the minimum.
    min_score: int = setting(1, ge=1, le=5, unit="1 to 5")
    """clips with a window whose best answer scores less are treated as caption.failed says"""


class CaptionConfig(ModelConfig):
    """How clips are annotated."""

    enabled: bool = setting(True, unit="true or false")
    """write captions; without, the text member is empty"""
    captioner: str = setting(
        "measured",
        description="; ".join(f"{name} {entry.about}" for name, entry in CAPTIONERS.items())
        + "; a class of your own is named package.module:Class",
        unit="name",
    )

    # 256 frames with a remainder of 128: cosmos-curate; 8 frames: Cosmos (arXiv 2501.03575).
    window_frames: int = setting(256, ge=1, unit="frames")
    """frames of the clip that are asked about at a time"""
    window_remainder: int = setting(128, ge=1, unit="frames")
    """fewest frames of a window of their own at a clip's end; fewer belong to the window before"""
    window_s: float | None = setting(None, gt=0, unit="s")
    """seconds of a window, in place of window_frames; a remainder of less than half belongs to the
    window before; Cosmos Predict2.5 takes 5"""
    frames: int = setting(8, ge=1, unit="frames")
    """frames of a window that the model is shown, evenly spread"""
    frames_per_s: float | None = setting(None, gt=0, unit="frames/s")
    """frames per second that the model is shown, in place of frames; cosmos-curate takes 2"""
    max_frames: int = setting(64, ge=1, unit="frames")
    """most frames of a window that the model is shown"""
    # 448: the tile side of many models; 8 frames are then about 2,000 tokens.
    frame_px: int = setting(448, ge=64, le=4096, unit="px")
    """longer side of the frames that the model is shown; smaller ones stay"""

    lengths: tuple[CaptionLength, ...] = setting(
        ("short", "medium", "long"), min_length=1, unit="names"
    )
    """lengths of captions that are asked for"""
    text: CaptionLength = setting("medium", unit="name")
    """the caption that becomes the text member; those of several windows follow each other"""
    structured: bool = setting(False, unit="true or false")
    """ask for subjects, actions, setting, camera, style and text as JSON too"""
    content_types: tuple[str, ...] = setting((), unit="names")
    """content types to choose one of; none for not asking"""
    questions: Mapping[str, str] = setting({}, unit="questions")
    """questions that are answered by yes or no, by name"""
    safety: bool = setting(False, unit="true or false")
    """ask for safe, sensitive or unsafe"""
    reject: Mapping[str, tuple[Value, ...]] = setting({}, unit="answers")
    """answers for which a clip is rejected, before it is cut, if one of its windows has them: by
    content_type, safety, the name of a question, or a field of the prompt's own"""
    failed: Literal["keep", "reject"] = setting("keep", unit="name")
    """what becomes of a clip with a window that has no annotation; a kept one has no caption then,
    and its JSON the reason"""
    language: str | None = setting("en", pattern=r"^[a-z]{2}$", unit="ISO 639-1")
    """language in which captions must be; null for any"""
    allow_meta: bool = setting(False, unit="true or false")
    """take captions that speak of the image or the video itself"""
    candidates: int = setting(1, ge=1, le=16, unit="answers")
    """answers asked for per window; a judge picks the best"""
    judge: JudgeConfig | None = None
    """model that scores answers; null for none"""

    tell_facts: bool = setting(True, unit="true or false")
    """tell the model camera motion, length and tags as measured"""
    read_text: bool = setting(True, unit="true or false")
    """read text in the pictures (OCR) where there is some, and tell the model"""
    sidecar: bool = setting(True, unit="true or false")
    """tell the model what a .json file of the source's name beside it says"""
    events: Mapping[str, str] = setting({}, unit="names")
    """classes of events with what each means, the gravest first; events in the sidecar of a source
    have one of them as label"""
    no_event: str | None = setting(None, unit="name")
    """class of events for windows in which a sidecar that lists events has none near; null for not
    saying so"""
    event_window_s: float | None = setting(None, gt=0, unit="s")
    """seconds of a window around each event, half before its start and half after its end; null
    for no such windows"""
    event_windows: Literal["instead", "beside"] = setting("instead", unit="name")
    """whether windows around events stand in place of the others in clips with events, or after
    them"""
    open_questions: Mapping[str, str] = setting({}, unit="questions")
    """questions for training data, by the name of the value in the sidecar or of the field in the
    prompt's own schema that answers them"""
    budget_s: float = setting(900.0, gt=0, unit="s")
    """longest time for one clip, all its requests and tries together"""
    embedding: str | None = setting(None, unit="name")
    """text encoder of `curate models list` whose embedding of the caption becomes a member of the
    sample; null for none"""

    @field_validator("captioner")
    @classmethod
    def _is_known(cls, captioner: str) -> str:
        if (problem := name_problem(captioner)) is not None:
            raise ValueError(problem)
        return captioner

    @field_validator("questions", "events", "open_questions")
    @classmethod
    def _plain_names(cls, questions: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        for name, question in questions.items():
            if not name.isidentifier() or name in ("content_type", "safety"):
                raise ValueError(f"{name!r}; expected a plain name such as has_people")
            if info.field_name != "events" and not question.strip():
                raise ValueError(f"{name} is empty; expected a question in words")
        return questions

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        problems = (self._unasked, self._missing, self._wrong_events, self._wrong_answers)
        if (message := next(filter(None, (problem() for problem in problems)), None)) is not None:
            raise ValueError(message)
        return self

    def _unasked(self) -> str | None:
        """Returns a setting that needs a model, if the recipe has none."""
        if not self.enabled or self.captioner != "measured":
            return None
        wanted = {
            "questions": bool(self.questions),
            "reject": bool(self.reject),
            "judge": self.judge is not None,
            "candidates": self.candidates > 1,
            # A recipe with `measured` may keep the URL of a server.
            "url": self.url is not None and "captioner" not in self.model_fields_set,
        }
        if key := next((key for key, is_wanted in wanted.items() if is_wanted), None):
            return (
                f"caption.{key} is set, and caption.captioner is measured, which asks no "
                "model; set caption.captioner to openai or transformers"
            )
        return None

    def _missing(self) -> str | None:
        needs = CAPTIONERS[self.captioner].needs if self.captioner in CAPTIONERS else ()
        lacks = [key for key in needs if getattr(self, key) is None]
        if lacks:
            return f"captioner is {self.captioner}; expected {_NEEDED[lacks[0]]}"
        if self.judge is not None and self.judge.captioner != self.captioner:
            return (
                f"judge.captioner is {self.judge.captioner} and captioner {self.captioner}; "
                "expected the same: one place drives the conversation with both"
            )
        lacks = [key for key in needs if self.judge and getattr(self.judge, key) is None]
        if lacks:
            return f"judge.{lacks[0]} is missing; set caption.judge.{_NEEDED[lacks[0]]}"
        return None

    def _wrong_events(self) -> str | None:
        names = list(self.events)
        if self.no_event is not None and self.no_event not in self.events:
            return f"no_event is {self.no_event!r}; expected one of events {names}"
        if self.events and self.content_types and set(self.content_types) != set(self.events):
            return (
                f"content_types are {list(self.content_types)}; expected the names of events "
                f"{names}, or none: models tell the class where metadata does not"
            )
        if both := sorted(set(self.events) & set(self.questions)):
            return f"{both[0]!r} is in events and in questions; expected two names"
        if self.captioner == "metadata" and (self.candidates > 1 or self.judge is not None):
            return "captioner is metadata; expected neither candidates nor a judge"
        if self.event_window_s is not None and not self.events:
            return "event_window_s needs events; expected classes with their meaning"
        return None

    def _wrong_answers(self) -> str | None:
        if self.text not in self.lengths:
            return (
                f"text is {self.text}, and lengths are [{', '.join(self.lengths)}]; set "
                f"caption.text={self.lengths[-1]}, or add {self.text} to caption.lengths"
            )
        if problem := next(filter(None, map(self._wrong_reject, self.reject)), None):
            return problem
        if self.candidates > 1 and self.judge is None:
            return f"candidates is {self.candidates}; expected a judge to pick the best"
        return None

    def _wrong_reject(self, name: str) -> str | None:
        choices: dict[str, tuple[str | bool, ...]] = dict.fromkeys(self.questions, (True, False))
        choices["content_type"] = self.content_types
        if self.safety:
            choices["safety"] = ("safe", "sensitive", "unsafe")
        values = self.reject[name]
        if name in choices:
            wrong = [value for value in values if not has_value(choices[name], value)]
            allowed = list(choices[name])
            return f"reject.{name}: {wrong[0]!r}; expected some of {allowed}" if wrong else None
        fields = own_fields(self.prompt) if self.asks else {}
        # A prompt may be missing, because a finished run's recipe must stay readable.
        if fields is None or name in fields:
            return None if fields is None else wrong_values(name, fields[name], values)
        asked = [*self.questions, *(["safety"] if self.safety else []), "content_type"]
        return f"reject.{name} is not asked for; expected one of {[*asked, *fields]}"

    @property
    def name(self) -> str:
        """Model and revision, as in tables; a captioner without a model has its own name."""
        if self.captioner == "metadata":
            return METADATA_MODEL
        return self.captioner if self.model is None else super().name

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """Captioner and judge."""
        return (self,) if self.judge is None else (self, self.judge)

    @property
    def annotates(self) -> bool:
        """Whether clips get annotations, by a model or from metadata."""
        return self.enabled and self.captioner != "measured"

    @property
    def knows(self) -> bool:
        """Whether sidecar values themselves become captions, classes or answers."""
        return bool(self.events or self.open_questions) or self.captioner == "metadata"

    @property
    def asks(self) -> bool:
        """Whether a model is used."""
        return self.annotates and self.captioner != "metadata"

    @property
    def decides(self) -> bool:
        """Whether answers may reject a clip, so that they are needed before the cut."""
        return self.annotates and (bool(self.reject) or self.failed == "reject")


def frames_fingerprint(config: CaptionConfig) -> str:
    """Returns the fingerprint of the shown pictures and of the text read in them."""
    names = ("window_frames", "window_remainder", "window_s", "frames", "frames_per_s")
    chosen = [getattr(config, name) for name in (*names, "max_frames", "frame_px", "read_text")]
    if config.event_window_s is not None:
        chosen += [config.event_window_s, config.event_windows]
    return fingerprint("caption frames", ANNOTATE_VERSION, chosen)
