"""Makes questions and answers about a window for post-training, each with the answer's origin.

Metadata takes precedence over a model's answer. Because a trainer gets the whole clip, questions
name the seconds of a shorter window.
Source: the kinds of supervision of VLM-AutoDrive (arXiv 2603.18178): captions from metadata,
descriptions by a model, question-answer pairs, and reasoning that ends in a known label.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from curator.fingerprints import fingerprint
from curator.stages.caption.caption_records import Annotation, Answer, Known
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import as_data
from curator.stages.caption.dialogs.source_events import in_words

METADATA = "metadata"
"""Origin of an answer without a model."""
REASONING = "reasoning"
"""Field of a prompt's own schema for reasoning."""
ABOUT_A_CLASS = "class"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Kind = Literal["caption", "choice", "yes_no", "open", "reasoning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Position of a window in the written clip, in seconds."""

    start_s: float
    end_s: float
    clip_s: float
    """Length of the clip."""
    clip_start_s: float
    """Start of the clip in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """A question about a window, and its answer."""

    name: str
    kind: Kind
    question: str
    answer: str
    origin: str
    """`metadata`, or the name of the model that answered."""
    reasoning: str = ""
    reasoning_origin: str | None = None


def questions_of(annotation: Annotation, config: CaptionConfig, span: Span) -> list[QuestionAnswer]:
    """Returns questions about a window that metadata or its annotation answers."""
    made = _Made(annotation, config, span)
    return [*made.captions(), *made.classes(), *made.yes_no(), *made.open(), *made.reasoned()]


class _Made:
    def __init__(self, annotation: Annotation, config: CaptionConfig, span: Span) -> None:
        self._task = annotation.task
        self._known: Known | None = annotation.task.known
        # Without a model, an answer only repeats metadata.
        self._answer: Answer | None = annotation.answer if config.asks else None
        self._config = config
        self._span = span
        is_whole = span.start_s < 0.05 and span.clip_s - span.end_s < 0.05
        self._where = "" if is_whole else f"Between {span.start_s:.1f} s and {span.end_s:.1f} s: "
        self._class, self._class_from = self._class_of()

    def captions(self) -> Iterator[QuestionAnswer]:
        config, answer = self._config, self._answer
        asks = {
            "short": "What happens? Answer in one sentence.",
            "medium": "Describe what happens in a few sentences.",
            "long": "Describe in detail what can be seen and what happens.",
        }
        for length, question in asks.items():
            if answer is not None and (text := getattr(answer, length)):
                yield self._made(length, "caption", question, text, config.name)
        if self._known is not None:
            question = "What is known about this recording?"
            yield self._made(METADATA, "caption", question, self._known.caption, METADATA)

    def classes(self) -> Iterator[QuestionAnswer]:
        if self._class is not None:
            question, chosen = self._choice()
            yield self._made(ABOUT_A_CLASS, "choice", question, chosen, self._class_from)

    def yes_no(self) -> Iterator[QuestionAnswer]:
        config, known, answer = self._config, self._known, self._answer
        for name, meaning in config.events.items():
            if name == config.no_event:
                continue
            question = f"Does this happen: {self._named(name, meaning)}? Answer yes or no."
            if known is not None and any(event.label == name for event in known.events):
                yield self._made(name, "yes_no", question, "Yes", METADATA)
            elif known is not None and known.label is not None and known.lists_all:
                yield self._made(name, "yes_no", question, "No", METADATA)
            elif self._class is not None and self._class_from != METADATA:
                said = "Yes" if self._class == name else "No"
                yield self._made(name, "yes_no", question, said, self._class_from)
        for name, asked in config.questions.items():
            question = f"{asked} Answer yes or no."
            value = known.values.get(name) if known is not None else None
            if isinstance(value, bool):
                yield self._made(name, "yes_no", question, "Yes" if value else "No", METADATA)
            elif answer is not None and name in answer.answers:
                said = "Yes" if answer.answers[name] else "No"
                yield self._made(name, "yes_no", question, said, config.name)

    def open(self) -> Iterator[QuestionAnswer]:
        config, known, answer = self._config, self._known, self._answer
        events = known.events if known is not None else ()
        labels = [event.label for event in events]
        for event in events:
            at_s = event.start_s - self._span.clip_start_s
            if labels.count(event.label) == 1 and 0 <= at_s <= self._span.clip_s:
                question = f"At what time does this happen: {in_words(event.label)}?"
                said = f"{at_s:.1f} s after the start of the video."
                yield self._made(f"time_of_{event.label}", "open", question, said, METADATA)
        for name, question in config.open_questions.items():
            value = known.values.get(name) if known is not None else None
            if value is not None:
                said = f"{value:.6g}" if isinstance(value, float) else str(value)
                yield self._made(name, "open", question, said, METADATA)
            elif answer is not None and isinstance(text := answer.extra.get(name), str) and text:
                yield self._made(name, "open", question, text, config.name)

    def reasoned(self) -> Iterator[QuestionAnswer]:
        """Yields the class with the model's reasoning, unless the model gives another class."""
        answer = self._answer
        if answer is None or self._class is None:
            return
        text = answer.extra.get(REASONING)
        if not isinstance(text, str) or not text or answer.content_type not in (None, self._class):
            return
        question, chosen = self._choice()
        yield QuestionAnswer(
            name=REASONING,
            kind="reasoning",
            question=f"{self._where}{question} Say first what leads to it.",
            answer=as_data(chosen),
            origin=self._class_from,
            reasoning=as_data(text),
            reasoning_origin=self._config.name,
        )

    def _class_of(self) -> tuple[str | None, str]:
        known, answer = self._known, self._answer
        if len(self._config.events or self._config.content_types) > len(_LETTERS):
            return None, METADATA
        if known is not None and known.label is not None:
            return known.label, METADATA
        return (answer.content_type if answer is not None else None), self._config.name

    def _choice(self) -> tuple[str, str]:
        """Returns the class question and its answer; the order of choices reveals nothing."""
        assert self._class is not None
        task, names = self._task, list(self._config.events or self._config.content_types)
        names.sort(key=lambda name: fingerprint("choice", task.clip_id, task.window.index, name))
        lines = [
            f"{letter}. {self._named(name, self._config.events.get(name, ''))}"
            for letter, name in zip(_LETTERS, names, strict=False)
        ]
        asked = "Which of these describes it?\n" + "\n".join(lines)
        chosen = f"{_LETTERS[names.index(self._class)]}. {in_words(self._class)}"
        return f"{asked}\nAnswer with the letter and the name.", chosen

    def _named(self, name: str, meaning: str) -> str:
        return f"{in_words(name)} ({meaning.rstrip('.')})" if meaning else in_words(name)

    def _made(
        self, name: str, kind: Kind, question: str, answer: str, origin: str
    ) -> QuestionAnswer:
        # An answer must not contain marks that trainers interpret, such as <video>.
        return QuestionAnswer(
            name=name,
            kind=kind,
            question=f"{self._where}{question}",
            answer=as_data(answer),
            origin=origin,
        )
