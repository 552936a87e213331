"""What users' measures see: pictures of full size, neighbours, batches, tensors, of one decode."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from fake_nvdec import fake_module
from film_makers import write_video
from samples import analyzed

from curator.executor.unit_worker import UnitWorker
from curator.measures.measure_contract import Measure, SamplePictures, ScoreSpec, Signal
from curator.measures.score_list import Measures
from curator.media.nvdec import Nvdec, NvdecReader
from curator.recipe import Recipe
from curator.records.sources import SourceRef
from curator.records.tracks import Track
from curator.stages.analyze import decode_source, user_measures
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import families_of
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.analyze.user_measures import UserMeasures
from curator.storage.source_reader import stat_source
from curator.tables.track_items import FRAMES, SourceItem

N, FPS, STEP = 60, 30, 4
SIGNAL = Signal(unit="1", range="any", meaning="what was seen")


class Seen(Measure):
    """Which frames it saw, by their brightness, and how."""

    name = "seen"
    version = 1
    full = "rgb"
    pairs = True
    batch = 3
    tensors = True
    names = ("first", "after", "after_s", "rows", "columns", "n_together", "is_tensor", "small_px")
    signals: ClassVar[Mapping[str, Signal]] = dict.fromkeys(names, SIGNAL)
    scores: ClassVar[Mapping[str, ScoreSpec]] = {}

    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        first, after = (float(x[..., 1].float().mean()) for x in (sample.full, sample.full_after))
        rows, columns, _ = sample.full.shape
        values: tuple[Any, ...] = (
            round(first / STEP), round(after / STEP), sample.after_s, rows, columns, 0,
            type(sample.full).__name__ == "Tensor", max(sample.picture_HWC.shape),
        )  # fmt: skip
        return dict(zip(self.names, values, strict=True))

    def measure_batch(self, samples: Sequence[SamplePictures]) -> Sequence[Mapping[str, float]]:
        return [{**self.measure(sample), "n_together": len(samples)} for sample in samples]


class Luma(Seen):
    """Its luma alone, as an array, one sample at a time."""

    name = "luma"
    full = "luma"
    pairs = False
    batch = 1
    tensors = False
    signals: ClassVar[Mapping[str, Signal]] = {"frame": SIGNAL, "n_axes": SIGNAL}

    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        assert sample.full_after is None
        return {"frame": round(float(sample.full.mean()) / STEP), "n_axes": sample.full.ndim}

    def measure_batch(self, samples: Sequence[SamplePictures]) -> Sequence[Mapping[str, float]]:
        assert len(samples) == 1
        return Measure.measure_batch(self, samples)


class _PairsOfNothing(Luma):
    full = None
    pairs = True


class _NoBatch(Luma):
    batch = 0


class _Few(Luma):
    def measure_batch(self, samples: Sequence[SamplePictures]) -> Sequence[Mapping[str, float]]:
        return []


class _OtherName(Luma):
    def measure_batch(self, samples: Sequence[SamplePictures]) -> Sequence[Mapping[str, float]]:
        return [{"other": 0.0} for _ in samples]


def path(measure: type) -> str:
    return f"{__name__}:{measure.__name__}"


def grays(*size: int) -> Iterator[np.ndarray]:
    """Each frame has a brightness of its own."""
    return (np.full((*size, 3), n * STEP, np.uint8) for n in range(N))


def measured(file: Path, monkeypatch: pytest.MonkeyPatch) -> Track:
    """A film, measured by both and by nothing else."""
    monkeypatch.setattr(AnalyzeStage, "sandboxed", False)
    measures = Measures.of([path(Seen), path(Luma)])
    config = AnalyzeConfig(device="cpu", text=False, audio=False)
    names = {family.name for family in families_of(config, users=measures.users)}
    families = frozenset({FRAMES, *(name for name in names if name.startswith("measure "))})
    assert len(families) == 3
    n_bytes, version = stat_source(str(file))
    source = SourceRef(uri=str(file), n_bytes=n_bytes, version=version, source_id="film")
    stage = AnalyzeStage(config, families=families, measures=measures)
    (track,) = UnitWorker(stage=stage)([SourceItem(source=source, families=families)]).results
    assert isinstance(track, Track), track
    return track


def test_a_measure_sees_full_size_neighbours_batches_and_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins frames, sizes, times and batches; pictures that wait for a batch are bounded."""
    write_video(tmp_path / "film.mkv", grays(64, 800), fps=Fraction(FPS), codec="ffv1")
    seen = measured(tmp_path / "film.mkv", monkeypatch).signals
    assert seen["first"].tolist() == seen["frame"].tolist() == [0, 15, 30, 45]
    assert seen["after"].tolist() == [1, 16, 31, 46]
    assert seen["after_s"] == pytest.approx([1 / FPS] * 4, abs=1e-3)
    assert (set(seen["rows"]), set(seen["columns"]), set(seen["small_px"])) == ({64}, {800}, {640})
    assert (seen["n_together"].tolist(), set(seen["is_tensor"])) == ([3, 3, 3, 1], {1})
    assert set(seen["n_axes"]) == {2}
    monkeypatch.setattr(user_measures, "WAITING_BYTES", 3 * 64 * 800 * 3)
    again = measured(tmp_path / "film.mkv", monkeypatch).signals
    assert again["n_together"].tolist() == [2, 2, 2, 2]
    assert again["after"].tolist() == seen["after"].tolist()


