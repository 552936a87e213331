"""Counts the arithmetic of each VAE for a window, and what a GPU would take for it.

    latents_cost.py [--tflops 989 --share 0.3]

The models have the default configuration of their class in diffusers and no weights: tensors are on
the device `meta`, so only operations are counted (`torch.utils.flop_counter`), for one window of
the class's usual frames and size. A GPU's time is a model, not a measurement: operations divided by
the share of its peak that convolutions reach. 989 TFLOP/s is NVIDIA's number for an H100 SXM in
bfloat16 without sparsity.
"""

import diffusers
import torch
from measure import arguments, tell
from torch.utils.flop_counter import FlopCounterMode

WINDOWS = {
    "AutoencoderKLWan": (81, 832, 480, 16.0),
    "AutoencoderKLLTXVideo": (121, 768, 512, 24.0),
    "AutoencoderKLHunyuanVideo": (61, 960, 544, 24.0),
    "AutoencoderKLCogVideoX": (49, 720, 480, 8.0),
    "AutoencoderKLCosmos": (121, 1280, 704, 24.0),
}
"""Frames, width, height and frames per second of the window, by class."""


def main() -> None:
    """Counts all classes; the last line is JSON."""
    parser = arguments(__doc__)
    parser.add_argument("--tflops", type=float, default=989)
    parser.add_argument("--share", type=float, default=0.3)
    options = parser.parse_args()
    found = {}
    for name, (frames, width, height, fps) in WINDOWS.items():
        with torch.device("meta"):
            vae = getattr(diffusers, name)().eval()
            video = torch.empty(1, 3, frames, height, width)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            vae.encode(video)
        tflop = counter.get_total_flops() / 1e12
        seconds = tflop / (options.tflops * options.share)
        found[name] = {
            "window": f"{frames} frames of {width}x{height}",
            "tflop": round(tflop, 2),
            "tflop_a_megapixel": round(tflop / (frames * width * height / 1e6), 3),
            "gpu_s_a_window": round(seconds, 3),
            "video_s_a_gpu_s": round(frames / fps / seconds, 1),
        }
    tell(found)


if __name__ == "__main__":
    main()
