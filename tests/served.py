"""A fake model server as a process, which tests kill and start again."""

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from curator.stages.caption.caption_records import Annotation, Frames, Reply, Task
from curator.stages.caption.captioners.chat_server import ServerCaptioner
from curator.stages.caption.captioners.dialog_runner import DialogRunner, Keep
from curator.stages.caption.config import ModelConfig

NO_FRAMES = Frames(jpegs=(), times_s=())


def check_server(
    config: ModelConfig, trial: Frames = NO_FRAMES, *, section: str = "caption"
) -> None:
    """`ServerCaptioner.check`."""
    ServerCaptioner(config, section=section, backoff_s=0.02).check(trial)


class Kept(dict[str, Reply]):
    """Replies that are stored; knows how often each one was."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[str] = Counter()

    def keep(self, key: str, reply: Reply) -> None:
        self.times[key] += 1
        self[key] = reply


def annotations_of(
    runner: DialogRunner,
    windows: Iterable[tuple[Task, Frames | Callable[[], Frames]]],
    kept: Kept | None = None,
    keep: Keep | None = None,
) -> list[Annotation]:
    """Annotates windows with their frames, or with what loads them, and closes the runner."""
    kept = Kept() if kept is None else kept
    loads = [
        (task, frames if callable(frames) else partial(_as_is, frames)) for task, frames in windows
    ]
    with closing(runner):
        return runner.annotate(loads, kept, keep or kept.keep)


def _as_is(frames: Frames) -> Frames:
    return frames


class FakeServer:
    """`fake_server.py` in a process of its own, on a port that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self, **options: object) -> "FakeServer":
        """Starts the process, or lets one that runs begin anew."""
        if self.process is not None:
            self._post("/reset", options)
            return self
        script = Path(__file__).with_name("fake_server.py")
        command = [sys.executable, str(script), str(self.port), str(self.journal)]
        self.process = subprocess.Popen(
            [*command, json.dumps(options)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def kill(self) -> None:
        """As kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def set(self, **options: object) -> None:
        self._post("/options", options)

    def _post(self, path: str, options: dict[str, object]) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        data = json.dumps(options).encode()
        opener.open(f"http://127.0.0.1:{self.port}{path}", data).close()

    def counts(self, what: str = "received") -> Counter[str]:
        """How often requests were `received` or `answered`, by what makes their answer."""
        lines = self.journal.read_text().split("\n")
        return Counter(line.split()[1] for line in lines if line.startswith(what))

    def config(self, **settings: object) -> ModelConfig:
        url = f"http://127.0.0.1:{self.port}/v1"
        return ModelConfig.model_validate({"model": "tiny-vlm", "url": url} | settings)


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    """One process, started by the first test that asks for it."""
    server = FakeServer(tmp_path_factory.mktemp("fake-server"))
    yield server
    server.kill()


@pytest.fixture
def fake_server(running_server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """To be started by the test; one process serves all tests that leave it alive."""
    without_keys(monkeypatch)
    return running_server


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes keys and proxies out of the environment."""
    for name in ("OPENAI_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
