"""Families: groups of track columns that are measured and stored together.

Each family has its own fingerprint and objects. A run measures only the families that its recipe
needs and that are not stored. The family `frames` has timestamps, which place the values of other
families, and failures of sources.
"""

from collections.abc import Sequence
from typing import NamedTuple

from curator.fingerprints import fingerprint
from curator.measures.distortion import DISTORTION
from curator.measures.measure_contract import Measure
from curator.measures.noise import FULL_FRAME_NOISE, NATIVE_NOISE
from curator.measures.sample_signals import PAIR_SIGNALS, SIGNALS
from curator.models.distortion_network import distortion_model_name
from curator.models.perceptual import DIM, PERCEPTUAL_MODEL
from curator.models.scene_network import scene_model_name
from curator.models.shot_head import shot_head_name
from curator.models.shot_layers import shot_ranges_name
from curator.models.text_detector import TEXT_MODEL
from curator.models.transnet import transnet_model_name
from curator.stages.analyze.config import AnalyzeConfig
from curator.tables.track_items import FRAMES, StoredFamily

DECODE_VERSION = 2  # raised when decoding gives other frames, so all families are measured again
_MEASURE = "measure "


class TrackFamily(NamedTuple):
    """A family, and the settings and models that its values depend on."""

    name: str
    version: int  # raised when the same frames and settings give other values
    columns: tuple[str, ...]  # columns in `track_table`
    keys: tuple[str, ...] = ()  # keys of `AnalyzeConfig`
    models: tuple[object, ...] = ()  # names or hashes of weights

    def stored(self, config: AnalyzeConfig) -> StoredFamily:
        """Returns the folder and the fingerprint under which the family is stored."""
        settings = {key: getattr(config, key) for key in self.keys}
        digest = fingerprint(
            "analyze", self.name, self.version, DECODE_VERSION, settings, self.models
        )
        folder = "measures" if self.name.startswith(_MEASURE) else self.name
        return StoredFamily(name=self.name, folder=folder, fingerprint=digest, columns=self.columns)


SIGNALS_OF = {
    "pictures": (*(name for name in SIGNALS if name not in {*PAIR_SIGNALS, "noise"}), NATIVE_NOISE),
    "motion": (*PAIR_SIGNALS, FULL_FRAME_NOISE),
    DISTORTION: (DISTORTION,),
}
"""Signals of samples, by family."""
_GRID = ("samples_per_s", "motion_pair_s")
BUILT_IN = (
    TrackFamily(
        FRAMES, 4,
        ("sha256", "block_hashes", "time_base", "end_pts", "width", "height", "rotation_deg",
         "pixel_aspect", "aspect_changes", "is_interlaced", "is_hdr", "notes", "n_decode_errors",
         "frame_pts", "frame_bytes", "frame_flags", "frame_size", "luma_mean", "luma_spread"),
        ("max_pixels", "max_frames"),
    ),
    TrackFamily(
        "shots", 5,
        ("shot_probability", "transition_probability", "boundary_probability",
         "inside_probability"),
        ("shot_precision",), (transnet_model_name(), shot_ranges_name(), shot_head_name()),
    ),
    TrackFamily(
        "pictures", 4,
        ("sample_frame", "sample_pair_frame", "descriptor", "thumbnail_frame", "thumbnails",
         *SIGNALS_OF["pictures"]),
        (*_GRID, "thumbnail_every"), (PERCEPTUAL_MODEL, DIM),
    ),
    TrackFamily(
        "scenes", 1, ("scene_frame", "scene_vector"), ("samples_per_s", "scene_every_s"),
        (scene_model_name(),),
    ),
    TrackFamily(
        DISTORTION, 1, SIGNALS_OF[DISTORTION], (*_GRID, "distortion_every_s"),
        (distortion_model_name(),),
    ),
    TrackFamily("motion", 1, SIGNALS_OF["motion"], (*_GRID, "flow")),
    TrackFamily(
        "overlays", 2,
        ("look_frame", "look_next_frame", "look_edges", "look_boxes", "look_standing",
         "look_moved"),
        ("samples_per_s", "text_every_s"),
    ),
    TrackFamily(
        "text", 2, ("text_frame", "text_line"),
        (*_GRID, "text_every_s", "flow", "shot_precision"), (TEXT_MODEL,),
    ),
    TrackFamily("activity", 1, ("local_change",)),
    TrackFamily("audio", 1, ("audio_notes", "audio_rms_first", "audio_rms_db")),
)  # fmt: skip
"""All families except CLIP and users' measures."""
_CLIP = ("clip_frame", "clip_embedding")


def families_of(
    config: AnalyzeConfig, clip_fingerprint: str | None = None, users: Sequence[Measure] = ()
) -> tuple[StoredFamily, ...]:
    """Returns the families that a recipe needs, `frames` first.

    `clip_fingerprint` identifies the weights of the CLIP model; `users` are users' measures.
    """
    switched = ("text", "audio", "scenes", "activity", DISTORTION)
    left_out = {name for name in switched if not getattr(config, name)}
    families = [family for family in BUILT_IN if family.name not in left_out]
    if config.clip is not None:
        keys = ("clip", "samples_per_s", "clip_every_s", "clip_precision")
        families.append(TrackFamily("clip", 1, _CLIP, keys, (clip_fingerprint,)))
    for measure in users:
        if measure.signals:
            name, models = measure_family(measure), (measure.fingerprint(),)
            own = TrackFamily(name, measure.version, tuple(measure.signals), _GRID, models)
            families.append(own)
    return tuple(family.stored(config) for family in families)


def tracks_fingerprint(families: Sequence[StoredFamily]) -> str:
    """Returns the fingerprint of tracks with these families."""
    return fingerprint("tracks", {family.name: family.fingerprint for family in families})


def measure_family(measure: Measure) -> str:
    """Returns the name of the family of a user's measure."""
    return f"{_MEASURE}{measure.fingerprint()}"
