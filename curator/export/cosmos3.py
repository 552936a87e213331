"""What the Cosmos 3 trainers read: windows for the generator and transfer, talks for the reasoner.

A window of the captions is a window of the trainer, which names its last frame. A window that the
prompt `cosmos3` described has a `caption_json`. The trainer trains on its text, so that the order
of its keys is that of the trainer's own captioner, whatever the order in the sample. Resolution,
aspect ratio, duration and rate are those of the written clip; no model is asked for them.

The trainer's loader drops clips and windows, most of them without a word. The rules of the trainer
`cosmos3` predict which, and `benchmarks/cosmos3.py` compares them with the loader.

Source: cosmos-framework 5eee9ed5: `inference/structured_caption.py`, `sft_dataset.py` and
`transfer_sft_dataset.py` of `data/generator/local_datasets`, `data/reasoner/local_sft_dataset.py`.
"""

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from math import gcd
from typing import Any, BinaryIO, Literal

from jsonschema import Draft202012Validator
from pydantic import Field

from curator.errors import ShardError, UsageError, raised_as
from curator.export.annotation_rows import Annotations, Row, question_and_answer
from curator.export.exporter import RelativePaths, VideoExporter, VideoOptions
from curator.export.job import Job, ShardClip
from curator.export.window_values import named_family
from curator.family import FamilyError, FamilyVersion, Video
from curator.records.clip_times import is_span_within
from curator.strict_yaml import pipelines_folder, read_yaml
from curator.trainers.caption_rules import fit_caption
from curator.trainers.clip_fit import OutputSpec, fit_form
from curator.trainers.frame_rules import Drop
from curator.trainers.trainer_files import load_trainer
from curator.value_header import HeaderError

PROMPT = "cosmos3"
LENGTHS = ("long", "medium", "short")
NO_CONTROL = "no_control"
"""Reason of clips without a control video, next to those of `Drop`."""
COUNTS = (
    "clips", "clips_read", "windows", "windows_read", "with_caption_json", "times_left_out",
    "captions_cut", "captions_likely_cut",
)  # fmt: skip
"""Numbers of the summary. A clip is read if a window of it is; captions count if they are read.
`times_left_out` counts entries of all `caption_json` whose time was not within the window."""
_TIMES = {"actions": "time", "segments": "time_range"}
"""Lists of a scene, and the field with the time of an entry."""
_COMPUTED = (
    "temporal_caption",
    "audio_description",
    "resolution",
    "aspect_ratio",
    "duration",
    "fps",
)
"""Fields of a structured caption behind those of the prompt."""
_MEDIA = "video_0"
"""Name of the video in a conversation; the loader knows a video by this word in it."""


class Cosmos3Options(VideoOptions, RelativePaths):
    """Options of the format."""

    control: Literal["edge", "blur", "depth", "seg"] | None = None
    """write for the transfer trainer: edge and blur, which it computes, depth or seg"""
    control_values: str | None = None
    """of depth and seg: the family with a video for each clip (default: the control's name)"""
    gzip: bool = False
    """write video_dataset_file.jsonl.gz, which the loader knows by its name"""
    reasoner: bool = False
    """also write meta.json and text/, for the reasoner"""
    frames: int | None = Field(None, ge=1)
    """num_video_frames of the trainer, for the summary of what it drops (default: -1, all)"""
    min_side: int = Field(0, ge=0)
    """min_short_edge of the trainer, for that summary (default: 0)"""


