"""Compares the sizes of `curate fit` with the trainers' own functions, for sizes of many clips.

    PYTHON trainer_sizes.py CHECKOUTS [--count 4000]

Clips of `trainers.py` have ten sizes. This script calls the functions by which trainers choose a
size, with random ones. PYTHON is the environment of the trainers, which must find `curator` too.
"""

import argparse
import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from trainer_adapters import Foreign, bare_packages, module, nested, stub

from curator.trainers.trainer_files import load_trainer

Size = tuple[int, int]
SizeOf = Callable[[int, int], Size]


def diffsynth(**settings: Foreign) -> SizeOf:
    operators: Any = module("diffsynth.core.data.operators")
    scale = operators.ImageCropAndResize(**settings)

    def size_of(width: int, height: int) -> Size:
        high, wide = scale.get_height_width(types.SimpleNamespace(size=(width, height)))
        return wide, high

    return size_of


def diffusion_pipe(checkout: Path, multiple: int, side: int, then: int) -> SizeOf:
    stub("deepspeed", "peft", "diffusers", "accelerate", "comfy", "comfy_api", "torchaudio")
    data: Any = module("utils.dataset", checkout)
    common: Any = module("utils.common")
    numpy: Any = module("numpy")
    dataset = object.__new__(data.DirectoryDataset)
    dataset.ars = data.dedup_and_sort(numpy.geomspace(0.5, 2.0, num=7))
    dataset.log_ars = numpy.log(dataset.ars)
    dataset.frame_buckets = numpy.array([1, 33])

    def size_of(width: int, height: int) -> Size:
        bucket = dataset._find_closest_ar_bucket(numpy.log(width / height), 40, True)
        wide = math.sqrt(data_area * bucket[0])
        sides = (common.round_to_nearest_multiple(x, multiple) for x in (wide, data_area / wide))
        across, down = (common.round_to_nearest_multiple(x, then) for x in sides)
        return across, down

    data_area = side**2
    return size_of


def musubi(checkout: Path, side: Size, *, no_upscale: bool) -> SizeOf:
    buckets: Any = module("musubi_tuner.dataset.bucket", checkout / "src")
    selector = buckets.BucketSelector(side, no_upscale=no_upscale, architecture="wan")
    return lambda width, height: selector.get_bucket_resolution((width, height))


def automodel(checkout: Path, multiple: int, max_pixels: int) -> SizeOf:
    name = "nemo_automodel.components.datasets.diffusion"
    bare_packages(checkout, *(".".join(name.split(".")[:n]) for n in range(1, 5)))
    buckets: Any = module(f"{name}.multi_tier_bucketing", checkout)
    chooser = buckets.MultiTierBucketCalculator(quantization=multiple, max_pixels=max_pixels)
    return lambda width, height: chooser.get_bucket_for_image(width, height)["resolution"]


def ai_toolkit(checkout: Path, side: int, multiple: int) -> SizeOf:
    buckets: Any = module("toolkit.buckets", checkout)

    def size_of(width: int, height: int) -> Size:
        size = buckets.get_bucket_for_image_size(
            width, height, resolution=side, divisibility=multiple
        )
        return size["width"], size["height"]

    return size_of


def cosmos(checkout: Path, resolution: str) -> SizeOf:
    folder = checkout / "cosmos_framework" / "data" / "generator"
    helper = nested(folder / "local_datasets" / "helper.py", {"get_aspect_ratio"}, {})
    bare_packages(checkout, "cosmos_framework", "cosmos_framework.data",
                  "cosmos_framework.data.generator")  # fmt: skip
    sizes: Any = module("cosmos_framework.data.generator.utils", checkout)
    table = sizes.VIDEO_RES_SIZE_INFO[resolution]
    return lambda width, height: tuple(table[helper["get_aspect_ratio"](width, height)])


def videox_fun(checkout: Path, side: int) -> SizeOf:
    bare_packages(checkout, "videox_fun", "videox_fun.data")
    buckets: Any = module("videox_fun.data.bucket_sampler", checkout)
    frames: Any = module("videox_fun.data.utils", checkout)
    frames.cv2 = types.SimpleNamespace(
        resize=lambda _, size: types.SimpleNamespace(shape=(size[1], size[0], 3))
    )
    table = {key: [x / 512 * side for x in row] for key, row in buckets.ASPECT_RATIO_512.items()}

    def size_of(width: int, height: int) -> Size:
        frame = frames.resize_frame(types.SimpleNamespace(shape=(height, width, 3)), side)
        size, _ = buckets.get_closest_ratio(*frame.shape[:2], ratios=table)
        high, wide = (int(x / 16) * 16 for x in size)
        return wide, high

    return size_of


