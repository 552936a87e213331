"""The annotator `camera_track`: from made footage of known motion to the batches of a training."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from captioned import work_here
from film_makers import write_video
from moving_cameras import Floats, MovingCamera, Velocity, eased, signals_of
from numpy.typing import NDArray
from place import Place
from pydantic import ValidationError
from samples import analyzed

from curator.errors import RecipeError
from curator.loading import ClipDataset, ClipLoader, plucker_rays
from curator.measures.camera_path import frame_motion
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.derive.camera_track import CameraTrackConfig
from curator.tools.commands.arguments import EXIT_OK

FPS, N_FRAMES, SIZE = 25, 100, (320, 180)
FIELD_OF_VIEW = 40.0
RECIPE = {
    "propose": {"min_s": 0.5, "max_s": 5.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [180], "lengths": [9], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip


def rising(*least_and_most: tuple[float, float]) -> Velocity:
    """Velocities that rise and fall between two values over the film, for each component."""
    least, most = np.array(least_and_most).T
    ease = eased(0, N_FRAMES / FPS)
    return lambda times_s: least + ease(times_s)[:, None] * (most - least)


MOTIONS: dict[str, tuple[Velocity, float | None]] = {
    "still": (rising((0, 0), (0, 0), (0, 0), (0, 0)), None),
    "panned": (rising((0.1, 0.4), (0, 0.2), (0, 0), (0, 0)), None),
    "zoomed": (rising((0, 0), (0, 0), (0.1, 0.3), (-4, -20)), None),
    "turned": (rising((3, 12), (0, 6), (0, 0), (0, 0)), FIELD_OF_VIEW),
}
"""By name of the film, the camera's velocity, and its lens if it turns on its place."""
SCALES = np.array([1, 1, 1, 0.01])
"""Components as motions of about the same size in the picture."""


def camera(name: str) -> MovingCamera:
    velocity, angle_deg = MOTIONS[name]
    return MovingCamera(
        velocity=velocity, n_frames=N_FRAMES, seed=70 + len(name), fps=FPS, width_px=SIZE[0],
        height_px=SIZE[1], noise=1.0, field_of_view_deg=angle_deg,
    )  # fmt: skip


