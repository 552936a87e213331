"""The stages of the analysis: plan segments, decode and measure, join segments, hash sources."""

import time
from collections.abc import Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from typing import BinaryIO, Self

from curator.errors import DeviceLostError, ErrorCode
from curator.executor.freed_memory import keep_freed_memory
from curator.measures.distortion import DISTORTION
from curator.measures.measure_contract import Measure
from curator.measures.motion import Flow
from curator.measures.score_list import BUILT_IN, Measures
from curator.media.nvdec import Nvdec
from curator.media.source_segments import NotInSegmentsError, Segment, WholeReason, plan_segments
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import ClipEncoder, Device
from curator.models.distortion_network import DistortionNetwork
from curator.models.scene_network import SceneNetwork
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.models.weight_store import ModelStore
from curator.records.sources import (
    Failure,
    Medium,
    Note,
    SourceRef,
    decode_limit_s,
    frame_limit,
)
from curator.records.tracks import Track
from curator.stage import Phase, Resources, Scope, Stage, Wait
from curator.stages.analyze.config import ANALYZED_IN, AnalyzeConfig
from curator.stages.analyze.decode_source import AnalysisOptions, HeaderClaims, analyze_source
from curator.stages.analyze.families import (
    DECODE_VERSION,
    families_of,
    measure_family,
    tracks_fingerprint,
)
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.segment_join import OVERLAP, analyze_segment, join_segments
from curator.storage import ContentHashes, HashingReader, open_source
from curator.tables.track_items import (
    AnalyzeItem,
    HashItem,
    JoinItem,
    SegmentItem,
    SourceItem,
    StoredFamily,
)

Analyzed = Track | Failure | WholeReason | ContentHashes
"""A track, a failure, the reason why a source must be analyzed whole, or the hashes of a source."""
Plan = list[Segment] | WholeReason  # the segments of a long source, or why it has none
SLOW_MEASURES = 10.0  # factor of the CPU limit with a CLIP model or users' measures
MAX_DECODE_BYTES = 4 << 30  # in addition to the networks; 8K takes 0.7 GB, more with threads


