"""Damaged films in a sandbox: each ends with its own outcome, and the sandbox goes on."""

import importlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.executor.sandboxed_process import process_sandbox


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports of the folder `benchmarks`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module
    process_sandbox().stop()


@pytest.mark.parametrize("n_mutants", [40, pytest.param(500, marks=pytest.mark.long)])
def test_mutants_end_with_their_codes(
    benchmarks: Any,  # noqa: ANN401
    n_mutants: int,
    tmp_path: Path,
) -> None:
    """Pins mutants in sandboxes: no crash of this process, none past its limit, no defect."""
    mutations, boxed = benchmarks("mutations"), benchmarks("fuzz_box")
    pool = []
    for number, (name, options) in enumerate(KINDS.items()):
        frames = moving_texture(8, seed=number, width_px=64, height_px=48)
        write_video(tmp_path / name, frames, **options)
        pool.append((tmp_path / name).read_bytes())
    draw, tried = random.Random(15), boxed.BoxedFuzz()
    codes: Counter[str] = Counter()
    for number in range(n_mutants):
        data, other = draw.choice(pool), draw.choice(pool)
        # Its muxers may abort: packets are not written anew here.
        _, data = mutations.mutated(data, other, draw, remuxes=False)
        path = tmp_path / "mutants" / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    for path, outcome in tried(sorted((tmp_path / "mutants").iterdir())):
        codes[outcome.code] += 1
        assert outcome.problems == [], path
    assert sum(codes.values()) == n_mutants
    assert codes["done"] > n_mutants // 5
    assert codes["not_a_video"]


KINDS: dict[str, dict[str, Any]] = {
    "h264.mp4": {"gop": 4, "bframes": 2},
    "pieces.mp4": {"mux_options": {"movflags": "frag_keyframe+empty_moov"}, "gop": 4},
    "turned.mov": {"rotation": 90},
    "h264.mkv": {"audio_tone_s": 0.3},
    "mpeg2.ts": {"codec": "mpeg2video", "audio_tone_s": 0.3},
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "vp8.webm": {"codec": "libvpx", "options": {"deadline": "realtime"}},
}
