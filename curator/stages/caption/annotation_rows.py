"""Decides from annotations about clips, and writes them into tables and samples."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from curator.records.clips import Clip, Reason
from curator.stages.caption.annotation_store import (
    CaptionedSpan,
    annotation_key,
    answers_fingerprint,
)
from curator.stages.caption.caption_records import JSON_FIELDS, SCORES, Annotation, Answer, Window
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import has_value, load_prompt
from curator.stages.caption.dialogs.question_answers import WindowSpan, questions_of
from curator.tables.clip_rows import reject
from curator.tables.parts import rows_to_table
from curator.tables.schemas import ANNOTATIONS_SCHEMA

_REASONS = {"failed": Reason.NOT_ANNOTATED, "judge_score": Reason.JUDGED_TOO_LOW}
_ROWS_AT_ONCE = 4096


class CaptionRejection(NamedTuple):
    """An answer that rejects a clip.

    Attributes:
        field: `content_type`, `safety`, a question or field of the prompt, `failed` or
            `judge_score`.
        value: The answer; the reason for `failed`; None for a missing `judge_score`.
        window: The first window with this answer.
    """

    field: str
    value: str | bool | int | None
    window: int


def rejection_of(
    annotations: Sequence[Annotation], config: CaptionConfig
) -> CaptionRejection | None:
    """Returns the first answer that rejects a clip, or None for a kept clip.

    All windows of the clip are checked in order. Given answers count before missing ones.
    """
    in_order = _in_order(annotations)
    for annotation in in_order:
        for name, values in config.reject.items():
            answered = _field(annotation.answer, name, config)
            for value in values:
                if has_value(answered, value):
                    return CaptionRejection(name, value, annotation.task.window.index)
    if config.failed != "reject":
        return None
    lacks = (_lack(annotation, config) for annotation in in_order)
    return next((lack for lack in lacks if lack is not None), None)


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
    for annotation in _in_order(annotations):
        if (lack := _lack(annotation, config)) is not None:
            problem = str(lack.value) if lack.field == "failed" else f"judged {lack.value}"
            detail = f": {annotation.detail}" if annotation.detail else ""
            return None, f"window {lack.window} {problem}{detail}"
        if not (annotation.task.window.is_event and has_even):
            texts.append(getattr(annotation.answer, config.text))
    return " ".join(text for text in texts if text), None


def judge_score(annotation: Annotation) -> int | None:
    """Returns the score of the kept answer; None without a judge."""
    kept = (c for c in annotation.candidates if c.answer == annotation.answer)
    # Of equal answers, the best was kept.
    return max((c.score for c in kept if c.score is not None), default=None)


def _in_order(annotations: Sequence[Annotation]) -> list[Annotation]:
    return sorted(annotations, key=lambda annotation: annotation.task.window.index)


def _lack(annotation: Annotation, config: CaptionConfig) -> CaptionRejection | None:
    index = annotation.task.window.index
    if annotation.failure is not None:
        return CaptionRejection("failed", str(annotation.failure), index)
    if config.judge is not None and config.judge.min_score > 1:
        score = judge_score(annotation)
        if score is None or score < config.judge.min_score:
            return CaptionRejection("judge_score", score, index)
    return None


def _field(answer: Answer | None, name: str, config: CaptionConfig) -> object:
    if answer is None:
        return None
    if name in ("content_type", "safety"):
        return getattr(answer, name)
    return (answer.answers if name in config.questions else answer.extra).get(name)


def apply_annotations(clip: Clip, windows: Sequence[Annotation], config: CaptionConfig) -> None:
    """Writes the caption of a kept clip, or rejects the clip if the recipe says so."""
    clip.caption, clip.caption_failure = caption_of(windows, config)
    clip.caption_model = config.name
    against = rejection_of(windows, config)
    if against is not None:
        detail = f"{against.field} is {against.value} in window {against.window}"
        reject(clip, _REASONS.get(against.field, Reason.ANSWER_UNWANTED), detail=detail)


def sample_annotation(
    clip: Clip, windows: Sequence[Annotation], span: CaptionedSpan, config: CaptionConfig
) -> dict[str, Any]:
    """Returns a sample's annotation: the answer of each window, in frames of the written clip."""
    shift = clip.start_frame - span.start_frame
    return {
        "model": config.name,
        "prompt": config.prompt if config.asks else None,
        "judge": config.judge.name if config.judge is not None else None,
        "windows": [_window(annotation, shift, clip.n_frames) for annotation in windows],
    }


