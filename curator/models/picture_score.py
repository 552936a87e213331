"""Published networks that score a picture: files in ONNX, and metrics of the package `pyiqa`.

The catalogue has an entry of kind `picture` for each network. The entry names the file, its hash,
and how the network reads a picture. A models folder adds entries of its own.

pyiqa (IQA-PyTorch) is not a dependency: its licence, PolyForm Noncommercial 1.0.0, forbids
commercial use. Users who may use it install it themselves.

Shape letters: N pictures, H, W height and width, 3 channels (RGB), K outputs of a network.
"""

# ruff: noqa: N802, N803 - shape letters

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, one_line, unknown_key
from curator.installation import pip_command
from curator.models.catalogue import ModelEntry, PictureInput

Pictures = NDArray[np.uint8]
Scores = NDArray[np.float32]

BATCH = 8
"""Pictures per call of a network."""


class PictureScore(Protocol):
    """A loaded network."""

    def scores_N(self, frames_NHW3: Pictures) -> Scores:
        """Returns a score for each picture, float32 [N]; NaN if the network has none."""
        ...


def check_runtime(entry: ModelEntry) -> None:
    """Raises `ModelError` if the package that runs a network is not installed; imports nothing."""
    assert entry.picture is not None
    package = "onnxruntime" if entry.picture.runs == "onnx" else "pyiqa"
    if find_spec(package) is not None:
        return
    licence = (
        "" if package == "onnxruntime"
        else " (PolyForm Noncommercial 1.0.0: not for commercial use)"
    )  # fmt: skip
    raise ModelError(
        f"model {entry.name} needs {package}{licence}: {pip_command('install', package)}"
    )


def load_picture_score(entry: ModelEntry, weights: Path) -> PictureScore:
    """Loads a network of kind `picture` from its file.

    Raises:
        ModelError: The package is missing, or the file holds another network.
    """
    check_runtime(entry)
    assert entry.picture is not None
    if entry.picture.runs == "onnx":
        return OnnxScore(entry, weights)
    return PyiqaScore(entry, weights)


class OnnxScore:
    """A network in ONNX with one picture as its input, computed by `onnxruntime` on one thread.

    Args:
        entry: The model; its `picture` says how pictures are prepared and which output is read.
        weights: The file.

    Raises:
        ModelError: The file is no such network.
    """

    def __init__(self, entry: ModelEntry, weights: Path) -> None:
        import onnxruntime

        assert entry.picture is not None
        self._name, self._picture = entry.name, entry.picture
        options = onnxruntime.SessionOptions()
        # More threads would compete with other workers for cores.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(weights), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ModelError(f"{weights} holds no {entry.name}: {one_line(error)}") from error
        inputs = self._session.get_inputs()
        shape: Any = inputs[0].shape if inputs else ()
        if len(inputs) != 1 or len(shape) != 4 or (shape[1] != 3 and shape[3] != 3):
            shapes = ", ".join(f"{i.name} {i.shape}" for i in inputs) or "nothing"
            raise ModelError(
                f"model {entry.name}: {weights} reads {shapes}; expected one input of RGB pictures "
                "with four axes, 3 of which is the second or the last"
            )
        self._input = inputs[0].name
        self._channels_first = shape[1] == 3
        # Many exported networks read a fixed number of pictures, mostly one.
        self._is_fixed = isinstance(shape[0], int) and shape[0] > 0
        self._batch = shape[0] if self._is_fixed else BATCH

    def scores_N(self, frames_NHW3: Pictures) -> Scores:
        """Returns a score for each picture, float32 [N]."""
        prepared = [prepared_picture(frame, self._picture) for frame in frames_NHW3]
        return np.concatenate([np.zeros(0, np.float32), *self._each_batch(prepared)])

    def _each_batch(self, prepared: Sequence[NDArray[np.float32]]) -> Iterator[Scores]:
        for at in range(0, len(prepared), self._batch):
            some = prepared[at : at + self._batch]
            n_filled = self._batch - len(some) if self._is_fixed else 0
            batch = np.stack([*some, *[some[-1]] * n_filled])
            if self._channels_first:
                batch = np.ascontiguousarray(batch.transpose(0, 3, 1, 2))
            try:
                made = self._session.run(None, {self._input: batch})[0]
            except Exception as error:
                # A wrong side_px, for example: no clip is at fault.
                raise ModelError(
                    f"model {self._name}: the network refuses pictures of "
                    f"{self._picture.side_px} px: {one_line(error)}"
                ) from error
            yield self._read(self._by_picture(made, len(batch)))[: len(some)]

    def _by_picture(self, made: object, n_pictures: int) -> NDArray[np.float32]:
        """Returns what the network made of a batch, float32 [N, K]."""
        try:
            outputs = np.asarray(made, np.float32)
            if outputs.size == n_pictures or (outputs.size and outputs.shape[:1] == (n_pictures,)):
                return outputs.reshape(n_pictures, -1)
            what = f"an array {list(outputs.shape)}"
        except (TypeError, ValueError):
            what = f"a {type(made).__name__}"
        raise ModelError(
            f"model {self._name}: the network makes {what} of {n_pictures} pictures; expected "
            "numbers for each picture; a network for one picture at a time needs 1 as the first "
            "size of its input"
        )

    def _read(self, outputs_NK: NDArray[np.float32]) -> Scores:
        n_outputs = outputs_NK.shape[1]
        if self._picture.output == "expectation":
            # NIMA: probabilities of the ratings 1 to K (Talebi, Milanfar, arXiv 1709.05424).
            rating: Scores = outputs_NK @ np.arange(1, n_outputs + 1, dtype=np.float32)
            return rating
        if self._picture.output >= n_outputs:
            raise ModelError(
                f"model {self._name}: output is {self._picture.output}, and the network has "
                f"{n_outputs} outputs, which count from 0"
            )
        return outputs_NK[:, self._picture.output]


