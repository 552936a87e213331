"""Questions with answers, and preference pairs, from annotations of clips, to train VLMs.

A conversation has one question and its answer, because earlier answers of a longer conversation
would reveal later answers. It has the format of LLaVA (`video`, `conversations` with `from` and
`value`, `<video>` in place of the frames), which NVILA and Qwen-VL's fine-tuning read.
LLaMA-Factory calls the format sharegpt (`videos`; `dataset_info.json` describes it). Reasoning has
Cosmos-Reason's tags.

A preference pair, for direct preference optimization (DPO), has TRL's conversational form for
vision: `prompt`, `chosen` and `rejected` are messages, and `images` are the frames that the model
saw, as JPEGs of the same size from the written clip.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field

from curator.dataset.tar_reader import SPLITS, Shard
from curator.errors import CutError, ShardError, UsageError, raised_as
from curator.export.annotation_rows import Annotations, Row, question_and_answer
from curator.export.exporter import Exporter, OptionsT, RelativePaths, VideoExporter
from curator.export.job import Job, ShardClip
from curator.media.clip_frames import Wanted, sample_clip

_SCORES = ("faithfulness", "completeness", "correctness")
"""Scores of a judge, 1 to 5; the lowest is the `score` of a candidate."""
Pair = tuple[Row, Row, Row]
"""A row of `annotations`, with its best answer and a worse answer."""


class _JsonLines(Exporter[OptionsT, list[bytes]]):
    def split(self, job: Job, split: str, results: Iterator[list[bytes]]) -> None:
        """Writes the lines."""
        with job.place.create(f"{split}.jsonl") as output:
            for lines in results:
                output.writelines(lines)


class Conversations(_JsonLines[RelativePaths], VideoExporter[RelativePaths, bytes]):
    """Writes `<split>.jsonl`, `videos/<split>/<key>.mp4` and `dataset_info.json`."""

    about = (
        "<split>.jsonl with questions and answers, and videos/<split>/*.mp4: post-training of "
        "vision-language models"
    )
    options_type = RelativePaths
    records = "questions with answers, a record each"
    videos = "videos/{split}"
    folder = "videos/{split}/"

    def begin(self, job: Job) -> None:
        """Reads the annotations."""
        self._annotations = Annotations(job.shards)

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterator[bytes]:
        """Yields a clip's lines."""
        video = job.base(relative=self.options.relative) + path
        for row in self._annotations.of(clip.key):
            provenance = _provenance(row, clip.fields)
            for made in orjson.loads(row["questions"] or "[]"):
                yield _line(_conversation(clip.key, row, made, video, provenance))

    def finish(self, job: Job) -> None:
        """Describes the splits, including one from an earlier export."""
        described = {
            f"curate_{split}": {
                "file_name": f"{split}.jsonl",
                "formatting": "sharegpt",
                "columns": {"messages": "conversations", "videos": "videos"},
            }
            for split in SPLITS
            if job.store.exists(f"{split}.jsonl")
        }
        job.place.put("dataset_info.json", orjson.dumps(described, option=orjson.OPT_INDENT_2))


class PreferencesOptions(RelativePaths):
    """Options of the format."""

    min_margin: int = Field(1, ge=1, le=4)
    """least difference of a pair's scores, 1 to 4 (default: 1)"""


