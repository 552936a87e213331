"""A source whose bytes change between two looks at it never gives pixels to another's name."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from film_makers import write_video
from film_shots import moving_texture

from curator.errors import ErrorCode
from curator.executor.unit_worker import UnitWorker
from curator.records.clips import Span
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.cut.config import CutConfig
from curator.stages.cut.stage import ClipToCut, CutItem, CutStage, CutStageConfig
from curator.storage import stat_source
from curator.tables.track_items import SourceItem


def film(path: Path, seed: int) -> SourceRef:
    write_video(path, moving_texture(60, seed=seed), fps=Fraction(25), codec="ffv1")
    return listed(path)


def listed(path: Path) -> SourceRef:
    n_bytes, version = stat_source(str(path))
    return SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id="film")


def analyzed(source: SourceRef) -> Track | Failure:
    families = frozenset({"frames"})
    worker = UnitWorker(stage=AnalyzeStage(AnalyzeConfig(device="cpu"), families=families))
    (result,) = worker([SourceItem(source=source, families=families)]).results
    assert isinstance(result, Track | Failure)
    return result


def refused(outcome: object, words: str) -> None:
    assert isinstance(outcome, Failure)
    assert outcome.code is ErrorCode.CHANGED
    assert words in outcome.message


def cut(source: SourceRef, track: Track) -> Failure | None:
    stage = CutStage(CutStageConfig(cut=CutConfig(mode="encode"), max_pixels=1 << 24))
    clip = ClipToCut(
        source=source, clip_id="a", span=Span(start_frame=5, end_frame=40, shot=0), min_frames=1
    )
    (outcome,) = UnitWorker(stage=stage)([CutItem(track=track, clip=clip)]).results
    assert (outcome.written is None) == (outcome.failure is not None)
    return outcome.failure


def test_a_clip_is_cut_of_the_bytes_that_were_analyzed_or_not_at_all(tmp_path: Path) -> None:
    """Pins problem 1 of trust even where size and times say that nothing happened."""
    source = film(tmp_path / "v.mkv", 1)
    track = analyzed(source)
    assert cut(source, track) is None
    other = film(tmp_path / "w.mkv", 2)
    (tmp_path / "w.mkv").rename(tmp_path / "v.mkv")
    refused(cut(source, track), "changed after it was listed")
    # As where a file system keeps no times: the version is the new film's, the track the old one's.
    refused(cut(replace(other, uri=source.uri), track), "")


def test_a_clip_whose_block_rotted_fails_and_says_what_to_do(tmp_path: Path) -> None:
    source = film(tmp_path / "v.mkv", 1)
    track = analyzed(source)
    data = bytearray((tmp_path / "v.mkv").read_bytes())
    data[len(data) // 4] ^= 0x10
    (tmp_path / "v.mkv").write_bytes(data)
    refused(cut(listed(tmp_path / "v.mkv"), track), "restore it from a copy, or `touch` it")