@dataclass(frozen=True)
class Filmed(Place):
    """Films of known motions, and an output whose samples have tracks."""

    settings = ()
    recipe: str = ""

    def batches(self, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401
        dataset = ClipDataset(
            str(self.out), batch_size=1, frames=N_FRAMES, **options,
        )  # fmt: skip
        names = {clip["clip_id"]: Path(clip["source_uri"]).stem for clip in self.clips()}
        for batch in ClipLoader(dataset, num_workers=0):
            yield names[batch["key"][0]], batch


def stages(**config: object) -> str:
    """The setting with the annotator."""
    text = yaml.safe_dump(config, default_flow_style=True).strip()
    return f"stages=[{{use: camera_track, config: {text}}}]"


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filmed]:
    folder = tmp_path_factory.mktemp("tracks")
    (folder / "in").mkdir()
    for name in MOTIONS:
        write_video(
            folder / "in" / f"{name}.mp4", camera(name).frames(), fps=Fraction(FPS),
            options={"crf": "16"},
        )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place = Filmed(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        place.run(stages(), "analyze.samples_per_s=5")
        yield place


def error(found: NDArray[Any], true: Floats) -> float:
    """The root mean square of the error, relative to the motion."""
    found, true = found[1:] * SCALES, true[1:] * SCALES
    return float(np.sqrt(((found - true) ** 2).sum() / (true**2).sum()))


def lag_frames(found: NDArray[Any], true: Floats) -> float:
    """The delay of a motion that explains most of its error."""
    found, true = found[1:] * SCALES, true[1:] * SCALES
    slope = np.gradient(true, axis=0)
    return -float(((found - true) * slope).sum() / (slope**2).sum())


def test_the_training_gets_the_motion_of_the_frames_that_it_drew(filmed: Filmed) -> None:
    seen = set()
    facts = {"pan": "short sides, right is positive", "roll": "degrees, clockwise is positive"}
    for name, batch in filmed.batches(members={"camera_track": facts}):
        track = batch["camera_track"][0].numpy()
        true = camera(name).motion()
        assert track.shape == (N_FRAMES, 4)
        seen.add(name)
        if name == "still":
            assert np.abs(track * SCALES).max() * FPS < 0.005
        elif name != "turned":
            # Optical flow finds zooms and rolls some 5% too small.
            assert error(track, true) < (0.07 if name == "zoomed" else 0.05)
            assert abs(lag_frames(track, true)) < 0.5
    assert seen == set(MOTIONS)


def test_turns_are_degrees_and_rays_follow_them(filmed: Filmed, tmp_path: Path) -> None:
    place = filmed.copy(tmp_path)
    settings = stages(field_of_view=FIELD_OF_VIEW, poses=True, place="side")
    work = place.run(settings, "analyze.samples_per_s=5")["work"]
    assert (work["sources_analyzed"], work["clips_cut"], work["camera_poses_made"]) == (0, 0, 4)
    members = {"camera_track": {"field_of_view_deg": FIELD_OF_VIEW}, "camera_poses": {}}
    (batch,) = (b for name, b in place.batches(members=members) if name == "turned")
    true = camera("turned").motion()
    track = batch["camera_track"][0].numpy()
    assert error(track[:, :2] @ np.eye(2, 4), true) < 0.05
    assert abs(lag_frames(track, true)) < 0.5
    rays = plucker_rays(batch["camera_poses"][0], (9, 5), SIZE)
    ahead = rays[:, 2, 4, 3:].numpy()
    turned_deg = np.degrees(np.arctan2(ahead[:, 0], ahead[:, 2]))
    np.testing.assert_allclose(turned_deg[-1], true[:, 0].sum(), rtol=0.06)
    assert ahead[-1, 1] < 0, "up"


def test_two_samples_a_second_follow_slow_motions(filmed: Filmed) -> None:
    """Pins the default rate of the analysis for motions that take seconds."""
    track = analyzed(filmed.sources / "panned.mp4", config=AnalyzeConfig(text=False, scenes=False))
    assert len(track.sample_frame) == 8
    assert error(frame_motion(signals_of(track)), camera("panned").motion()) < 0.08


def test_values_are_verified_and_other_samples_make_them_again(
    filmed: Filmed, tmp_path: Path
) -> None:
    from curator.cli import main

    assert main(["verify", str(filmed.out), "--json"]) == EXIT_OK
    place = filmed.copy(tmp_path)
    work = place.run(stages(), "analyze.samples_per_s=4")["work"]
    assert (work["camera_track_made"], work["clips_cut"]) == (4, 0)


def test_poses_without_a_lens_and_unknown_units_are_refused() -> None:
    with pytest.raises(ValidationError, match="poses: true without field_of_view"):
        CameraTrackConfig(poses=True)
    with pytest.raises(RecipeError, match="field_of_view"):
        graph_of(load_recipe("quickstart", [stages(field_of_view=180)]))


def test_captions_are_checked_against_the_same_signals(
    filmed: Filmed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The annotator `caption_claims`, with captions that are written by hand."""
    from curator.cli import main

    place = filmed.copy(tmp_path)
    ids = {Path(clip["source_uri"]).stem: clip["clip_id"] for clip in place.clips()}
    for name, caption in (
        ("panned", "The camera pans right. It is a vertical video."),
        ("still", "A static shot of clouds on a bright red background."),
        ("turned", "Clouds."),
    ):
        assert main(["mark", str(place.out), ids[name], "--caption", caption]) == EXIT_OK
    rule = "filters={caption_contradictions: {max: 0, severity: flag, unmeasured: keep}}"
    work = place.run("stages=[caption_claims]", "analyze.samples_per_s=5", rule)["work"]
    assert (work["sources_analyzed"], work["clips_cut"], work["caption_claims_made"]) == (0, 0, 4)
    clips = {Path(clip["source_uri"]).stem: clip for clip in place.clips()}
    found = {
        name: (clip["caption_support"], clip["caption_contradictions"])
        for name, clip in clips.items()
    }
    assert found["panned"] == (0.5, 1)
    assert found["turned"] == (None, 0)
    assert "caption_contradictions_too_high" in clips["panned"]["tags"]
    claims = {claim["value"]: claim for claim in json.loads(clips["still"]["caption_claims"])}
    assert claims["static"]["verdict"] == "confirmed"
    assert "red on" in claims["mostly red"]["measured"]
    capsys.readouterr()
    assert main(["explain", str(place.out), ids["panned"]]) == EXIT_OK
    text = capsys.readouterr().out
    assert "vertical video" in text
    assert "contradicted  width / height 1.78" in text