class PyiqaScore:
    """A metric of pyiqa that needs no reference, on a GPU if there is one.

    Frames keep their size, as pyiqa's metrics expect it. Some of pyiqa's metrics unpickle their
    weights, so only files of a trusted origin belong into a catalogue.

    Args:
        entry: The model; `picture.metric` is pyiqa's name of the metric.
        weights: File that pyiqa gets as `pretrained_model_path`.

    Raises:
        ModelError: pyiqa has no such metric, or the file holds another one.
    """

    def __init__(self, entry: ModelEntry, weights: Path) -> None:
        import pyiqa
        import torch

        assert entry.picture is not None
        assert entry.picture.metric is not None
        names = list(pyiqa.list_models("NR"))
        if entry.picture.metric not in names:
            problem = unknown_key(entry.picture.metric, names, "metric without a reference")
            raise ModelError(f"model {entry.name}: pyiqa {pyiqa.__version__}: {problem}")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._metric: Any = pyiqa.create_metric(
                entry.picture.metric,
                device=torch.device(device),
                pretrained_model_path=str(weights),
            )
        except Exception as error:
            raise ModelError(
                f"{weights} holds no {entry.picture.metric} of pyiqa: {one_line(error)}"
            ) from error
        self._device = device

    def scores_N(self, frames_NHW3: Pictures) -> Scores:
        """Returns a score for each picture, float32 [N]."""
        import torch

        scores = []
        with torch.inference_mode():
            # One at a time: scores of some metrics depend on the other pictures of a batch.
            for frame in frames_NHW3:
                given = torch.from_numpy(np.ascontiguousarray(frame)).to(self._device)
                made = self._metric(given.permute(2, 0, 1)[None].float() / 255)
                scores.append(float(torch.as_tensor(made).flatten()[0]))
        return np.array(scores, np.float32)


def prepared_picture(frame_HW3: Pictures, how: PictureInput) -> NDArray[np.float32]:
    """Returns what a network in ONNX reads of a picture: float32 [side_px, side_px, 3]."""
    from PIL import Image

    assert how.side_px is not None
    height, width = frame_HW3.shape[:2]
    scaled_px = how.scaled_px or how.side_px
    if how.fit == "squash":
        size = scaled_px, scaled_px
    else:
        short = min(height, width)
        size = (
            max(scaled_px, scaled_px * width // short),
            max(scaled_px, scaled_px * height // short),
        )
    image = Image.fromarray(frame_HW3).resize(size, Image.Resampling[how.filter.upper()])
    left, top = (size[0] - how.side_px) // 2, (size[1] - how.side_px) // 2
    values = np.asarray(
        image.crop((left, top, left + how.side_px, top + how.side_px)), np.float32
    )[:, :, :: -1 if how.channels == "bgr" else 1]  # fmt: skip
    mean, std = np.array((how.mean, how.std), np.float32)
    made: NDArray[np.float32] = (values - mean) / std
    return made
