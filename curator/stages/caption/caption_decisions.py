"""Decides from annotations whether a clip is rejected, and what its caption is."""

from collections.abc import Sequence
from dataclasses import dataclass

from curator.stages.caption.caption_records import Annotation, Answer
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import has_value


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionRejection:
    """An answer that rejects a clip."""

    field: str
    """`content_type`, `safety`, a question or field of the prompt, `failed` or `judge_score`."""
    value: str | bool | int | None
    """The answer; the reason for `failed`; None for a missing `judge_score`."""
    window: int
    """The first window with this answer."""


def rejection_of(
    annotations: Sequence[Annotation], config: CaptionConfig
) -> CaptionRejection | None:
    """Returns the first answer that rejects a clip, or None for a kept clip.

    All windows of the clip are checked in order. Given answers count before missing ones.
    """
    in_order = sorted(annotations, key=lambda annotation: annotation.task.window.index)
    for annotation in in_order:
        for name, values in config.reject.items():
            answered = _field(annotation.answer, name, config)
            wanted = [value for value in values if has_value(answered, value)]
            if wanted:
                return CaptionRejection(
                    field=name, value=wanted[0], window=annotation.task.window.index
                )
    if config.failed == "reject":
        for annotation in in_order:
            if (lack := _lack(annotation, config)) is not None:
                return lack
    return None


def caption_of(
    annotations: Sequence[Annotation], config: CaptionConfig
) -> tuple[str | None, str | None]:
    """Joins the captions of a clip's windows, in the length `config.text`.

    Event windows count only if a clip has no others. Returns the caption, or why it is missing.
    """
    if not annotations:
        return None, "it has no annotation"
    texts = []
    has_even = any(not annotation.task.window.is_event for annotation in annotations)
    for annotation in sorted(annotations, key=lambda a: a.task.window.index):
        if (lack := _lack(annotation, config)) is not None:
            problem = str(lack.value) if lack.field == "failed" else f"judged {lack.value}"
            detail = f": {annotation.detail}" if annotation.detail else ""
            return None, f"window {lack.window} {problem}{detail}"
        if not (annotation.task.window.is_event and has_even):
            texts.append(getattr(annotation.answer, config.text))
    return " ".join(text for text in texts if text), None


def judge_score(annotation: Annotation) -> int | None:
    """Returns the score of the kept answer; None without a judge."""
    kept = [c for c in annotation.candidates if c.answer is annotation.answer]
    kept = kept or [c for c in annotation.candidates if c.answer == annotation.answer]
    return kept[0].score if kept else None


def _lack(annotation: Annotation, config: CaptionConfig) -> CaptionRejection | None:
    index = annotation.task.window.index
    if annotation.failure is not None:
        return CaptionRejection(field="failed", value=str(annotation.failure), window=index)
    if config.judge is not None and config.judge.min_score > 1:
        score = judge_score(annotation)
        if score is None or score < config.judge.min_score:
            return CaptionRejection(field="judge_score", value=score, window=index)
    return None


def _field(answer: Answer | None, name: str, config: CaptionConfig) -> object:
    if answer is None:
        return None
    if name in ("content_type", "safety"):
        return getattr(answer, name)
    return (answer.answers if name in config.questions else answer.extra).get(name)
