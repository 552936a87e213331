"""The NVIDIA driver: which parts load, and how to get the others."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from curator.doctor.diagnosis import Group, Needs, Row, State
from curator.doctor.host import Host, Ran
from curator.doctor.probe_process import LIBRARIES
from curator.media.gpu_versions import cuda_words

SMI = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
SMI_S = 10.0
"""Longest wait for nvidia-smi, which hangs with a GPU that fell off the bus."""

_PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
_NVIDIA = "0x10de"
_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
)
"""Where drivers put their libraries; GKE mounts the first, WSL the second."""

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_IN_CONTAINER = (
    f"start the container with --gpus all -e {CAPABILITIES}=compute,utility,video (in Kubernetes: "
    "ask for nvidia.com/gpu, and set that variable in the pod)"
)
_INSTALL = "install NVIDIA's driver (580 or newer for CUDA 13) on this machine"

_WHAT_FOR = {
    "libcuda.so.1": "CUDA",
    "libnvcuvid.so.1": "NVDEC, decoding on the GPU",
    "libnvidia-encode.so.1": "NVENC; PyNvVideoCodec does not load without it",
}

_CUDA_SUCCESS = 0
_INIT_ERRORS = {
    100: ("no GPU that CUDA can use", "check CUDA_VISIBLE_DEVICES; " + _IN_CONTAINER),
    802: (
        "the system is not ready",
        "start nvidia-fabricmanager, of the driver's own version: GPUs joined by NVSwitch wait "
        "for it",
    ),
    803: (
        "library and kernel module of the driver have different versions",
        "restart the machine after a driver update; in a container remove a libcuda of its own "
        "(such as cuda-compat)",
    ),
    804: (
        "this GPU takes no compatibility package (cuda-compat)",
        "remove cuda-compat from LD_LIBRARY_PATH, or update the driver",
    ),
    999: (
        "unknown error",
        "load the kernel module nvidia_uvm (nvidia-modprobe -u), or restart the machine; see dmesg",
    ),
}
_OTHER_INIT = "see `dmesg | grep -i -e nvrm -e xid`; restart the machine, or change the GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The parts of a driver on this machine; `cuda`, `init` and `devices` are None without libcuda.

    Attributes:
        smi: Result of nvidia-smi; None without that program.
        loads: For each library None, or its error.
        cuda: Newest CUDA of the driver, such as 13020 for 13.2.
        init: Code of `cuInit`.
        devices: Number of GPUs that CUDA sees.
        error: Why the libraries could not be checked; empty if they were.
        on_bus: Whether an NVIDIA device is on the PCI bus.
    """

    smi: Ran | None
    loads: Mapping[str, str | None] = field(default_factory=dict)
    cuda: int | None = None
    init: int | None = None
    devices: int | None = None
    error: str = ""
    on_bus: bool = False

    @property
    def is_here(self) -> bool:
        """Whether the machine has a driver, working or broken."""
        return self.smi is not None or bool(self.error) or self.has("libcuda.so.1")

    @property
    def works(self) -> bool:
        """Whether CUDA starts and sees a GPU."""
        return self.init == _CUDA_SUCCESS and bool(self.devices)

    def has(self, library: str) -> bool:
        """Returns whether a library loads."""
        return library in self.loads and self.loads[library] is None


def find_driver(host: Host) -> Driver:
    """Looks for a driver."""
    smi = host.run(SMI, timeout_s=SMI_S)
    answer = host.ask("libraries")
    vendors = (host.read_text(path) for path in host.glob(_PCI_VENDORS))
    on_bus = any((vendor or "").strip() == _NVIDIA for vendor in vendors)
    return Driver(smi=smi, error=answer.error, on_bus=on_bus, **(answer.facts or {}))


def driver_rows(host: Host, driver: Driver, needs: Needs) -> list[Row]:
    """Returns the checks of the driver and its libraries."""
    if not driver.is_here:
        return _without(host, driver, needs)
    rows = [_smi(driver), _cuda(host, driver, needs)]
    return rows + [_library(host, driver, name, needs) for name in LIBRARIES[1:]]


gpu_row = Group.GPU.row
"""A row about the GPU."""


