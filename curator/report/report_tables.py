"""Rows of the report's tables: tags, failed sources, notes, buckets, work done."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curator.number_text import amount
from curator.records.sources import Note, Source
from curator.report.rule_text import applied_rules, bound_words, reasons_of

NOTES: dict[str, str] = {
    Note.TRUNCATED: "the container promises more than there is; what decodes is used",
    Note.DECODE_ERRORS: "some packets do not decode; the frames around them are used",
    Note.CORRUPT_FRAMES: "the decoder concealed damage in some frames",
    Note.DURATION_DIFFERS: "the header's duration is not that of the frames",
    Note.FRAME_COUNT_DIFFERS: "the header's frame count is not what decodes",
    Note.TIMESTAMPS_REPAIRED: "missing, repeated or backward timestamps were replaced",
    Note.SIZE_CHANGES: "the picture size changes within the stream",
    Note.AUDIO_ERRORS: "some audio does not decode; that time counts as without audio",
    Note.AUDIO_NOT_DECODED: "there is no decoder for the audio, which counts as none",
    Note.AUDIO_TIMESTAMPS: "audio without a timestamp, or two stretches for the same time",
    Note.AUDIO_UNPROVEN: "audio of two segments does not provably fit; what is in doubt is none",
    Note.NOT_ON_GPU_CODEC: "decoded on the CPU of a GPU node: its codec or depth",
    Note.NOT_ON_GPU_PIXEL_FORMAT: "decoded on the CPU of a GPU node: its chroma",
    Note.NOT_ON_GPU_SIZE: "decoded on the CPU of a GPU node: its picture size",
    Note.NOT_ON_GPU_INTERLACED: "decoded on the CPU of a GPU node: interlaced",
    Note.NOT_ON_GPU_TIMESTAMPS: "decoded on the CPU of a GPU node: packets without a time",
    Note.NOT_ON_GPU_SIZE_CHANGES: "decoded on the CPU of a GPU node: its picture size changes",
    Note.NOT_ON_GPU_FRAMES_DIFFER: "decoded on the CPU of a GPU node: other frames came",
    Note.NOT_ON_GPU_DAMAGED: "decoded on the CPU of a GPU node: damaged",
    Note.NOT_ON_GPU_DECODER_ERROR: "decoded on the CPU of a GPU node: its decoder failed",
    Note.NOT_ON_GPU_DEVICE_LOST: "measured on the CPU of a GPU node: the GPU failed twice",
    Note.NOT_ON_GPU_OUT_OF_MEMORY: "measured on the CPU of a GPU node: the GPU ran out of memory",
    Note.SAME_BYTES: "another source has the same bytes; its clips stand under that one",
}


def tags(summary: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
    """Lists the tags of rules in their order, then the others that clips have.

    A row has the name, the bound that gives the tag (or nothing), and numbers of clips and of kept
    clips.
    """
    counts = summary.get("counts") or {}
    n_flagged, kept = counts.get("by_tag") or {}, counts.get("by_tag_kept") or {}
    meant: dict[str, str] = {}
    for rule in applied_rules(summary):
        if rule["severity"] == "flag":
            for reason, side, _ in reasons_of(rule):
                name = str(reason) if rule["rule"] == rule["score"] else rule["rule"]
                words = bound_words(rule, side)
                meant[name] = f"{meant[name]} or {words}" if name in meant else words
    return [
        (name, meant.get(name, ""), n_flagged.get(name) or 0, kept.get(name) or 0)
        for name in dict.fromkeys([*meant, *n_flagged])
    ]


def failed_sources(
    sources: Iterable[Source], n_by_code: Mapping[str, int], *, max_per_code: int
) -> list[tuple[str, int, Sequence[Source]]]:
    """Returns error codes, commonest first, with number of sources and the first ones by URI."""
    by_code: dict[str, list[Source]] = {}
    for row in sources:
        if row.outcome == "failed":
            by_code.setdefault(str(row.error_code), []).append(row)
    groups = []
    for code, rows in by_code.items():
        first = sorted(rows, key=lambda row: row.uri)[:max_per_code]
        groups.append((code, max(len(rows), n_by_code.get(code) or 0), first))
    return sorted(groups, key=lambda item: (-item[1], item[0]))


def buckets(shards: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int, int, int]]:
    """Returns buckets by name, with their numbers of shards, clips, frames and bytes."""
    by_bucket: dict[str, list[int]] = {}
    for shard in shards:
        totals = by_bucket.setdefault(str(shard.get("bucket")), [0, 0, 0, 0])
        for number, key in enumerate(("n_samples", "n_frames", "bytes"), start=1):
            totals[number] += shard.get(key) or 0
        totals[0] += 1
    return [
        (name, n, clips, frames, size)
        for name, (n, clips, frames, size) in sorted(by_bucket.items())
    ]


def work_done(work: Mapping[str, int]) -> list[str]:
    """Describes the work of this run alone."""
    words = (
        ("sources_scanned", "source", "probed"),
        ("sources_analyzed", "source", "analyzed"),
        ("clips_cut", "clip", "written"),
        ("shards_written", "shard", "packed"),
    )
    return [f"{amount(work[key], noun)} {verb}" for key, noun, verb in words if key in work]
