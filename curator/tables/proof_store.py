"""Results of `curate prove`: `proofs/<hash of the rule>.json`, the newest result for each rule.

A result is of one snapshot and of one form of the rule. Readers compare both with the present ones,
and say that a result is out of date.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from curator.errors import DamagedError
from curator.fingerprints import fingerprint
from curator.storage import Store
from curator.tables.json_objects import read_json, sealed_json, to_json
from curator.tables.out_layout import PROOFS, is_own
from curator.tables.snapshot_store import NUMBER

Interval = tuple[float, float, float]
"""A difference in dB, and the ends of its interval."""

BOUNDS = ("score", "min", "max", "one_of", "none_of", "unmeasured")
"""Keys of an applied rule that decide which clips it keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What training says about a rule. All differences are in dB.

    Attributes:
        rule: The rule as the user named it.
        reasons: Reasons that the rule gives; empty for a condition.
        bounds: Keys `BOUNDS` of the rules of `filters` that give these reasons, by name of the
            rule, with bounds by quantile resolved.
        snapshot: Number of the snapshot whose clips were used.
        recipe: Fingerprint of the recipe of that snapshot.
        created_at: UTC, ISO 8601.
        settings: Settings of the trial, and its seed.
        verdict: `helps`, `no effect`, `harms`, or `too few clips`.
        why: What is lacking, for `too few clips`; else empty.
        n_clips: Clips whose footage was used: `kept`, `rejected`, and `unreadable` ones.
        n_sources: Sources of these clips: `kept` and `rejected`.
        on_kept: Gain of training on kept in place of rejected clips, for kept clips that were not
            trained on, with the ends of its interval; None for too few clips.
        over_random: The same in place of random clips.
        on_rejected: As `on_kept`, for rejected clips.
        controls_db: Gains of the null controls.
    """

    rule: str
    reasons: Sequence[str]
    bounds: Mapping[str, Mapping[str, Any]]
    snapshot: int | None
    recipe: str
    created_at: str
    settings: Mapping[str, Any]
    verdict: str
    why: str
    n_clips: Mapping[str, int]
    n_sources: Mapping[str, int]
    on_kept: Interval | None
    over_random: Interval | None
    on_rejected: Interval | None
    controls_db: Sequence[float]

    @property
    def key(self) -> str:
        """The name of the object under the output root."""
        return f"{PROOFS}/{fingerprint(list(self.reasons) or self.rule)}.json"

    def stale_words(self, summary: Mapping[str, Any]) -> str:
        """Says what has changed since the proof was made; empty if it is up to date."""
        if self.bounds != bounds_now(summary, self.bounds):
            return "out of date: the rule has changed since"
        if self.snapshot != summary.get(NUMBER):
            return f"out of date: of snapshot {self.snapshot}"
        return ""

    def words(self, summary: Mapping[str, Any]) -> str:
        """Returns the verdict in a line, for a page about the run with this summary."""
        words = f"by training (curate prove): {self.verdict}"
        if self.on_kept is not None:
            words += f", {interval_words(self.on_kept)}"
        stale = self.stale_words(summary)
        return f"{words} ({stale})" if stale else words


def interval_words(values: Sequence[float]) -> str:
    """Formats a difference in dB with the ends of its interval."""
    value, low, high = (round(number, 2) + 0.0 for number in values)
    return f"{value:+.2f} dB ({low:+.2f} to {high:+.2f})"


def bounds_now(summary: Mapping[str, Any], rules: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns keys `BOUNDS` of rules as the run of a summary applied them, by name of the rule."""
    settings = (summary.get("recipe") or {}).get("filters") or {}
    applied = {fact["rule"]: fact for fact in summary.get("rules") or ()}
    facts = {name: {**settings.get(name, {}), **applied.get(name, {})} for name in rules}
    return {
        name: {key: rule[key] for key in BOUNDS if rule.get(key) is not None}
        for name, rule in facts.items()
    }


def write_proof(store: Store, proof: Proof) -> str:
    """Stores a proof in place of an earlier one of the rule; returns the name of the object."""
    store.write(proof.key, sealed_json(asdict(proof), to_json, proof.key))
    return proof.key


def read_proofs(store: Store) -> list[Proof]:
    """Reads the proofs of an output, the oldest first; skips unreadable files."""
    proofs = []
    for info in store.list(f"{PROOFS}/"):
        if not is_own(info.key):
            continue
        try:
            proofs.append(TypeAdapter(Proof).validate_python(read_json(store, info.key)))
        except (DamagedError, ValidationError):
            # A proof is made again by its command.
            continue
    return sorted(proofs, key=lambda proof: proof.created_at)


def by_reason(proofs: Iterable[Proof], summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns the words of the newest proof for each reason; conditions are of no reason."""
    return {reason: proof.words(summary) for proof in proofs for reason in proof.reasons}
