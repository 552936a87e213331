"""A vision-language model behind a server of this machine: `captioner: local`.

The worker starts `vllm serve`, or `transformers serve`, on 127.0.0.1, sends requests to it as to
any server, starts it again if it ends, and ends it. docs/design/captions.md says why.

Sources: https://docs.vllm.ai/en/latest/cli/serve.html and docs/usage/security.md of vLLM;
`transformers.cli.serve` of transformers 5.23.
"""

import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import orjson

from curator.errors import ModelError
from curator.executor.cpu_accounting import tree_cpu_s
from curator.executor.host_resources import available_cpus, available_gpus
from curator.executor.server_process import ServerProcess
from curator.installation import install_extra
from curator.models.cpu_arithmetic import has_fast_bfloat16
from curator.models.server_access import ServerAccess
from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered
from curator.stages.caption.captioners.captioner_contract import Place, RequestLimit
from curator.stages.caption.captioners.chat_server import Failed, ServerCaptioner
from curator.stages.caption.captioners.model_files import (
    check_name,
    context_of,
    fetch_command,
    model_folder,
)
from curator.stages.caption.config import ModelConfig

EXTRA = "captions-local"
LEAST_VERSION = (5, 23)
_PACKAGES = ("transformers", "torchvision", "accelerate", "fastapi", "uvicorn", "openai")

SILENCE_S = 600.0
"""Time without a line of the log after which a server that is not ready counts as stuck."""
MAX_ENDS = 3
"""Times that a server may end without an answer in between before the run gives up."""
_TRIES = 3
_DAY_S = 86_400.0
"""The time-out of a request; `budget_s` ends it earlier."""
_FRAME_TOKENS = 1152
"""Most tokens of a frame of `frame_px` 448: Idefics3 and SmolVLM, 17 tiles of 64 and marks."""
_PROMPT_TOKENS = 4096
_GPU_SHARE = 0.9
_OUT_OF_MEMORY = re.compile(r"out of ?memory|can't allocate memory", re.IGNORECASE)
_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b")
_LACKING = re.compile(r"\| (MISSING|MISMATCH) ")
"""A row of the report of transformers, which fills missing tensors with random numbers."""
_LOG_END = 3
_SAMPLES = json.dumps({"do_sample": True, "top_k": 0})


