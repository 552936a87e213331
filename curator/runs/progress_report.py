"""Reads and writes the progress and the plan of a run: `progress.json` and `plan.json` under OUT.

A run removes `progress.json` when it finishes. A failed run leaves its error there, and a killed
run leaves its last report.
"""

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from curator.errors import CuratorError, UsageError, one_line
from curator.executor.end_time import Expected, ProgressStep
from curator.executor.progress import Progress
from curator.executor.termination import arrived_signal
from curator.fingerprints import fingerprint
from curator.recipe import Recipe
from curator.runs.commit_run import no_lease_check
from curator.storage import Store
from curator.tables.lease_holder import read_holder, utc_now
from curator.tables.out_layout import LEASE, PLAN, PROGRESS
from curator.tables.output_format import read_summary, refuse_other_format
from curator.tables.removal_records import read_removals
from curator.tables.snapshot_store import FORMAT

REPORT_EVERY_S, PATIENCE_S = 10.0, 10.0
"""Time between reports; longest time that the end of a run waits for a report under way."""
SILENT_S = 120.0
"""Time without a sign of life after which a run is likely gone; a lease expires after as long."""
_ENDED = {signal.SIGTERM: "terminated (143)", signal.SIGHUP: "hung up (129)"}

logger = logging.getLogger(__name__)


@contextmanager
def reported(
    store: Store, progress: Progress, check: Callable[[], None] = no_lease_check
) -> Iterator[None]:
    """Reports progress while the block runs, in a thread.

    `check` raises if this run may not write to the root any more.
    """
    end = threading.Event()

    def write(**facts: object) -> None:
        report = facts | {"reported": utc_now()} | progress.state()
        try:
            check()
            store.write(PROGRESS, json.dumps(report).encode())
        except CuratorError as error:
            # The failure of a report must not end the run.
            logger.debug("progress was not reported: %s", error)

    def report() -> None:
        while not end.wait(REPORT_EVERY_S):
            write()

    def remove() -> None:
        with suppress(CuratorError):
            check()
            store.delete([PROGRESS])

    thread = threading.Thread(target=report, name="progress report", daemon=True)
    thread.start()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        end.set()
        thread.join(PATIENCE_S)
        # A run with a `UsageError` leaves no trace.
        if failure is None or isinstance(failure, UsageError):
            remove()
        else:
            why = one_line(failure) or type(failure).__name__
            if isinstance(failure, KeyboardInterrupt):
                arrived = arrived_signal() or signal.SIGINT
                why = _ENDED.get(arrived, "interrupted (130)")
            write(error=why)


def run_status(store: Store) -> dict[str, Any]:
    """Returns the last report of a run, with `state`: running, silent, failed, finished or none.

    While a lease exists, the status has `holder` and `silent_s`. The status of a finished run has
    its `summary`, and the names of `unfinished_removals`. The status of a running run has `resumes`
    instead of a report while the only report is that of an earlier attempt.
    """
    refuse_other_format(store)
    lease, progress = store.read_versioned(LEASE), store.read_versioned(PROGRESS)
    status: dict[str, Any] = {"out": store.uri}
    with suppress(ValueError, TypeError):
        status |= json.loads(progress[1]) if progress is not None else {}
    holder = read_holder(lease[1]) if lease is not None else None
    if holder is not None:
        silent_s = max(0.0, holder.silent_s())
        state = "silent" if holder.is_dead() or silent_s > SILENT_S else "running"
        if state == "running" and str(status.get("reported", holder.since)) < holder.since:
            status = {"out": store.uri, "resumes": True}
        return status | {"state": state, "holder": holder.words, "silent_s": round(silent_s, 1)}
    if progress is not None:
        return status | {"state": "failed" if "error" in status else "silent"}
    if not (summary := read_summary(store)):
        return status | {"state": "none"}
    unfinished = read_removals(store).unfinished
    return status | {"state": "finished", "summary": summary, "unfinished_removals": unfinished}


def write_plan(store: Store, plan: Mapping[str, Any], recipe: Recipe) -> None:
    """Writes `plan.json`, the plan of a run by a recipe."""
    plan = {**plan, "recipe": fingerprint(recipe.model_dump(mode="json"))}
    store.write(PLAN, json.dumps(plan, indent=1).encode() + b"\n")


def read_plan(store: Store, recipe: Recipe) -> dict[str, Any]:
    """Reads the plan of a recipe; empty if OUT has no plan, or the plan of another recipe."""
    stored, plan = store.read_versioned(PLAN), {}
    with suppress(ValueError, TypeError):
        plan = dict(json.loads(stored[1])) if stored is not None else {}
    is_own = plan.get("recipe") == fingerprint(recipe.model_dump(mode="json"))
    return plan if is_own and plan.get("format") == FORMAT else {}


def expected_of(
    plan: Mapping[str, Any], previous: Mapping[str, Any], steps: Sequence[ProgressStep]
) -> Expected:
    """Returns the expected time of each step: by the plan, by the last run, or as is typical."""
    if plan and not previous:
        reused = plan["sample"]["reused_stage_s"]
        seconds = {name: max(0.0, s - reused.get(name, 0.0)) for name, s in plan["stage_s"].items()}
        return Expected(seconds=seconds, is_planned=True)
    if previous.get("work", {}).get("sources_analyzed"):
        return Expected(seconds=previous["stage_seconds"])
    return Expected.typical(steps)
