"""Finds out which sources the video engines of a GPU decode, and how many workers share the GPU.

A separate process queries the GPU once per run, because a CUDA context takes hundreds of MB of GPU
memory, and a broken driver may end the process. `python -m curator.stages.analyze.gpu_engines`
prints the facts as JSON.
"""

import functools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from curator.errors import CuratorError, UsageError, one_line
from curator.executor.engine import FEEDER_CPUS, Engine
from curator.executor.host_resources import device_of
from curator.executor.worker import Step
from curator.media.nvdec import Nvdec
from curator.media.nvdec_check import nvdec_refusal
from curator.records.sources import Note, SourceRef
from curator.stage import Resources

logger = logging.getLogger(__name__)

DEFAULT_ENGINES = 4  # used if a GPU reports no number: an L4 has 4, a T4 fewer, an H100 more

WORKER_GPU_BYTES = 5 << 29
"""GPU memory of a worker: CUDA context, networks, surfaces and batches. Measured with 1080p on an
H200."""

SHORT_S = 2.0  # for shorter sources, creating a decoder may cost more than decoding; not measured

CODECS = ("H264", "HEVC", "VP9", "AV1", "MPEG2")
DEPTHS = (8, 10)

TIMEOUT_S = 120
WAIT_S = 60.0  # wait for a worker that queries a GPU of a cluster; all GPUs may be in use