def simpletuner(checkout: Path, side: int, multiple: int) -> SizeOf:
    bare_packages(checkout, "simpletuner", "simpletuner.helpers", "simpletuner.helpers.training")
    stub("simpletuner.helpers.models", "simpletuner.simpletuner_sdk", "diffusers", "pillow_jxl")
    training: Any = module("simpletuner.helpers.image_manipulation.training_sample", checkout)
    state = training.StateTracker
    config = {"resolution": side * side / 1e6, "resolution_type": "area", "crop": False}
    values = {
        "get_data_backend_config": config, "get_model": None, "get_metadata_by_filepath": None,
        "get_resolution_by_aspect": None, "set_resolution_by_aspect": None,
        "get_args": argparse.Namespace(aspect_bucket_alignment=multiple, aspect_bucket_rounding=2),
    }  # fmt: skip
    for name, value in values.items():
        setattr(state, name, staticmethod(lambda *_, value=value, **__: value))

    def size_of(width: int, height: int) -> Size:
        sample = training.TrainingSample(
            None, "videos", image_metadata={"original_size": (width, height)}
        )
        size: Size = sample.calculate_target_size()[0]
        return size

    return size_of


def cases(root: Path) -> Iterator[tuple[str, dict[str, Any], Callable[[], SizeOf]]]:
    """Yields trainers with their parameters, and what makes the trainer's own function."""
    divide = {"height_division_factor": 16, "width_division_factor": 16}
    for pixels in (1024 * 1024, 480 * 832):
        yield (
            "wan-diffsynth",
            {"max_pixels": pixels},
            partial(diffsynth, max_pixels=pixels, **divide),
        )
    pipe, tuner, cosmos_root = (
        root / name for name in ("diffusion-pipe", "musubi-tuner", "cosmos-framework")
    )
    for name, multiple, then in (("", 16, 16), ("-ltx", 32, 32), ("-ltx2", 16, 32)):
        yield f"diffusion-pipe{name}", {}, partial(diffusion_pipe, pipe, multiple, 512, then)
    yield "diffusion-pipe", {"resolutions": 300}, partial(diffusion_pipe, pipe, 16, 300, 16)
    for side in ((960, 544), (256, 256)):
        for no_upscale in (False, True):
            values = {"width": side[0], "height": side[1], "no_upscale": no_upscale}
            yield "musubi", values, partial(musubi, tuner, side, no_upscale=no_upscale)
    nemo = root / "Automodel"
    for pixels in (256 * 256, 512 * 512, 480 * 832):
        yield "automodel", {"max_pixels": pixels}, partial(automodel, nemo, 16, pixels)
    yield "automodel-ltx2", {}, partial(automodel, nemo, 32, 512 * 512)
    for px, multiple in ((512, 16), (640, 32)):
        values = {"side": px, "multiple": multiple}
        yield "ai-toolkit", values, partial(ai_toolkit, root / "ai-toolkit", px, multiple)
    for resolution in ("256", "480", "704", "720", "768", "1080"):
        yield "cosmos3", {"resolution": resolution}, partial(cosmos, cosmos_root, resolution)
    for px in (512, 640):
        yield "videox-fun", {"side": px}, partial(videox_fun, root / "VideoX-Fun", px)
    for px, multiple in ((480, 32), (512, 64), (720, 32), (1024, 64)):
        values = {"side": px, "multiple": multiple}
        yield "simpletuner", values, partial(simpletuner, root / "SimpleTuner", px, multiple)


def main() -> None:
    """Prints, per trainer and parameters, how many sizes agree, and the first that do not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--count", type=int, default=4000)
    given = parser.parse_args()
    usual = [(1920, 1080), (1280, 720), (854, 480), (720, 576), (3840, 2160), (640, 480),
             (1440, 1080), (1024, 1024), (2048, 858), (480, 270)]  # fmt: skip
    rng = random.Random(1)
    drawn = [(rng.randint(32, 1200) * 2, rng.randint(32, 1200) * 2) for _ in range(given.count)]
    sizes = [*usual, *((height, width) for width, height in usual), *drawn]
    failed = False
    for name, values, make in cases(given.checkouts.resolve()):
        size_of = make()
        rule = load_trainer(name, values).rules.size
        wrong = []
        for width, height in sizes:
            fitted = rule.fitted(1000, width, height)
            ours = None if fitted is None else (fitted.width, fitted.height)
            theirs = tuple(size_of(width, height))
            if ours != theirs:
                wrong.append((width, height, theirs, ours))
        failed = failed or bool(wrong)
        print(f"{name} {values}: {len(sizes) - len(wrong)} of {len(sizes)}", wrong[:3], flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
