"""Segments of a source give, joined, the track that one decode of all of it gives."""

import io
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from numpy.typing import NDArray
from overlays import lettering, subtitled
from samples import StillNetwork
from segmented import FirstPixels, planned, short_segments

from curator.media.source_segments import EVEN_BEYOND, NotInSegmentsError, Segment, WholeReason
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import CONTEXT, ShotNetwork
from curator.records.sources import SourceRef, frame_limit
from curator.records.tracks import UNIFORM, Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import HeaderClaims, analyze_source
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.segment_join import OVERLAP, analyze_segment, join_segments
from curator.stages.analyze.stage import AnalyzeStage, PlanStage
from curator.storage import ContentHashes, open_source, s3_client
from curator.storage.range_reader import RangeReader
from curator.tables.track_items import SourceItem

FPS = 30
DETECTOR, SCENES = TextDetector(), SceneNetwork()
PROBABILITY = {
    "shot_probability": 1.1e-4, "transition_probability": 1.1e-4,
    "boundary_probability": 5e-4, "inside_probability": 5e-4,
}  # fmt: skip
"""How far apart they may be: the head reads features of the network in more detail."""
LEAST_FRAMES = 180
LIMIT_S = 10.0
N_FRAMES = 440
CUTS = (130, 181, 185, 400)
"""Two of them where segments meet, one where the answers of the later segment are taken."""


def pictures(n_frames: int) -> Iterator[NDArray[np.uint8]]:
    """Moving textures with cuts, and a word over them now and then."""
    word = lettering("Where?", size_px=9)
    edges = [0, *(cut for cut in CUTS if cut < n_frames), n_frames]
    for seed, (start, end) in enumerate(pairwise(edges)):
        frames = moving_texture(end - start, seed=seed, width_px=96, height_px=64)
        yield from subtitled(frames, [word, None], n_frames=50)


def reason(path: Path, max_frames: int | None = None) -> WholeReason:
    with pytest.raises(NotInSegmentsError) as caught:
        planned(path, max_frames=max_frames)
    return caught.value.reason


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    yield from short_segments(LEAST_FRAMES)


@pytest.fixture(scope="module")
def network() -> ShotNetwork:
    return ShotNetwork()


class Analyzed:
    """A film, its whole track and those of its segments."""

    def __init__(self, path: Path, network: ShotNetwork) -> None:
        self.path, self.network = path, network
        self.size = path.stat().st_size
        with path.open("rb") as reader:
            self.whole = analyze_source(
                reader, str(path), n_bytes=self.size, decoder_threads=1, **self.common()
            )
        self.plan = planned(path)
        self.tracks = [self.segment(segment) for segment in self.plan]

    def common(self, network: Any = None) -> dict[str, object]:  # noqa: ANN401
        config = AnalyzeConfig(clip="looker", clip_every_s=1.5)
        return {
            "source_id": "s",
            "config": config,
            "analysis_models": AnalysisModels(
                network=network or self.network,
                detector=DETECTOR,
                clip=FirstPixels(),  # type: ignore[arg-type]
                scenes=SCENES,
            ),
        }

    def segment(
        self, segment: Segment, reader: io.BytesIO | None = None, **network: object
    ) -> Track:
        with reader or self.path.open("rb") as opened:
            return analyze_segment(
                opened, "film", segment, n_bytes=self.size, decoder_threads=1,
                **self.common(**network),  # type: ignore[arg-type]
            )  # fmt: skip

    def offset_of(self, segment: Segment) -> int:
        """Where in the file a segment begins."""
        with av.open(str(self.path)) as container:
            stream = container.streams.video[0]
            container.seek(segment.start_pts, stream=stream)
            return next(p.pos for p in container.demux(stream) if p.pos is not None)

    def joined(self) -> Track:
        hashes = ContentHashes(sha256=self.whole.sha256, blocks=self.whole.block_hashes)
        return join_segments(self.tracks, hashes, self.header())

    def header(self) -> HeaderClaims:
        return HeaderClaims(n_frames=self.whole.n_frames, duration_s=self.whole.duration_s)


@pytest.fixture(scope="module", params=[pytest.param("cfr.mp4", marks=pytest.mark.long), "vfr.mkv"])
def film(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    network: ShotNetwork,
    short: None,
) -> Analyzed:
    path = tmp_path_factory.mktemp("film") / request.param
    pts = None
    if "vfr" in request.param:
        random = np.random.default_rng(1)
        pts = np.cumsum(random.choice([1, 1, 1, 2], N_FRAMES)).tolist()
    write_video(
        path, pictures(N_FRAMES), fps=Fraction(FPS), pts=pts, gop=90, bframes=2,
        time_base=Fraction(1, FPS) if pts else None, options={"preset": "veryfast"},
    )  # fmt: skip
    return Analyzed(path, network)