def workers_per_gpu(*, n_engines: int | None, n_cores: float | None, free_bytes: int | None) -> int:
    """Decides how many workers share a GPU.

    - A decoder uses at most one engine, which is idle while its worker measures. So two workers
      share an engine. On the 7 engines of an H200, 8 workers analyzed 2,920 frames of 1080p per
      second, 12 workers 3,640 and 16 workers 3,790 to 3,890 (benchmarks/results/gpu.md).
    - Each worker needs `FEEDER_CPUS` cores.
    - Each worker needs `WORKER_GPU_BYTES` of GPU memory.

    `n_cores` is the number of cores of the machine per GPU. An argument is None if its value is not
    known. The result is at least 1.
    """
    n_engines = n_engines or DEFAULT_ENGINES
    n_workers = 2 * n_engines
    if n_cores is not None:
        n_workers = min(n_workers, int(n_cores / FEEDER_CPUS))
    if free_bytes is not None:
        n_workers = min(n_workers, free_bytes // WORKER_GPU_BYTES)
    return max(1, n_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about a GPU."""

    name: str | None = None  # model of the GPU; None if the query failed
    n_engines: int | None = None  # number of video engines
    free_bytes: int | None = None  # free GPU memory
    has_mps: bool = False  # whether the daemon of NVIDIA's MPS runs on the machine
    # Results of `GetDecoderCaps`, by codec and bits per sample, such as "AV1 10".
    caps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def refusal(self, source: SourceRef) -> Note | None:
        """Returns, from the header, why the engines cannot decode a source; None if they may.

        The scan stores no field order, so an interlaced source is refused only when it is opened.
        """
        if not self.caps or source.codec is None or source.pixel_format is None:
            return None
        codec = SimpleNamespace(canonical_name=source.codec)
        context = SimpleNamespace(
            codec=codec, pix_fmt=source.pixel_format, field_order=0, width=source.width,
            height=source.height,
        )  # fmt: skip
        stream: Any = SimpleNamespace(codec_context=context)
        # Replaces PyNvVideoCodec on a machine without a GPU, with the stored results.
        answers = SimpleNamespace(
            cudaVideoCodec=SimpleNamespace(**{name: name for name in CODECS}),
            GetDecoderCaps=lambda *, codec, bitdepth, **_: self.caps[f"{codec} {bitdepth}"],
        )
        refused = Nvdec(module=answers, device="cpu").refusal(stream)
        return Note(f"not_on_gpu_{refused[0]}") if refused is not None else None

    def leaves(self, source: SourceRef) -> bool:
        """Returns whether a CPU should decode a source."""
        is_short = source.header_duration_s is not None and source.header_duration_s < SHORT_S
        return is_short or self.refusal(source) is not None


class GpuProbe:
    """Queries a GPU of this machine or of the cluster, once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @functools.cached_property
    def facts(self) -> GpuFacts:
        """Facts about the GPU; empty if the query failed."""
        try:
            facts = _asked_on_cluster(self._engine) if self._engine.joins else ask()
        except CuratorError as error:
            logger.warning("cannot query the video engines of a GPU: %s", error)
            facts = GpuFacts()
        self._engine.counts.gpu |= {
            "name": facts.name, "engines": facts.n_engines, "free_bytes": facts.free_bytes,
            "has_mps": facts.has_mps,
        }  # fmt: skip
        return facts

    def workers(self) -> int:
        """Returns how many workers share each GPU."""
        facts, n_cores = self.facts, self._engine.cpus_per_gpu()
        n = workers_per_gpu(n_engines=facts.n_engines, n_cores=n_cores, free_bytes=facts.free_bytes)
        self._engine.counts.gpu["workers_per_gpu"] = n
        return n


def device_here(asked: str, n_gpus: float) -> tuple[str, str | None]:
    """Returns `cpu` or `gpu`, and why a GPU of this machine is not used; `asked` is the setting.

    Raises:
        UsageError: The recipe requires a GPU, and no GPU can be used.
    """
    device = device_of(asked, n_gpus)
    if device == "cpu":
        has_package = asked == "cpu" or n_gpus < 1
        return "cpu", None if has_package else "PyNvVideoCodec is not installed"
    refusal = nvdec_refusal()
    if refusal is None:
        return "gpu", None
    if asked == "gpu":
        raise UsageError(f"analyze.device is gpu, and {refusal}")
    return "cpu", refusal


def ask() -> GpuFacts:
    """Queries the first GPU that this process sees, in a separate process.

    Raises:
        CuratorError: The query failed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CuratorError(f"no answer within {TIMEOUT_S} s") from error
    if done.returncode:
        words = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
        raise CuratorError(words or f"the query process ended with exit code {done.returncode}")
    return GpuFacts(**json.loads(done.stdout.strip().rpartition("\n")[2]))


def _asking() -> Callable[[None], GpuFacts]:
    return lambda _: ask()


def _asked_on_cluster(engine: Engine) -> GpuFacts:
    if engine.n_gpus() < 1:
        raise CuratorError("the cluster has no node with a GPU yet")
    resources = Resources(cpus=0, gpus=0.01)
    step = Step(make=_asking, resources=resources, keeps_state=True, names=("ask a GPU",))
    pool = engine.pool([step], most=1, keeps=False)
    try:
        pool.submit(None)
        until_s = time.monotonic() + WAIT_S
        while pool.n_workers or time.monotonic() < until_s:
            for facts in pool.poll(timeout=1.0):
                return facts  # type: ignore[no-any-return]
    finally:
        pool.close()
    raise CuratorError(f"no worker with a GPU within {WAIT_S:.0f} s")


def _caps(module: Any, codec: str, bits: int) -> dict[str, int]:  # noqa: ANN401
    number = getattr(module.cudaVideoCodec, codec)
    try:
        return dict(module.GetDecoderCaps(gpuid=0, codec=number, bitdepth=bits))
    except Exception:  # noqa: BLE001 - the package's own kind, whatever its base
        return {"supported": 0}


def _asked() -> GpuFacts:
    # Raises an error with the reason if PyNvVideoCodec does not start.
    Nvdec()
    import PyNvVideoCodec as module  # noqa: N813
    import torch

    try:
        free_bytes, name = torch.cuda.mem_get_info()[0], torch.cuda.get_device_name(0)
    except (RuntimeError, AssertionError) as error:
        raise CuratorError(f"torch does not see the GPU: {one_line(error)}") from error
    caps = {f"{codec} {bits}": _caps(module, codec, bits) for codec in CODECS for bits in DEPTHS}
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    return GpuFacts(
        name=name,
        n_engines=caps["H264 8"].get("num_decoder_engines"),
        free_bytes=free_bytes,
        has_mps=(pipes / "control").exists(),
        caps=caps,
    )


def _main() -> int:
    try:
        print(json.dumps(asdict(_asked())))
    except CuratorError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
