"""One writer at a time for an output root.

A run that writes creates `lease.json` under OUT, renews it while it lives, and removes it at the
end. Creating and renewing are conditional writes, so of two runs at once one gets the root, and one
that was taken over notices. No two machines' clocks are compared: whoever wants to take over waits
until the object has not changed for the time of expiry, by its own clock. The holder counts that
time too, from before its last renewal, and stops earlier.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from curator.errors import LeaseLostError, StorageError, UnconditionalStoreError, UsageError
from curator.executor.cpu_accounting import Heartbeat
from curator.runs.lease_holder import IN_THIS_PROCESS, Holder, read_holder, this_process, utc_now
from curator.storage import Store
from curator.tables.out_layout import LEASE

RENEW_S = 20.0
EXPIRES_S = 120.0
"""Five renewals may fail: requests to a store that is overloaded take up to a minute each."""
STALLED_S = 1800.0
"""Time without progress after which a run does not renew its lease any more."""
_STOPS_AT = 0.75
"""Share of the time of expiry after which a holder that could not renew writes no more."""
_RELEASED_S = 5.0
"""How long the object of a run that has ended may take to vanish."""
_CONFIRMED_S = 5.0
"""A check that is younger need not be repeated: a lease that was just held has not expired."""
_LOOKS = 4
"""Readings of the object, which a network may have damaged, before a holder gives up."""
_PATIENCE_S = 10.0
"""Most time that a release may take: the network may be gone."""

logger = logging.getLogger(__name__)


@contextmanager
def held(store: Store, command: str) -> "Iterator[Lease]":
    """Holds an output root while the block runs.

    A possibly dead holder is waited for, at most for the time of expiry.

    Args:
        store: Output root.
        command: The subcommand, for others to see.

    Raises:
        UsageError: Another run holds it.
        StorageError: It cannot be written.
    """
    mine = this_process(command, EXPIRES_S)
    IN_THIS_PROCESS.add(mine.holder)
    try:
        try:
            version, begun = _taken(store, mine)
        except UnconditionalStoreError as error:
            _warn_unguarded(store, error)
            yield Lease(store, mine, "", 0.0, is_guarded=False)
            return
        lease = Lease(store, mine, version, begun)
        lease.start()
        try:
            yield lease
        finally:
            lease.stop()
    finally:
        IN_THIS_PROCESS.discard(mine.holder)


class Lease:
    """A root that is held; made by `held`.

    Args:
        store: Output root.
        mine: This process.
        version: Of the object.
        begun: When the request began that wrote it.
        is_guarded: Whether the store supports this at all.
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
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def follow(self, heartbeat: Heartbeat) -> None:
        """Renews only while there is progress from here on."""
        heartbeat.beat()
        self._heartbeat = heartbeat

    def check(self, *, beats: bool = True) -> None:
        """Makes sure that the root is held still; to be called before each step of a commit.

        Args:
            beats: Whether the call is a sign of progress.

        Raises:
            LeaseLostError: It is not, or that cannot be confirmed.
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
                    self._look()
                    self._confirmed = begun
                else:
                    self._renew()
            silent_s = _now() - self._renewed
            if self._lost is None and self._is_guarded and silent_s >= _STOPS_AT * EXPIRES_S:
                self._lost = f"{LEASE} could not be renewed for {silent_s:.0f} s"
            if self._lost is not None:
                raise LeaseLostError(self._store.uri, self._lost)

    def start(self) -> None:
        """Begins to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Releases the root, unless another run has it."""
        self._ending.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self._warn_left("the store does not answer")

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
        """Returns whether there was no progress for long, and says so once."""
        idle_s = self._heartbeat.idle_s() if self._heartbeat is not None else 0.0
        before, self._is_stalled = self._is_stalled, idle_s >= STALLED_S
        if self._is_stalled and not before:
            logger.warning(
                "no progress for %.0f min: no result came, and neither this process nor a worker "
                "used a core; %s/%s is not renewed until there is some, so that in %g s another "
                "run may take over; end this one and run the same command, which resumes",
                idle_s / 60,
                self._store.uri,
                LEASE,
                EXPIRES_S,
            )
        return self._is_stalled

    def _renew(self) -> bool:
        """Writes a sign of life; returns whether that is settled, for good or ill."""
        begun, mine = _now(), replace(self._mine, renewed=utc_now())
        try:
            info = self._store.replace(LEASE, mine.to_bytes(), self._version)
            if info is None:
                # A response may have been lost before, so that the version is not the known one.
                self._look()
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

    def _look(self) -> None:
        """Takes up the version of the object; notes whose it is if it is another's."""
        for _ in range(_LOOKS):
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
        """Removes the object; first marks it, because a removal cannot have a condition."""
        released = replace(self._mine, state="released").to_bytes()
        try:
            for _ in range(2):
                if self._is_guarded:
                    is_marked = self._store.replace(LEASE, released, self._version) is not None
                else:
                    self._look()
                    is_marked = self._lost is None
                if is_marked:
                    self._store.delete([LEASE])
                    return
                self._look()
                if self._lost is not None:
                    return
        except StorageError as error:
            self._warn_left(str(error))

    def _warn_left(self, why: str) -> None:
        logger.warning(
            "%s/%s was not removed (%s); the next run may have to wait for %g s",
            self._store.uri,
            LEASE,
            why,
            EXPIRES_S,
        )


