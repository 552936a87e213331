"""Every stage on a fixed input: where its result changes, its version must."""

import hashlib
import io
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from unittest.mock import MagicMock

import av
import numpy as np
import pyarrow as pa
import pytest
from film_makers import write_video
from film_shots import moving_texture
from filtered_clips import run_stage
from made_out import SAME
from numpy.typing import NDArray
from overlays import lettering, subtitled
from stage_digests import check_digest, digest_of

from curator.buckets import Bucket
from curator.dataset.sample import Sample
from curator.dataset.shard_plan import plan_shards, write_shard
from curator.executor.corpus_work import CorpusWork
from curator.executor.unit_worker import UnitWorker
from curator.measures.score_list import SCORES
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.records.clips import Span
from curator.records.cuts import Crop
from curator.records.sources import SourceRef
from curator.records.tracks import Track
from curator.runs.corpus import CorpusState
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import BUILT_IN, families_of
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.cut.config import CutConfig
from curator.stages.cut.stage import ClipToCut, CutItem, CutStage, CutStageConfig
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.stage import DedupStage
from curator.stages.filter.stage import FilterStage
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.stage import ProposeStage
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.stage import ScanStage
from curator.stages.select.config import SelectConfig
from curator.stages.select.stage import SelectStage
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.stage import ShardStage
from curator.storage.source_reader import stat_source
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows, candidates_table
from curator.tables.duplicate_pairs import NearDuplicatePairs, Pair
from curator.tables.schemas import clips_schema
from curator.tables.track_items import SourceItem, TrackItem
from curator.tables.track_table import tracks_to_table

CONFIG = AnalyzeConfig(shot_precision="float32", device="cpu")
VERSIONS = {family.name: family.version for family in BUILT_IN}


def pictures() -> Iterator[NDArray[np.uint8]]:
    """Two shots, with a word over them now and then."""
    word = lettering("Where?", size_px=18)
    for seed in range(2):
        frames = moving_texture(75, seed=seed, width_px=192, height_px=128)
        yield from subtitled(frames, [word, None], n_frames=50)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SourceRef:
    """A film without loss, so that its pixels are those of no encoder."""
    path = tmp_path_factory.mktemp("fixed") / "film.mkv"
    write_video(path, pictures(), fps=Fraction(25), codec="ffv1", audio_tone_s=6.0)
    n_bytes, version = stat_source(str(path))
    return SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id="film")


@pytest.fixture(scope="module")
def track(source: SourceRef) -> Track:
    families = frozenset(family.name for family in families_of(CONFIG))
    worker = UnitWorker(stage=AnalyzeStage(CONFIG, families=families))
    (measured,) = worker([SourceItem(source=source, families=families)]).results
    assert isinstance(measured, Track)
    return measured


@pytest.mark.parametrize("family", families_of(CONFIG), ids=lambda family: family.name)
def test_a_family_that_gives_other_values_has_another_version(family, track) -> None:  # noqa: ANN001
    # Container and encoder decide about these.
    of_file = {"sha256", "block_hashes", "frame_bytes", "thumbnails"}
    table = tracks_to_table([("film", track)], [c for c in family.columns if c not in of_file])
    (row,) = table.drop_columns(["source_id"]).to_pylist()
    check_digest(f"analyze.{family.name}", VERSIONS[family.name], row)


def test_candidates_that_are_others_have_another_version(track: Track, source: SourceRef) -> None:
    stage = ProposeStage(ProposeConfig())
    (made,) = UnitWorker(stage=stage)(
        [TrackItem(source=source, track=track, frames_part="p")]
    ).results
    clips = candidates_table(made.clips, SCORES)
    columns = {
        f"clips.{name}": clips[name].to_pylist()
        for name in clips.column_names
        if name != "source_uri" and "bit" not in name
    }
    columns |= {f"shots.{name}": [row[name] for row in made.shots] for name in made.shots[0]}
    columns["vectors"] = [vector for _, vector in made.vectors]
    check_digest("propose", stage.version, columns)


@pytest.fixture(scope="module")
def candidates(track: Track, source: SourceRef) -> pa.Table:
    """Short candidates of the film."""
    stage = ProposeStage(ProposeConfig(min_s=0.5, max_s=1.5))
    items = [TrackItem(source=source, track=track, frames_part="p")]
    (made,) = UnitWorker(stage=stage)(items).results
    table = candidates_table(made.clips, SCORES)
    ids = pa.array([f"{number:04d}" for number in range(table.num_rows)])
    return table.set_column(table.schema.get_field_index("clip_id"), "clip_id", ids)