class AnalyzeStage(Stage[AnalyzeConfig, AnalyzeItem, Analyzed]):
    """Decodes sources or segments, and measures families.

    `families` are all families that items may need. In workers, `device` of the configuration is
    cpu or gpu. `clip` is the CLIP model, whose weights are in `models`.
    """

    name = "analyze"
    version = DECODE_VERSION
    phase = Phase.MEASURE
    scope = Scope.SOURCE
    reads = ("scan",)
    writes = ("tracks",)
    by_content = frozenset({"scan"})
    media = frozenset({Medium.VIDEO, Medium.IMAGE})
    config_type = AnalyzeConfig
    sections = ("analyze", "measures")
    change_effect = "sources are decoded again for measurements that depend on this key"
    noun = "source"
    time_share = 100.0
    helpers = ("plan", "join", "hash")
    sandboxed = True
    imports = ("torch", "cv2")

    def __init__(
        self,
        config: AnalyzeConfig,
        *,
        families: Set[str] = frozenset(),
        clip: ModelEntry | None = None,
        models: ModelStore | None = None,
        measures: Measures = BUILT_IN,
    ) -> None:
        super().__init__(config)
        self._families = families
        self._threads = 1
        self._clip, self._models, self._measures = clip, models, measures
        self._analysis_models = AnalysisModels()
        self._note: Note | None = None

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for all sources, because their hashes decide how they are grouped."""
        why = "the hashes of their contents put them into generations"
        return self.waits_for("every source of the run to be scanned", why)

    @property
    def resources(self) -> Resources:
        """A core, memory for the networks, and a share of a GPU if it decodes."""
        memory = super().resources.memory_bytes
        if self._clip is not None and self._models is not None:
            memory += self._models.find(self._clip).stat().st_size
        gpus = 1 / (self.config.workers_per_gpu or 1) if self._is_on_gpu else 0.0
        return Resources(cpus=1, memory_bytes=memory, gpus=gpus)

    @property
    def limit_bytes(self) -> int | None:
        """Memory limit for a source; no limit with a GPU: its driver maps more than it uses."""
        return None if self._is_on_gpu else MAX_DECODE_BYTES

    @property
    def _is_on_gpu(self) -> bool:
        return self.config.device == "gpu"

    def files(self) -> tuple[str, ...]:
        """Returns files of users' measures and of CLIP; may copy CLIP from the mirror first."""
        files = tuple(file for measure in self._measures.users for file in measure.files)
        if self._clip is None or self._models is None:
            return files
        return (*files, str(self._models.find(self._clip).parent), self._models.folder)

    def limit_s(self, unit: AnalyzeItem) -> float:
        """Returns the limit for a source in CPU-seconds, at most `max_decode_s`."""
        slower = SLOW_MEASURES if self._clip is not None or self._measures.users else 1.0
        return min(self.config.max_decode_s, slower * decode_limit_s(unit.source))

    def setup(self) -> None:
        """Loads the networks and users' measures of the families; tests the video engine."""
        self._analysis_models = load_analysis_models(
            self.config, self._families, self._clip, self._models, self._measures.users
        )
        nvdec = self._analysis_models.nvdec
        if nvdec is not None and (problem := nvdec.decodes_nothing()) is not None:
            # Otherwise this process would decode every source on the CPU.
            raise DeviceLostError(problem)

    def process(self, unit: AnalyzeItem) -> Analyzed:
        """Measures a source or a segment, or hashes a source."""
        result = self._processed(unit)
        if self._note is None or not isinstance(result, Track):
            return result
        return replace(result, notes=(*result.notes, self._note))

    def _processed(self, unit: AnalyzeItem) -> Analyzed:
        before = self._analysis_models.n_halved()
        try:
            source = unit.source
            match unit:
                case SourceItem():
                    with open_source(source.uri, expected_version=source.version) as reader:
                        return analyze_source(reader, source.uri, **self._how(unit))
                case SegmentItem():
                    with open_source(source.uri, expected_version=source.version) as reader:
                        how = self._how(unit)
                        return analyze_segment(reader, source.uri, unit.segment, **how)
                case HashItem():
                    with open_source(source.uri, expected_version=source.version) as reader:
                        return self._hash(reader)
        except NotInSegmentsError as error:
            return error.reason
        finally:
            self.counts["gpu_batches_halved"] += self._analysis_models.n_halved() - before
            if not isinstance(unit, SegmentItem):
                self.counts["source_bytes"] += unit.source.n_bytes
            if (network := self._analysis_models.network) and not isinstance(unit, HashItem):
                self.counts[ANALYZED_IN + network.precision] += 1

    def failed(self, unit: AnalyzeItem, failure: Failure) -> Analyzed:
        """Returns the failure of a source; if a segment fails, the source is analyzed whole."""
        if not isinstance(unit, SourceItem):
            return WholeReason.FAILED
        if failure.code != ErrorCode.WORKER_DIED:
            return failure
        return replace(
            failure,
            message=f"{failure.message} during decoding: the decoder crashed, or the machine has "
            "too little memory; run this source alone with --workers 1",
        )

    def with_config(self, families: Set[str] | None = None, **changes: object) -> Self:
        """Returns a new stage with changed settings; `families` replaces the families."""
        own = self._families if families is None else families
        return type(self)(
            self.config.model_copy(update=changes),
            families=own,
            clip=self._clip if families is None or "clip" in families else None,
            models=self._models,
            measures=self._measures,
        )

    def with_threads(self, threads: int) -> Self:
        """Returns a copy that decodes with this number of threads."""
        stage = copy(self)
        stage._threads = threads
        return stage

    def on_cpu(self, note: Note) -> Self | None:
        """Returns the same stage for a CPU; None if the recipe needs the GPU's optical flow."""
        if not self._is_on_gpu or self.config.flow == "hardware":
            return None
        stage = copy(self)
        stage.config = self.config.model_copy(update={"device": "cpu"})
        stage._note = note
        return stage

    def video_s(self, unit: AnalyzeItem) -> float:
        """Returns the seconds of a source; of a segment, its share; reading for hashes takes 0."""
        whole_s = unit.source.header_duration_s or 0.0
        match unit:
            case SegmentItem():
                return whole_s / unit.segment.n_segments
            case HashItem():
                return 0.0
            case _:
                return whole_s

    def work_s(self, unit: AnalyzeItem) -> float:
        """Returns the estimated cost, of a segment its share."""
        seconds = unit.source.header_duration_s
        return unit.source.analysis_s * self.video_s(unit) / seconds if seconds else 0.0

    def fingerprint(self, inputs: Mapping[str, str]) -> str:
        """Returns the fingerprint of tracks with all families of the configuration."""
        return tracks_fingerprint(self.stored_families())

    def stored_families(self) -> tuple[StoredFamily, ...]:
        """Returns all families of the configuration."""
        clip_fingerprint = None
        if self._clip is not None and self._models is not None:
            clip_fingerprint = self._models.fingerprint(self._clip)
        return families_of(self.config, clip_fingerprint, self._measures.users)

    def _how(self, item: SourceItem | SegmentItem) -> AnalysisOptions:
        return {
            "source_id": str(item.source.source_id),
            "is_image": item.source.is_image,
            "n_bytes": item.source.n_bytes,
            "analysis_models": self._analysis_models,
            "config": self.config,
            "decoder_threads": self._threads,
            "families": item.families,
            "spent": self.cpu_s,
            "on_reached": self.on_reached,
        }

    def _hash(self, reader: BinaryIO) -> ContentHashes:
        begun_s = time.thread_time()
        hashes = _hashes(reader)
        self.cpu_s["hash"] += time.thread_time() - begun_s
        return hashes


