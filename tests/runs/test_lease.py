"""One writer per output root: of two runs one refuses, and who lost the root commits nothing."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from place import Place, sets, write_films

from curator.cli import main
from curator.errors import LeaseLostError, StorageError, UnconditionalStoreError, UsageError
from curator.executor import cpu_accounting as heartbeat_module
from curator.executor.cpu_accounting import Heartbeat
from curator.runs import lease
from curator.storage import Store, open_store
from curator.storage.local_store import LocalStore
from curator.tables import lease_holder
from curator.tables.lease_holder import Holder, read_holder, this_process
from curator.tables.out_layout import LEASE
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_OK, EXIT_TERMINATED, EXIT_USAGE

RENEW_S, EXPIRES_S = 0.3, 1.5
RUN_RENEW_S, RUN_EXPIRES_S = 0.5, 5.0
"""Of whole runs, whose threads wait for a core now and then."""
HOLDER = """
import sys
from curator.errors import UsageError
from curator.runs.lease import acquire_lease
from curator.storage import open_store
store = open_store(sys.argv[1])
{}
try:
    with acquire_lease(store, 'run'):
        {}
except UsageError:
    print('refused', flush=True)
"""
"""Does something, then holds a root while it does another thing."""
COMMAND = f"""
import os, sys, time
from curator.cli import main
from curator.runs import lease
from curator.runs import one_pass
lease.RENEW_S, lease.EXPIRES_S = {RUN_RENEW_S}, {RUN_EXPIRES_S}
commit_run = one_pass.commit_run
def waiting(run):
    open(sys.argv[1] + ".reached", "x").close()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    return commit_run(run)
one_pass.commit_run = waiting
sys.exit(main(sys.argv[2:]))
"""
"""Runs, and waits before the commit until a file is there."""

ROOTS = ["local", "s3", pytest.param("real_s3", marks=pytest.mark.needs_s3)]
RUN_ROOTS = [
    "local",
    pytest.param("s3", marks=pytest.mark.long),
    pytest.param("real_s3", marks=[pytest.mark.needs_s3, pytest.mark.long]),
]
"""Of whole runs: what they ask of a lease is tested on each kind of root above."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", RENEW_S)
    monkeypatch.setattr(lease, "EXPIRES_S", EXPIRES_S)
    monkeypatch.setattr(lease, "_RELEASED_S", 0.5)
    monkeypatch.setattr(lease, "_CONFIRMED_S", 0.0)


