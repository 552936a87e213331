"""Moments of several cameras as WebDataset: a sample has an MP4 of each camera.

Cameras of a moment may be in tars of different buckets, so a split is written when the clips of all
its tars are known.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import Field

from curator.dataset.shard_plan import tar_header
from curator.dataset.tar_reader import BLOCK, Shard
from curator.errors import UsageError
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job, ShardClip
from curator.fingerprints import fingerprint
from curator.storage.tar_members import split_member

_NAME_DIGITS = 6


class CameraOptions(ExporterOptions):
    """Options of the format."""

    camera: str = "camera"
    """column of metadata that names a clip's camera; without it, the name of the source's file
    (default: camera)"""
    max_bytes: int = Field(1_000_000_000, ge=1 << 16)
    """close a tar before it grows beyond this size (default: 1 GB)"""


@dataclass(frozen=True, slots=True)
class CameraClip:
    """A clip of a moment, without its MP4."""

    clip: ShardClip
    camera: str
    moment: dict[str, Any]


class CameraTars(Exporter[CameraOptions, list[CameraClip]]):
    """Writes `<split>/<number>-<hash>.tar`; keys of samples are names of moments.

    A sample has `<camera>.mp4` and `<camera>.txt` for each camera, and `json` with the fields of
    their samples by camera. Moments of which a camera is missing are left out.
    """

    about = "<split>/*.tar, WebDataset with <camera>.mp4 for each camera of a moment"
    options_type = CameraOptions
    suffixes = (".tar",)
    records = "moments"

    def shard(self, job: Job, shard: Shard) -> list[CameraClip]:
        """Returns the clips of a tar that are of a moment."""
        found = []
        for clip in job.clips(shard, by_metadata=True):
            moment = clip.fields.get("moment")
            if moment is None:
                job.exported.add(lacking=1, clips=-1)
            else:
                found.append(CameraClip(clip, self._camera(clip), moment))
        return found

    def split(self, job: Job, split: str, results: Iterator[list[CameraClip]]) -> None:
        """Writes the tars of a split."""
        moments = defaultdict[str, list[CameraClip]](list)
        for clips in results:
            for clip in clips:
                moments[clip.moment["name"]].append(clip)
        complete: list[list[CameraClip]] = []
        for name in sorted(moments):
            own = sorted(moments[name], key=lambda clip: clip.camera)
            if len(own) < own[0].moment["cameras"]:
                job.exported.add(lacking=len(own), clips=-len(own))
                continue
            cameras = [clip.camera for clip in own]
            if len(set(cameras)) < len(cameras):
                (camera, _), *_ = Counter(cameras).most_common(1)
                raise UsageError(
                    f"moment {name} has two clips of the camera {camera!r}; expected a name "
                    "for each: give the cameras of a group different values in the column "
                    f"{self.options.camera!r} of the manifest, or name another one by --camera"
                )
            complete.append(own)
        for number, group in enumerate(self._packed(complete)):
            self._write(job, split, number, group)

    def finish(self, job: Job) -> None:
        """Raises `UsageError` if no clip is of a complete moment."""
        if not job.exported.n_records:
            raise UsageError(
                "no clip is of a moment whose cameras are all kept; cut clips of cameras at the "
                "same instants by cameras.clock (docs/cameras.md), and see the reasons "
                "not_aligned and incomplete_moment"
            )

    def _camera(self, clip: ShardClip) -> str:
        fields = clip.fields
        named = (fields.get("meta") or {}).get(self.options.camera)
        uri = str(fields["source_uri"])
        _, name = split_member(uri) or ("", uri)
        stem = name.rpartition("/")[2].partition(".")[0]
        return re.sub(r"[^a-z0-9_-]+", "_", str(stem if named is None else named).lower())

    def _packed(self, moments: list[list[CameraClip]]) -> Iterator[list[list[CameraClip]]]:
        group: list[list[CameraClip]] = []
        n_bytes = 0
        for own in moments:
            size = sum(of.clip.mp4_bytes + 4 * BLOCK for of in own)
            if group and n_bytes + size > self.options.max_bytes:
                yield group
                group, n_bytes = [], 0
            group.append(own)
            n_bytes += size
        if group:
            yield group

    def _write(self, job: Job, split: str, number: int, group: list[list[CameraClip]]) -> None:
        clips = [
            (of.camera, of.clip.key, of.clip.text, of.clip.fields) for own in group for of in own
        ]
        name = fingerprint("cameras", self.version, clips)[:8]
        key = f"{split}/{number:0{_NAME_DIGITS}d}-{name}.tar"
        job.exported.add(records=len(group))
        if job.place.size(key) is not None:
            # The name identifies the contents, and objects appear only when complete.
            job.place.reuse(key)
            return
        n_bytes = 0
        with job.place.create(key) as output:
            for own in group:
                for suffix, data in self._members(job, own):
                    header = tar_header(f"{own[0].moment['name']}.{suffix}", len(data))
                    member = header + data + bytes(-len(data) % BLOCK)
                    output.write(member)
                    n_bytes += len(member)
            output.write(bytes(2 * BLOCK))
        job.exported.add(bytes=n_bytes + 2 * BLOCK)

    def _members(self, job: Job, own: list[CameraClip]) -> Iterator[tuple[str, bytes]]:
        fields = {of.camera: of.clip.fields for of in own}
        described = {"moment": own[0].moment["name"], "cameras": fields}
        yield "json", orjson.dumps(described, option=orjson.OPT_SORT_KEYS)
        for of in own:
            clip, shards = of.clip, job.shards
            end = clip.mp4_offset + clip.mp4_bytes
            mp4 = shards.store.read_range(shards.key(clip.shard.name), clip.mp4_offset, end)
            yield f"{of.camera}.mp4", mp4
            yield f"{of.camera}.txt", clip.text.encode()
