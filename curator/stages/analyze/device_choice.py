"""Where this machine analyzes sources: on its GPU, or on cores, and then why not on its GPU."""

from curator.errors import UsageError
from curator.executor.host_resources import device_of
from curator.media.nvdec_check import nvdec_refusal


def device_here(asked: str, n_gpus: float) -> tuple[str, str | None]:
    """Returns `cpu` or `gpu`, and why a GPU that is here is left idle.

    Args:
        asked: Value of `analyze.device`.
        n_gpus: GPUs of this machine.

    Raises:
        UsageError: The recipe requires a GPU, and none can be used.
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