class Cosmos3(VideoExporter[Cosmos3Options, Row]):
    """Writes `<split>/videos/*.mp4`, the JSONL, and what its loader does with each window.

    Files: `video_dataset_file.jsonl`; `summary.json` with `COUNTS` and the numbers of windows that
    the loader drops, by reason; `dropped.jsonl` with a line for each of these; `control/`;
    `meta.json` and `text/` for the reasoner.
    """

    about = (
        "<split>/videos/*.mp4 and video_dataset_file.jsonl with structured captions, and a summary "
        "of what the loader drops: Cosmos 3 generator, transfer and reasoner"
    )
    options_type = Cosmos3Options
    suffixes = (".mp4",)
    record = "{split}/.exported"

    def begin(self, job: Job) -> None:
        """Finds the family of the control, and the annotations for the reasoner."""
        super().begin(job)
        options = self.options
        values = {"frames": options.frames, "min_side_px": options.min_side}
        self._trainer = load_trainer("cosmos3", values)
        _, prompt = read_yaml(PROMPT, pipelines_folder() / "prompts", "prompt")
        assert prompt is not None
        self._schema: Mapping[str, Any] = prompt["schema"]
        self._is_structured = Draft202012Validator(self._schema)
        self._annotations = Annotations(job.shards) if options.reasoner else None
        self._control: FamilyVersion | None = None
        if options.control in ("depth", "seg"):
            declared = map(FamilyVersion.from_json, job.shards.declared.values())
            versions = {version.family.name: version for version in declared}
            self._control = named_family(versions, options.control_values or options.control)
            if not isinstance(self._control.family.content, Video):
                raise UsageError(
                    f"--control-values {self._control.family.name}: expected a family of videos, "
                    "with a frame for each frame of the clip"
                )
            members = set(job.shards.declared) - {self._control.family.member}
            job.exported.left_members = tuple(sorted(members))
            self.reads_members = True
        elif options.control_values is not None:
            raise UsageError("--control-values: expected --control depth or seg with it")

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterable[Row]:
        """Writes a clip's control video and conversations; yields what the split's files need."""
        fields, options = clip.fields, self.options
        fps = Fraction(fields["fps_fraction"])
        base = "" if options.relative else f"{job.store.uri}/{clip.shard.split}/"
        line: Row = {
            "uuid": clip.key,
            # As the rules compute it, because the loader compares it with its limit.
            "duration": fields["n_frames"] / float(fps),
            "width": fields["width"],
            "height": fields["height"],
            "vision_path": f"{base}videos/{clip.file_name}",
            "nb_frames": fields["n_frames"],
            "framerate": float(fps),
            "t2w_windows": [],
        }
        if options.control is not None:
            line["control_type"] = options.control
        if self._control is not None and (name := self._put_control(job, clip, self._control)):
            line["control_path"] = f"{base}{name}"
        counts, drops = Counter(clips=1), []
        for span in _annotated(clip):
            counts["windows"] += 1
            window, number = self._window(clip, span, counts), None
            if window is not None:
                number = len(line["t2w_windows"])
                line["t2w_windows"].append(window)
            if (drop := self._drop(line, fps, span, window, counts)) is not None:
                # As in the JSONL, the last frame and not the one after it.
                frames = {"start_frame": span["start_frame"], "end_frame": span["end_frame"] - 1}
                numbers = {"has": None, "needs": None}
                drops.append({"uuid": clip.key, "window": number, **frames, **numbers, **drop})
        counts["clips_read"] += counts["windows_read"] > 0
        talks = list(self._put_talks(job, clip))
        yield {"line": line, "counts": counts, "drops": drops, "talks": talks}

    def _window(self, clip: ShardClip, span: Row, counts: Counter[str]) -> Row | None:
        """Returns a window as the trainer reads it; None for one without a caption.

        Counts the entries that are left out of it.
        """
        text = next((span[name] for name in LENGTHS if span.get(name)), None)
        annotation = clip.fields.get("annotation") or {}
        # A failed window costs no other window, but samples do not say which a judge refused.
        is_refused = annotation.get("judge") is not None and not clip.text.strip()
        if text is None or is_refused:
            return None
        start, end = span["start_frame"], span["end_frame"]
        window: Row = {"start_frame": start, "end_frame": end - 1, "temporal_interval": 1}
        seconds = float((end - start) / Fraction(clip.fields["fps_fraction"]))
        scene, n_left_out = _timed(span.get("extra") or {}, seconds)
        if self._is_structured.is_valid(scene):
            counts["times_left_out"] += n_left_out
            window["caption_json"] = structured_caption(
                scene, text, clip.fields, self._schema, n_frames=end - start
            )
        return {**window, "caption": text}

    def _drop(
        self, line: Row, fps: Fraction, span: Row, window: Row | None, counts: Counter[str]
    ) -> Row | None:
        """Counts a window; returns why the loader does not read it, or None if it does."""
        if window is None:
            return {"reason": Drop.NO_CAPTION}
        whole = OutputSpec(
            n_frames=line["nb_frames"], fps=fps, width=line["width"], height=line["height"],
            has_sound=False,
        )  # fmt: skip
        n_frames = span["end_frame"] - span["start_frame"]
        fit = fit_form(self._trainer, whole)
        # The limit on seconds holds for the whole clip, all others for the window.
        if fit.reason is not Drop.TOO_LONG:
            fit = fit_form(self._trainer, replace(whole, n_frames=n_frames))
        if fit.reason is not None:
            return {"reason": fit.reason, "has": fit.has, "needs": fit.needs}
        if self._control is not None and "control_path" not in line:
            return {"reason": NO_CONTROL}
        text, rule = window["caption"], self._trainer.rules.caption
        if "caption_json" in window:
            # The trainer adds nothing to it.
            text = json.dumps(window["caption_json"], ensure_ascii=False)
            rule = rule.model_copy(update={"form": "as_is", "suffix": ""})
        cut = fit_caption(rule, text, seconds=0, fps=0, width=0, height=0).cut
        counts["windows_read"] += 1
        counts["with_caption_json"] += "caption_json" in window
        counts["captions_cut"] += cut == "yes"
        counts["captions_likely_cut"] += cut == "likely"
        return None

    def _put_control(self, job: Job, clip: ShardClip, version: FamilyVersion) -> str | None:
        """Writes the control video of a clip; returns its name, or None for a clip without one.

        Raises:
            ShardError: The video is damaged, has another number of frames, or is of another clip.
        """
        member = version.family.member
        if member is None or member not in clip.members:
            return None
        tar, offset, n_bytes = clip.members[member]
        data = job.shards.store.read_range(job.shards.key(tar), offset, offset + n_bytes)
        where = f"{job.shards.uri(tar)}: {clip.key}: {version.family.name}: "
        with raised_as(ShardError, FamilyError, HeaderError, of=where):
            version.read(data, clip.fields, Fraction(clip.fields["fps_fraction"]))
        name = f"control/{clip.key}_{self.options.control}.{member.rpartition('.')[2]}"
        job.place.put(f"{clip.shard.split}/{name}", data)
        return name

    def _put_talks(self, job: Job, clip: ShardClip) -> Iterator[Row]:
        """Writes the conversations about a clip; yields their entries in `meta.json`."""
        for row in self._annotations.of(clip.key) if self._annotations is not None else ():
            for made in json.loads(row["questions"] or "[]"):
                name = f"{clip.key}-{row['window']}-{made['kind']}-{made['name']}"
                question, answer = question_and_answer(made)
                media = {"type": "video", "video": _MEDIA}
                turns = [
                    {"role": "user", "content": [media, {"type": "text", "text": question}]},
                    {"role": "assistant", "content": [{"type": "text", "text": answer}]},
                ]
                conversation = f"text/{name}.json"
                data = json.dumps({"conversations": turns}).encode()
                job.place.put(f"{clip.shard.split}/{conversation}", data)
                media_path = f"videos/{clip.file_name}"
                yield {"id": name, "media": media_path, "conversation": conversation}

    def split(self, job: Job, split: str, results: Iterator[list[Row]]) -> None:
        """Writes the JSONL, the windows that its loader drops, and a summary."""
        name = "video_dataset_file.jsonl" + (".gz" if self.options.gzip else "")
        counts, dropped, n_talks = Counter(dict.fromkeys(COUNTS, 0)), Counter[str](), 0
        with ExitStack() as opened:

            def create(name: str) -> BinaryIO:
                return opened.enter_context(job.place.create(f"{split}/{name}"))

            lines: BinaryIO | gzip.GzipFile = create(name)
            drops = create("dropped.jsonl")
            talks = create("meta.json") if self.options.reasoner else io.BytesIO()
            if self.options.gzip:
                # Without a time, the same clips give the same bytes.
                lines = opened.enter_context(gzip.GzipFile("", "wb", fileobj=lines, mtime=0))
            for row in (row for rows in results for row in rows):
                lines.write(_json(row["line"]) + b"\n")
                drops.writelines(_json(drop) + b"\n" for drop in row["drops"])
                counts.update(row["counts"])
                dropped.update(str(drop["reason"]) for drop in row["drops"])
                for talk in row["talks"]:
                    talks.write((b",\n" if n_talks else b"[\n") + _json(talk))
                    n_talks += 1
            talks.write(b"\n]\n" if n_talks else b"[]\n")
        described = {
            **counts, "dropped": dict(sorted(dropped.items())), "control": self.options.control,
            "settings": self._trainer.values,
        }  # fmt: skip
        job.place.put(f"{split}/summary.json", json.dumps(described, indent=2).encode() + b"\n")
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items()))
        job.exported.notes.append(
            f"{split}: the trainer reads {counts['windows_read']} of {counts['windows']} windows"
            + (f"; dropped: {reasons} ({split}/dropped.jsonl)" if reasons else "")
        )
        if n_left_out := counts["times_left_out"]:
            job.exported.notes.append(
                f"{split}: {n_left_out:,} of the actions and segments left out, because their "
                "time is not within the window"
            )


