"""The driver's side of annotation: gets frames only for what is not answered, and keeps replies.

Asking goes on beside the cutting that brings the frames. What a run is told is stored at once, so
that the next run begins where this one ended, however it did.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from curator.executor.engine import Engine
from curator.executor.packing import pack
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitWorker
from curator.executor.worker import Step
from curator.fingerprints import fingerprint
from curator.media.frame_tap import FrameOrder, FrameWish, Moment, StoredFrames
from curator.models.text_reader import READ_MODEL, Line, merged
from curator.records import FULL_HD, Clip, Written
from curator.stage import Resources
from curator.stages.caption.alignment_store import Alignments
from curator.stages.caption.annotation_rows import (
    AskedSpan,
    annotations_tables,
    apply_annotations,
    sample_annotation,
)
from curator.stages.caption.annotation_store import Told, ToldClips
from curator.stages.caption.caption_records import Annotation, Reply, Task, Unanswered
from curator.stages.caption.captioner_dispatch import Dispatch, check_captioner, make_dispatch
from curator.stages.caption.config import CaptionConfig, frames_fingerprint
from curator.stages.caption.dialogs.dialog import replayed
from curator.stages.caption.dialogs.prompt_facts import facts_of
from curator.stages.caption.dialogs.sidecar_values import count_problems
from curator.stages.caption.dialogs.source_events import (
    NOTHING,
    SourceEvents,
    event_counts,
    events_of,
    known_lines,
    known_of,
)
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import (
    CaptionFrames,
    FrameParts,
    StoreFrames,
    WrittenClip,
    WrittenFramesStage,
    content_of,
    frames_key,
)
from curator.stages.caption.previous_annotations import Answered, answers_stamp
from curator.stages.caption.reply_store import Replies, replies_stamp
from curator.stages.caption.sidecar_table import Beside, sidecars_table
from curator.stages.caption.windows import windows_of
from curator.storage import Store
from curator.storage.sidecar_reader import Sidecar, read_sidecars
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.clip_vectors import Vectors
from curator.tables.schemas import clips_schema

WRITTEN_UNIT = 16
"""Written clips of a unit that are looked at."""


@dataclass(slots=True, kw_only=True)
class _Clip:
    """A clip that is asked about."""

    span: AskedSpan
    n_windows: int = 0
    annotations: dict[int, Annotation] = field(default_factory=dict)
    """By the window's index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A clip as it is shown to who is asked."""

    content: str
    row: ClipRow