def test_the_joined_track_is_the_whole_one(film: Analyzed) -> None:
    joined, whole = film.joined(), film.whole
    assert len(film.plan) >= 2
    for field in fields(Track):
        one, other = getattr(joined, field.name), getattr(whole, field.name)
        if field.name.endswith("_probability"):
            np.testing.assert_allclose(one, other, atol=PROBABILITY[field.name])
        elif isinstance(other, np.ndarray):
            np.testing.assert_array_equal(one, other, err_msg=field.name)
        elif field.name == "signals":
            assert one.keys() == other.keys()
            for name in other:
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        else:
            assert one == other, field.name
    assert len(whole.scene_frame) > whole.duration_s / 2 > len(CUTS)
    assert len(whole.look_frame) > len(np.unique(whole.text_frame)) >= 8
    for name in ("shot_probability", "boundary_probability"):
        ends = np.flatnonzero(getattr(whole, name) > 0.4)
        assert len(ends) >= 4
        np.testing.assert_array_equal(np.flatnonzero(getattr(joined, name) > 0.4), ends)


@pytest.mark.long
def test_a_segment_decodes_and_reads_little_beyond_its_own_frames(film: Analyzed) -> None:
    n_decoded = sum(track.n_frames for track in film.tracks)
    # The film may end before all that two segments share has come.
    ends = [segment.end_pts for segment in film.plan if segment.end_pts is not None]
    beyond = [int((film.whole.frame_pts >= end).sum()) for end in ends]
    n_shared = sum(min(OVERLAP, n) for n in beyond)
    assert film.whole.n_frames + n_shared <= n_decoded
    assert n_decoded <= film.whole.n_frames + n_shared + 10 * len(ends)

    # A segment reads only its own bytes.
    class Counting(io.BytesIO):
        n_read = 0

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            count = super().readinto(buffer)
            self.n_read += count
            return count

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.n_read += len(data)
            return data

    reader = Counting(film.path.read_bytes())
    film.segment(film.plan[0], reader, network=StillNetwork())
    share = film.tracks[0].n_frames / film.whole.n_frames
    assert reader.n_read <= (share + 0.1) * film.size + (1 << 19)


def test_segments_with_other_frames_damage_or_uniformity_are_told(film: Analyzed) -> None:
    first, *rest = film.tracks
    shifted = replace(first, frame_pts=first.frame_pts + 1)
    darker = replace(first, luma_mean=first.luma_mean * np.float32(0.9))
    short = replace(
        first, **{f.name: getattr(first, f.name)[:-CONTEXT - 20] for f in fields(Track)
                  if isinstance(getattr(first, f.name), np.ndarray)
                  and len(getattr(first, f.name)) == first.n_frames},
    )  # fmt: skip
    for wrong in (shifted, darker, short):
        with pytest.raises(NotInSegmentsError) as caught:
            join_segments([wrong, *rest], "", film.header())
        assert caught.value.reason == WholeReason.INDEX_LIES
    # A segment that begins elsewhere or is damaged is refused.
    begin = film.plan[1]
    with pytest.raises(NotInSegmentsError, match="index_lies"):
        film.segment(replace(begin, start_pts=begin.start_pts + 1))
    data = bytearray(film.path.read_bytes())
    middle = len(data) // 2
    for i in range(middle - 20_000, middle, 37):
        data[i] ^= 0x55
    hit = next(s for s in reversed(film.plan) if film.offset_of(s) < middle - 20_000)
    with pytest.raises(NotInSegmentsError, match="damaged"):
        film.segment(hit, io.BytesIO(bytes(data)), network=StillNetwork())
    # The last frame of a segment counts, after which parameter sets may be others.
    assert (film.whole.frame_flags & UNIFORM).all()
    first, *rest = film.tracks
    for begin, end, expected in ((90, None, 90), (90, 100, film.whole.n_frames - 10)):
        flags = first.frame_flags.copy()
        flags[begin:end] &= 3
        tracks = [replace(first, frame_flags=flags), *rest]
        joined = join_segments(tracks, ContentHashes(sha256="", blocks=b""), film.header())
        assert np.count_nonzero(joined.frame_flags & UNIFORM) == expected


