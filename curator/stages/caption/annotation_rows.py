"""Writes annotations into the rows of clips, the table `annotations` and the samples."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Self

import orjson
import pyarrow as pa

from curator.records.clips import Clip, Reason
from curator.stages.caption.annotation_memo import annotation_key, answers_fingerprint
from curator.stages.caption.caption_decisions import caption_of, rejection_of
from curator.stages.caption.caption_records import JSON_FIELDS, SCORES, Annotation, Window
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.dialogs.question_answers import WindowSpan, questions_of
from curator.tables.clip_rows import reject
from curator.tables.parts import rows_to_table
from curator.tables.schemas import ANNOTATIONS_SCHEMA

_REASONS = {"failed": Reason.NOT_ANNOTATED, "judge_score": Reason.JUDGED_TOO_LOW}
_ROWS_AT_ONCE = 4096


SPAN = ("start_frame", "end_frame", "start_s", "end_s")
"""Columns of `clips` for a clip's position; `annotations` prefixes them with `clip_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionedSpan:
    """A clip's span in its source at the time of annotation: half-open frames, and seconds."""

    start_frame: int
    end_frame: int
    start_s: float
    end_s: float

    @classmethod
    def of(cls, clip: Clip) -> Self:
        """Returns the current span of a clip."""
        return cls(**{name: getattr(clip, name) for name in SPAN})


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
    clips: Iterable[tuple[Clip, Sequence[Annotation], CaptionedSpan]],
    config: CaptionConfig,
) -> Iterator[pa.Table]:
    """Yields rows of `annotations` in batches, in the order of the clips and their windows."""
    judge = config.judge
    prompts = {
        "prompt_fingerprint": load_prompt(config.prompt).fingerprint if config.asks else None,
        "judge_prompt_fingerprint": load_prompt(judge.prompt).fingerprint if judge else None,
    }
    config_fingerprint = answers_fingerprint(config)
    rows = (
        {
            "annotation_key": annotation_key(annotation.task, config_fingerprint),
            **_row(clip, annotation, span.start_frame, config),
            **prompts,
            **{f"clip_{name}": getattr(span, name) for name in SPAN},
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
        "model": config.name,
        "prompt": config.prompt if config.asks else None,
        "label": metadata.label if metadata is not None else None,
        "known": _json(asdict(metadata)) if metadata is not None else None,
        "questions": _json([asdict(question) for question in questions]),
        "facts": annotation.task.facts,
        **fields,
        "failure": annotation.failure,
        "failure_detail": annotation.detail or None,
        "set_aside": _json(annotation.set_aside),
        "lost": _json(annotation.lost),
        "n_unscored": annotation.n_unscored,
        "judge": config.judge.name if config.judge is not None else None,
        "candidates": _json(candidates),
        "tokens_in": annotation.tokens_in,
        "tokens_out": annotation.tokens_out,
        "request_keys": list(annotation.request_keys),
    }


def _json(value: object) -> str | None:
    if not value:
        return None
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
