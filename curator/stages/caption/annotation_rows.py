"""Writes annotations into the rows of clips, the table `annotations` and the samples."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Self

import orjson
import pyarrow as pa

from curator.records.clips import Clip, Reason
from curator.stages.caption.caption_decisions import Rejection, caption_of, rejection_of
from curator.stages.caption.caption_records import (
    ANSWER_FIELDS,
    JSON_FIELDS,
    SCORES,
    Annotation,
    Answer,
    Known,
    Window,
)
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.dialogs.question_answers import Span, questions_of
from curator.stages.caption.previous_annotations import annotation_key, answers_stamp
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
    caption = caption_of(windows, config)
    clip.caption, clip.caption_model = caption.text, config.name
    clip.caption_failure = caption.problem or None
    against = rejection_of(windows, config)
    if against is not None:
        reject(clip, _REASONS.get(against.field, Reason.ANSWER_UNWANTED), detail=_detail(against))


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
    stamp = answers_stamp(config)
    rows = (
        {
            "annotation_key": annotation_key(annotation.task, stamp),
            **_row(clip, annotation, span.start_frame, config),
            **prompts,
            **{f"clip_{name}": getattr(span, name) for name in SPAN},
        }
        for clip, windows, span in clips
        for annotation in windows
    )
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield rows_to_table(some, ANNOTATIONS_SCHEMA)


def _detail(against: Rejection) -> str:
    return f"{against.field} is {against.value} in window {against.window}"


def _window(annotation: Annotation, shift: int, n_frames: int) -> dict[str, Any]:
    """Returns a window for a sample's JSON; a copied clip may be shorter than the annotated one."""
    window = annotation.task.window
    answer, known = annotation.answer, annotation.task.known
    said = {} if answer is None else {name: getattr(answer, name) for name in ANSWER_FIELDS}
    return {
        "start_frame": min(max(window.start_frame - shift, 0), n_frames),
        "end_frame": min(max(window.end_frame - shift, 0), n_frames),
        **{name: value for name, value in said.items() if value not in (None, {})},
        **({"metadata": _metadata(known)} if known is not None else {}),
        **({} if annotation.failure is None else {"failure": str(annotation.failure)}),
    }


def _metadata(known: Known) -> dict[str, Any]:
    values = {"caption": known.caption, "label": known.label, "problems": list(known.problems)}
    return {name: value for name, value in values.items() if value}


def _row(clip: Clip, annotation: Annotation, start: int, config: CaptionConfig) -> dict[str, Any]:
    window: Window = annotation.task.window
    answer, known = annotation.answer, annotation.task.known
    questions = questions_of(annotation, config, _span(clip, annotation, start))
    return {
        "clip_id": clip.clip_id,
        "source_id": clip.source_id,
        "window": window.index,
        "start_frame": window.start_frame,
        "end_frame": window.end_frame,
        "shown": list(window.shown),
        "model": config.name,
        "prompt": config.prompt if config.asks else None,
        "label": known.label if known is not None else None,
        "known": _json(asdict(known)) if known is not None else None,
        "questions": _json([asdict(question) for question in questions]),
        "facts": annotation.task.facts,
        **(_answer_columns(answer) if answer is not None else {}),
        "failure": None if annotation.failure is None else str(annotation.failure),
        "failure_detail": annotation.detail or None,
        "set_aside": _json(annotation.set_aside),
        "lost": _json(annotation.lost),
        "n_unscored": annotation.n_unscored,
        "judge": config.judge.name if config.judge is not None else None,
        "candidates": _json(
            [
                {
                    **{name: getattr(candidate.answer, name) for name in ANSWER_FIELDS},
                    **{name: getattr(candidate, name) for name in (*SCORES, "score", "why")},
                    "reply": candidate.reply_key,
                }
                for candidate in annotation.candidates
                if len(annotation.candidates) > 1 or candidate.score is not None
            ]
        ),
        "tokens_in": annotation.tokens_in,
        "tokens_out": annotation.tokens_out,
        "request_keys": list(annotation.request_keys),
    }


def _span(clip: Clip, annotation: Annotation, start: int) -> Span:
    window, fps, n_frames = annotation.task.window, annotation.task.fps, clip.n_frames
    begin, end = (
        min(max(frame - (clip.start_frame - start), 0), n_frames) / fps
        for frame in (window.start_frame, window.end_frame)
    )
    return Span(start_s=begin, end_s=end, clip_s=n_frames / fps, clip_start_s=clip.start_s)


def _answer_columns(answer: Answer) -> dict[str, Any]:
    values = {name: getattr(answer, name) for name in ANSWER_FIELDS}
    return values | {name: _json(values[name]) for name in JSON_FIELDS}


def _json(value: object) -> str | None:
    if not value:
        return None
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
