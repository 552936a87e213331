"""Proves a rule of a finished run: chooses clips, decodes windows of them, and runs the trial."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.fingerprints import fingerprint
from curator.number_text import amount
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRows
from curator.tables.lease_holder import utc_now
from curator.tables.proof_store import Proof, bounds_now, interval_words
from curator.tables.snapshot_store import NUMBER
from curator.tools.proof.patch_tokenizer import LATENTS, moments_of
from curator.tools.proof.rule_trial import (
    CONFIDENCE,
    CONTROLS,
    PARTS,
    REPEATS,
    Effect,
    Trial,
    TrialClips,
    Verdict,
    run_trial,
)
from curator.tools.proof.ruled_clips import NamedRule, RuledClips, find_rule, ruled_clips
from curator.tools.proof.source_windows import WINDOW_FRAMES, source_window
from curator.tools.review.finished_run import Finished

CLIPS, QUICK_CLIPS, QUICK_CONTROLS = 100, 40, 20
MINUTES = 15.0
_DECODING = 0.6
"""Share of the time after which no further clip is decoded."""
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSettings:
    """Settings of a proof.

    Attributes:
        clips: Most kept and most rejected clips.
        controls: Number of null controls.
        seed: Seeds the choice of clips and windows, the splits and the controls.
        minutes: Time limit. A limit that is reached leaves out clips, then controls.
    """

    clips: int = CLIPS
    controls: int = CONTROLS
    seed: int = 0
    minutes: float = MINUTES


def prove(
    finished: Finished,
    rule: str,
    settings: ProofSettings,
    on_step: OnStep = lambda what, done, of: None,
) -> Proof:
    """Tests by training whether a rule improves a tokenizer.

    Args:
        finished: The run.
        rule: A rule of `filters`, a reason, or a condition in SQL.
        settings: Size and limits of the proof.
        on_step: Called with what is done, how much of it, and how much there is.

    Raises:
        UsageError: No such rule, it rejects nothing, or no source can be read.
    """
    finished.require_clips()
    begun_s, limit_s = time.monotonic(), settings.minutes * 60
    named = find_rule(finished, rule)
    ruled = ruled_clips(finished, named, settings.clips, settings.seed)
    clips, n_unreadable = _trial_clips(
        finished, ruled, settings.seed, begun_s + _DECODING * limit_s, on_step
    )
    why, trial = clips.lacks(), None
    n_tried = len(clips.is_kept) + n_unreadable
    if why is not None and n_tried < len(ruled.is_kept):
        why += (
            f"; the limit of {settings.minutes:g} minutes ended decoding after {n_tried} of "
            f"{len(ruled.is_kept)} clips: raise --minutes"
        )
    if why is None:
        trial = run_trial(
            clips,
            seed=settings.seed,
            n_controls=settings.controls,
            ends_s=begun_s + limit_s,
            on_step=lambda done, of: on_step("rules, this one and null controls", done, of),
        )
    return _proof(finished, named, settings, clips, n_unreadable, trial, why or "")


def _trial_clips(
    finished: Finished, ruled: RuledClips, seed: int, ends_s: float, on_step: OnStep
) -> tuple[TrialClips, int]:
    """Decodes windows of clips in a random order; returns them, and how many could not be read."""
    versions = _versions(finished)
    rows, errors = list(ClipRows(ruled.clips, ruled.clips.schema)), list[str]()
    moments: dict[int, NDArray[np.float32]] = {}
    for n_done, at in enumerate(np.random.default_rng([seed, 2]).permutation(len(rows)), start=1):
        if time.monotonic() > ends_s and moments:
            break
        window = source_window(rows[at], versions.get(rows[at].source_uri), seed)
        if isinstance(window, str):
            errors.append(window)
        else:
            moments[int(at)] = moments_of(window)
        on_step("clips decoded", n_done, len(rows))
    if not moments:
        raise UsageError(
            f"no window of {amount(len(rows), 'clip')} can be decoded from the sources, which a "
            f"proof needs where the run read them; the first: {errors[0]}"
        )
    used = sorted(moments)
    sources = [rows[at].source_id for at in used]
    return TrialClips(
        moments_NDD=np.stack([moments[at] for at in used]),
        is_kept=ruled.is_kept[used],
        sources=np.unique(np.array(sources), return_inverse=True)[1],
    ), len(errors)


def _versions(finished: Finished) -> dict[str, str]:
    """Returns the version of each source that the run read, by address."""
    parts = finished.summary["tables"].get("sources", ())
    tables = (read_parquet(finished.store, part, ["uri", "version"]) for part in parts)
    return {row["uri"]: row["version"] for table in tables for row in table.to_pylist()}


def _proof(
    finished: Finished,
    named: NamedRule,
    settings: ProofSettings,
    clips: TrialClips,
    n_unreadable: int,
    trial: Trial | None,
    why: str,
) -> Proof:
    sides = {word: clips.counts(kept=word == "kept") for word in ("kept", "rejected")}
    verdict = Verdict.TOO_FEW if trial is None else trial.on_kept.verdict()
    if trial is not None and verdict is Verdict.TOO_FEW:
        needed = trial.on_kept.clips_needed(len(clips.is_kept))
        why = f"the interval is too wide: about {needed} clips of more sources are needed"
    summary = finished.summary
    return Proof(
        rule=named.name,
        reasons=named.reasons,
        bounds=bounds_now(summary, named.rules),
        snapshot=summary.get(NUMBER),
        recipe=fingerprint(summary.get("recipe")),
        created_at=utc_now(),
        settings={
            "clips": settings.clips,
            "controls": settings.controls,
            "seed": settings.seed,
            "minutes": settings.minutes,
            "confidence": CONFIDENCE,
            "splits": PARTS * REPEATS,
            "latents": list(LATENTS),
            "window_frames": WINDOW_FRAMES,
        },
        verdict=str(verdict),
        why=why,
        n_clips={word: n for word, (n, _) in sides.items()} | {"unreadable": n_unreadable},
        n_sources={word: n for word, (_, n) in sides.items()},
        on_kept=None if trial is None else _numbers(trial.on_kept),
        on_rejected=None if trial is None else _numbers(trial.on_rejected),
        over_random=None if trial is None else _numbers(trial.over_random),
        controls_db=() if trial is None else trial.controls_db.tolist(),
    )


def _numbers(effect: Effect) -> tuple[float, float, float]:
    return effect.db, effect.low_db, effect.high_db


def proof_lines(proof: Proof) -> list[str]:
    """Describes a proof for the terminal."""
    n, of = proof.n_clips, proof.n_sources
    lines = [
        f"{proof.rule}: {n['kept']} kept clips of {amount(of['kept'], 'source')}, {n['rejected']} "
        f"that it alone rejects of {of['rejected']}"
    ]
    if n["unreadable"]:
        lines.append(f"{amount(n['unreadable'], 'clip')} could not be read, and were left out")
    if proof.on_kept and proof.over_random and proof.on_rejected:
        confidence = f"{proof.settings['confidence']:.0%} interval"
        largest = max(map(abs, proof.controls_db))
        lines += [
            f"trained on kept clips, and tried on clips of other recordings; {confidence}:",
            f"  in place of rejected clips, on kept clips      {interval_words(proof.on_kept)}",
            f"  in place of random clips, on kept clips        {interval_words(proof.over_random)}",
            f"  in place of rejected clips, on rejected clips  {interval_words(proof.on_rejected)}",
            f"{len(proof.controls_db)} random rules of the same form: at most {largest:.2f} dB",
        ]
    return [*lines, f"verdict: {proof.verdict}" + (f" ({proof.why})" if proof.why else "")]
