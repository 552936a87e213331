"""One writer at a time for an output root.

A run that writes creates `lease.json` under OUT, renews it while it lives, and removes it at the
end. Creating and renewing are conditional writes. So if two runs start at once, only one gets the
root. A run that lost the root to another run notices the loss when it renews or checks its lease.

A takeover never compares the clocks of two machines. A run that wants to take over waits, by its
own clock, until the object has not changed for `Holder.expires_s`. The holder measures the time
since it began its last renewal, by its own clock, and stops writing before the other run takes
over.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from curator.errors import LeaseLostError, StorageError, UnconditionalStoreError, UsageError
from curator.executor.cpu_accounting import Heartbeat
from curator.executor.termination import begin_ending, uninterrupted
from curator.storage import Store
from curator.tables.lease_holder import (
    IN_THIS_PROCESS,
    Holder,
    read_holder,
    this_process,
    utc_now,
)
from curator.tables.out_layout import LEASE

RENEW_S = 20.0
EXPIRES_S = 120.0
"""Time without a sign of life after which another run may take over. It is long enough for several
attempts to renew: a request to an overloaded store takes up to a minute."""
STALLED_S = 1800.0
"""Time without progress after which a run does not renew its lease any more."""
_STOPS_AT = 0.75
"""Share of `EXPIRES_S`. A holder that could not renew for this long writes no more."""
_RELEASED_S = 5.0
"""Longest wait until the object of a released lease is removed."""
_CONFIRMED_S = 5.0
"""Age up to which `Lease.check` reuses its last result; a lease takes much longer to expire."""
_READ_ATTEMPTS = 4
"""Attempts to read the object before a holder gives up. The network may damage a single read."""
_PATIENCE_S = 10.0
"""Longest wait for a release. If the network is gone, the release may never end."""


logger = logging.getLogger(__name__)


@contextmanager
def acquire_lease(store: Store, command: str) -> "Iterator[Lease]":
    """Holds an output root while the block runs; other runs see the name of the command.

    If the present holder may be dead, waits for a sign of life, at most until its lease expires.

    Raises:
        UsageError: Another run holds the root.
        StorageError: The root cannot be written.
    """
    mine = this_process(command, EXPIRES_S)
    IN_THIS_PROCESS.add(mine.holder)
    lease: Lease | None = None
    try:
        try:
            version, begun = _taken(store, mine)
        except UnconditionalStoreError as error:
            _warn_unguarded(store, error)
            lease = Lease(store, mine, "", 0.0, is_guarded=False)
        else:
            lease = Lease(store, mine, version, begun)
            lease.thread.start()
        yield lease
    except KeyboardInterrupt:
        begin_ending()
        if lease is None:
            # The object may have been written before the signal came.
            lease = Lease(store, mine, "", 0.0)
        raise
    finally:
        if lease is not None:
            lease.stop()
        IN_THIS_PROCESS.discard(mine.holder)


class Lease:
    """The lease of this run on an output root; `acquire_lease` creates it.

    `begun` is when the request for the root began, and `version` is the version of the object.
    `is_guarded` is False if the store does not support conditional writes.
    """

    def __init__(
        self, store: Store, mine: Holder, version: str, begun: float, *, is_guarded: bool = True
    ) -> None:
        self._store, self._mine, self._version = store, mine, version
        self._renewed = self._confirmed = begun
        self._is_guarded = is_guarded
        self._lost: str | None = None
        self._heartbeat: Heartbeat | None = None
        self._is_stalled = False
        self._lock = threading.RLock()
        self._ending = threading.Event()
        self.thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        """Renews the lease, and releases it at the end."""

    def follow(self, heartbeat: Heartbeat) -> None:
        """From now on, renews the lease only while there is progress."""
        heartbeat.beat()
        self._heartbeat = heartbeat

    def check(self, *, beats: bool = True) -> None:
        """Makes sure that this run still holds the root; call it before each step of a commit.

        The call is a sign of progress unless `beats` is False.

        Raises:
            LeaseLostError: The run does not hold the root any more, or cannot confirm that it does.
            StorageError: The object cannot be read.
        """
        if self._heartbeat is not None and beats:
            self._heartbeat.beat()
        with self._lock:
            if not self._is_guarded:
                return
            begun = _now()
            if self._lost is None and begun - self._confirmed >= _CONFIRMED_S:
                if begun - self._renewed < 1.5 * RENEW_S:
                    self._read()
                    self._confirmed = begun
                else:
                    self._renew()
            silent_s = _now() - self._renewed
            if self._lost is None and self._is_guarded and silent_s >= _STOPS_AT * EXPIRES_S:
                self._lost = f"{LEASE} could not be renewed for {silent_s:.0f} s"
            if self._lost is not None:
                raise LeaseLostError(self._store.uri, self._lost)

    def stop(self) -> None:
        """Releases the root, unless another run has it."""
        if self.thread.ident is None:
            if self._is_guarded:
                self._release_if_own()
            return
        with uninterrupted():
            self._ending.set()
            self.thread.join(_PATIENCE_S)
            if self.thread.is_alive():
                self._warn_left("the store does not answer")

    def _release_if_own(self) -> None:
        """Releases the root if its object names this run."""
        with suppress(StorageError):
            entry = self._store.read_versioned(LEASE)
            holder = read_holder(entry[1]) if entry is not None else None
            if entry is not None and holder is not None and holder.holder == self._mine.holder:
                self._version = entry[0].version
                self._release()

    def _beat(self) -> None:
        pause_s = RENEW_S
        while not self._ending.wait(pause_s):
            with self._lock:
                if self._lost is not None or not self._is_guarded:
                    break
                pause_s = RENEW_S if self._stalls() or self._renew() else RENEW_S / 4
        self._ending.wait()
        with self._lock:
            if self._lost is None:
                self._release()

    def _stalls(self) -> bool:
        """Returns whether there was no progress for `STALLED_S`; warns once."""
        idle_s = self._heartbeat.idle_s() if self._heartbeat is not None else 0.0
        before, self._is_stalled = self._is_stalled, idle_s >= STALLED_S
        if self._is_stalled and not before:
            logger.warning(
                "no progress for %.0f min: no result came, and neither this process nor a worker "
                "used a core. Until there is progress, %s/%s is not renewed, and another run may "
                "take over in %g s. End this run, and run the same command again: it resumes",
                idle_s / 60, self._store.uri, LEASE, EXPIRES_S,
            )  # fmt: skip
        return self._is_stalled

    def _renew(self) -> bool:
        """Writes a sign of life; returns False if the next attempt should come soon."""
        begun, mine = _now(), replace(self._mine, renewed=utc_now())
        try:
            info = self._store.replace(LEASE, mine.to_bytes(), self._version)
            if info is None:
                # If the response to an earlier write was lost, `_version` is out of date.
                self._read()
                return self._lost is not None
        except UnconditionalStoreError as error:
            _warn_unguarded(self._store, error)
            self._is_guarded = False
            return True
        except StorageError as error:
            logger.info("%s was not renewed: %s", LEASE, error)
            return False
        self._version, self._renewed, self._confirmed = info.version, begun, begun
        return True

    def _read(self) -> None:
        """Reads the object: notes its version, or why this run has lost the root."""
        for _ in range(_READ_ATTEMPTS):
            entry = self._store.read_versioned(LEASE)
            if entry is None:
                self._lost = f"{LEASE} is gone"
                break
            holder = read_holder(entry[1])
            if holder is not None and holder.holder == self._mine.holder:
                self._version = entry[0].version
                return
            if holder is not None:
                self._lost = f"it was taken over by {holder.words}"
                break
        else:
            self._lost = f"{LEASE} was written over"
        logger.error("%s", LeaseLostError(self._store.uri, self._lost))

    def _release(self) -> None:
        """Marks the object as released, and then removes it.

        A store has conditional writes, but no conditional removal. Therefore this method first
        writes `released` under the condition that the object has not changed. Success proves that
        this run still holds the root, so the method may remove the object.
        """
        released = replace(self._mine, state="released").to_bytes()
        try:
            for _ in range(2):
                if self._is_guarded:
                    is_marked = self._store.replace(LEASE, released, self._version) is not None
                else:
                    self._read()
                    is_marked = self._lost is None
                if is_marked:
                    self._store.delete([LEASE])
                    return
                self._read()
                if self._lost is not None:
                    return
        except StorageError as error:
            self._warn_left(str(error))

    def _warn_left(self, why: str) -> None:
        logger.warning(
            "%s/%s was not removed (%s); the next run may have to wait for %g s",
            self._store.uri, LEASE, why, EXPIRES_S,
        )  # fmt: skip


def _taken(store: Store, mine: Holder) -> tuple[str, float]:
    """Creates the object, or takes over the object of a run that has ended.

    Returns the object's version, and the time at which the write began.
    """
    while True:
        begun, data = _now(), replace(mine, renewed=utc_now()).to_bytes()
        info = store.write_new(LEASE, data)
        if info is None and (version := _abandoned(store)) is not None:
            begun, data = _now(), replace(mine, renewed=utc_now()).to_bytes()
            info = store.replace(LEASE, data, version)
        if info is not None:
            return info.version, begun


def _abandoned(store: Store) -> str | None:
    """Waits until the object may be taken over; returns its version, or None if it is gone.

    Raises `UsageError` if the holder is alive.
    """
    watched, since = "", 0.0
    while (entry := store.read_versioned(LEASE)) is not None:
        version, holder = entry[0].version, read_holder(entry[1])
        patience_s = _patience_s(holder)
        if version != watched:
            if holder is not None and _lives(holder, has_changed=bool(watched)):
                raise _busy(store, holder)
            if patience_s and (holder is None or holder.state != "released"):
                logger.warning(
                    "%s is held by %s, which gives no sign of life; waiting for at most %g s",
                    store.uri, "an unknown run" if holder is None else holder.words, patience_s,
                )  # fmt: skip
            watched, since = version, _now()
        if _now() - since >= patience_s:
            return version
        time.sleep(min(1.0, patience_s / 20))
    return None


def _patience_s(holder: Holder | None) -> float:
    """Returns how long the object must stay unchanged before a run takes it over."""
    if holder is None:
        # Another run is writing the object, or the object is damaged.
        return EXPIRES_S
    if holder.is_dead():
        return 0.0
    if holder.state == "released":
        return _RELEASED_S
    return max(0.0, min(holder.expires_s, 10 * EXPIRES_S))


def _lives(holder: Holder, *, has_changed: bool) -> bool:
    """Returns whether a holder is alive.

    The holder is surely alive if its object has changed. It is likely alive if its last sign of
    life is recent, by the clocks of both machines.
    """
    if holder.state == "released" or holder.is_dead():
        return False
    return has_changed or abs(holder.silent_s()) < 2 * RENEW_S


def _busy(store: Store, holder: Holder) -> UsageError:
    return UsageError(
        f"{store.uri} is being written by another run: {holder.words} (last sign of life "
        f"{max(0.0, holder.silent_s()):.0f} s ago); wait until it has ended, or stop it. If the "
        "other run is gone already, run this command again in a minute: it takes over after "
        f"{holder.expires_s:g} s without a sign of life"
    )


def _warn_unguarded(store: Store, error: Exception) -> None:
    logger.warning(
        "if another run writes into %s at the same time, neither run notices the other: %s",
        store.uri, error,
    )  # fmt: skip


def _now() -> float:
    """Seconds of a monotonic clock; `CLOCK_BOOTTIME` includes the time that the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
