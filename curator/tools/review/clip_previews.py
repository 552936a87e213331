"""Writes the report of a finished run with video previews of the kept clips on its page.

Previews decode the first seconds of written clips, after the run: docs/design/tools.md gives the
reasons.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import av
from av.video.reformatter import Colorspace

from curator.executor.engine import Engine
from curator.executor.unit_worker import stage_step
from curator.media.clip_frames import Wanted
from curator.media.encode import Encoder, EncodeSettings, encode_mp4
from curator.records.cuts import SampledFrames
from curator.records.sources import Medium
from curator.runs.commit_run import REPORT, delete_previews
from curator.sample_frames import ClipToSample, SampleFramesStage
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.proof_store import read_proofs
from curator.tables.source_table import SourceTotals
from curator.tools.report import PREVIEWS, render_report, shown_clips
from curator.tools.report.contact_sheets import clips_by_id
from curator.tools.review.finished_run import Finished

SECONDS = 2.5
LONGER_PX = 320
RATE_FPS = 12
MAX_BYTES = 100_000
QUALITIES_CRF = (30, 36, 44)
"""Tried in turn until a preview is small enough; the first sufficed for 21 of 21 clips."""


def write_report(finished: Finished, engine: Engine) -> int:
    """Writes previews of the kept clips on the page, then the page; returns the previews' number.

    The caller must hold the lease of the output root.
    """
    store, summary = finished.store, dict(finished.summary)
    clips = ClipRows(finished.clips, finished.clips.schema)
    ids, previews = shown_clips(summary, clips), set()
    delete_previews(store)
    encoder: Encoder = "vp9" if finished.recipe.cut.encoder == "vp9" else "x264"
    settings = EncodeSettings(crf=0, preset="veryfast", encoder=encoder)
    shown = [
        clip
        for clip in clips_by_id(clips, ids).values()
        if clip.decision == "kept" and clip.shard and clip.medium == Medium.VIDEO
    ]
    step = stage_step(SampleFramesStage(), load=partial(_read, store))
    units = engine.run_in_driver([step], [[clip] for clip in shown])
    for clip, unit in zip(shown, units, strict=True):
        mp4 = _preview(unit.results[0], clip, settings)
        if mp4 is not None:
            store.write(f"{PREVIEWS}{clip.clip_id}.mp4", mp4)
            previews.add(clip.clip_id)
    totals = SourceTotals()
    for part in summary["tables"]["sources"]:
        totals.add(read_parquet(store, part))
    page = render_report(
        summary=summary,
        sources=totals.failed,
        clips=clips,
        pictures=finished.pictures,
        previews=previews,
        proofs=read_proofs(store),
    )
    store.write(REPORT, page.encode())
    return len(previews)


def _step(clip: ClipRow) -> int:
    """Returns the number of clip frames per preview frame."""
    return max(1, round(clip.written_fps / RATE_FPS))


def _read(store: Store, unit: Sequence[ClipRow]) -> list[ClipToSample]:
    (clip,) = unit
    assert clip.shard is not None, "the clip is in a tar"
    assert clip.mp4_offset is not None, "the clip is in a tar"
    mp4 = store.read_range(clip.shard, clip.mp4_offset, clip.mp4_offset + clip.mp4_bytes)
    scale = min(1.0, LONGER_PX / max(clip.width, clip.height))
    width, height = (max(2, 2 * round(side * scale / 2)) for side in (clip.width, clip.height))
    numbers = range(0, min(clip.n_frames, int(SECONDS * clip.written_fps) + 1), _step(clip))
    wanted = Wanted(numbers=tuple(numbers), size=(width, height))
    return [ClipToSample(uri=clip.shard, n_frames=clip.n_frames, wanted=(wanted,), mp4=mp4)]


def _preview(sampled: SampledFrames, clip: ClipRow, settings: EncodeSettings) -> bytes | None:
    """Returns an MP4 without sound; None if decoding fails or every quality is too large."""
    if sampled.error is not None:
        return None
    rgb_THWC = sampled.pixels[0]  # noqa: N806
    frames = [
        av.VideoFrame.from_ndarray(rgb).reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
        for rgb in rgb_THWC
    ]
    fps = Fraction(clip.written_fps).limit_denominator(1001) / _step(clip)
    height, width = rgb_THWC.shape[1:3]
    for crf in QUALITIES_CRF:
        changed = replace(settings, crf=crf)
        mp4, _ = encode_mp4(frames, width=width, height=height, fps=fps, settings=changed)
        if len(mp4) <= MAX_BYTES:
            return mp4
    return None
