"""Questions and answers about clips as conversations, for post-training of VLMs.

A record is a question with its answer: several in one conversation would tell the later answers by
the earlier ones. The form is that of LLaVA, which Qwen-VL's fine-tuning and NVILA read (`video`,
`conversations` with `from` and `value`, `<video>` where the frames go) and which LLaMA-Factory
calls sharegpt (`videos`; `dataset_info.json` describes it). Reasoning has Cosmos-Reason's tags.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from curator.export.annotation_reader import ClipAnnotations, provenance_of
from curator.export.clip_reader import Clip
from curator.export.folders import write_videos
from curator.export.job import Job
from curator.stages.shard.tar_reader import SPLITS, Shard

_REASON = "\nGive your reasoning within <think></think> and your answer within <answer></answer>."


def export_conversations(job: Job) -> None:
    """Writes `<split>.jsonl`, `videos/<split>/<key>.mp4` and `dataset_info.json`."""
    annotations = ClipAnnotations(job.shards)
    place = job.look([f"videos/{split}/" for split in job.options.splits])
    base = "" if job.options.relative_paths else f"{job.store.uri}/"

    def one(shard: Shard) -> bytes:
        folder = f"videos/{shard.split}"
        lines = [
            orjson.dumps(record) + b"\n"
            for clip in write_videos(job, shard, folder)
            for record in _records(clip, f"{base}{folder}/{clip.key}.mp4", annotations)
        ]
        job.exported.add(records=len(lines))
        return b"".join(lines)

    for split in job.options.splits:
        own = [shard for shard in job.chosen if shard.split == split]
        if not own:
            continue
        with job.store.create(f"{split}.jsonl") as output:
            for lines in job.in_order(one, own):
                output.write(lines)
        job.exported.add(objects=1)
    # An export of one split stands beside an earlier one of the other.
    described = {
        f"curate_{split}": {
            "file_name": f"{split}.jsonl",
            "formatting": "sharegpt",
            "columns": {"messages": "conversations", "videos": "videos"},
        }
        for split in SPLITS
        if job.store.exists(f"{split}.jsonl")
    }
    place.put("dataset_info.json", orjson.dumps(described, option=orjson.OPT_INDENT_2))


def _records(clip: Clip, video: str, annotations: ClipAnnotations) -> Iterator[dict[str, Any]]:
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
