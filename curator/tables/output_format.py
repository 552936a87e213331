"""The version of a run's output, and the treatment of other versions.

Objects of an older version are never converted:

    shards                       `verify`, `export` and the loader read them as they are
    scan, tracks, candidates     have other fingerprints: sources are scanned and analyzed again
    clips in `cuts` and shards   are used again where their fingerprint is the same
    replies, annotations         are used again where the request to the model is the same
    tables, summary, settings    `run` replaces them; `explain`, `tune` and `recaption` refuse them

An output of a newer version is refused.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from curator.errors import UsageError
from curator.storage import Store
from curator.tables.parts import SUMMARY

logger = logging.getLogger(__name__)

FORMAT = 2
"""Raised when a column or an object changes its name or its meaning. Format 1 has no number."""


def read_summary(store: Store) -> dict[str, Any]:
    """Reads the last finished run's summary, of this version or an older one; empty without a run.

    Raises:
        UsageError: A newer version wrote it.
    """
    if not store.exists(SUMMARY):
        return {}
    summary: dict[str, Any] = json.loads(store.read(SUMMARY))
    if _format(summary) > FORMAT:
        raise UsageError(
            f"{_made_by(store, summary)}; this version reads up to {FORMAT}: update curate, or "
            "name another OUT"
        )
    return summary


def read_current_summary(store: Store) -> dict[str, Any]:
    """Reads the summary of the last finished run, whose tables this version reads.

    Raises:
        UsageError: OUT has no finished run, or another version wrote it.
    """
    summary = read_summary(store)
    if not summary:
        raise UsageError(
            f"{store.uri} has no finished run (no summary.json); `curate run SOURCE... OUT` "
            "makes one"
        )
    if _format(summary) < FORMAT:
        raise UsageError(
            f"{_made_by(store, summary)}; expected {FORMAT}: `curate run SOURCE... OUT` brings it "
            "up to date, and its shards can be loaded, verified and exported as they are"
        )
    return summary


def log_older(store: Store, summary: Mapping[str, Any]) -> None:
    """Logs how a run treats an output of an older version; `summary` is empty without a run."""
    if summary and _format(summary) < FORMAT:
        logger.warning(
            "%s; this version writes %d: sources are analyzed again",
            _made_by(store, summary),
            FORMAT,
        )


def _format(summary: Mapping[str, Any]) -> int:
    return int(summary.get("format", 1))


def _made_by(store: Store, summary: Mapping[str, Any]) -> str:
    version = summary.get("curate_version", "of an unknown version")
    return f"{store.uri} was made by curate {version} in output format {_format(summary)}"
