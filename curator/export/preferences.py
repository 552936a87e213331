"""Preference pairs from judged annotations, for direct preference optimization (DPO).

The form is TRL's conversational preference format for vision: `prompt`, `chosen` and `rejected` are
messages, and `images` are the frames that the model saw, as JPEGs of the same size from the written
clip.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field

from curator.errors import CutError, RecipeError, ShardError, UsageError
from curator.export.annotation_reader import AnnotationLookup, frames_in_clip, provenance_of
from curator.export.clip_reader import ShardClip
from curator.export.exporter import Exporter, RelativePaths
from curator.export.job import Job
from curator.media.clip_frames import Wanted, sample_clip
from curator.stages.caption.caption_records import (
    ANSWER_FIELDS,
    SCORES,
    Answer,
    AnswerCandidate,
    Task,
    Window,
)
from curator.stages.caption.dialogs.answers import answer_text
from curator.stages.caption.dialogs.window_dialog import Asker
from curator.stages.shard.tar_reader import Shard

Pairs = list[tuple[dict[str, Any], AnswerCandidate, AnswerCandidate]]
"""Rows of `annotations`, each with the best of its answers and a worse one."""


class PreferencesOptions(RelativePaths):
    """Options of the format."""

    min_margin: int = Field(1, ge=1, le=4)
    """least difference of a pair's scores, 1 to 4 (default: 1)"""


class Preferences(Exporter[PreferencesOptions, bytes]):
    """Writes `<split>.jsonl`, and `frames/<split>/<key>/<frame>.jpg`.

    Pairs whose frames a copy left out are counted and not written.
    """

    about = "<split>.jsonl with chosen and rejected answers, and frames/<split>/: DPO"
    options_type = PreferencesOptions
    records = "pairs of answers, a record each"

    def folders(self, splits: Sequence[str]) -> list[str]:
        """Where the frames go."""
        return [f"frames/{split}/" for split in splits]

    def begin(self, job: Job) -> None:
        """Reads the annotations and their prompts."""
        self._annotations = AnnotationLookup(job.shards)
        config, out = self._annotations.config, job.shards.store.uri
        if config.judge is None or config.candidates < 2:
            raise UsageError(
                f"{out} has one answer per window and no judge; `curate recaption {out} --set "
                "caption.candidates=4 --set caption.judge.model=...` asks for several and has them "
                "scored"
            )
        try:
            self._asker = Asker(config)
        except RecipeError as error:
            raise UsageError(
                f"{out}: the prompts of its annotations are needed: {error}"
            ) from error

    def shard(self, job: Job, shard: Shard) -> bytes:
        """Writes the frames of a shard's pairs; returns its lines."""
        pairs: dict[str, Pairs] = {}

        def wants(clip: ShardClip, sha256: str) -> bool:
            pairs[clip.key] = self._pairs(job, clip)
            return bool(pairs[clip.key])

        lines = [
            orjson.dumps(record) + b"\n"
            for clip in job.clips(shard, wants)
            for record in self._records(job, clip, pairs[clip.key])
        ]
        job.exported.add(records=len(lines))
        return b"".join(lines)

    def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
        """Writes the lines."""
        with job.place.create(f"{split}.jsonl") as output:
            output.writelines(results)

    def _pairs(self, job: Job, clip: ShardClip) -> Pairs:
        now = self._asker.prompt.fingerprint
        pairs: Pairs = []
        for row in self._annotations.of(clip.key):
            if row["prompt_fingerprint"] != now:
                raise UsageError(
                    f"{job.shards.store.uri}: the prompt {row['prompt']!r} is {now} and was "
                    f"{row['prompt_fingerprint']} when it was asked; put the old one back, or "
                    "`curate recaption` with the new one"
                )
            candidate_pairs = pairs_of(candidates_of(row), self._asker, self.options.min_margin)
            pairs += [(row, best, other) for best, other in candidate_pairs]
        return pairs

    def _records(self, job: Job, clip: ShardClip, pairs: Pairs) -> Iterator[dict[str, Any]]:
        shown = {row["window"]: frames_in_clip(row, clip.fields)["shown"] for row, *_ in pairs}
        folder = f"frames/{clip.shard.split}/{clip.key}"
        base = job.base(relative=self.options.relative)
        if pairs:
            wanted = {frame for frames in shown.values() for frame in frames}
            for frame, jpeg in _jpegs(clip, wanted, self._asker.config.frame_px).items():
                job.place.put(f"{folder}/{frame:06d}.jpg", jpeg)
        for number, (row, best, other) in enumerate(pairs):
            frames = shown[row["window"]]
            if len(frames) != len(row["shown"]):
                job.exported.add(left_out=1)
                continue
            asked = self._asker.first_request(_task(row, clip))
            images = [{"type": "image"} for _ in frames]
            yield {
                "id": f"{clip.key}-{row['window']}-{number}",
                "prompt": [
                    *([_turn("system", asked.system)] if asked.system else []),
                    _turn("user", asked.turns[0].text, images),
                ],
                "chosen": [_turn("assistant", _text(best, self._asker))],
                "rejected": [_turn("assistant", _text(other, self._asker))],
                "images": [f"{base}{folder}/{frame:06d}.jpg" for frame in frames],
                "chosen_scores": {name: getattr(best, name) for name in SCORES},
                "rejected_scores": {name: getattr(other, name) for name in SCORES},
                "margin": (best.score or 0) - (other.score or 0),
                "provenance": {
                    **provenance_of(row, clip.fields),
                    "chosen_key": best.reply_key,
                    "rejected_key": other.reply_key,
                },
            }


