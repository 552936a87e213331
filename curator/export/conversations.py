"""Questions and answers about clips as conversations, for post-training of VLMs.

A record is one question with its answer: in a longer conversation, earlier answers would reveal
later ones. The form is that of LLaVA, which Qwen-VL's fine-tuning and NVILA read (`video`,
`conversations` with `from` and `value`, `<video>` in place of the frames) and which LLaMA-Factory
calls sharegpt (`videos`; `dataset_info.json` describes it). Reasoning has Cosmos-Reason's tags.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from curator.export.annotation_reader import AnnotationLookup, provenance_of
from curator.export.clip_reader import ShardClip
from curator.export.exporter import Exporter, RelativePaths
from curator.export.job import Job
from curator.stages.shard.tar_reader import SPLITS, Shard

_REASON = "\nGive your reasoning within <think></think> and your answer within <answer></answer>."


class Conversations(Exporter[RelativePaths, bytes]):
    """Writes `<split>.jsonl`, `videos/<split>/<key>.mp4` and `dataset_info.json`."""

    about = (
        "<split>.jsonl with questions and answers, and videos/<split>/*.mp4: post-training of "
        "vision-language models"
    )
    options_type = RelativePaths
    records = "questions with answers, a record each"

    def folders(self, splits: Sequence[str]) -> list[str]:
        """Where the videos go."""
        return [f"videos/{split}/" for split in splits]

    def begin(self, job: Job) -> None:
        """Reads the annotations."""
        self._annotations = AnnotationLookup(job.shards)

    def shard(self, job: Job, shard: Shard) -> bytes:
        """Writes a shard's videos; returns its lines."""
        folder, base = f"videos/{shard.split}", job.base(relative=self.options.relative)
        lines = [
            orjson.dumps(record) + b"\n"
            for clip in job.videos(shard, folder)
            for record in _records(clip, f"{base}{folder}/{clip.key}.mp4", self._annotations)
        ]
        job.exported.add(records=len(lines))
        return b"".join(lines)

    def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
        """Writes the lines."""
        with job.place.create(f"{split}.jsonl") as output:
            output.writelines(results)

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


def _records(
    clip: ShardClip, video: str, annotations: AnnotationLookup
) -> Iterator[dict[str, Any]]:
    for row in annotations.of(clip.key):
        provenance = provenance_of(row, clip.fields)
        for made in orjson.loads(row["questions"] or "[]"):
            question, answer = made["question"], made["answer"]
            if made["reasoning"]:
                question += _REASON
                answer = f"<think>\n{made['reasoning']}\n</think>\n\n<answer>\n{answer}\n</answer>"
            yield {
                "id": f"{clip.key}-{row['window']}-{made['kind']}-{made['name']}",
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
