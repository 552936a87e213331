"""Preference pairs: a better and a worse answer to one question."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from curator.stages.caption.caption_records import (
    ANSWER_FIELDS,
    Annotation,
    Answer,
    Candidate,
    Task,
    Window,
)
from curator.stages.caption.dialogs.answers import SCORES, answer_text
from curator.stages.caption.dialogs.window_dialog import Asker


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two answers to the same question about the same frames, ranked by a judge."""

    clip_id: str
    window: int
    start_frame: int
    end_frame: int
    """Half-open frames of the written clip."""
    system: str
    prompt: str
    """The user's turn; the frames come before it."""
    chosen: str
    rejected: str
    """In the form that the prompt requests: JSON or plain text."""
    chosen_scores: tuple[int, int, int]
    """Faithfulness, completeness, correctness, 1 to 5."""
    rejected_scores: tuple[int, int, int]
    margin: int
    """Difference of the lowest scores of both, at least 1."""
    model: str
    judge: str
    prompt_name: str
    prompt_fingerprint: str
    judge_prompt_fingerprint: str
    chosen_key: str
    rejected_key: str
    """Keys of the replies with the two answers."""


def pairs_of(annotation: Annotation, asker: Asker, min_margin: int = 1) -> Iterator[PreferencePair]:
    """Pairs the best candidate of a window with each lower-scored one.

    Unscored candidates form no pair, nor do two candidates with the same text. `asker` has the same
    configuration, and `min_margin` is the least difference of the candidates' lowest scores.

    Raises:
        ValueError: `min_margin` is below 1, so an answer would be preferred to an equal one.
    """
    if min_margin < 1:
        raise ValueError(f"min_margin is {min_margin}; expected 1 to 4")
    config, task = asker.config, annotation.task
    scored = [(c.score, c) for c in annotation.candidates if c.score is not None]
    if config.judge is None or len(scored) < 2:
        return
    best_score, best = max(scored, key=lambda pair: pair[0])
    chosen = answer_text(best.answer, config, asker.prompt)
    asked = asker.first_request(task)
    for score, other in scored:
        rejected = answer_text(other.answer, config, asker.prompt)
        if best_score - score < min_margin or rejected == chosen:
            continue
        yield PreferencePair(
            clip_id=task.clip_id,
            window=task.window.index,
            start_frame=task.window.start_frame,
            end_frame=task.window.end_frame,
            system=asked.system,
            prompt=asked.turns[0].text,
            chosen=chosen,
            rejected=rejected,
            chosen_scores=_scores(best),
            rejected_scores=_scores(other),
            margin=best_score - score,
            model=config.name,
            judge=config.judge.name,
            prompt_name=config.prompt,
            prompt_fingerprint=asker.prompt.fingerprint,
            judge_prompt_fingerprint=asker.judge_prompt.fingerprint,
            chosen_key=best.reply_key,
            rejected_key=other.reply_key,
        )


def annotation_of(row: Mapping[str, Any], fps: float) -> Annotation | None:
    """Returns task and candidates of a row of `annotations`, or None without candidates."""
    candidates = [
        Candidate(
            answer=Answer(**{name: stored[name] for name in ANSWER_FIELDS}),
            reply_key=stored["reply"],
            **{name: stored[name] for name in SCORES},
        )
        for stored in json.loads(row["candidates"] or "[]")
    ]
    if not candidates:
        return None
    window = Window(
        index=row["window"],
        start_frame=row["start_frame"],
        end_frame=row["end_frame"],
        shown=tuple(row["shown"]),
    )
    task = Task(
        clip_id=row["clip_id"], content="", window=window, fps=fps, facts=row["facts"] or ""
    )
    return Annotation(task=task, answer=candidates[0].answer, candidates=candidates)


def _scores(candidate: Candidate) -> tuple[int, int, int]:
    scores = candidate.faithfulness, candidate.completeness, candidate.correctness
    assert None not in scores
    faithfulness, completeness, correctness = scores
    return (faithfulness or 0, completeness or 0, correctness or 0)