def _is_container(host: Host) -> bool:
    files = ("/.dockerenv", "/run/.containerenv")
    return any(map(host.exists, files)) or "KUBERNETES_SERVICE_HOST" in host.environ


def _without(host: Host, driver: Driver, needs: Needs) -> list[Row]:
    found = "no NVIDIA driver, and no NVIDIA GPU on the PCI bus"
    if driver.on_bus:
        found = "no NVIDIA driver, but an NVIDIA GPU is on the PCI bus"
    remedy = _IN_CONTAINER if _is_container(host) else _INSTALL
    if needs.gpu:
        remedy += "; or use a recipe that runs on CPUs"
        return [gpu_row("driver", State.MISSING, found, remedy, needed=True)]
    return [gpu_row("driver", State.NOT_NEEDED, found, remedy if driver.on_bus else None)]


def _smi(driver: Driver) -> Row:
    name = "nvidia-smi"
    if driver.smi is None:
        remedy = f"add `utility` to {CAPABILITIES}, or install the driver's tools"
        return gpu_row(name, State.MISSING, "no such program, but the driver's libraries", remedy)
    if driver.smi.code != 0:
        return gpu_row(name, State.BROKEN, driver.smi.words(), _smi_remedy(driver.smi))
    words = []
    gpus = Counter(line.strip() for line in driver.smi.out.splitlines() if line.strip())
    for gpu, count in gpus.items():
        model, version, memory = [*(part.strip() for part in gpu.rsplit(",", 2)), "", ""][:3]
        words.append(f"{count} x {model}, {memory}, driver {version}")
    return gpu_row(name, State.OK, "; ".join(words) or "no GPU")


def _smi_remedy(smi: Ran) -> str:
    words = smi.out + smi.err
    if "mismatch" in words:
        return _INIT_ERRORS[803][1]
    if "communicate" in words:
        return "load the driver's kernel module (modprobe nvidia), or install the driver again"
    if "No devices" in words:
        return _IN_CONTAINER + "; " + _OTHER_INIT
    return _OTHER_INIT


def _cuda(host: Host, driver: Driver, needs: Needs) -> Row:
    name = "CUDA"
    if driver.error:
        return gpu_row(name, State.BROKEN, driver.error, _OTHER_INIT, needed=needs.gpu)
    if not driver.has("libcuda.so.1"):
        return _library(host, driver, "libcuda.so.1", needs)
    assert driver.cuda is not None
    words = f"libcuda.so.1, up to CUDA {cuda_words(driver.cuda)}"
    if driver.works:
        return gpu_row(name, State.OK, f"{words}, GPUs: {driver.devices}")
    why, remedy = _INIT_ERRORS.get(driver.init or 100, (f"error {driver.init}", _OTHER_INIT))
    visible = host.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        why += f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return gpu_row(name, State.BROKEN, f"{words}: {why}", remedy, needed=needs.gpu)


def _library(host: Host, driver: Driver, name: str, needs: Needs) -> Row:
    use = _WHAT_FOR[name]
    wrong = partial(gpu_row, name, needed=needs.gpu)
    if driver.has(name):
        return gpu_row(name, State.OK, use)
    if driver.error:
        return wrong(State.BROKEN, "was not checked", "see the row `CUDA`")
    folder = next((at for at in _FOLDERS if host.exists(f"{at}/{name}")), None)
    if folder is not None:
        found = f"is in {folder} and does not load: {driver.loads[name]} ({use})"
        remedy = f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH, or run ldconfig"
        return wrong(State.BROKEN, found, remedy)
    capability = "compute" if name == "libcuda.so.1" else "video"
    if _is_container(host):
        value = host.environ.get(CAPABILITIES)
        remedy = (
            f"start the container with -e {CAPABILITIES}=compute,utility,video "
            f"({f'it is {value!r}' if value is not None else 'it is not set'}; `{capability}` "
            "brings this library)"
        )
    else:
        remedy = (
            "install the whole driver, such as the packages libnvidia-decode and libnvidia-encode "
            f"of its version; in a container set {CAPABILITIES}=compute,utility,video"
        )
    return wrong(State.MISSING, f"is not here ({use})", remedy)
