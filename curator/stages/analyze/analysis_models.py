"""Loads what a worker measures with."""

import ctypes
import platform
from collections.abc import Sequence, Set

from curator.measures.measure_contract import Measure
from curator.measures.motion import Flow
from curator.media.nvdec import Nvdec
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import ClipEncoder, Device
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.models.weight_store import ModelStore
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import measure_family
from curator.stages.analyze.measurer import AnalysisModels

_KEPT_BYTES = 256 << 20
"""Memory that was freed and is kept for what comes next: more than a chunk of the shot network
needs at a time, whose largest tensor has 21 MB."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's numbers of what `mallopt` sets."""


def load_analysis_models(
    config: AnalyzeConfig,
    families: Set[str],
    clip: ModelEntry | None,
    models: ModelStore | None,
    users: Sequence[Measure] = (),
) -> AnalysisModels:
    """Loads the networks and users' measures of some families, on the GPU if that analyzes."""
    import cv2

    cv2.setNumThreads(1)
    keep_freed_memory()
    on_gpu = config.device == "gpu"
    if on_gpu:
        import torch

        # On by default for convolutions: measures and lines of text would differ from a CPU's.
        torch.backends.cudnn.allow_tf32 = False
    device: Device = "cuda" if on_gpu else "cpu"
    encoder = network = None
    if "clip" in families and clip is not None and models is not None:
        encoder = ClipEncoder(
            clip, models.find(clip), precision=config.clip_precision, device=device
        )
    if "shots" in families:
        network = ShotNetwork(precision=config.shot_precision, device=device)
    detector = None
    if "text" in families:
        detector = TextDetector(device=device, precision=config.shot_precision)
    scenes = SceneNetwork(device=device) if "scenes" in families else None
    measures = {
        name: type(measure)() for measure in users if (name := measure_family(measure)) in families
    }
    for measure in measures.values():
        measure.setup()
    flow: Flow | None = None
    if config.flow == "hardware":
        from curator.media.hardware_flow import HardwareFlow

        flow = HardwareFlow()
    return AnalysisModels(
        network=network,
        detector=detector,
        clip=encoder,
        scenes=scenes,
        nvdec=Nvdec() if on_gpu else None,
        flow=flow,
        measures=measures,
    )


def keep_freed_memory() -> None:
    """Lets this process use large blocks of memory again, where the C library is glibc.

    It gives each block of some megabytes back when it is freed, so that all pages of the next one
    are cleared and mapped anew: up to a tenth of the shot network's time. All threads have one
    heap: with several, each keeps what its threads freed, and workers grow from source to source.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # Where this is more than it takes, the other alone would do harm.
        if libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES):
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            libc.mallopt(_M_ARENA_MAX, 1)