def annotations_tables(
    clips: Iterable[tuple[Clip, Sequence[Annotation], CaptionedSpan]], config: CaptionConfig
) -> Iterator[pa.Table]:
    """Yields rows of `annotations` in batches, in the order of the clips and their windows."""
    judge = config.judge
    of_config = {
        "model": config.name,
        "prompt": config.prompt if config.asks else None,
        "prompt_fingerprint": load_prompt(config.prompt).fingerprint if config.asks else None,
        "judge": judge.name if judge is not None else None,
        "judge_prompt_fingerprint": load_prompt(judge.prompt).fingerprint if judge else None,
    }
    config_fingerprint = answers_fingerprint(config)
    rows = (
        {
            "annotation_key": annotation_key(annotation.task, config_fingerprint),
            **_row(clip, annotation, span.start_frame, config),
            **of_config,
            **{f"clip_{name}": value for name, value in span._asdict().items()},
        }
        for clip, windows, span in clips
        for annotation in windows
    )
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield rows_to_table(some, ANNOTATIONS_SCHEMA)


def _in_clip(window: Window, shift: int, n_frames: int) -> tuple[int, int]:
    """Returns a window's frames in the written clip; a copied one may be shorter than annotated."""
    start, end = (
        min(max(frame - shift, 0), n_frames) for frame in (window.start_frame, window.end_frame)
    )
    return start, end


def _window(annotation: Annotation, shift: int, n_frames: int) -> dict[str, Any]:
    """Returns a window for a sample's JSON."""
    answer, metadata = annotation.answer, annotation.task.metadata
    start, end = _in_clip(annotation.task.window, shift, n_frames)
    window: dict[str, Any] = {"start_frame": start, "end_frame": end}
    if answer is not None:
        items = asdict(answer).items()
        window |= {name: value for name, value in items if value not in (None, {})}
    if metadata is not None:
        values = {name: getattr(metadata, name) for name in ("caption", "label")}
        values["problems"] = list(metadata.problems)
        window["metadata"] = {name: value for name, value in values.items() if value}
    if annotation.failure is not None:
        window["failure"] = str(annotation.failure)
    return window


def _row(clip: Clip, annotation: Annotation, start: int, config: CaptionConfig) -> dict[str, Any]:
    window, fps = annotation.task.window, annotation.task.fps
    metadata = annotation.task.metadata
    fields = asdict(annotation.answer) if annotation.answer is not None else {}
    fields |= {name: _json(fields[name]) for name in JSON_FIELDS if fields}
    begin, end = _in_clip(window, clip.start_frame - start, clip.n_frames)
    span = WindowSpan(
        start_s=begin / fps, end_s=end / fps, clip_s=clip.n_frames / fps, clip_start_s=clip.start_s
    )
    questions = questions_of(annotation, config, span)
    candidates = [
        {
            **asdict(candidate.answer),
            **{name: getattr(candidate, name) for name in (*SCORES, "score", "why")},
            "reply": candidate.reply_key,
        }
        for candidate in annotation.candidates
        if len(annotation.candidates) > 1 or candidate.score is not None
    ]
    return {
        "clip_id": clip.clip_id,
        "source_id": clip.source_id,
        "window": window.index,
        "start_frame": window.start_frame,
        "end_frame": window.end_frame,
        "shown": list(window.shown),
        "label": metadata.label if metadata is not None else None,
        "known": _json(asdict(metadata)) if metadata is not None else None,
        "questions": _json([asdict(question) for question in questions]),
        "facts": annotation.task.facts,
        **fields,
        "failure": annotation.failure,
        "failure_detail": annotation.detail or None,
        "set_aside": _json(annotation.set_aside),
        "lost": _json(annotation.lost),
        "candidates": _json(candidates),
        "request_keys": list(annotation.request_keys),
        **{name: getattr(annotation, name) for name in ("n_unscored", "tokens_in", "tokens_out")},
    }


def _json(value: object) -> str | None:
    if not value:
        return None
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