def structured_caption(
    scene: Mapping[str, Any],
    narrative: str,
    sample: Mapping[str, Any],
    schema: Mapping[str, Any],
    n_frames: int,
) -> Row:
    """Returns a window's `caption_json`, with its keys in the order of the trainer.

    Args:
        scene: Answer to the first phase of the prompt `cosmos3`.
        narrative: Answer to the second phase.
        sample: The clip's JSON.
        schema: Schema of the first phase.
        n_frames: Frames of the window.
    """
    width, height = sample["width"], sample["height"]
    divisor, fps = gcd(width, height), Fraction(sample["fps_fraction"])
    computed = {
        "temporal_caption": narrative,
        "resolution": {"H": height, "W": width},
        "aspect_ratio": f"{width // divisor},{height // divisor}",
        "duration": f"{round(float(n_frames / fps))}s",
        "fps": round(float(fps)),
    }
    known = {**schema["properties"], **{name: {} for name in _COMPUTED}}
    ordered: Row = _ordered({**scene, **computed}, {"properties": known})
    return ordered


def _ordered(value: Any, schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """Returns JSON with the keys of objects in the order of a schema, further keys behind them."""
    if isinstance(value, list):
        return [_ordered(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    parts = schema.get("properties", {})
    names = [name for name in parts if name in value] + [n for n in value if n not in parts]
    return {name: _ordered(value[name], parts.get(name, {})) for name in names}


def _timed(scene: Mapping[str, Any], seconds: float) -> tuple[Row, int]:
    """Returns a scene without the entries whose time is not within the window, and their number.

    A wrong time says nothing about the right one, and the narrative has the content.
    """
    timed, n_left_out = dict(scene), 0
    for name, field in _TIMES.items():
        entries = scene.get(name)
        if isinstance(entries, list):
            timed[name] = [entry for entry in entries if _is_timed(entry, field, seconds)]
            n_left_out += len(entries) - len(timed[name])
    return timed, n_left_out


def _is_timed(entry: object, field: str, seconds: float) -> bool:
    # The schema refuses entries of other types.
    time = entry.get(field) if isinstance(entry, dict) else None
    return not isinstance(time, str) or is_span_within(time, seconds)


def _annotated(clip: ShardClip) -> list[Row]:
    """Returns the windows of a clip; the whole clip if a person wrote its caption, or no model."""
    annotation = clip.fields.get("annotation") or {}
    if annotation.get("windows") and annotation["model"] == clip.fields.get("caption_model"):
        windows: list[Row] = annotation["windows"]
        return windows
    whole = {"start_frame": 0, "end_frame": clip.fields["n_frames"]}
    return [whole | ({"long": clip.text} if clip.text.strip() else {})]


def _json(value: Row) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