@pytest.fixture(params=[*ROOTS, "az"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "local":
            return str(tmp_path / "out")
        case "az":
            return f"az://{request.getfixturevalue('az_container')}/out"
        case "s3":
            return f"s3://{request.getfixturevalue('s3_bucket')}/out"
        case _:
            return f"s3://{request.getfixturevalue('real_s3_bucket')}/out"


@pytest.fixture
def store(root: str) -> Store:
    return open_store(root)


def holder_of(store: Store) -> Holder:
    found = read_holder(store.read(LEASE))
    assert found is not None
    return found


def elsewhere(*, silent_s: float) -> Holder:
    """A holder of another machine."""
    renewed = (datetime.now(UTC) - timedelta(seconds=silent_s)).isoformat()
    mine = this_process("recaption", EXPIRES_S)
    return replace(mine, host="far away", machine="another", renewed=renewed)


def test_a_root_is_held_renewed_and_left_as_it_was(store: Store, short: None) -> None:
    store.write("a", b"x")
    before = list(store.list())
    with lease.acquire_lease(store, "run") as mine:
        mine.check()
        first = holder_of(store)
        assert (first.command, first.pid, first.state) == ("run", os.getpid(), "held")
        time.sleep(4 * RENEW_S)
        assert holder_of(store).renewed > first.renewed
        assert holder_of(store).since == first.since
        mine.check()
    assert list(store.list()) == before


def test_a_second_run_is_refused_and_told_by_whom(store: Store, short: None) -> None:
    said = (
        rf"being written by another run: `curate run` of .* process {os.getpid()}, since 20.*wait "
        "until it has ended, or stop it"
    )
    with lease.acquire_lease(store, "run") as mine:
        time.sleep(EXPIRES_S + RENEW_S)
        with pytest.raises(UsageError, match=said) as caught, lease.acquire_lease(store, "run"):
            pass
        assert "\n" not in str(caught.value)
        mine.check()
    with lease.acquire_lease(store, "run"):
        pass


def test_of_processes_at_once_one_holds_the_root(root: str, store: Store) -> None:
    if root.startswith("s3") and "real" not in os.environ.get("AWS_ENDPOINT_URL", "real"):
        pytest.skip("moto looks and writes in two steps")
    code = HOLDER.format(
        "sys.stdin.readline()", "print('held', flush=True)\n        sys.stdin.readline()"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, root], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
    said = [run.stdout.readline().strip() for run in runs if run.stdout is not None]
    assert sorted(said) == ["held", "refused"]
    for run in runs:
        run.communicate("\n")
        assert run.returncode == 0
    assert list(store.list()) == []


def test_a_killed_holder_on_this_machine_is_replaced_at_once(store: Store, root: str) -> None:
    code = HOLDER.format("", "import os; os.kill(os.getpid(), 9)")
    # Not waited for, so that it stays as a zombie.
    killed = subprocess.Popen([sys.executable, "-c", code, root])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    assert holder_of(store).pid == killed.pid
    begun = time.monotonic()
    with lease.acquire_lease(store, "run"):
        assert holder_of(store).pid == os.getpid()
    assert time.monotonic() - begun < 5
    assert killed.wait() == -signal.SIGKILL
    assert not store.exists(LEASE)


def test_a_later_process_with_the_number_of_a_dead_one_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = this_process("run", EXPIRES_S)
    # As a run of this process that ended while it could not reach its root.
    assert mine.is_dead()
    monkeypatch.setattr(lease_holder, "IN_THIS_PROCESS", {mine.holder})
    assert not mine.is_dead()
    assert replace(mine, started="1").is_dead()
    assert replace(mine, pid=2**22 + 1).is_dead()
    assert not replace(mine, pid=2**22 + 1, machine="another").is_dead()


@pytest.mark.parametrize("silent_s", [60.0, -3600.0], ids=["silent", "clock_ahead"])
def test_a_silent_holder_elsewhere_is_waited_for_and_replaced(
    store: Store, short: None, silent_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(LEASE, elsewhere(silent_s=silent_s).to_bytes())
    begun = time.monotonic()
    with lease.acquire_lease(store, "run") as mine:
        assert EXPIRES_S <= time.monotonic() - begun < EXPIRES_S + 3
        mine.check()
    assert "`curate recaption` of" in caplog.text
    assert "on far away" in caplog.text
    assert not store.exists(LEASE)


def test_a_holder_elsewhere_that_was_alive_just_now_is_not_waited_for(
    store: Store, short: None
) -> None:
    theirs = elsewhere(silent_s=0.0).to_bytes()
    store.write(LEASE, theirs)
    with pytest.raises(UsageError, match="on far away"), lease.acquire_lease(store, "run"):
        pass
    assert store.read(LEASE) == theirs


@pytest.mark.parametrize("silent_s", [60.0, -3600.0])
def test_a_holder_whose_clock_is_wrong_and_who_renews_is_not_replaced(
    tmp_path: Path, short: None, silent_s: float
) -> None:
    store = open_store(str(tmp_path))
    store.write(LEASE, elsewhere(silent_s=silent_s).to_bytes())
    ending = threading.Event()

    def renew() -> None:
        while not ending.wait(RENEW_S):
            store.write(LEASE, elsewhere(silent_s=silent_s).to_bytes())

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(UsageError, match="on far away"), lease.acquire_lease(store, "run"):
            pass
    finally:
        ending.set()
        thread.join()


@pytest.mark.parametrize(
    ("left", "least_s"),
    [(b"", EXPIRES_S), (b"{", EXPIRES_S), (b'{"holder": 1}', EXPIRES_S), (b"[]", EXPIRES_S),
     ("released", 0.5)],
)  # fmt: skip
def test_what_a_damaged_lease_or_a_release_that_broke_off_leaves_is_waited_for_and_replaced(
    tmp_path: Path, short: None, left: bytes | str, least_s: float
) -> None:
    store = open_store(str(tmp_path))
    released = replace(elsewhere(silent_s=0), state="released").to_bytes()
    store.write(LEASE, left if isinstance(left, bytes) else released)
    begun = time.monotonic()
    with lease.acquire_lease(store, "run"):
        assert least_s <= time.monotonic() - begun < least_s + 1.0
    assert list(store.list()) == []


@pytest.mark.parametrize("change", ["taken", "removed", "damaged"])
def test_a_holder_that_lost_its_root_may_not_write_and_removes_nothing(
    store: Store, short: None, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = elsewhere(silent_s=0.0).to_bytes() if change == "taken" else b"damaged"
    words = {"taken": "taken over by `curate recaption`", "removed": "is gone",
             "damaged": "was written over"}[change]  # fmt: skip
    with lease.acquire_lease(store, "run") as mine:
        if change == "removed":
            store.delete([LEASE])
        else:
            store.write(LEASE, theirs)
        with pytest.raises(LeaseLostError, match=words):
            mine.check()
        with pytest.raises(LeaseLostError, match=words):
            mine.check()
    assert [store.read(LEASE)] == [theirs] if change != "removed" else not list(store.list())
    assert words in caplog.text


def test_a_holder_that_cannot_renew_stops_before_others_may_begin(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))

    def fails(*_: object) -> None:
        raise StorageError("cannot write: the network is gone")

    begun = time.monotonic()
    with lease.acquire_lease(store, "run") as mine:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "replace", fails)
            with pytest.raises(LeaseLostError, match="could not be renewed"):  # noqa: PT012
                while True:
                    mine.check()
                    time.sleep(0.05)
        assert 0.5 * EXPIRES_S < time.monotonic() - begun < EXPIRES_S


def test_a_run_without_progress_renews_no_more_and_says_so(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that a run that waits for good does not keep others out for good."""
    monkeypatch.setattr(lease, "STALLED_S", 0.6)
    store = open_store(str(tmp_path / "out"))

    # The driver of a run that waits does nothing itself; this one reads in a loop.
    monkeypatch.setattr(heartbeat_module, "BUSY_SHARE", float("inf"))
    heartbeat = Heartbeat()

    def versions(seconds: float) -> set[bytes]:
        found, ends = set(), time.monotonic() + seconds
        while time.monotonic() < ends:
            found.add(store.read(LEASE))
            time.sleep(0.05)
        return found

    with lease.acquire_lease(store, "run") as held:
        held.follow(heartbeat)
        for _ in range(20):
            heartbeat.beat()
            time.sleep(0.05)
        assert "no progress" not in caplog.text
        time.sleep(0.6 + RENEW_S)
        assert len(versions(3 * RENEW_S)) == 1
        assert caplog.text.count("no progress for 0 min") == 1
        # A result came after all, and no other run has taken over.
        heartbeat.beat()
        assert len(versions(0.5)) > 1
        held.check()


def test_a_failure_between_renewals_costs_nothing(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    renew, failures = LocalStore.replace, [1, 1]

    def fails(self: LocalStore, key: str, data: bytes, version: str) -> object:
        if failures:
            failures.pop()
            raise StorageError("cannot write: the network is gone")
        return renew(self, key, data, version)

    monkeypatch.setattr(LocalStore, "replace", fails)
    with lease.acquire_lease(store, "run") as mine:
        time.sleep(2 * EXPIRES_S)
        assert not failures
        mine.check()
    assert list(store.list()) == []


def test_a_store_without_conditions_is_used_with_a_warning(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))

    def refuses(*_: object) -> None:
        raise UnconditionalStoreError("the server does not support conditional writes")

    monkeypatch.setattr(LocalStore, "replace", refuses)
    with lease.acquire_lease(store, "run") as mine:
        time.sleep(3 * RENEW_S)
        mine.check()
    assert list(store.list()) == []
    monkeypatch.setattr(LocalStore, "write_new", refuses)
    with lease.acquire_lease(store, "run") as mine:
        mine.check()
    assert caplog.text.count("neither run notices the other") == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run alone; not to be changed."""
    folder = tmp_path_factory.mktemp("leased")
    place = Place(write_films(folder / "in", (70,)), folder / "out")
    place.run()
    return place


ANALYZED = ("scan/", "tracks/", "candidates/", "hashes/")
"""Folders of what a run needs no network for, once it is there."""


def arguments(finished: Place, root: str) -> list[str]:
    """The command of a run, of which only the output root differs."""
    named = ["run", "--recipe", "quickstart", str(finished.sources), root]
    return [*named, *sets(Place.settings)]


@pytest.fixture
def begin(finished: Place, tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts `curate run`, which waits before its commit for the file `go`.

    The source is analyzed already, so that no process loads a network.
    """
    begun: list[subprocess.Popen[str]] = []

    def start(root: str) -> "subprocess.Popen[str]":
        store = open_store(root)
        if not store.exists("summary.json"):
            for info in open_store(str(finished.out)).list():
                if info.key.startswith(ANALYZED):
                    store.write(info.key, (finished.out / info.key).read_bytes())
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(tmp_path / "go"), *arguments(finished, root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        while not (tmp_path / "go.reached").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def pause(process: "subprocess.Popen[str]", store: Store) -> None:
    """Stops a process at a moment when it does not hold the lock that a local root has."""
    held = Path(store.uri, LEASE)
    while True:
        process.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)
        inode = f":{held.stat().st_ino}" if held.exists() else "none"
        locks = Path("/proc/locks").read_text().splitlines()
        if not any(f" {process.pid} " in lock and f"{inode} " in lock for lock in locks):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)


def ended(process: "subprocess.Popen[str]", code: int) -> str:
    """Waits for the end; returns what was logged, without the progress."""
    _, said = process.communicate(timeout=240)
    assert process.returncode == code, said
    return "\n".join(line for line in said.splitlines() if not line.startswith("curate 0:"))


Begin = Callable[[str], "subprocess.Popen[str]"]


def assert_as_alone(store: Store, finished: Place) -> None:
    """The shards are those of a run alone, in the same folders."""
    keys = [info.key for info in store.list()]
    shards = {
        key: hashlib.sha256(store.read(key)).hexdigest()
        for key in keys
        if key.startswith("shards/")
    }
    assert shards == finished.files()
    # Sources that were young when they were probed are probed again, and not stored.
    folders = {name.split("/")[0] for name in finished.files("")}
    assert {key.split("/")[0] for key in keys} - {"scan"} == folders - {"scan"}


@pytest.mark.parametrize("root", RUN_ROOTS, indirect=True)
def test_of_two_runs_one_refuses_and_the_other_is_as_if_alone(
    root: str,
    store: Store,
    begin: Begin,
    finished: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = begin(root)
    before = {info.key for info in store.list()}
    assert main(arguments(finished, root)) == EXIT_USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert f"process {first.pid}, since 20" in said
    assert {info.key for info in store.list()} == before
    (tmp_path / "go").touch()
    assert ended(first, EXIT_OK) == ""
    assert_as_alone(store, finished)
    assert main(["verify", root]) == EXIT_OK


@pytest.mark.long
def test_commands_that_read_work_while_a_run_holds_the_root_and_sigterm_leaves_no_lease(
    begin: Begin, finished: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(shutil.copytree(finished.out, tmp_path / "out"))
    clip = finished.clips()[0]["clip_id"]
    first = begin(root)
    assert (tmp_path / "out" / LEASE).exists()
    for command in (
        [*arguments(finished, root), "--dry-run"],
        ["verify", root],
        ["explain", root, clip],
        ["tune", root, "filters.motion.min=0"],
        ["export", root, str(tmp_path / "exported"), "--format", "parquet"],
    ):
        assert main(command) == EXIT_OK, (command, capsys.readouterr())
        assert LEASE not in "".join(capsys.readouterr())
    assert main(["recaption", root, "--set", "caption.enabled=false"]) == EXIT_USAGE
    assert "being written by another run: `curate run` of" in capsys.readouterr().err
    first.terminate()
    ended(first, EXIT_TERMINATED)
    assert not (tmp_path / "out" / LEASE).exists()


@pytest.mark.long
@pytest.mark.parametrize("root", RUN_ROOTS, indirect=True)
def test_a_paused_run_that_lost_its_root_commits_nothing(
    root: str,
    store: Store,
    begin: Begin,
    finished: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", RUN_RENEW_S)
    monkeypatch.setattr(lease, "EXPIRES_S", RUN_EXPIRES_S)
    first = begin(root)
    pause(first, store)
    (tmp_path / "go").touch()
    time.sleep(2 * RUN_RENEW_S)
    assert main(arguments(finished, root)) == EXIT_OK
    assert "gives no sign of life; waiting for at most" in caplog.text
    objects = list(store.list())
    assert_as_alone(store, finished)
    first.send_signal(signal.SIGCONT)
    said = ended(first, EXIT_BROKEN_OFF)
    assert f"this run does not hold {root} any more" in said
    assert list(store.list()) == objects


def test_a_flipped_bit_does_not_make_the_lease_anothers() -> None:
    """Pins that a holder whose id was read wrongly is no holder."""
    data = this_process("run", 120.0).to_bytes()
    holder = read_holder(data)
    assert holder is not None
    at = data.index(holder.holder.encode())
    for bit in range(8):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        assert read_holder(bytes(flipped)) is None
