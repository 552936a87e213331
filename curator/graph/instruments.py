"""What a worker loads before it measures."""

from curator.media.nvdec import Nvdec
from curator.models.catalogue import ModelEntry
from curator.models.clip import ClipEncoder, Device
from curator.models.store import ModelStore
from curator.models.text import TextDetector
from curator.models.transnet import ShotNetwork
from curator.signals.motion import Flow
from curator.stages.analyze_config import AnalyzeConfig
from curator.stages.measure import Instruments


def instruments_of(
    config: AnalyzeConfig, clip: ModelEntry | None, models: ModelStore | None
) -> Instruments:
    """Loads the networks, on the GPU if that is where sources are analyzed.

    Args:
        config: Settings; `device` is cpu or gpu, as the driver found out.
        clip: CLIP model; None for none.
        models: Where its weights lie.

    Raises:
        CuratorError: A package, a driver or weights are missing.
    """
    import cv2

    cv2.setNumThreads(1)
    on_gpu = config.device == "gpu"
    device: Device = "cuda" if on_gpu else "cpu"
    encoder = None
    if clip is not None and models is not None:
        encoder = ClipEncoder(
            clip, models.find(clip), precision=config.clip_precision, device=device
        )
    return Instruments(
        network=ShotNetwork(precision=config.shot_precision, device=device),
        detector=TextDetector(on_gpu=on_gpu) if config.text else None,
        clip=encoder,
        nvdec=Nvdec() if on_gpu else None,
        flow=_flow(config),
    )


def _flow(config: AnalyzeConfig) -> Flow | None:
    if config.flow == "dis":
        return None
    from curator.media.hardware_flow import HardwareFlow

    return HardwareFlow()
