"""The driver of captions: finds windows without annotation, and gets their frames and replies.

Frames come from written clips: the worker that cuts a clip samples them, and so does this driver
for clips that earlier runs wrote. Workers store replies every second, so a run that resumes after a
crash repeats few requests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from curator.errors import CuratorError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.unit_worker import stage_step
from curator.executor.worker import Step
from curator.fingerprints import fingerprint
from curator.measures.claims.claim_check import SCORES as CLAIM_SCORES
from curator.models.text_reader import READ_MODEL, merged
from curator.number_text import amount
from curator.packing import pack
from curator.records.clips import BY_HAND, Clip
from curator.records.cuts import StoredFrames, TextLine
from curator.records.sources import FULL_HD
from curator.sample_frames import SampleFramesStage
from curator.scheduler import UnitStream
from curator.stage import CAPTION_FIELDS, SHORT_CAPTION
from curator.stages.caption.annotations import (
    AnnotatedClips,
    answers_fingerprint,
    rejection_of,
    remember,
    remembered,
)
from curator.stages.caption.caption_records import (
    Annotation,
    ClipMeasurements,
    Reply,
    Task,
    Unanswered,
)
from curator.stages.caption.config import CaptionConfig, frames_fingerprint
from curator.stages.caption.dialogs.answer_rules import claimed_fields
from curator.stages.caption.dialogs.prompt_facts import (
    NOTHING,
    SourceEvents,
    event_counts,
    events_of,
    facts_of,
    metadata_lines,
    metadata_of,
)
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.dialogs.window_dialog import make_dialogs, replayed
from curator.stages.caption.frame_store import (
    FrameParts,
    SampleFresh,
    content_of,
    frames_key,
    read_clips,
)
from curator.stages.caption.reply_store import Replies, replies_fingerprint
from curator.stages.caption.sidecar_table import (
    Sidecars,
    count_problems,
    sidecars_table,
    stored_sidecars,
)
from curator.stages.caption.stage import CaptionStage, OpenWindow, UnitAnnotations, load_windows
from curator.stages.caption.windows import Moment, WindowFrames, windows_of
from curator.storage import Store
from curator.storage.sidecar_files import Sidecar
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRow, ClipRows

WRITTEN_UNIT = 16
FAILED_WINDOWS = "caption_failed_"
"""Prefix of the counts of windows without an annotation; the reason follows."""


@dataclass(slots=True)
class _ClipInWork:
    n_windows: int
    annotations: dict[int, Annotation] = field(default_factory=dict)
    """By window index."""


class Captioning:
    """Annotates the clips of a run.

    The constructor reads the keys of stored replies, and the sidecars of the sources.

    Args:
        clips: Rows of `clips`; the kept ones are annotated.
        checks: Whether to check the captioner before the first request.
        pixels: Fingerprint of the stages that change pixels; empty without such stages.
        sidecars: Parts of the table `sidecars` of the last run, because sources may be gone; None
            if that run has no such table.
    """

    def __init__(
        self,
        store: Store,
        config: CaptionConfig,
        engine: Engine,
        progress: Progress,
        clips: ClipRows,
        *,
        checks: bool,
        pixels: str = "",
        sidecars: Sequence[str] | None = (),
    ) -> None:
        self._store, self._config, self._pixels = store, config, pixels
        self._engine, self._progress, self._checks = engine, progress, checks
        self._dialogs = make_dialogs(config)
        models = replies_fingerprint(config)
        self._replies = Replies(store, models).load()
        self._fingerprint = answers_fingerprint(config)
        self._parts = FrameParts(store, config, pixels)
        self._stage = CaptionStage(
            config, prompts={model.prompt: load_prompt(model.prompt) for model in config.models}
        )
        self._stream = UnitStream[OpenWindow, list[UnitAnnotations]](
            engine,
            self._stage,
            key=lambda window: window.task.clip_id,
            load=partial(load_windows, store, FrameParts(store, config), models),
        )
        self.cpu_s = self._stream.cpu_s
        self._done = AnnotatedClips(clips, config)
        self._clips: dict[str, _ClipInWork] = {}
        """Clips with open windows."""
        self._n_annotated = 0
        self.n_requested = 0
        """Windows that needed requests."""
        self._sidecars: Sidecars = {}
        self._n_stored_sidecars = 0
        if self._reads_sidecars:
            of = zip(clips.values("source_uri"), clips.values("decision"), strict=True)
            uris = sorted({uri for uri, decision in of if decision == "kept"})
            self._sidecars, self._n_stored_sidecars = stored_sidecars(store, sidecars, uris)
        self._events: dict[str, SourceEvents] = {
            uri: events_of(sidecar.data, config)
            for uri, sidecar in self._sidecars.items()
            if config.knows and isinstance(sidecar, Sidecar)
        }

    @property
    def _reads_sidecars(self) -> bool:
        return self._config.sidecar or self._config.knows

    @property
    def sidecars(self) -> pa.Table | None:
        """Returns the rows of the table `sidecars`; None if the recipe uses no sidecars."""
        return sidecars_table(self._sidecars) if self._reads_sidecars else None

    def after_cut(self, threads: int) -> Step:
        """Returns the step that samples frames of the clips that a `CutStage` has just written.

        The step needs the result of `frames_of` for each clip.
        """
        sample = SampleFresh(self._parts)
        stage = SampleFramesStage(threads)
        return stage_step(stage, keeps_state=True, load=sample.load, keep=sample.keep)

    def frames_of(self, row: ClipRow) -> WindowFrames:
        """Returns the choice of frames of a clip."""
        return WindowFrames(
            config=self._config,
            clip_id=row.clip_id,
            fps=row.written_fps,
            reads_text=self._reads_text(row),
            moments=self._moments(row),
        )

    def rejects_again(self, written: pa.Table) -> pa.Array:
        """Rejects kept clips whose stored answers reject them.

        Args:
            written: `clip_id` and facts of clips that an earlier run wrote.

        Returns:
            bool [rows of `written`]: whether the clip was rejected.
        """
        is_rejected = []
        facts = [name for name in written.column_names if name in self._done.clips.schema.names]
        for changed in written.select(facts).to_pylist():
            row = self._done.row(changed.pop("clip_id"))
            windows = self._replayed_clip(row.changed(changed))
            if windows is None or rejection_of(windows, self._config) is None:
                is_rejected.append(False)
                continue
            is_rejected.append(True)
            self._done.add(row.clip_id, windows)
            self._done.apply([row])
        return pa.array(is_rejected, pa.bool_())

    def finish(self, locations: Mapping[str, Location]) -> None:
        """Annotates written clips whose frames the cut did not sample, and waits for all answers.

        Then writes captions into kept clips, or rejects clips. Raises a `CuratorError` if no window
        of any clip gets an annotation.
        """
        if missing := self._unannotated():
            self._take_written(missing, locations)
        if self.n_requested:
            self._progress.work(self.n_requested, 0.0)
            with self._progress.polling(lambda: (self._n_annotated, 0.0)):
                for units in self._stream.finish():
                    self._note(units)
        counts = self.counts
        failed = {name: n for name, n in counts.items() if name.startswith(FAILED_WINDOWS)}
        if failed and sum(failed.values()) == counts["caption_windows"]:
            reasons = ", ".join(
                f"{n} {name.removeprefix(FAILED_WINDOWS)}" for name, n in failed.items()
            )
            raise CuratorError(
                f"none of {amount(counts['caption_windows'], 'window')} got an annotation "
                f"({reasons}), such as {self._done.first_failure()}; nothing was committed, and "
                "replies that were given are kept, and not asked for again: after a bad answer, "
                "change the prompt, the model, caption.seed or caption.max_tokens; raise `version` "
                "of a captioner of your own after a change"
            )
        self._done.apply(self._done.clips.kept())

    @property
    def of_answers(self) -> dict[str, Callable[[Clip], str | None]]:
        """Functions that return what annotators read of a clip's answers, by name."""
        return {SHORT_CAPTION: self._short_caption, CAPTION_FIELDS: self._caption_fields}

    def _caption_fields(self, clip: Clip) -> str | None:
        """Returns the structured fields of a clip's answer as JSON; None without any.

        Of several windows, each describes a part of the clip, which measurements do not.
        """
        if not clip.caption or clip.caption_model == BY_HAND:
            return None
        windows = self._done[clip.clip_id]
        answer = windows[0].answer if len(windows) == 1 else None
        fields = claimed_fields(answer) if answer is not None else {}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() if fields else None

    def _short_caption(self, clip: Clip) -> str | None:
        """Returns a clip's short captions, joined, else its caption; None if it has no caption."""
        if not clip.caption or clip.caption_model == BY_HAND:
            return clip.caption
        answers = (window.answer for window in self._done[clip.clip_id])
        return (
            " ".join(answer.short for answer in answers if answer and answer.short) or clip.caption
        )

    def sample(self, clip: Clip) -> dict[str, Any]:
        """Returns the annotation for the JSON of a clip's sample."""
        return self._done.sample(clip)

    def tables(self) -> Iterator[pa.Table]:
        """Yields rows of `annotations` in batches."""
        return self._done.tables()

    @property
    def counts(self) -> dict[str, int]:
        """Counts for the summary: windows, tokens, failures by reason, sidecars and events."""
        done, counts = self._done, self._done.counts

        def named(prefix: str) -> dict[str, int]:
            return {name: counts[name] for name in sorted(counts) if name.startswith(prefix)}

        return {
            "caption_windows": counts["caption_windows"],
            "caption_windows_asked": self.n_requested,
            "caption_tokens_in": counts["caption_tokens_in"],
            "caption_tokens_out": counts["caption_tokens_out"],
            **named(FAILED_WINDOWS),
            **{f"sidecars_{name}": n for name, n in count_problems(self._sidecars).items()},
            **(event_counts(self._events.values(), len(done.events)) if self._config.knows else {}),
            **named("caption_set_aside_"),
            **({"sidecars_of_the_run_before": n} if (n := self._n_stored_sidecars) else {}),
        }

    def close(self) -> None:
        """Cancels running requests, and merges small parts of replies."""
        self._stream.close()
        self._replies.pack()

    def _unannotated(self) -> list[ClipRow]:
        """Submits clips with stored frames; returns the other clips without annotations."""
        missing = []
        for row in self._done.clips.kept():
            is_known = row.clip_id in self._clips or row.clip_id in self._done
            if is_known:
                continue
            windows = self._replayed_clip(row)
            if windows is None:
                missing.append(row)
            else:
                self._done.add(row.clip_id, windows)
        stored = self._parts.stored() if missing else {}
        by_id = {}
        for row in missing if stored else ():
            where = stored.get(frames_key(self._content(row), self._moments(row)))
            if where is not None:
                by_id[row.clip_id] = replace(where, clip_id=row.clip_id)
        self.submit(list(by_id.values()))
        return [row for row in missing if row.clip_id not in by_id]

    def _replayed_clip(self, row: ClipRow) -> list[Annotation] | None:
        """Returns the annotations of a written clip if all its windows have one; else None."""
        content, text = self._content(row), ""
        if self._reads_text(row):
            read = self._replies.get(self._text_key(row, content))
            if read is None:
                return None
            text = read.text
        annotations = []
        for task in self._tasks(row, content, text):
            annotation, _ = self._replayed(task)
            if annotation is None:
                return None
            annotations.append(annotation)
        return annotations

    def _replayed(self, task: Task) -> tuple[Annotation | None, Mapping[str, Reply]]:
        """Returns a window's annotation, or None if it needs a request; and its stored replies."""
        annotation = remembered(task, self._fingerprint, self._replies)
        if annotation is not None:
            return annotation, {}
        annotation, replies = replayed(self._dialogs(task), self._replies)
        if annotation is not None and replies:
            remember(annotation, self._fingerprint, self._replies)
        return annotation, replies

    def submit(
        self, frames: Sequence[StoredFrames], written: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Submits the windows of clips whose frames are stored.

        `written` holds new column values of clips that were just written, by id.
        """
        for where in frames:
            row = self._done.row(where.clip_id)
            if written and where.clip_id in written:
                row = row.changed(written[where.clip_id])
            content = self._content(row)
            if where.error is not None:
                tasks = self._tasks(row, content, "")
                failures = [
                    Annotation(task=task, failure=Unanswered.NO_FRAMES, detail=where.error)
                    for task in tasks
                ]
                self._done.add(where.clip_id, failures)
                continue
            if self._reads_text(row):
                # A separate reply, because prompts depend on the text.
                key = self._text_key(row, content)
                if key not in self._replies:
                    self._replies.keep(key, Reply(text=where.text))
            row = row.changed({"n_frames": where.n_frames})
            tasks = self._tasks(row, content, where.text)
            clip = self._clips[where.clip_id] = _ClipInWork(len(tasks))
            for task in tasks:
                annotation, replies = self._replayed(task)
                if annotation is not None:
                    clip.annotations[task.window.index] = annotation
                else:
                    if self._checks and not self.n_requested:
                        self._stage.preflight()
                    self.n_requested += 1
                    self._stream.submit(OpenWindow(task=task, where=where, replies=replies))
            self._close_clip(where.clip_id)
        self._note(self._stream.poll())

    def _close_clip(self, name: str) -> None:
        """Stores the annotations of a clip once all of its windows have one."""
        clip = self._clips[name]
        if len(clip.annotations) == clip.n_windows:
            del self._clips[name]
            self._done.add(name, [clip.annotations[index] for index in sorted(clip.annotations)])

    def _note(self, results: Sequence[list[UnitAnnotations]]) -> None:
        for unit in chain.from_iterable(results):
            self._replies.add(unit.parts)
            for annotation in unit.annotations:
                task = annotation.task
                self._clips[task.clip_id].annotations[task.window.index] = annotation
                self._n_annotated += 1
                self._close_clip(task.clip_id)

    def _take_written(self, missing: Sequence[ClipRow], locations: Mapping[str, Location]) -> None:
        engine = self._engine
        clips = []
        for row in missing:
            where = locations[row.clip_id]
            clips.append((self._parts.to_sample(self.frames_of(row), row, where.name), where))
        frames = sum(row.n_frames * row.width * row.height for row in missing)
        small = engine.is_small(len(clips), frames / FULL_HD)
        most = max(1, min(WRITTEN_UNIT, len(clips) // (4 * engine.n_workers(len(clips))) or 1))
        units = list(pack(clips, max_items=most))
        workers = 1 if small else engine.n_workers(len(units))
        step = stage_step(
            SampleFramesStage(engine.threads(workers)),
            keeps_state=True,
            load=partial(read_clips, self._store),
            keep=self._parts.put,
        )
        for unit in engine.run([step], units, placement="child" if small else "ray"):
            self.cpu_s.update(unit.cpu_s)
            self.submit(unit.results)

    def _tasks(self, row: ClipRow, content: str, text: str) -> list[Task]:
        """Returns a task for each window of a clip; `text` is the text in its frames, as JSON."""
        config, fps, start_s = self._config, row.written_fps, row.start_s
        lines = orjson.loads(text or "{}")
        read = merged([[_line(line) for line in lines[frame]] for frame in sorted(lines, key=int)])
        sidecar = self._sidecars.get(row.source_uri) if config.sidecar else None
        source = self._events.get(row.source_uri, NOTHING)
        # The pictures for the model depend on size and form, too.
        shown = fingerprint("shown", content, fps, config.frame_px, config.frames_as)
        tasks = []
        measured = self._measured(row, read) if config.repair_contradictions else None
        for window in windows_of(row.n_frames, fps, config, source.moments, start_s):
            metadata = None
            if config.knows:
                metadata = metadata_of(window, fps, start_s, source, config, row)
            facts = facts_of(
                row if config.tell_facts else None,
                text_lines=read,
                sidecar=sidecar if isinstance(sidecar, Sidecar) else None,
                metadata_lines=metadata_lines(metadata, window, fps, start_s) if metadata else (),
                hidden={*source.bad_keys, *(("events",) if config.events else ())},
            )
            task = Task(
                clip_id=row.clip_id,
                content=shown,
                window=window,
                fps=fps,
                facts=facts,
                metadata=metadata,
                text_key=self._text_key(row, content) if self._reads_text(row) else None,
                measured=measured
                if window.end_frame - window.start_frame == row.n_frames
                else None,
            )
            tasks.append(task)
        return tasks

    def _measured(self, row: ClipRow, read: Sequence[str]) -> ClipMeasurements:
        """Returns the measurements of a clip that contradict answers; `read` is its text."""
        return ClipMeasurements(
            scores={name: row.value(name) for name in CLAIM_SCORES},
            tags=tuple(row.tags or ()),
            seconds=row.n_frames / row.written_fps,
            width=row.width,
            height=row.height,
            text_lines=tuple(read) if self._reads_text(row) else None,
        )

    def _content(self, row: Clip) -> str:
        return content_of(row.clip_id, row, self._pixels)

    def _moments(self, row: Clip) -> tuple[Moment, ...]:
        """Returns the events of the source that get event windows."""
        has_windows = self._config.event_window_s is not None
        return self._events.get(row.source_uri, NOTHING).moments if has_windows else ()

    def _reads_text(self, row: Clip) -> bool:
        """Returns whether to read text in frames: yes, unless analysis found none in the clip."""
        areas = (row.scores["text_area"], row.scores["overlay_text_area"])
        is_wanted = self._config.read_text and self._config.asks
        return is_wanted and any(area is None or area > 0 for area in areas)

    def _text_key(self, row: ClipRow, content: str) -> str:
        pictures = frames_key(content, self._moments(row))
        return fingerprint("text", READ_MODEL, pictures, frames_fingerprint(self._config))


def _line(stored: Mapping[str, Any]) -> TextLine:
    a, b, c, d = (tuple(corner) for corner in stored["box"])
    return TextLine(text=stored["text"], confidence=stored["confidence"], box=(a, b, c, d))