def candidates_of(row: Mapping[str, Any]) -> tuple[AnswerCandidate, ...]:
    """Returns the candidates in a row of `annotations`."""
    return tuple(
        AnswerCandidate(
            answer=Answer(**{name: stored[name] for name in ANSWER_FIELDS}),
            reply_key=stored["reply"],
            why=stored.get("why", ""),
            **{name: stored[name] for name in SCORES},
        )
        for stored in orjson.loads(row["candidates"] or "[]")
    )


def pairs_of(
    candidates: Sequence[AnswerCandidate], asker: Asker, min_margin: int = 1
) -> Iterator[tuple[AnswerCandidate, AnswerCandidate]]:
    """Yields the best candidate of a window with each lower-scored one.

    Unscored candidates form no pair, nor do two candidates with the same text. `asker` has the
    configuration of the candidates, and `min_margin` is the least difference of their lowest
    scores.

    Raises:
        ValueError: `min_margin` is below 1, so an answer would be preferred to an equal one.
    """
    if min_margin < 1:
        raise ValueError(f"min_margin is {min_margin}; expected 1 to 4")
    scored = [
        (candidate.score, candidate) for candidate in candidates if candidate.score is not None
    ]
    if not scored:
        return
    best_score, best = max(scored, key=lambda pair: pair[0])
    for score, other in scored:
        is_worse = best_score - score >= min_margin
        if is_worse and _text(best, asker) != _text(other, asker):
            yield best, other


def _text(candidate: AnswerCandidate, asker: Asker) -> str:
    return answer_text(candidate.answer, asker.config, asker.prompt)


def _task(row: dict[str, Any], clip: ShardClip) -> Task:
    """Returns the task of a row of `annotations`, with what its request says."""
    window = Window(
        index=row["window"],
        start_frame=row["start_frame"],
        end_frame=row["end_frame"],
        shown=tuple(row["shown"]),
    )
    fps, facts = float(clip.fields["fps"]), row["facts"] or ""
    return Task(clip_id=row["clip_id"], content="", window=window, fps=fps, facts=facts)


def _turn(role: str, text: str, images: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    return {"role": role, "content": [*images, {"type": "text", "text": text}]}


def _jpegs(clip: ShardClip, wanted: set[int], longest_px: int) -> dict[int, bytes]:
    assert clip.mp4 is not None
    if not wanted:
        return {}
    n_frames = clip.fields["n_frames"]
    frames = [Wanted(numbers=tuple(sorted(wanted)), size=longest_px, form="jpeg")]
    try:
        return dict(sample_clip(clip.mp4, frames, n_frames=n_frames, threads=1).jpegs)
    except CutError as error:
        raise ShardError(f"{clip.key}: {error}") from error
