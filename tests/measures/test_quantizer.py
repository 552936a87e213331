"""The quantiser is what the encoder was told, in one scale for all codecs that say it."""

import gc
import io

import av
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray

from curator.media.coded_quantizer import quantizer_signals
from curator.media.decode import DECODER_OPTIONS

N_FRAMES = 4


def encoded(codec: str, options: dict[str, str]) -> bytes:
    """A slow pan over a texture."""
    buffer = io.BytesIO()
    picture = texture(3, width_px=352, height_px=256)
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        if codec == "mjpeg":
            stream.pix_fmt = "yuvj420p"
        for index in range(N_FRAMES):
            view = np.ascontiguousarray(picture[index : index + 240, index : index + 320])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def quantizers(data: bytes, options: dict[str, str] = DECODER_OPTIONS) -> NDArray[np.float64]:
    """The signal of each frame."""
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].codec_context.options = dict(options)
        frames = list(container.decode(video=0))
    return np.array([quantizer_signals(frame)["quantizer"] for frame in frames])


@pytest.mark.parametrize("qp", [20, 33, 46])
def test_h264_gives_its_own_qp(qp: int) -> None:
    options = {"qp": str(qp), "x264-params": "ipratio=1:pbratio=1:aq-mode=0"}
    assert quantizers(encoded("libx264", options)) == pytest.approx(np.full(N_FRAMES, qp), abs=0.01)


def test_a_coarser_code_is_a_higher_qp_of_any_codec_that_says_it() -> None:
    # Pins that a code of 8, a step of 16, is QP 28, and twice the code 6 more.
    for codec in ("mpeg2video", "mpeg4"):
        # The last frame of a stream comes without it.
        eight, sixteen = (
            quantizers(encoded(codec, {"qmin": code, "qmax": code, "g": "1"}))[:-1].mean()
            for code in ("8", "16")
        )
        assert eight == pytest.approx(28, abs=0.01)
        assert sixteen - eight == pytest.approx(6, abs=0.01)
    # Vp9 rises with its quantiser and stays in range.
    values = [
        quantizers(
            encoded("libvpx-vp9", {"qmin": q, "qmax": q, "crf": q, "b": "0", "cpu-used": "8"})
        ).mean()
        for q in ("4", "20", "40", "63")
    ]
    assert values == sorted(values)
    assert 4 < values[0] < 20 < 45 < values[-1] < 51.1
    # NaN, and never a number, for codecs and decoders that say nothing.
    assert np.isnan(quantizers(encoded("mjpeg", {}))).all()
    assert np.isnan(quantizers(encoded("libx264", {"qp": "30"}), options={})).all()


def _n_frames() -> int:
    """Returns the frames that are held anywhere in this process, by other tests too."""
    return sum(isinstance(held, av.VideoFrame) for held in gc.get_objects())


def test_a_frame_is_freed_as_soon_as_it_is_dropped() -> None:
    """Pins that reading a quantiser leaves no cycle: of 8K frames, each would hold 50 MB."""
    data = encoded("libx264", {"qp": "30"})
    gc.collect()
    gc.disable()
    try:
        n_before = _n_frames()
        assert quantizers(data).all()
        assert _n_frames() == n_before
    finally:
        gc.enable()