@pytest.mark.long
def test_a_segment_on_s3_fetches_its_own_ranges_ahead_of_the_decoder(
    tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (16, 180, 320, 3), np.uint8)
    write_video(
        path, (noise[i % 16] for i in range(4 * LEAST_FRAMES)), fps=Fraction(FPS), gop=30,
        options={"preset": "ultrafast", "crf": "10"},
    )  # fmt: skip
    size = path.stat().st_size
    assert size > 40 << 20
    s3_client.client().upload_file(str(path), s3_bucket, "large.mp4")
    fetched: list[tuple[int, int, bool]] = []
    fetch = RangeReader._fetch

    def watched(self: RangeReader, start: int, end: int, run: int) -> object:
        in_reader = threading.current_thread() is threading.main_thread()
        fetched.append((start, end, not in_reader))
        return fetch(self, start, end, run)

    monkeypatch.setattr(RangeReader, "_fetch", watched)
    second = planned(path)[1]
    with open_source(f"s3://{s3_bucket}/large.mp4") as reader:
        track = analyze_segment(
            reader, "film", second, source_id="s", n_bytes=size, decoder_threads=1,
            analysis_models=AnalysisModels(network=StillNetwork()),  # type: ignore[arg-type]
            config=AnalyzeConfig(),
        )  # fmt: skip
    share = track.n_frames / (4 * LEAST_FRAMES)
    n_fetched = sum(end - start for start, end, _ in fetched)
    assert share * size <= n_fetched <= share * size + (4 << 20)
    assert sum(end - start for start, end, ahead in fetched if ahead) > 0.6 * n_fetched


def test_segments_come_in_even_numbers_of_what_the_index_has(
    tmp_path: Path, film: Analyzed
) -> None:
    n_frames = 7 * LEAST_FRAMES
    path = tmp_path / "long.mp4"
    write_video(
        path, moving_texture(n_frames, seed=1, width_px=32, height_px=32), fps=Fraction(FPS),
        gop=30, options={"preset": "ultrafast"},
    )  # fmt: skip
    plan = planned(path)
    assert len(plan) % EVEN_BEYOND == 0
    assert [segment.end_pts for segment in plan[:-1]] == [s.start_pts for s in plan[1:]]
    assert plan[-1].end_pts is None
    assert {segment.n_segments for segment in plan} == {len(plan)}
    # A file that was cut off is planned by what is there or not at all.
    path = tmp_path / "cut_off.avi"
    write_video(
        path, moving_texture(4 * LEAST_FRAMES, seed=3, width_px=64, height_px=48),
        fps=Fraction(FPS), codec="mpeg4", gop=60,
    )  # fmt: skip
    assert len(planned(path)) == 3
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])
    assert reason(path) in (
        WholeReason.NO_INDEX, WholeReason.INDEX_LIES, WholeReason.NO_KEY_FRAMES
    )  # fmt: skip
    # The index counts and not the header.
    assert len(planned(film.path, max_frames=10 * N_FRAMES)) > 1
    assert reason(film.path, 3) is WholeReason.TOO_MANY_FRAMES


@pytest.mark.parametrize(
    ("name", "gop", "params", "expected"),
    [
        ("one_gop.mp4", 100_000, "scenecut=0", WholeReason.NO_KEY_FRAMES),
        ("open_gop.mp4", 60, "open-gop=1:bframes=3:b-adapt=0:scenecut=0", WholeReason.OPEN_GOP),
        ("stream.ts", 60, "scenecut=0", WholeReason.NO_INDEX),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_at_key_frames_is_said(
    tmp_path: Path, name: str, gop: int, params: str, expected: WholeReason
) -> None:
    path = tmp_path / name
    write_video(
        path, moving_texture(2 * LEAST_FRAMES, seed=2, width_px=64, height_px=48),
        fps=Fraction(FPS), gop=gop, options={"x264-params": params},
    )  # fmt: skip
    assert reason(path) == expected


def listed(n_bytes: int, n_frames: int, width: int, height: int) -> SourceRef:
    return SourceRef(
        uri="/none.mp4", n_bytes=n_bytes, version="", header_duration_s=n_frames / 25,
        header_n_frames=n_frames, n_pixels=width * height,
    )  # fmt: skip


def test_tiny_frames_without_number_get_the_one_limit_of_a_whole_source() -> None:
    """Pins that 19 MB of 1.5 million frames of 16x16 are too slow in minutes, and films are not."""
    stage = PlanStage(AnalyzeConfig())
    families = frozenset({"frames"})
    tiny = listed(19_000_000, 1_500_000, 16, 16)
    item = SourceItem(source=tiny, families=families, parts={})
    assert stage.process(item) is WholeReason.TOO_MANY_FRAMES
    assert AnalyzeStage(AnalyzeConfig(), families=families).limit_s(item) < 300
    n_frames = 2 * 3600 * 25
    films = ((30_000_000, 160, 120), (100_000_000, 426, 240), (6_000_000, 1920, 1080))
    for n_bytes, width, height in films:
        assert frame_limit(listed(n_bytes, n_frames, width, height)) > n_frames
