"""Models on this machine for tests: a folder with small files, and a program `vllm`."""

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILES = {
    "config.json": {
        "vision_config": {},
        "text_config": {"max_position_embeddings": 4096},
    },
    "tokenizer.json": {},
    "processor_config.json": {"video_processor": {}},
}

_PROGRAM = """#!{python}
import json, os, subprocess, sys, time
folder, words = {folder!r}, sys.argv[1:]
options = json.load(open(folder + "/options.json"))
with open(folder + "/calls", "a") as calls:
    call = {{"words": words, "pid": os.getpid(), "key": os.environ["VLLM_API_KEY"],
            "offline": os.environ["HF_HUB_OFFLINE"]}}
    print(json.dumps(call), file=calls)
for line in options.pop("says", []):
    print(line, flush=True)
time.sleep(options.pop("after_s", 0))
if "status" in options:
    sys.exit(options["status"])
port, model = (words[words.index(name) + 1] for name in ("--port", "--served-model-name"))
options |= {{"key": os.environ["VLLM_API_KEY"], "models": [model]}}
# The engine, which outlives a kill of this process.
command = [sys.executable, {server!r}, port, folder + "/journal", json.dumps(options)]
sys.exit(subprocess.run(command).returncode)
"""


def stub_folder(folder: Path) -> Path:
    """Writes files with the names of a model's, which no library can load."""
    folder.mkdir()
    for name, content in _FILES.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "model.safetensors").touch()
    (folder / "chat_template.jinja").touch()
    return folder


@dataclass(frozen=True)
class FakeVllm:
    """A program that takes the arguments of `vllm serve`; `fake_server.py` answers."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "vllm"

    def install(self, **options: Any) -> "FakeVllm":  # noqa: ANN401
        """Writes the program, with options of `fake_server.py`.

        `says`: lines of its log; `after_s`: seconds until it goes on; `status`: it ends with it.
        """
        self.folder.mkdir(exist_ok=True)
        (self.folder / "options.json").write_text(json.dumps(options))
        server = str(Path(__file__).with_name("fake_server.py"))
        text = _PROGRAM.format(python=sys.executable, folder=str(self.folder), server=server)
        self.program.write_text(text)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        return self

    def calls(self) -> list[dict[str, Any]]:
        """Arguments, key and process id of each start."""
        path = self.folder / "calls"
        return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []

    def journal(self) -> list[str]:
        path = self.folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def processes(self) -> list[int]:
        """Running processes that name this program's folder: keeper, server and engine."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{self.folder}/".encode() in words and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found


def wait(until: str, condition: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, until
        time.sleep(0.02)
