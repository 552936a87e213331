"""A machine that answers as a test likes: with GPUs, without packages, in a container."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curator.doctor.host import Answer, Host, Ran
from curator.doctor.packages import ASKED
from curator.doctor.probe_process import LIBRARIES, NVDEC_FORMATS

GIB = 1 << 30
NO_FILE = "cannot open shared object file: No such file or directory"
H100 = "NVIDIA H100 80GB HBM3, 580.95.05, 81559 MiB\n"

SOUND: dict[str, dict[str, Any]] = {
    **{name: {} for name in ASKED},
    "av": {
        "ffmpeg": "8.1",
        "decoders": ["h264", "hevc", "vp9", "av1"],
        "encoders": ["libx264"],
    },
    "faiss": {"gpu_build": True},
    "onnxruntime": {},
}
VERSIONS = {
    "av": "18.1.0",
    "boto3": "1.44",
    "faiss-gpu": "1.15",
    "nvidia-dali-cuda130": "2.4",
    "onnxruntime": "1.31",
    "opencv-python-headless": "5.0",
    "pyarrow": "26.0",
    "PyNvVideoCodec": "2.2.4",
    "ray": "2.60",
    "torch": "2.15.0",
}
CUDA_13 = "from typing import Optional\n__version__ = '2.15.0'\ncuda: Optional[str] = '13.2'\n"


def caps(*, supported: bool) -> dict[str, int]:
    """A decoder's answer, with the keys of PyNvVideoCodec 2.2.4."""
    side = 8192 if supported else 0
    return {
        "supported": int(supported),
        "num_decoder_engines": 7,
        "width_max": side,
        "height_max": side,
        "width_min": 144 if supported else 0,
        "height_min": 144 if supported else 0,
        "mb_num_max": 262144 if supported else 0,
    }


def formats(*, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What a GPU decodes: everything but some codecs, or `codec chroma bits`."""
    return [
        {
            "codec": codec,
            "chroma": chroma,
            "bits": bits,
            "caps": caps(
                supported=codec not in without and f"{codec} {chroma} {bits}" not in without
            ),
        }
        for codec, chroma, bits in NVDEC_FORMATS
    ]


@dataclass
class FakeHost(Host):
    """Answers from tables; what is in none of them is not there."""

    answers: dict[str, Answer] = field(default_factory=dict)
    programs: dict[str, Ran] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: dict(VERSIONS))
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    torch_version: str = CUDA_13
    free_bytes: int = 500 * 10**9
    limits: tuple[int, int] | None = (1024, 1 << 20)
    memory: int = 64 * GIB
    n_cpus: int = 8
    landlock: int = 6
    time: float = 0.0
    asked: list[str] = field(default_factory=list)

    @property
    def environ(self) -> Mapping[str, str]:
        return self.environment

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        return self.programs.get(command[0])

    def ask(self, question: str, *, timeout_s: float = 1.0) -> Answer:
        self.asked.append(question)
        if question in self.answers:
            return self.answers[question]
        return Answer(facts=SOUND[question])

    def version(self, distribution: str) -> str | None:
        return self.versions.get(distribution)

    def package_file(self, package: str, name: str) -> str | None:
        return self.torch_version if (package, name) == ("torch", "version.py") else None

    def exists(self, path: str) -> bool:
        return path in self.files

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def glob(self, pattern: str) -> list[str]:
        prefix, _, suffix = pattern.partition("*")
        return [p for p in self.files if p.startswith(prefix) and p.endswith(suffix)]

    def disk(self, path: str) -> tuple[int, int]:
        return self.free_bytes, 1000 * 10**9

    def open_files(self) -> tuple[int, int] | None:
        return self.limits

    def protections(self) -> tuple[int, bool]:
        return self.landlock, True

    def cpus(self) -> int:
        return self.n_cpus

    def memory_bytes(self) -> int:
        return self.memory

    def object_store_bytes(self) -> int:
        return 2 * GIB

    def now(self) -> float:
        return self.time


def libraries(
    *,
    absent: Sequence[str] = (),
    cuda: int | None = 13000,
    init: int | None = 0,
    devices: int | None = 1,
) -> Answer:
    """The answer to `libraries` on a machine with a driver."""
    loads = {name: f"{name}: {NO_FILE}" if name in absent else None for name in LIBRARIES}
    return Answer(facts={"loads": loads, "cuda": cuda, "init": init, "devices": devices})


def laptop() -> FakeHost:
    """No GPU, no driver."""
    return FakeHost(
        answers={"libraries": libraries(absent=LIBRARIES, cuda=None, init=None, devices=None)},
        versions={k: v for k, v in VERSIONS.items() if k not in ("PyNvVideoCodec",)},
    )


def server() -> FakeHost:
    """One H100, on which all works; it has no NVENC."""
    no_nvenc = (
        "PyNvVCException: PyNvEncoderCaps : Error code : 2 Error Type : "
        "NvEncOpenEncodeSessionEx returned error 2 at PyNvEncoder.cpp:1088"
    )
    return FakeHost(
        programs={"nvidia-smi": Ran(code=0, out=H100)},
        answers={
            "libraries": libraries(),
            "torch": Answer(facts={"build": "13.2", "devices": ["H100"], "why_not": None}),
            "nvdec": Answer(
                facts={"formats": formats(without=("av1", "h264 420 10", "h264 422 8"))}
            ),
            "nvenc": Answer(error=no_nvenc),
            "dali": Answer(facts={}),
            "faiss_gpus": Answer(facts={"gpus": 1}),
        },
    )