def filtered(candidates: pa.Table) -> pa.Table:
    recipe = load_recipe("quickstart", ["shard.resolutions=[100]", "filters.short_side_px.min=50"])
    decided = CorpusState(candidates, 1 << 30, vectors={}.__getitem__)
    decided.decide(graph_of(recipe)["filter"], CorpusWork("filter"))
    return pa.concat_tables(decided.clips.blocks())


def rows_of(candidates: pa.Table) -> ClipRows:
    return ClipRows(filtered(candidates), clips_schema(SCORES))


DECISION = ("decision", "reason", "reason_score", "reasons", "bucket", "tags")


def test_other_decisions_have_another_version(candidates: pa.Table) -> None:
    clips = filtered(candidates)
    columns = {name: clips[name].to_pylist() for name in DECISION}
    check_digest("filter", FilterStage.version, columns)


def test_other_duplicates_and_selections_have_another_version(candidates: pa.Table) -> None:
    rows = rows_of(candidates)
    for row in rows:
        row.decision, row.reason, row.reasons = "kept", None, []
    ids = [row.clip_id for row in rows]
    none = NearDuplicatePairs.of(None, DedupConfig().search_fingerprint)
    pairs = [Pair(clip_id=b, other=a, match=SAME) for a, b in itertools.pairwise(ids)]
    stored = none.with_new(pa.array(ids), [], pairs[::2]).table()
    run_stage(DedupStage(DedupConfig()), rows, tables=MagicMock(read=lambda _: stored))
    check_digest("dedup", DedupStage.version, {"of": rows.values("duplicate_of")})
    run_stage(SelectStage(SelectConfig(keep_fraction=0.5)), rows)
    check_digest("select", SelectStage.version, {"reason": rows.values("reason")})


def test_clips_that_are_written_otherwise_have_another_version(
    track: Track, source: SourceRef
) -> None:
    """Pins frames, times and pictures; bytes of the encoder are another test's."""
    config = CutStageConfig(cut=CutConfig(), max_pixels=1 << 20)
    clip = ClipToCut(
        source=source, clip_id="a", span=Span(start_frame=5, end_frame=40, shot=0), min_frames=1,
        crop=Crop(x=8, y=8, width=160, height=96),
    )  # fmt: skip
    (result,) = UnitWorker(stage=CutStage(config))([CutItem(track=track, clip=clip)]).results
    with av.open(io.BytesIO(result.mp4)) as container:
        frames = [frame.to_ndarray(format="gray").mean() for frame in container.decode(video=0)]
    facts = asdict(result.written)
    names = ("start_frame", "end_frame", "start_s", "end_s", "n_frames", "width", "height", "crf")
    check_digest(
        "cut", CutStage.version, {"luma": frames} | {name: [facts[name]] for name in names}
    )


def test_tars_of_other_bytes_have_another_version() -> None:
    samples = [
        Sample(
            key=f"{number:04d}",
            metadata={"key": f"{number:04d}", "n_frames": 50, "duration": 2.0},
            caption=f"Clip {number}.",
            mp4_bytes=1000 + number,
            mp4_sha256="0" * 64,
            location=Location(
                name="cuts/a.parquet", row=number, offset=None, n_bytes=1000 + number
            ),
        )
        for number in range(7)
    ]
    bucket = Bucket(resolution=720, aspect="16,9", min_frames=49)
    config = ShardConfig(max_bytes=1 << 16, min_bytes=0)
    tars = []
    for plan in plan_shards([(bucket, sample) for sample in samples], config):
        output = io.BytesIO()
        write_shard(plan, output.write, lambda sample: bytes(sample.mp4_bytes), lambda vector: b"")
        tars.append((plan.name, hashlib.sha256(output.getvalue()).hexdigest()))
    check_digest("shard", ShardStage.version, {"tars": str(tars)})


def test_probes_that_are_others_have_another_version(source: SourceRef) -> None:
    (row,) = UnitWorker(stage=ScanStage(ScanConfig()))([source]).results
    of_file = {"uri", "version", "source_id", "bytes"}
    columns = {name: str(value) for name, value in row.items() if name not in of_file}
    check_digest("scan", ScanStage.version, columns)


def test_a_small_change_of_a_value_changes_its_digest() -> None:
    """Pins that the tolerance lets last digits through, and no other threshold."""
    values = np.linspace(0.2, 0.8, 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stage_digests.json.loads", lambda _: {"x 1": digest_of({"a": values})})
        check_digest("x", 1, {"a": values + 1e-4})
        for other in (values * 1.01, values[::-1], values[:-1], np.where(values > 0.7, 0, values)):
            with pytest.raises(AssertionError, match="the result of x changed"):
                check_digest("x", 1, {"a": other})
