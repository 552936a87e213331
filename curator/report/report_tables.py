"""Tables of the report: funnel, failed sources, notes, buckets, stages, and the recipe."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from curator.records import Note
from curator.report.contact_sheets import anchor
from curator.report.funnel import FunnelStep, funnel_steps
from curator.report.markup import Markup, bar, esc, joined, table
from curator.report.number_text import amount, count, length, share, size
from curator.report.rule_text import applied_rules, bound_words, reason_words, reasons_of

MAX_SHARDS = 100

NOTES = {
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
    Note.NOT_ON_GPU_CODEC: "decoded on the CPU beside a GPU: its codec or depth",
    Note.NOT_ON_GPU_PIXEL_FORMAT: "decoded on the CPU beside a GPU: its chroma",
    Note.NOT_ON_GPU_SIZE: "decoded on the CPU beside a GPU: its picture size",
    Note.NOT_ON_GPU_INTERLACED: "decoded on the CPU beside a GPU: interlaced",
    Note.NOT_ON_GPU_TIMESTAMPS: "decoded on the CPU beside a GPU: packets without a time",
    Note.NOT_ON_GPU_SIZE_CHANGES: "decoded on the CPU beside a GPU: its picture size changes",
    Note.NOT_ON_GPU_FRAMES_DIFFER: "decoded on the CPU beside a GPU: another number of frames came",
    Note.NOT_ON_GPU_DAMAGED: "decoded on the CPU beside a GPU: damaged",
    Note.NOT_ON_GPU_DECODER_ERROR: "decoded on the CPU beside a GPU: its decoder failed",
    Note.SAME_BYTES: "another source has the same bytes; its clips stand under that one",
}


def funnel_table(summary: Mapping[str, Any]) -> Markup:
    """From all candidates to what was kept, a row per reason."""
    counts = summary.get("counts") or {}
    n_clips, n_kept = counts.get("clips") or 0, counts.get("kept") or 0
    if not n_clips:
        return Markup('<p class="none">No candidate clip was found.</p>')
    steps = funnel_steps(summary)
    rows: list[Sequence[object]] = [
        (_strong("candidate clips"), "", "", "", count(n_clips), bar(("kept", 1.0)), "100%")
    ]
    rows += [_funnel_row(step, summary, n_clips) for step in steps if step.n_first]
    final = bar(("kept", n_kept / n_clips))
    rows.append(
        (_strong("kept"), "", "", "", _strong(count(n_kept)), final, share(n_kept, n_clips))
    )
    headings = ("reason", "#rejected", "#alone", "#at all", "#left", "", "#of all")
    note = (
        '<p class="hint">A clip is counted under the first reason against it. <em>Alone</em> '
        "counts those that nothing else is against; <em>at all</em> counts every clip with that "
        "reason.</p>"
    )
    idle = [
        (step.reason, reason_words(step.reason, summary), _dim_zero(step.n_any))
        for step in steps
        if not step.n_first
    ]
    unused = _folded(("reason", "rule", "#at all"), idle, "reason", "that took no clip first")
    return Markup(f"{table(headings, rows, kind='funnel')}{note}{unused}")


def _folded(
    headings: Sequence[str], rows: Sequence[Sequence[object]], noun: str, said: str
) -> Markup:
    """A table of what did nothing, to be unfolded; empty without rows."""
    if not rows:
        return Markup("")
    listed = table(headings, rows, kind="tags")
    return Markup(f"<details><summary>{amount(len(rows), noun)} {said}</summary>{listed}</details>")


def flags_table(summary: Mapping[str, Any]) -> Markup:
    """Tags of clips, a row each; empty where no clip has one and no rule flags."""
    counts = summary.get("counts") or {}
    tags, kept = counts.get("by_tag") or {}, counts.get("by_tag_kept") or {}
    meant: dict[str, str] = {}
    for rule in applied_rules(summary):
        if rule["severity"] == "flag":
            for reason, side, _ in reasons_of(rule):
                name = str(reason) if rule["rule"] == rule["score"] else rule["rule"]
                said = bound_words(rule, side)
                meant[name] = f"{meant[name]} or {said}" if name in meant else said
    names = [*meant, *(name for name in tags if name not in meant)]
    if not names:
        return Markup("")
    rows = [
        (
            Markup(f"{esc(name)}<small>{esc(meant.get(name, 'from what was measured'))}</small>"),
            count(tags[name]),
            _dim_zero(kept.get(name) or 0),
        )
        for name in names
        if tags.get(name)
    ]
    listed = table(("tag", "#clips", "#of them kept"), rows, kind="tags") if rows else ""
    unused = [(name, meant.get(name, "")) for name in names if not tags.get(name)]
    idle = _folded(("tag", "rule"), unused, "tag", "that no clip has")
    return Markup(f'<h3>Tags</h3>{listed}<p class="hint">A tag rejects nothing.</p>{idle}')


def _dim_zero(number: int | None) -> Markup:
    if number is None:
        return Markup('<span class="zero">-</span>')
    return esc(count(number)) if number else Markup('<span class="zero">0</span>')


def _strong(text: str) -> Markup:
    return Markup(f"<strong>{esc(text)}</strong>")


def _funnel_row(step: FunnelStep, summary: Mapping[str, Any], n_clips: int) -> Sequence[object]:
    name: Markup = esc(step.reason)
    if step.n_first:
        name = Markup(f'<a href="#{anchor(step.reason)}">{name}</a>')
    return (
        Markup(f"{name}<small>{esc(reason_words(step.reason, summary))}</small>"),
        _dim_zero(step.n_first),
        _dim_zero(step.n_alone),
        _dim_zero(step.n_any),
        count(step.n_left),
        bar(("kept", step.n_left / n_clips), ("rejected", step.n_first / n_clips)),
        share(step.n_left, n_clips),
    )


def failed_sources(
    summary: Mapping[str, Any], sources: Sequence[Mapping[str, Any]], *, max_per_code: int
) -> Markup:
    """Sources that could not be used, with the stage, code and message of each."""
    counts = summary.get("counts") or {}
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for row in sources:
        if row.get("outcome") == "failed":
            by_code.setdefault(str(row.get("error_code")), []).append(row)
    skipped = counts.get("skipped_names") or 0
    hint = (
        f"{amount(skipped, 'name')} skipped in the listing: not named like video."
        if skipped
        else ""
    )
    if not by_code:
        return Markup(f'<p class="none">No source failed.</p><p class="hint">{esc(hint)}</p>')
    rows: list[Sequence[object]] = []
    said = []
    by_error = counts.get("by_error") or {}
    n_failed = {code: max(len(rows), by_error.get(code) or 0) for code, rows in by_code.items()}
    for code, failed in sorted(by_code.items(), key=lambda item: (-n_failed[item[0]], item[0])):
        shown = sorted(failed, key=lambda row: str(row.get("uri")))[:max_per_code]
        of = f"{count(len(shown))} of " if len(shown) < n_failed[code] else ""
        said.append(f"{code} {of}{count(n_failed[code])}")
        rows += [
            (
                Markup(f'<bdi class="uri">{esc(row.get("uri"))}</bdi>'),
                row.get("error_stage") or "-",
                Markup(f"<code>{esc(code)}</code>"),
                row.get("error_message") or "",
            )
            for row in shown
        ]
    return Markup(
        f'<h3>Failed <span class="of">{esc(", ".join(said))}</span></h3>'
        f"{table(('source', 'stage', 'code', 'message'), rows, kind='failed')}"
        f'<p class="hint">{esc(hint)}</p>'
    )


def notes_table(summary: Mapping[str, Any]) -> Markup:
    """What was odd about sources that were used all the same."""
    notes = (summary.get("counts") or {}).get("by_note") or {}
    if not notes:
        return Markup("")
    meanings: dict[str, str] = {str(note): meaning for note, meaning in NOTES.items()}
    rows = [
        (Markup(f"<code>{esc(note)}</code>"), count(n), meanings.get(note, ""))
        for note, n in notes.items()
    ]
    return Markup(f"<h3>Notes</h3>{table(('note', '#sources', 'meaning'), rows)}")


def shards_table(summary: Mapping[str, Any]) -> Markup:
    """Buckets with what is in them, and the shards by name."""
    shards = summary.get("shards") or []
    if not shards:
        return Markup('<p class="none">No shard was written.</p>')
    buckets: dict[str, list[Mapping[str, Any]]] = {}
    for shard in shards:
        buckets.setdefault(str(shard.get("bucket")), []).append(shard)
    most = max(_total(group, "n_samples") for group in buckets.values())
    rows = [
        (
            Markup(f"<code>{esc(bucket)}</code>"),
            count(len(group)),
            count(_total(group, "n_samples")),
            count(_total(group, "n_frames")),
            size(_total(group, "bytes")),
            bar(("kept", _total(group, "n_samples") / most if most else 0)),
        )
        for bucket, group in sorted(buckets.items())
    ]
    headings = ("bucket", "#shards", "#clips", "#frames", "#size", "")
    names = [
        (Markup(f"<code>{esc(s.get('name'))}</code>"), count(s.get("n_samples")),
         count(s.get("n_frames")), size(s.get("bytes")))
        for s in shards[:MAX_SHARDS]
    ]  # fmt: skip
    of = f"{MAX_SHARDS} of " if len(shards) > MAX_SHARDS else ""
    listed = table(("shard", "#clips", "#frames", "#size"), names)
    return Markup(
        f"{table(headings, rows)}<details><summary>{of}{amount(len(shards), 'shard')} by name"
        f"</summary>{listed}</details>"
    )


def _total(shards: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(shard.get(key) or 0 for shard in shards)


def stages_table(summary: Mapping[str, Any]) -> Markup:
    """Where the time went, and how much of the work was new."""
    seconds = summary.get("stage_seconds") or {}
    if not seconds:
        return Markup('<p class="none">No stage was timed.</p>')
    total = sum(seconds.values())
    rows = [
        (stage, length(s), bar(("time", s / total if total else 0)), share(s, total))
        for stage, s in seconds.items()
    ]
    work = summary.get("work") or {}
    done = [
        f"{amount(work[key], noun)} {verb}"
        for key, noun, verb in (
            ("sources_scanned", "source", "probed"),
            ("sources_analyzed", "source", "analyzed"),
            ("clips_cut", "clip", "written"),
            ("shards_written", "shard", "packed"),
        )
        if key in work
    ]
    hint = f"Done in this run: {', '.join(done)}. What earlier runs stored was not done again."
    times = table(("stage", "#time", "", "#of all"), rows, kind="times")
    return Markup(f'{times}<p class="hint">{esc(hint if done else "")}</p>')


def recipe_text(summary: Mapping[str, Any]) -> Markup:
    """The resolved recipe, to be unfolded."""
    recipe = summary.get("recipe")
    if not recipe:
        return Markup("")
    text = json.dumps(recipe, indent=2, ensure_ascii=False, default=str)
    versions = summary.get("versions") or {}
    used = joined((f"{name} {number}" for name, number in versions.items()), " \N{MIDDLE DOT} ")
    return Markup(
        f"<details><summary>Recipe as it was used</summary><pre>{esc(text)}</pre></details>"
        f'<p class="hint">{used}</p>'
    )