def _taken(store: Store, mine: Holder) -> tuple[str, float]:
    """Creates the object, or takes over that of a run that has ended.

    Returns:
        Its version, and the time before it was written.

    Raises:
        UsageError: Its holder lives.
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
    """Waits until the object may be taken over.

    Returns:
        Its version; None if it is gone.

    Raises:
        UsageError: Its holder lives.
    """
    watched, since = "", 0.0
    while (entry := store.read_versioned(LEASE)) is not None:
        version, holder = entry[0].version, read_holder(entry[1])
        patience_s = _patience_s(holder)
        if version != watched:
            if holder is not None and _lives(holder, has_changed=bool(watched)):
                raise _busy(store, holder)
            if patience_s and (holder is None or holder.state != "released"):
                _say_waiting(store, holder, patience_s)
            watched, since = version, _now()
        if _now() - since >= patience_s:
            return version
        time.sleep(min(1.0, patience_s / 20))
    return None


def _patience_s(holder: Holder | None) -> float:
    """How long the object has to stay unchanged before it is taken over."""
    if holder is None:
        # It is being written, or damaged.
        return EXPIRES_S
    if holder.is_dead():
        return 0.0
    if holder.state == "released":
        return _RELEASED_S
    return max(0.0, min(holder.expires_s, 10 * EXPIRES_S))


def _lives(holder: Holder, *, has_changed: bool) -> bool:
    """Whether a holder is surely alive, or likely by the clocks of both machines."""
    if holder.state == "released" or holder.is_dead():
        return False
    return has_changed or abs(holder.silent_s()) < 2 * RENEW_S


def _busy(store: Store, holder: Holder) -> UsageError:
    return UsageError(
        f"{store.uri} is being written by another run: {holder.words} (last sign of life "
        f"{max(0.0, holder.silent_s()):.0f} s ago); wait until it has ended, or stop it. If it is "
        f"gone already, run again in a minute: {holder.expires_s:g} s after its last sign of life "
        "this command takes over"
    )


def _say_waiting(store: Store, holder: Holder | None, patience_s: float) -> None:
    logger.warning(
        "%s is held by %s without a sign of life; waiting for one, for %g s at most",
        store.uri,
        "an unknown run" if holder is None else holder.words,
        patience_s,
    )


def _warn_unguarded(store: Store, error: Exception) -> None:
    logger.warning("two runs at once into %s would not notice each other: %s", store.uri, error)


def _now() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