def _hashes(reader: BinaryIO) -> ContentHashes:
    return HashingReader(reader, closes=False).finish()


class PlanStage(Stage[AnalyzeConfig, SourceItem, Plan]):
    """Plans the segments of long sources."""

    name = "plan"
    version = 1
    scope = Scope.SOURCE
    reads = ("scan",)
    config_type = AnalyzeConfig
    sandboxed = True

    # A worker mostly waits for the storage.
    resources = Resources(cpus=0.5)
    limit_bytes = MAX_DECODE_BYTES

    def limit_s(self, unit: SourceItem) -> float:
        """Returns the limit for reading an index, in CPU-seconds."""
        return decode_limit_s(unit.source)

    def process(self, unit: SourceItem) -> Plan:
        """Plans the segments of one source."""
        source, most = unit.source, frame_limit(unit.source)
        if source.weight > most:
            return WholeReason.TOO_MANY_FRAMES
        try:
            with open_source(source.uri, expected_version=source.version) as reader:
                return plan_segments(
                    reader,
                    source.uri,
                    n_bytes=source.n_bytes,
                    limit_s=self.config.segment_s,
                    shared_frames=OVERLAP,
                    max_pixels=self.config.max_pixels,
                    max_frames=most,
                )
        except NotInSegmentsError as error:
            return error.reason

    def failed(self, unit: SourceItem, failure: Failure) -> WholeReason:
        """Lets the source be analyzed whole, which reports the failure."""
        return WholeReason.FAILED


class HashStage(Stage[AnalyzeConfig, HashItem, tuple[SourceRef, str | Failure]]):
    """Computes the SHA-256 of sources that may share an id with a different file."""

    name = "hash"
    version = 1
    scope = Scope.SOURCE
    reads = ("scan",)
    writes = ("hashes",)
    config_type = AnalyzeConfig
    resources = Resources(cpus=0.5)

    def process(self, unit: HashItem) -> tuple[SourceRef, str]:
        """Reads and hashes one source completely."""
        source = unit.source
        with open_source(source.uri, expected_version=source.version) as reader:
            hashes = _hashes(reader)
        return source, hashes.sha256

    def failed(self, unit: HashItem, failure: Failure) -> tuple[SourceRef, Failure]:
        """Returns the failure to read a source."""
        return unit.source, failure


class JoinStage(Stage[AnalyzeConfig, JoinItem, Analyzed]):
    """Joins the tracks of segments into the track of the whole source."""

    name = "join"
    version = 1
    scope = Scope.SOURCE
    reads = ("segments",)
    writes = ("tracks",)
    config_type = AnalyzeConfig

    # A worker mostly waits for parts of tracks.
    resources = Resources(cpus=0.5)

    def process(self, unit: JoinItem) -> Track | WholeReason:
        """Joins the segments of one source."""
        source = unit.source
        header = HeaderClaims(n_frames=source.header_n_frames, duration_s=source.header_duration_s)
        try:
            return join_segments(unit.tracks, unit.hashes, header)
        except NotInSegmentsError as error:
            return error.reason

    def failed(self, unit: JoinItem, failure: Failure) -> WholeReason:
        """Lets the source be analyzed whole."""
        return WholeReason.FAILED


def load_analysis_models(
    config: AnalyzeConfig,
    families: Set[str],
    clip: ModelEntry | None,
    models: ModelStore | None,
    users: Sequence[Measure] = (),
) -> AnalysisModels:
    """Loads networks and users' measures of some families for the device of the configuration."""
    import cv2

    cv2.setNumThreads(1)
    keep_freed_memory()
    on_gpu = config.device == "gpu"
    if on_gpu:
        import torch

        # By default, convolutions use TF32, and scores and lines of text differ from a CPU's.
        torch.backends.cudnn.allow_tf32 = False
    device: Device = "cuda" if on_gpu else "cpu"
    encoder = network = None
    if "clip" in families and clip is not None and models is not None:
        encoder = ClipEncoder(
            clip, models.find(clip), precision=config.clip_precision, device=device
        )
    if "shots" in families:
        network = ShotNetwork(precision=config.shot_precision, device=device)
    detector = None
    if "text" in families:
        detector = TextDetector(device=device, precision=config.shot_precision)
    scenes = SceneNetwork(device=device) if "scenes" in families else None
    distortion = None
    if DISTORTION in families:
        distortion = DistortionNetwork(scenes, device=device)
    measures = {
        name: type(measure)() for measure in users if (name := measure_family(measure)) in families
    }
    for measure in measures.values():
        measure.setup()
    flow: Flow | None = None
    if config.flow == "hardware":
        from curator.media.hardware_flow import HardwareFlow

        flow = HardwareFlow()
    return AnalysisModels(
        network=network,
        detector=detector,
        clip=encoder,
        scenes=scenes,
        distortion=distortion,
        nvdec=Nvdec() if on_gpu else None,
        flow=flow,
        measures=measures,
    )
