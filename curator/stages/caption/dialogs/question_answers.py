"""Makes questions about a window for post-training, with answers and the origin of each answer.

Metadata takes precedence over a model's answer.
Source: the kinds of supervision of VLM-AutoDrive (arXiv 2603.18178): captions from metadata,
descriptions by a model, question-answer pairs, and reasoning that ends in a known label.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from curator.fingerprints import fingerprint
from curator.stages.caption.caption_records import Annotation
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_facts import in_words
from curator.stages.caption.dialogs.prompt_files import as_data

METADATA = "metadata"
"""Origin of an answer from metadata."""
REASONING = "reasoning"
"""Custom field of a prompt with the model's reasoning."""
_CAPTIONS = {
    "short": "What happens? Answer in one sentence.",
    "medium": "Describe what happens in a few sentences.",
    "long": "Describe in detail what can be seen and what happens.",
}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Kind = Literal["caption", "choice", "yes_no", "open", "reasoning"]


class WindowSpan(NamedTuple):
    """A window's span in the written clip; the clip's length, and its start in the source."""

    start_s: float
    end_s: float
    clip_s: float
    clip_start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """A question about a window, with its answer."""

    name: str
    kind: Kind
    question: str
    answer: str
    origin: str
    """`metadata`, or the name of the model that answered."""
    reasoning: str = ""
    reasoning_origin: str | None = None


def questions_of(
    annotation: Annotation, config: CaptionConfig, span: WindowSpan
) -> list[QuestionAnswer]:
    """Returns the questions about a window that metadata or the annotation answers."""
    made = _Questions(annotation, config, span)
    return [*made.captions(), *made.yes_no(), *made.open(), *made.reasoned()]


class _Questions:
    def __init__(self, annotation: Annotation, config: CaptionConfig, span: WindowSpan) -> None:
        self._task = annotation.task
        self._metadata = metadata = annotation.task.metadata
        # Without a model, an answer only repeats metadata.
        self._answer = answer = annotation.answer if config.asks else None
        self._config = config
        self._span = span
        self._classes = list(config.events or config.content_types)
        self._class, self._class_from = None, METADATA
        if len(self._classes) <= len(_LETTERS):
            if metadata is not None and metadata.label is not None:
                self._class = metadata.label
            elif answer is not None:
                self._class, self._class_from = answer.content_type, config.name

    def captions(self) -> Iterator[QuestionAnswer]:
        """Yields captions and the class."""
        for length, question in _CAPTIONS.items():
            if self._answer is not None and (text := getattr(self._answer, length)):
                yield self._made(length, "caption", question, text, self._config.name)
        if self._metadata is not None:
            question = "What is known about this recording?"
            yield self._made(METADATA, "caption", question, self._metadata.caption, METADATA)
        if self._class is not None:
            yield self._made("class", "choice", *self._choice(self._class), self._class_from)

    def yes_no(self) -> Iterator[QuestionAnswer]:
        config, metadata, answer = self._config, self._metadata, self._answer
        labels = [event.label for event in metadata.events] if metadata is not None else []
        # `No` for an unlisted event is known only if metadata lists all events.
        is_complete = metadata is not None and metadata.label is not None and metadata.lists_all
        for name, meaning in config.events.items():
            if name == config.no_event:
                continue
            question = f"Does this happen: {_named(name, meaning)}? Answer yes or no."
            if name in labels or is_complete:
                yield self._made(name, "yes_no", question, name in labels, METADATA)
            elif self._class is not None and self._class_from != METADATA:
                yield self._made(name, "yes_no", question, self._class == name, self._class_from)
        for name, asked in config.questions.items():
            question = f"{asked} Answer yes or no."
            value = metadata.values.get(name) if metadata is not None else None
            if isinstance(value, bool):
                yield self._made(name, "yes_no", question, value, METADATA)
            elif answer is not None and name in answer.answers:
                yield self._made(name, "yes_no", question, answer.answers[name], config.name)

    def open(self) -> Iterator[QuestionAnswer]:
        config, metadata, answer = self._config, self._metadata, self._answer
        events = metadata.events if metadata is not None else ()
        labels = [event.label for event in events]
        for event in events:
            at_s = event.start_s - self._span.clip_start_s
            if labels.count(event.label) == 1 and 0 <= at_s <= self._span.clip_s:
                question = f"At what time does this happen: {in_words(event.label)}?"
                text = f"{at_s:.1f} s after the start of the video."
                yield self._made(f"time_of_{event.label}", "open", question, text, METADATA)
        for name, question in config.open_questions.items():
            value = metadata.values.get(name) if metadata is not None else None
            reply = answer.extra.get(name) if answer is not None else None
            if value is not None:
                text = f"{value:.6g}" if isinstance(value, float) else str(value)
                yield self._made(name, "open", question, text, METADATA)
            elif isinstance(reply, str) and reply:
                yield self._made(name, "open", question, reply, config.name)

    def reasoned(self) -> Iterator[QuestionAnswer]:
        """Yields the class with the model's reasoning, unless the model chose another class."""
        answer, chosen = self._answer, self._class
        text = answer.extra.get(REASONING) if answer is not None else None
        if answer is None or chosen is None or not isinstance(text, str) or not text:
            return
        if answer.content_type in (None, chosen):
            question, choice = self._choice(chosen)
            question += " Say first what leads to it."
            yield self._made(REASONING, "reasoning", question, choice, self._class_from, text)

    def _choice(self, chosen: str) -> tuple[str, str]:
        """Returns the class question, with choices in a pseudorandom order, and its answer."""
        clip_id, window = self._task.clip_id, self._task.window.index
        names = sorted(self._classes, key=lambda name: fingerprint("choice", clip_id, window, name))
        lines = [
            f"{letter}. {_named(name, self._config.events.get(name, ''))}"
            for letter, name in zip(_LETTERS, names, strict=False)
        ]
        asked = "\n".join(["Which of these describes it?", *lines])
        letter = _LETTERS[names.index(chosen)]
        return f"{asked}\nAnswer with the letter and the name.", f"{letter}. {in_words(chosen)}"

    def _made(
        self,
        name: str,
        kind: Kind,
        question: str,
        answer: str | bool,
        origin: str,
        reasoning: str = "",
    ) -> QuestionAnswer:
        span = self._span
        is_whole = span.start_s < 0.05 and span.clip_s - span.end_s < 0.05
        where = "" if is_whole else f"Between {span.start_s:.1f} s and {span.end_s:.1f} s: "
        text = answer if isinstance(answer, str) else "Yes" if answer else "No"
        # An answer must not contain marks that trainers interpret, such as <video>.
        return QuestionAnswer(
            name=name,
            kind=kind,
            question=f"{where}{question}",
            answer=as_data(text),
            origin=origin,
            reasoning=as_data(reasoning),
            reasoning_origin=self._config.name if reasoning else None,
        )


def _named(name: str, meaning: str) -> str:
    return f"{in_words(name)} ({meaning.rstrip('.')})" if meaning else in_words(name)