def test_frames_without_a_loop_filter_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no B-frame of a large source is seen: the decoder does not smooth them all."""
    file = tmp_path / "film.mp4"
    write_video(file, grays(32, 1280), fps=Fraction(FPS), gop=60, bframes=3)
    with av.open(str(file)) as container:
        is_b = [frame.pict_type == PictureType.B for frame in container.decode(video=0)]
    track = measured(file, monkeypatch)
    first, after = (track.signals[name].astype(int) for name in ("first", "after"))
    assert any(is_b[n] for n in track.sample_frame)
    assert not any(is_b[n] for n in [*first, *after])
    assert (track.sample_frame <= first).all()
    whole = [n for n in range(N) if not is_b[n]]
    assert [whole.index(b) - whole.index(a) for a, b in zip(first, after, strict=True)] == [1] * 4


def test_what_cannot_be_declared_is_refused() -> None:
    """Pins the messages."""
    for measure, words in (
        (_PairsOfNothing, "declares full = None and pairs = True; expected full to be 'rgb'"),
        (_NoBatch, "declares batch = 0; expected 1 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            Recipe.model_validate({"measures": [path(measure)]})


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (_Few, "measure_batch gave 0 results for 1 samples"),
        (_OtherName, r"signals \['other'\]; expected \['frame', 'n_axes'\]"),
    ],
)
def test_a_batch_of_too_few_or_other_signals_is_named(measure: type[Measure], words: str) -> None:
    asked = UserMeasures({"measure luma": measure()}, device="cpu")
    picture = np.zeros((8, 8, 3), np.uint8)
    view = SimpleNamespace(picture=picture, small=picture, is_whole=True, full=lambda kind: picture)
    asked.begin(view, 0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        asked.settle({})


@pytest.mark.parametrize("batch", [7, 15, 32])
def test_a_gpu_gives_the_pictures_that_a_cpu_gives(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins frames, turned sizes and values, wherever batches of an engine end."""
    file = tmp_path / "film.mp4"
    write_video(file, grays(64, 800), fps=Fraction(FPS), bframes=0, rotation=90)
    monkeypatch.setattr(decode_source, "NvdecReader", partial(NvdecReader, batch=batch))
    config = AnalyzeConfig(text=False, audio=False)
    measures = {"measure seen": Seen(), "measure luma": Luma()}
    nvdec = Nvdec(module=fake_module(), device="cpu")
    found, expected = (
        analyzed(file, config=config, nvdec=engine, measures=measures).signals
        for engine in (nvdec, None)
    )
    assert set(expected["rows"]) == {800}
    for name in (*Seen.signals, *Luma.signals):
        assert found[name].tolist() == expected[name].tolist(), name
