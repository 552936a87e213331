"""Preference pairs from judged annotations, for direct preference optimization (DPO).

The form is TRL's conversational preference format for vision: `prompt`, `chosen` and `rejected` are
messages, and `images` are the frames that the model saw, as JPEGs of the same size from the written
clip.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from pydantic import Field

from curator.errors import CutError, RecipeError, ShardError, UsageError
from curator.export.annotation_reader import ClipAnnotations, frames_in_clip, provenance_of
from curator.export.clip_reader import Clip
from curator.export.exporter import Exporter, RelativePaths
from curator.export.job import Job
from curator.media.frame_tap import Tap, look_at_clip
from curator.stages.caption.dialogs.answers import SCORES
from curator.stages.caption.dialogs.preference_pairs import PreferencePair, annotation_of, pairs_of
from curator.stages.caption.dialogs.window_dialog import Asker
from curator.stages.shard.tar_reader import Shard

Pairs = list[tuple[dict[str, Any], PreferencePair]]
"""Rows of `annotations`, each with a pair of its answers."""


class PreferencesOptions(RelativePaths):
    """Options of the format."""

    min_margin: int = Field(
        1, ge=1, le=4, description="least difference of a pair's scores, 1 to 4 (default: 1)"
    )


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
        self._annotations = ClipAnnotations(job.shards)
        self._asker = _asker(self._annotations, job)

    def shard(self, job: Job, shard: Shard) -> bytes:
        """Writes the frames of a shard's pairs; returns its lines."""
        found: dict[str, Pairs] = {}

        def wants(clip: Clip, sha256: str) -> bool:
            pairs = _pairs(job, clip, self._annotations, self._asker, self.options.min_margin)
            found[clip.key] = list(pairs)
            return bool(found[clip.key])

        lines = [
            orjson.dumps(record) + b"\n"
            for clip in job.clips(shard, wants)
            for record in self._records(job, clip, found[clip.key])
        ]
        job.exported.add(records=len(lines))
        return b"".join(lines)

    def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
        """Writes the lines."""
        with job.place.create(f"{split}.jsonl") as output:
            output.writelines(results)

    def _records(self, job: Job, clip: Clip, pairs: Pairs) -> Iterator[dict[str, Any]]:
        shown = {row["window"]: frames_in_clip(row, clip.fields)["shown"] for row, _ in pairs}
        folder = f"frames/{clip.shard.split}/{clip.key}"
        base = job.base(relative=self.options.relative)
        if pairs:
            wanted = {frame for frames in shown.values() for frame in frames}
            for frame, jpeg in _jpegs(clip, wanted, self._asker.config.frame_px).items():
                job.place.put(f"{folder}/{frame:06d}.jpg", jpeg)
        for number, (row, pair) in enumerate(pairs):
            frames = shown[row["window"]]
            if len(frames) != len(row["shown"]):
                job.exported.add(left_out=1)
                continue
            texts = [{"type": "text", "text": pair.prompt}]
            system = [{"role": "system", "content": [{"type": "text", "text": pair.system}]}]
            yield {
                "id": f"{clip.key}-{row['window']}-{number}",
                "prompt": [
                    *(system if pair.system else []),
                    {"role": "user", "content": [{"type": "image"} for _ in frames] + texts},
                ],
                "chosen": _said(pair.chosen),
                "rejected": _said(pair.rejected),
                "images": [f"{base}{folder}/{frame:06d}.jpg" for frame in frames],
                "chosen_scores": dict(zip(SCORES, pair.chosen_scores, strict=True)),
                "rejected_scores": dict(zip(SCORES, pair.rejected_scores, strict=True)),
                "margin": pair.margin,
                "provenance": {
                    **provenance_of(row, clip.fields),
                    "chosen_key": pair.chosen_key,
                    "rejected_key": pair.rejected_key,
                },
            }


def _asker(annotations: ClipAnnotations, job: Job) -> Asker:
    config, out = annotations.config, job.shards.store.uri
    if config.judge is None or config.candidates < 2:
        raise UsageError(
            f"{out} has one answer per window and no judge; `curate recaption {out} --set "
            "caption.candidates=4 --set caption.judge.model=...` asks for several and has them "
            "scored"
        )
    try:
        return Asker(config)
    except RecipeError as error:
        raise UsageError(f"{out}: the prompts of its annotations are needed: {error}") from error


def _pairs(
    job: Job, clip: Clip, annotations: ClipAnnotations, asker: Asker, min_margin: int
) -> Iterator[tuple[dict[str, Any], PreferencePair]]:
    for row in annotations.of(clip.key):
        now = asker.prompt.fingerprint
        if row["prompt_fingerprint"] != now:
            raise UsageError(
                f"{job.shards.store.uri}: the prompt {row['prompt']!r} is {now} and was "
                f"{row['prompt_fingerprint']} when it was asked; put the old one back, or "
                "`curate recaption` with the new one"
            )
        annotation = annotation_of(row, float(clip.fields["fps"]))
        if annotation is not None:
            for pair in pairs_of(annotation, asker, min_margin):
                yield row, pair


def _said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]


def _jpegs(clip: Clip, wanted: set[int], longest_px: int) -> dict[int, bytes]:
    assert clip.mp4 is not None
    tap = Tap(wanted, longest_px=longest_px)
    try:
        return dict(look_at_clip(clip.mp4, tap, threads=1).jpegs)
    except CutError as error:
        raise ShardError(f"{clip.key}: {error}") from error