class Preferences(_JsonLines[PreferencesOptions]):
    """Writes `<split>.jsonl`, and `frames/<split>/<key>/<frame>.jpg`.

    Pairs are counted but not written if a stream-copied clip lacks some of their frames.
    """

    about = "<split>.jsonl with chosen and rejected answers, and frames/<split>/: DPO"
    options_type = PreferencesOptions
    folder = "frames/{split}/"
    records = "pairs of answers, a record each"

    def begin(self, job: Job) -> None:
        """Reads the annotations."""
        self._annotations = Annotations(job.shards)
        settings, out = self._annotations.settings, job.shards.store.uri
        if settings["judge"] is None or settings["candidates"] < 2:
            raise UsageError(
                f"{out} has one answer per window and no judge; `curate recaption {out} --set "
                "caption.candidates=4 --set caption.judge.model=...` asks for several and has them "
                "scored"
            )

    def shard(self, job: Job, shard: Shard) -> list[bytes]:
        """Writes the frames of a shard's pairs; returns its lines."""
        pairs: dict[str, list[Pair]] = {}

        def wants(clip: ShardClip, sha256: str) -> bool:
            pairs[clip.key] = list(self._pairs(clip))
            return bool(pairs[clip.key])

        lines = [
            _line(record)
            for clip in job.clips(shard, wants)
            for record in self._records(job, clip, pairs[clip.key])
        ]
        job.exported.add(records=len(lines))
        return lines

    def _pairs(self, clip: ShardClip) -> Iterator[Pair]:
        for row in self._annotations.of(clip.key):
            candidates = orjson.loads(row["candidates"] or "[]")
            for best, other in pairs_of(candidates, self.options.min_margin):
                yield row, best, other

    def _records(self, job: Job, clip: ShardClip, pairs: Sequence[Pair]) -> Iterator[Row]:
        folder = f"frames/{clip.shard.split}/{clip.key}"
        base = job.base(relative=self.options.relative)
        wanted = {frame for row, *_ in pairs for frame in row["shown"]}
        for frame, jpeg in _jpegs(clip, wanted, self._annotations.settings["frame_px"]).items():
            job.place.put(f"{folder}/{frame:06d}.jpg", jpeg)
        for number, (row, best, other) in enumerate(pairs):
            frames = row["shown"]
            asked = orjson.loads(row["asked"])
            images = [{"type": "image"} for _ in frames]
            yield {
                "id": f"{clip.key}-{row['window']}-{number}",
                "prompt": [
                    *([_turn("system", asked["system"])] if asked["system"] else []),
                    _turn("user", asked["user"], images),
                ],
                "chosen": [_turn("assistant", best["text"])],
                "rejected": [_turn("assistant", other["text"])],
                "images": [f"{base}{folder}/{frame:06d}.jpg" for frame in frames],
                "chosen_scores": {name: best[name] for name in _SCORES},
                "rejected_scores": {name: other[name] for name in _SCORES},
                "margin": best["score"] - other["score"],
                "provenance": {
                    **_provenance(row, clip.fields),
                    "chosen_key": best["reply"],
                    "rejected_key": other["reply"],
                },
            }


def pairs_of(candidates: Sequence[Row], min_margin: int = 1) -> Iterator[tuple[Row, Row]]:
    """Yields the best candidate of a window with each lower-scored one.

    Unscored candidates form no pair, nor do two candidates with the same text. `min_margin` is the
    least difference of their scores.

    Raises:
        ValueError: `min_margin` is below 1, so an answer would be preferred to an equal one.
    """
    if min_margin < 1:
        raise ValueError(f"min_margin is {min_margin}; expected 1 to 4")
    scored = [candidate for candidate in candidates if candidate["score"] is not None]
    if not scored:
        return
    # Of equal scores, max takes the first.
    best = max(scored, key=lambda candidate: int(candidate["score"]))
    for other in scored:
        is_worse = best["score"] - other["score"] >= min_margin
        if is_worse and best["text"] != other["text"]:
            yield best, other


def _line(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"


def _provenance(row: Row, fields: Mapping[str, Any]) -> Row:
    frames = {name: row[name] for name in ("start_frame", "end_frame", "shown")}
    fps, start_s = float(fields["fps"]), float(fields["source_start_s"])
    as_stored = ("model", "prompt", "prompt_fingerprint", "judge", "judge_prompt_fingerprint")
    return {
        "clip_id": row["clip_id"],
        "source_id": row["source_id"],
        "source_uri": fields["source_uri"],
        "source_start_s": round(start_s + frames["start_frame"] / fps, 6),
        "source_end_s": round(start_s + frames["end_frame"] / fps, 6),
        "window": row["window"],
        **frames,
        "fps": fps,
        **{name: row[name] for name in (*as_stored, "label")},
        "reply_keys": row["request_keys"],
    }


def _conversation(key: str, row: Row, made: Row, video: str, provenance: Row) -> Row:
    question, answer = question_and_answer(made)
    return {
        "id": f"{key}-{row['window']}-{made['kind']}-{made['name']}",
        "video": video,
        "videos": [video],
        "conversations": [
            {"from": "human", "value": f"<video>\n{question}"},
            {"from": "gpt", "value": answer},
        ],
        "kind": made["kind"],
        "origin": made["origin"],
        "reasoning_origin": made["reasoning_origin"],
        "provenance": provenance,
    }


def _turn(role: str, text: str, images: Sequence[dict[str, str]] = ()) -> Row:
    return {"role": role, "content": [*images, {"type": "text", "text": text}]}


def _jpegs(clip: ShardClip, wanted: set[int], longest_px: int) -> dict[int, bytes]:
    if not wanted:
        return {}
    assert clip.mp4 is not None
    n_frames = clip.fields["n_frames"]
    frames = [Wanted(numbers=tuple(sorted(wanted)), size=longest_px, form="jpeg")]
    with raised_as(ShardError, CutError, of=f"{clip.key}: "):
        return dict(sample_clip(clip.mp4, frames, n_frames=n_frames, threads=1).jpegs)
