"""Settings of captions: models, prompts, frames, and answers that reject clips."""

from collections.abc import Mapping
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from curator.fingerprints import fingerprint
from curator.stage import StageConfig, setting
from curator.stages.caption.captioners.captioner_contract import CAPTIONERS, name_problem
from curator.stages.caption.dialogs.prompt_files import Value, has_value, own_fields, wrong_values

ANNOTATE_VERSION = 2
"""Raise this number when the same replies would give other annotations."""
WINDOW_FRAMES_VERSION = 1
"""Raise this number when windows have other frames: they are decoded again."""

METADATA_MODEL = "curate/metadata-1"
"""Name that tables give as the model of captions from metadata."""
_NEEDED = {
    "model": "model to a model's name",
    "url": "url to one such as http://vlm:8000/v1",
    "column": "column to a column of metadata such as meta.txt",
}
NO_MODEL = ("measured", "column")
"""Captioners that write one text for each clip, without windows."""
CaptionLength = Literal["short", "medium", "long"]


class ModelConfig(StageConfig):
    """A model and its settings. Users see the docstrings of the settings."""

    model: str | None = setting(None, unit="name")
    """openai: the model's name at the server; local: a repository at the hub, or a folder with the
    model's files"""
    revision: str | None = setting(None, unit="name")
    """revision of the model, such as a commit hash; another revision requests new answers"""
    url: str | None = setting(None, pattern=r"^https?://", unit="address")
    """openai: base URL of the server, such as http://vlm:8000/v1"""
    # The key comes only from the environment, so no recipe, table or log can hold the key.
    key_from: str = setting("OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", unit="name")
    """openai: environment variable with the server's key; unset for a server without a key"""
    prompt: str = setting("describe", unit="name")
    """name of a file in pipelines/prompts without suffix, or path of a YAML file"""
    max_tokens: int = setting(1024, ge=16, unit="tokens")
    """most tokens of an answer; an answer that reaches this limit is rejected as cut_off"""
    # 0.2: close to the likeliest tokens, but another seed still gives another answer.
    temperature: float = setting(0.2, ge=0, le=2, unit="1")
    """sampling temperature; 0 always takes the likeliest token"""
    top_p: float = Field(0.9, gt=0, le=1)
    """nucleus sampling: draws from the likeliest tokens with this total probability"""
    seed: int = Field(0, ge=0)
    """seed of sampling; another seed gives other answers"""

    # 32 requests keep a server with one large GPU busy; benchmarks/captions.py.
    in_flight: int = setting(32, ge=1, le=4096, unit="requests")
    """most concurrent requests to servers and custom services; fewer after a 429"""
    timeout_s: float = setting(180.0, gt=0, unit="s")
    """openai: longest wait for an answer"""
    tries: int = Field(6, ge=1)
    """openai: most tries of a request that fails with 429, 5xx, a time-out or a broken connection;
    the waits between tries grow"""
    frames_as: Literal["images", "video"] = setting("images", unit="name")
    """send JPEG images, or one MP4 as video_url, which vLLM and SGLang accept"""
    guided: bool = setting(True, unit="true or false")
    """send the JSON Schema as response_format, for guided decoding; a server that refuses it gets
    requests without a schema"""
    server: Literal["auto", "vllm", "transformers"] = setting("auto", unit="name")
    """local: the server to start; auto for vllm if it is installed and there is a GPU, else
    transformers"""
    server_args: tuple[str, ...] = setting((), unit="arguments")
    """local: more arguments of the server, such as [--max-model-len, "16384"]"""

    @field_validator("url")
    @classmethod
    def _has_no_secret(cls, url: str | None) -> str | None:
        # A run writes the recipe to summary.json, config.json and the report.
        parts = urlsplit(url or "")
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "has a user, a password or a query, which a run would store with the recipe; "
                "expected only the address, and the key in the environment (key_from)"
            )
        return url

    @field_validator("server_args")
    @classmethod
    def _are_allowed(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        names = {argument.partition("=")[0] for argument in arguments}
        if taken := sorted(names & {"--host", "--port", "--uds"}):
            raise ValueError(
                f"has {taken[0]}; the server gets a free port of 127.0.0.1: leave it out, or start "
                "the server yourself and use captioner openai"
            )
        if any("trust" in argument.replace("_", "-").lower() for argument in arguments):
            raise ValueError("has --trust-remote-code; code of a model is never run: leave it out")
        return arguments

    @property
    def name(self) -> str:
        """Model and revision, as tables store them."""
        return f"{self.model}@{self.revision}" if self.revision is not None else str(self.model)


class JudgeConfig(ModelConfig):
    """A model that scores answers."""

    captioner: str = setting("openai", unit="name")
    """the same as caption.captioner"""
    prompt: str = setting("judge", unit="name")
    """name of a file in pipelines/prompts without suffix, or path of a YAML file"""
    # As Cosmos 3: the lowest of faithfulness, completeness and correctness, 1 to 5 each, decides.
    min_score: int = setting(1, ge=1, le=5, unit="1 to 5")
    """lowest accepted score of a window; caption.failed decides about a clip with a lower score"""


class CaptionConfig(ModelConfig):
    """Settings of the section `caption`."""

    enabled: bool = setting(True, unit="true or false")
    """write captions; if false, the member txt is empty"""
    captioner: str = setting(
        "measured",
        description="; ".join(f"{name} {entry.about}" for name, entry in CAPTIONERS.items())
        + "; a custom class has the form package.module:Class",
        unit="name",
    )
    column: str | None = setting(None, pattern=r"^meta\.", unit="name")
    """column of metadata with the captions, such as meta.txt, for the captioner column"""

    # 256 frames with a remainder of 128: cosmos-curate; 8 frames: Cosmos (arXiv 2501.03575).
    window_frames: int = setting(256, ge=1, unit="frames")
    """frames of a window, the part of a clip that the model describes at a time"""
    window_remainder: int = setting(128, ge=1, unit="frames")
    """fewest frames at a clip's end that become a separate window; fewer join the window before"""
    window_s: float | None = setting(None, gt=0, unit="s")
    """seconds of a window, in place of window_frames; a remainder of less than half a window joins
    the window before; Cosmos Predict2.5 uses 5"""
    frames: int = setting(8, ge=1, unit="frames")
    """frames of a window that the model sees, evenly spread"""
    frames_per_s: float | None = setting(None, gt=0, unit="frames/s")
    """frames per second that the model sees, in place of frames; cosmos-curate uses 2"""
    max_frames: int = setting(64, ge=1, unit="frames")
    """most frames of a window that the model sees"""
    # 448: the tile side of many models; 8 frames are then about 2,000 tokens.
    frame_px: int = setting(448, ge=64, le=4096, unit="px")
    """longer side of the frames that the model sees; smaller frames keep their size"""

    lengths: tuple[CaptionLength, ...] = setting(
        ("short", "medium", "long"), min_length=1, unit="names"
    )
    """lengths of the captions that the model writes"""
    text: CaptionLength = setting("medium", unit="name")
    """length of the caption in the member txt; captions of several windows are joined in order"""
    structured: bool = setting(False, unit="true or false")
    """also request subjects, actions, setting, camera, style and text as JSON"""
    content_types: tuple[str, ...] = setting((), unit="names")
    """content types of which the model chooses one; empty for no content type"""
    questions: Mapping[str, str] = setting({}, unit="questions")
    """yes-or-no questions, by name"""
    safety: bool = setting(False, unit="true or false")
    """request a rating: safe, sensitive or unsafe"""
    reject: Mapping[str, tuple[Value, ...]] = setting({}, unit="answers")
    """answers that reject a written clip, if one of its windows has them; keys are
    content_type, safety, names of questions, and custom fields of the prompt"""
    failed: Literal["keep", "reject"] = setting("keep", unit="name")
    """keep or reject a clip if one of its windows has no annotation; a kept clip has no caption,
    and its JSON gives the reason"""
    language: str | None = setting("en", pattern=r"^[a-z]{2}$", unit="ISO 639-1")
    """language of captions; null for any"""
    allow_meta: bool = setting(False, unit="true or false")
    """accept captions that mention the image or the video itself"""
    repair_contradictions: bool = setting(False, unit="true or false")
    """if measurements contradict claims of an answer about a whole clip, ask once more and name the
    contradictions; the new answer counts only if it has fewer of them"""
    candidates: int = setting(1, ge=1, le=16, unit="answers")
    """answers per window; a judge picks the best"""
    judge: JudgeConfig | None = None
    """model that scores answers; null for none"""

    tell_facts: bool = setting(True, unit="true or false")
    """put measurements into the prompt: camera motion, length, frame rate, size, content type"""
    read_text: bool = setting(True, unit="true or false")
    """read text in frames by OCR, and put it into the prompt; skips clips without text"""
    sidecar: bool = setting(True, unit="true or false")
    """put the sidecar into the prompt: the .json file next to the source, with the source's name"""
    events: Mapping[str, str] = setting({}, unit="names")
    """classes of events with their meanings, the gravest first; an event in the sidecar of a source
    has one of the classes as label"""
    no_event: str | None = setting(None, unit="name")
    """class of a window without an event in or near it, if the sidecar lists events; null for no
    such class"""
    event_window_s: float | None = setting(None, gt=0, unit="s")
    """seconds of the window around each event, half before its start and half after its end; null
    for no such windows"""
    event_windows: Literal["instead", "added"] = setting("instead", unit="name")
    """in clips with events, windows around events replace the other windows (instead), or are added
    to them (added)"""
    open_questions: Mapping[str, str] = setting({}, unit="questions")
    """questions for training data; the name of a question is the sidecar key, or the custom field
    of the prompt, with the answer"""
    budget_s: float = setting(900.0, gt=0, unit="s")
    """longest time for one clip: all its requests, waits and tries together"""
    embedding: str | None = setting(None, unit="name")
    """text encoder of `curate models list` that embeds the caption into a member of the sample;
    null for none"""

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
                raise ValueError(f"bad name {name!r}; expected a plain name such as has_people")
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
        """Returns the problem of a recipe without a model: a setting that needs a model."""
        if not self.enabled or self.captioner not in NO_MODEL:
            return None
        wanted = {
            "questions": bool(self.questions),
            "reject": bool(self.reject),
            "judge": self.judge is not None,
            "candidates": self.candidates > 1,
            # A recipe that names `measured` may keep the URL of a server.
            "url": self.url is not None and "captioner" not in self.model_fields_set,
        }
        if key := next((key for key, is_wanted in wanted.items() if is_wanted), None):
            return (
                f"caption.{key} is set, but caption.captioner is {self.captioner}, which uses no "
                "model; set caption.captioner to openai or local"
            )
        return None

    def _missing(self) -> str | None:
        needs = CAPTIONERS[self.captioner].needs if self.captioner in CAPTIONERS else ()
        lacks = [key for key in needs if getattr(self, key) is None]
        if self.column is not None and self.captioner != "column":
            return f"column is set, but captioner is {self.captioner}; set captioner to column"
        if lacks:
            return f"captioner is {self.captioner}; set caption.{_NEEDED[lacks[0]]}"
        if self.judge is not None and self.judge.captioner != self.captioner:
            return (
                f"judge.captioner is {self.judge.captioner} and captioner {self.captioner}; "
                "expected the same, because one worker runs the dialog with both models"
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
                f"{names}, or an empty list; the model names a class where metadata has none"
            )
        if both := sorted(set(self.events) & set(self.questions)):
            return f"{both[0]!r} is in events and in questions; rename one of the two"
        if self.captioner == "metadata" and (self.candidates > 1 or self.judge is not None):
            return "captioner is metadata; expected neither candidates nor a judge"
        if self.event_window_s is not None and not self.events:
            return "event_window_s needs events; set caption.events to classes with their meanings"
        return None

    def _wrong_answers(self) -> str | None:
        if self.text not in self.lengths:
            return (
                f"text is {self.text}, but lengths are [{', '.join(self.lengths)}]; set "
                f"caption.text={self.lengths[-1]}, or add {self.text} to caption.lengths"
            )
        if problem := next(filter(None, map(self._wrong_reject, self.reject)), None):
            return problem
        if self.candidates > 1 and self.judge is None:
            return f"candidates is {self.candidates}; set caption.judge to pick the best answer"
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
        # The recipe of a finished run must stay readable without its prompt file.
        if fields is None or name in fields:
            return None if fields is None else wrong_values(name, fields[name], values)
        asked = [*self.questions, *(["safety"] if self.safety else []), "content_type"]
        return f"reject.{name} is not asked for; expected one of {[*asked, *fields]}"

    @property
    def name(self) -> str:
        """Model and revision, as tables store them; without a model, a name for the captioner."""
        if self.captioner == "metadata":
            return METADATA_MODEL
        return self.captioner if self.model is None else super().name

    @property
    def most_frames(self) -> int:
        """Frames of the largest window that a model sees."""
        return self.max_frames if self.frames_per_s else min(self.frames, self.max_frames)

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """The captioner's settings, then the judge's, if there is a judge."""
        return (self,) if self.judge is None else (self, self.judge)

    @property
    def annotates(self) -> bool:
        """Whether clips get annotations, by a model or from metadata."""
        return self.enabled and self.captioner not in NO_MODEL

    @property
    def knows(self) -> bool:
        """Whether values of sidecars become captions, classes or answers."""
        return bool(self.events or self.open_questions) or self.captioner == "metadata"

    @property
    def asks(self) -> bool:
        """Whether a model annotates clips."""
        return self.annotates and self.captioner != "metadata"

    @property
    def decides(self) -> bool:
        """Whether annotations may reject a clip."""
        return self.annotates and (bool(self.reject) or self.failed == "reject")


def frames_fingerprint(config: CaptionConfig) -> str:
    """Returns the fingerprint of the settings for frames and for OCR."""
    names = ("window_frames", "window_remainder", "window_s", "frames", "frames_per_s")
    chosen = [getattr(config, name) for name in (*names, "max_frames", "frame_px", "read_text")]
    if config.event_window_s is not None:
        chosen += [config.event_window_s, config.event_windows]
    return fingerprint("caption frames", WINDOW_FRAMES_VERSION, chosen)