class Captioning:
    """Annotates the clips of a run.

    Args:
        store: Output root.
        config: Settings.
        engine: Where frames are taken, and models in workers run.
        progress: Where it is shown.
        checks: Whether a server is asked a first question before the others; else it was.
        dispatch: Takes windows; None for that of the recipe's captioner.
    """

    def __init__(
        self,
        store: Store,
        config: CaptionConfig,
        engine: Engine,
        progress: Progress,
        *,
        checks: bool,
        dispatch: Dispatch | None = None,
    ) -> None:
        self._checks = checks
        self._store = store
        self._config = config
        self._engine = engine
        self._progress = progress
        self._dispatch = dispatch
        self._dialogs = make_dialogs(self._config)
        self._replies = Replies(store, replies_stamp(self._config))
        self._parts = FrameParts(store, config)
        self._taker = CaptionFrames(store, config)
        self._sidecars: Beside = {}
        self._events: dict[str, SourceEvents] = {}
        self._told = ToldClips(ClipRows(clips_schema().empty_table(), clips_schema()))
        self._asked_before: Mapping[str, AskedSpan] = {}
        self._stamp = answers_stamp(self._config)
        self._answered = Answered(store, ())
        self._clips: dict[str, _Clip] = {}
        """Those of which windows are still open."""
        self._n_answered = 0
        self.n_asked = 0
        """Windows for which a model was asked something."""
        self.cpu_s: Counter[str] = Counter()
        """CPU-seconds of the workers, by what they did."""

    @property
    def order(self) -> FrameOrder:
        """The frames that captioning wants of clips that another stage decodes."""
        return FrameOrder(taker=self._taker, wish=self._wish, take=self._take)

    def begin(
        self,
        clips: ClipRows,
        asked_before: Mapping[str, AskedSpan] | None = None,
        answered: Iterable[str] = (),
        beside: Callable[[Collection[str]], Beside] = read_sidecars,
    ) -> None:
        """Reads what earlier runs were told, and what lies beside the sources.

        Args:
            clips: Rows of `clips`; those that are kept will be asked about.
            asked_before: Where clips as they were asked about before they were cut lie in their
                sources, by id: what was answered then counts.
            answered: Parts of the table `annotations` of the last finished run.
            beside: Tells what lies beside sources, by their URIs.
        """
        self._asked_before = asked_before or {}
        self._answered = Answered(self._store, answered)
        self._replies.load()
        self._told = ToldClips(clips)
        if self._is_told_sidecars:
            of = zip(clips.values("source_uri"), clips.values("decision"), strict=True)
            self._sidecars = beside(sorted({uri for uri, decision in of if decision == "kept"}))
        if self._config.knows:
            self._events = {
                uri: events_of(beside.data, self._config)
                for uri, beside in self._sidecars.items()
                if isinstance(beside, Sidecar)
            }

    @property
    def _is_told_sidecars(self) -> bool:
        return self._config.sidecar or self._config.knows

    @property
    def sidecars(self) -> pa.Table | None:
        """Rows of `sidecars`; None where nobody wants to know what they say."""
        return sidecars_table(self._sidecars) if self._is_told_sidecars else None

    def before_cut(self, look: Callable[[Sequence[ClipRow], FrameOrder], None]) -> None:
        """Annotates clips as they were proposed.

        Args:
            look: Takes the frames of an order out of clips that are not written.
        """
        look(self._unanswered(), self.order)
        self._finish()

    def after_cut(self, locations: Mapping[str, Location]) -> None:
        """Annotates written clips whose pictures cutting did not bring.

        Args:
            locations: Where the written clips are.
        """
        missing = self._unanswered()
        if missing:
            self._look_at_written(missing, locations)
        self._finish()

    def apply(self, clips: ClipRows) -> None:
        """Writes captions into kept clips, and rejects those whose answers say so."""
        for clip in clips.kept():
            told = self._told[clip.clip_id]
            apply_annotations(clip, told.annotations, self._config)

    def align(self, clips: ClipRows, found: Alignments, vectors: Vectors) -> None:
        """Writes into kept clips how well their captions fit them."""
        captions = {}
        for clip in clips.kept():
            name, caption = clip.clip_id, clip.caption
            if caption:
                windows = self._told[name].annotations
                short = [one.answer.short for one in windows if one.answer and one.answer.short]
                captions[name] = " ".join(short) or caption
        cosines = found.of(captions, vectors)
        for clip in clips.kept():
            if (cosine := cosines.get(clip.clip_id)) is not None:
                clip.caption_alignment = cosine
        self.cpu_s.update(found.cpu_s)

    def sample(self, clip: Clip) -> dict[str, Any]:
        """What the sample of a kept clip tells of each window."""
        told = self._told[clip.clip_id]
        return sample_annotation(clip, told.annotations, told.span, self._config)

    def tables(self) -> Iterator[pa.Table]:
        """Rows of `annotations`, some at a time."""
        found = ((row, told.annotations, told.span) for row, told in self._told.items())
        return annotations_tables(found, self._config)

    @property
    def counts(self) -> dict[str, int]:
        """Windows, those for which a model was asked, and failures by reason, for the summary."""
        told, counts = self._told, self._told.counts

        def named(prefix: str) -> dict[str, int]:
            return {name: counts[name] for name in sorted(counts) if name.startswith(prefix)}

        return {
            "caption_windows": counts["caption_windows"],
            "caption_windows_asked": self.n_asked,
            "caption_tokens_in": counts["caption_tokens_in"],
            "caption_tokens_out": counts["caption_tokens_out"],
            **named("caption_failed_"),
            **{f"sidecars_{name}": n for name, n in count_problems(self._sidecars).items()},
            **(event_counts(self._events.values(), len(told.events)) if self._config.knows else {}),
            **named("caption_set_aside_"),
        }

    def close(self) -> None:
        """Ends what asks, and makes one part of this run's replies."""
        if self._dispatch is not None:
            self._dispatch.close()
        self._replies.pack()

    def _unanswered(self) -> list[ClipRow]:
        """Kept clips that stored replies do not answer and that no stored pictures show."""
        missing = []
        for row in self._told.clips.kept():
            name = row.clip_id
            # What was asked about stays, whatever cutting makes of the row.
            is_known = name in self._clips or name in self._told
            if not is_known and not any(map(self._is_replayed, self._as_asked(row))):
                missing.append(row)
        stored = self._parts.stored() if missing else {}
        if not stored:
            return missing
        found = {}
        for row in missing:
            name = row.clip_id
            content = content_of(name, row)
            key = frames_key(content, self._moments(row))
            if key in stored:
                found[name] = replace(stored[key], clip_id=name, content=content)
        self._take(list(found.values()), {})
        return [row for row in missing if row.clip_id not in found]

    def _as_asked(self, row: ClipRow) -> Iterator[_Asked]:
        """A clip as it may have been asked about: before it was cut, or as it is."""
        span = self._asked_before.get(row.clip_id)
        if span is not None:
            # A copy may begin later and end earlier than was proposed.
            n_frames = span.end_frame - span.start_frame
            is_trimmed = row.cut_mode == "copy" and n_frames > row.n_frames
            is_before = span.start_frame <= row.start_frame
            if is_trimmed and is_before and row.end_frame <= span.end_frame:
                asked = row.changed({**asdict(span), "n_frames": n_frames})
                yield _Asked(content=content_of(row.clip_id, asked), row=asked)
        yield _Asked(content=content_of(row.clip_id, row), row=row)

    def _is_replayed(self, clip: _Asked) -> bool:
        """Whether stored replies tell all about a clip; it is known then."""
        lines: Mapping[str, Any] = {}
        if self._reads_text(clip.row):
            read = self._replies.get(self._text_key(clip))
            if read is None:
                return False
            lines = orjson.loads(read.text or "{}")
        annotations = []
        for task in self._tasks(clip, clip.row.n_frames, lines):
            annotation = self._known(task)
            if annotation is None:
                return False
            annotations.append(annotation)
        name = clip.row.clip_id
        self._told.add(name, Told(span=AskedSpan.of(clip.row), annotations=annotations))
        return True

    def _known(self, task: Task) -> Annotation | None:
        """The annotation of a window, if nobody needs to be asked for it."""
        found = self._answered.find(task, self._stamp)
        # Who deletes replies wants to ask anew.
        if found is not None and all(key in self._replies for key in found.request_keys):
            return found
        return replayed(self._dialogs(task), self._replies)

    def _take(self, looked: Sequence[StoredFrames], written: Mapping[str, Written]) -> None:
        """Asks about clips whose pictures are there.

        Args:
            looked: Where the pictures are.
            written: Facts of clips that have just been written, by id.
        """
        for where in looked:
            name = where.clip_id
            row = self._told.row(name)
            if name in written:
                row = row.changed(asdict(written[name]))
            content = where.content if where.error is None else content_of(name, row)
            asked = _Asked(content=content, row=row)
            clip = self._clips[name] = _Clip(span=AskedSpan.of(row))
            if where.error is not None:
                tasks = self._tasks(asked, row.n_frames, {})
            else:
                if self._reads_text(row):
                    self._keep_text(asked, where.text)
                tasks = self._tasks(asked, where.n_frames, orjson.loads(where.text or "{}"))
            clip.n_windows = len(tasks)
            for task in tasks:
                annotation = (
                    self._known(task)
                    if where.error is None
                    else Annotation(task=task, failure=Unanswered.NO_FRAMES, detail=where.error)
                )
                if annotation is None:
                    self.n_asked += 1
                    self._asked().submit(task, where)
                else:
                    clip.annotations[task.window.index] = annotation
            self._close_clip(name)
        if self._dispatch is not None:
            self._note(self._dispatch.poll())

    def _close_clip(self, name: str) -> None:
        """Puts away what came of a clip, once all its windows have come to their end."""
        clip = self._clips[name]
        if len(clip.annotations) == clip.n_windows:
            del self._clips[name]
            ordered = [clip.annotations[index] for index in sorted(clip.annotations)]
            self._told.add(name, Told(span=clip.span, annotations=ordered))

    def _asked(self) -> Dispatch:
        """Whom to ask, from the first question on."""
        if self._dispatch is None:
            if self._checks:
                check_captioner(self._config)
            self._dispatch = make_dispatch(
                self._config,
                dialogs=self._dialogs,
                replies=self._replies,
                parts=self._parts,
                engine=self._engine,
            )
        return self._dispatch

    def _finish(self) -> None:
        """Waits for all that was asked."""
        if self._dispatch is None:
            return
        self._progress.work(self.n_asked, 0.0)
        with self._progress.polling(lambda: (self._n_answered, 0.0)):
            for annotations in self._dispatch.finish():
                self._note(annotations)
        self.cpu_s.update(self._dispatch.cpu_s)
        self._dispatch.cpu_s.clear()

    def _note(self, annotations: Iterable[Annotation]) -> None:
        for annotation in annotations:
            task = annotation.task
            self._clips[task.clip_id].annotations[task.window.index] = annotation
            self._n_answered += 1
            self._close_clip(task.clip_id)

    def _look_at_written(
        self, missing: Sequence[ClipRow], locations: Mapping[str, Location]
    ) -> None:
        engine = self._engine
        clips = [
            WrittenClip(
                clip_id=row.clip_id,
                wish=self._wish(row),
                location=locations[row.clip_id],
                n_frames=row.n_frames,
                fps=row.fps,
                start_s=row.start_s,
            )
            for row in missing
        ]
        frames = sum(row.n_frames * row.width * row.height for row in missing)
        small = engine.is_small(len(clips), frames / FULL_HD)
        most = max(1, min(WRITTEN_UNIT, len(clips) // (4 * engine.n_workers(len(clips))) or 1))
        units = list(pack(clips, max_items=most))
        workers = 1 if small else engine.n_workers(len(units))
        stage = WrittenFramesStage(
            self._config,
            store=self._store,
            taker=self._taker,
            threads=max(1, engine.n_cpus() // workers),
        )
        step = Step(
            make=UnitWorker,
            settings={
                "stage": stage,
                "keep": StoreFrames(self._taker),
                "ledger": engine.ledger(small=small),
            },
            resources=Resources(cpus=1),
            keeps_state=True,
        )
        for unit in engine.run([step], units, small=small):
            self.cpu_s.update(unit.cpu_s)
            self._take(unit.results, {})

    def _tasks(
        self, clip: _Asked, n_frames: int, lines: Mapping[str, Sequence[Any]]
    ) -> tuple[Task, ...]:
        config, row = self._config, clip.row
        read = [[_line(line) for line in lines[frame]] for frame in sorted(lines, key=int)]
        beside = self._sidecars.get(row.source_uri) if config.sidecar else None
        source = self._events.get(row.source_uri, NOTHING)
        fps, start_s = row.fps, row.start_s
        # What is seen depends on the size and form in which it is shown, too.
        content = fingerprint("shown", clip.content, fps, config.frame_px, config.frames_as)
        tasks = []
        for window in windows_of(n_frames, fps, config, source.moments, start_s):
            known = None
            if config.knows:
                known = known_of(window, fps, start_s, source, config, row)
            facts = facts_of(
                row.changed({"n_frames": n_frames}) if config.tell_facts else None,
                text_lines=merged(read),
                sidecar=beside if isinstance(beside, Sidecar) else None,
                known_lines=known_lines(known, window, fps, start_s) if known is not None else (),
                is_source_events_told=not config.events,
                bad_keys=source.bad_keys,
            )
            tasks.append(
                Task(
                    clip_id=row.clip_id,
                    content=content,
                    window=window,
                    fps=fps,
                    facts=facts,
                    known=known,
                )
            )
        return tuple(tasks)

    def _wish(self, row: Clip) -> FrameWish:
        """Which frames of a clip are wanted."""
        return FrameWish(
            content=content_of(row.clip_id, row),
            reads_text=self._reads_text(row),
            moments=self._moments(row),
        )

    def _moments(self, row: Clip) -> tuple[Moment, ...]:
        """Events of a clip's source around which windows are made."""
        if self._config.event_window_s is None:
            return ()
        return self._events.get(row.source_uri, NOTHING).moments

    def _reads_text(self, row: Clip) -> bool:
        """Whether text in a clip's pictures is read: where some was found, or nobody looked."""
        areas = (row.scores["text_area"], row.scores["overlay_text_area"])
        is_wanted = self._config.read_text and self._config.asks
        return is_wanted and any(area is None or area > 0 for area in areas)

    def _text_key(self, clip: _Asked) -> str:
        pictures = frames_key(clip.content, self._moments(clip.row))
        return fingerprint("text", READ_MODEL, pictures, frames_fingerprint(self._config))

    def _keep_text(self, clip: _Asked, text: str) -> None:
        """Stores what was read as a reply of its own: prompts depend on it."""
        key = self._text_key(clip)
        if key not in self._replies:
            self._replies.keep(key, Reply(text=text))


def _line(stored: Mapping[str, Any]) -> Line:
    """A line of text as it was stored."""
    a, b, c, d = (tuple(corner) for corner in stored["box"])
    return Line(text=stored["text"], confidence=stored["confidence"], box=(a, b, c, d))
