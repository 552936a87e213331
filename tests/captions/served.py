"""A fake model server as a process, which tests kill and start again."""

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from curator.captions.config import ModelConfig


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