class LocalCaptioner(ServerCaptioner):
    """A server that this process starts; on the worker's GPU, if it has one."""

    place = Place.WORKER
    gpus = 1.0
    cpus = 4.0
    # Enough for a model of 2 billion parameters on CPUs.
    memory_bytes = 8 << 30

    def __init__(self, config: ModelConfig, *, section: str = "caption") -> None:
        super().__init__(config, section=section)
        self._named = config
        self._starts = threading.Lock()
        self._n_ends = 0
        self._ended_cpu_s = 0.0
        self._server: ServerProcess | None = None

    @property
    def about(self) -> str:
        """The model and its server, for the log of the run."""
        server = f"transformers serve {version('transformers')}"
        if self._vllm is not None:
            server = f"{self._vllm} serve"
        return f"model {self._named.name}, by {server} on this machine"

    def check(self, trial: Frames | None) -> None:
        """Checks packages and files; starts no server."""
        vllm, server = find_vllm(), self._named.server
        if server == "vllm" and vllm is None:
            raise ModelError(
                f"{self.section}.server is vllm, and there is no program vllm next to Python or in "
                "PATH; install it (https://docs.vllm.ai), or set it to transformers"
            )
        if vllm is None or server == "transformers":
            _check_transformers(self._named)
        check_name(self._named)

    def setup(self) -> None:
        """Starts the server, and waits until it is ready."""
        self.check(None)
        self._folder = model_folder(self._named)
        wants_vllm = {"auto": available_gpus() > 0, "vllm": True, "transformers": False}
        self._vllm = find_vllm() if wants_vllm[self._named.server] else None
        self.guided = self._named.guided and self._vllm is not None
        if self._vllm is None:
            _check_transformers(self._named)
        else:
            self.request_limit = RequestLimit(self._named.in_flight)
        self._start()

    def close(self) -> None:
        """Ends the server."""
        with self._starts:
            if self._server is not None:
                self._access.close()
                self._server.stop()

    def _body(self, request: Request, frames: Frames, *, guided: bool) -> bytes:
        """As of any server; `transformers serve` samples only if a request says so."""
        body = super()._body(request, frames, guided=guided)
        if self._vllm is not None or request.sampling.temperature == 0:
            return body
        return orjson.dumps(orjson.loads(body) | {"generation_config": _SAMPLES})

    def _try(self, body: bytes, until: float) -> Reply | Failed:
        server = self._running()
        outcome = super()._try(body, until)
        # Sampled here, because the numbers of a server that has ended are gone.
        here_s = self._ended_cpu_s + tree_cpu_s(server.pid)
        self.child_cpu_s = max(self.child_cpu_s, here_s)
        if isinstance(outcome, Reply):
            self._n_ends = 0
        elif outcome.failure is Unanswered.SERVER_ERROR and (why := _last_error(server)):
            is_full = _OUT_OF_MEMORY.search(why) is not None
            outcome = replace(
                outcome,
                failure=Unanswered.OUT_OF_MEMORY if is_full else outcome.failure,
                detail=f"{outcome.detail}: {why}",
            )
        return outcome

    def _running(self) -> ServerProcess:
        """Returns the server; starts it again if it has ended."""
        with self._starts:
            self.request_limit.check_open()
            assert self._server is not None
            if self._server.status is not None:
                self._n_ends += 1
                if self._n_ends > MAX_ENDS:
                    raise self._ended(self._server)
                self._report(f"ended with {self._server.status}; it is started again")
                self._server.stop()
                self._start()
            return self._server

    def _start(self) -> None:
        """Starts the server on a free port, and waits until it answers.

        Raises:
            ModelError: The server ended, or is stuck; the message quotes its log.
        """
        while True:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            key = secrets.token_hex(16)
            command, environment = self._command(port, key)
            self._ended_cpu_s = self.child_cpu_s
            server = self._server = ServerProcess(command, environment)
            self._wait(server, port)
            if lacking := next(filter(_LACKING.search, server.log), None):
                server.stop()
                raise ModelError(
                    f"model {self._named.name}: tensors are missing or of another shape, such as "
                    f"{lacking.split()[0]}; expected a complete model: "
                    f"{fetch_command(self._named)}"
                )
            if server.status is None:
                break
            if not any("address already in use" in line.lower() for line in server.log):
                raise self._ended(server)
        here = {
            "model": self._named.model if self._vllm is not None else str(self._folder),
            "url": f"http://127.0.0.1:{port}/v1",
            "timeout_s": _DAY_S,
            "tries": _TRIES,
        }
        self.config = self._named.model_copy(update=here)
        self._access = ServerAccess(self.config, self.section, key=key if self._vllm else "")

    def _wait(self, server: ServerProcess, port: int) -> None:
        """Waits until the server is ready or has ended."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while server.status is None:
            # Another process at the port may speak another protocol.
            with suppress(OSError, HTTPException):
                opener.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
                # Another process may have taken the port, and must get neither key nor frames.
                if server.listens_at(port):
                    return
            if time.monotonic() - server.heard_s > SILENCE_S:
                server.stop()
                raise self._ended(server, f"is not ready, and silent for {SILENCE_S:.0f} s")
            # Ends the wait when the run ends.
            self.request_limit.sleep(0.1)

    def _command(self, port: int, key: str) -> tuple[list[str], dict[str, str]]:
        """Returns the server's command and environment."""
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "PYTHONUNBUFFERED": "1",
        }
        listens = ["--host", "127.0.0.1", "--port", str(port)]
        has_gpu = available_gpus() > 0
        if not has_gpu:
            # Threads that wait actively for each other cost five times the CPU on a busy machine.
            n_threads = min(int(self.cpus), available_cpus())
            environment |= {"OMP_NUM_THREADS": str(n_threads), "OMP_WAIT_POLICY": "PASSIVE"}
        if self._vllm is None:
            words = [sys.executable, "-P", "-m", "transformers.cli.transformers", "serve"]
            # "auto" would take all GPUs of the machine, and on CPUs arithmetic of the file.
            device = "cuda:0" if has_gpu else "cpu"
            dtype = "bfloat16" if has_gpu or has_fast_bfloat16() else "float32"
            arguments = [str(self._folder), *listens, "--device", device, "--dtype", dtype]
            return [*words, *arguments, *self._named.server_args], environment
        environment |= {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1"}
        # The program may be in an environment of its own.
        environment.pop("PYTHONPATH", None)
        return [
            self._vllm, "serve", str(self._folder), *listens,
            "--served-model-name", str(self._named.model), "--load-format", "safetensors",
            *self._vllm_limits(), *self._named.server_args,
        ], environment  # fmt: skip

    def _vllm_limits(self) -> list[str]:
        """Returns the arguments for pictures per prompt, length of context, and memory."""
        config, n_frames = self._named, self.most_frames
        pictures = {"image": n_frames}
        arguments = []
        if config.frames_as == "video":
            pictures = {"image": 1, "video": 1}
            arguments = ["--media-io-kwargs", '{"video": {"num_frames": -1}}']
        arguments += ["--limit-mm-per-prompt", json.dumps(pictures)]
        # A dialog repeats answers of the model: two phases, and a repair of each.
        wanted = n_frames * _FRAME_TOKENS + _PROMPT_TOKENS + 4 * config.max_tokens
        context = context_of(self._folder)
        if context is not None and wanted < context:
            arguments += ["--max-model-len", str(wanted)]
        share = round(_GPU_SHARE / self.n_models, 2)
        return [*arguments, "--gpu-memory-utilization", str(share)]

    def _ended(self, server: ServerProcess, how: str = "") -> ModelError:
        """Returns the error for a server that ended, with the end of its log."""
        how, log = how or f"ended with {server.status}", server.log
        text = "\n".join(log)
        remedy = "run the command by hand to see all of its output"
        if _OUT_OF_MEMORY.search(text) or "SIGKILL" in how:
            remedy = "is there enough memory? use a smaller model, or fewer and smaller frames"
        elif re.search("custom code|trust_remote_code|[Uu]nrecognized|does not recognize", text):
            remedy = "its code is not run; use a model that the server knows, or a newer server"
        elif re.search("ModuleNotFoundError|ImportError", text):
            remedy = f"install the missing package, or {install_extra(EXTRA)}"
        elif "max_model_len" in text or "KV cache" in text:
            remedy = "set --set 'caption.server_args=[--max-model-len, \"16384\"]', or smaller"
        last = " | ".join(line.strip()[:300] for line in log[-_LOG_END:]) or "no output"
        return ModelError(f"{self.about}, {how}; its last lines: {last}; {remedy}")


def find_vllm() -> str | None:
    """Returns the program `vllm` next to Python or in PATH; None without one."""
    near = Path(sys.executable).parent / "vllm"
    return str(near) if near.is_file() else shutil.which("vllm")


def _check_transformers(config: ModelConfig) -> None:
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"the captioner local needs {package}: {install_extra(EXTRA)}")
    # A checkout of transformers has no version.
    with suppress(PackageNotFoundError):
        installed = version("transformers")
        if tuple(int(part) for part in installed.split(".")[:2] if part.isdigit()) < LEAST_VERSION:
            least = ".".join(map(str, LEAST_VERSION))
            raise ModelError(
                f"transformers is {installed}; expected {least} or later: {install_extra(EXTRA)}"
            )
    if config.frames_as == "video":
        raise ModelError(
            "transformers serve takes no video; set caption.frames_as=images, or install vLLM "
            "(https://docs.vllm.ai)"
        )


def _last_error(server: ServerProcess) -> str:
    """Returns the last line of the log that names an exception; empty without one."""
    return next((line[:300] for line in reversed(server.log) if _ERROR.search(line)), "")
