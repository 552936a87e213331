"""Annotators that request audio: what they get is of their clip or window, and in sync."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml
from captioned import work_here
from place import Place
from sound import FPS, Sound, beeps, onsets_s, write_film

from curator.family import Array, Family, Scope
from curator.loading import ClipDataset, ClipLoader
from curator.stage import Annotator, AudioRequest, FrameRequest, SampledClip, StageConfig

FLASHES = (11, 40, 73, 112, 140)
OWN = '''"""Annotators that say when they heard beeps."""

import numpy as np
from sound import flash_frames, onsets_s

from curator.family import Array, Columns, Family, Scope, Windows
from curator.stage import Annotator, AudioRequest, FrameRequest, StageConfig


class Config(StageConfig):
    rate: int = 16_000


class Heard(Annotator[Config]):
    """Audio alone: the number of samples, and when the first beep is heard."""

    name, version, config_type, frames = "heard", 1, Config, ()
    families = (
        Family("heard", Scope.CLIP, Columns({"n_samples": "i64", "beep_s": "f64"})),
    )

    def __init__(self, config):
        super().__init__(config)
        self.audio = AudioRequest(config.rate)

    def process(self, unit):
        values = []
        for clip in unit:
            assert clip.requested == ()
            if clip.audio is None:
                values.append({"n_samples": None, "beep_s": None})
                continue
            assert clip.audio.dtype == np.float32 and len(clip.audio) == 1
            beep_s = onsets_s(clip.audio, self.config.rate)[0]
            values.append({"n_samples": clip.audio.shape[1], "beep_s": beep_s})
        return values


class Synced(Annotator[StageConfig]):
    """For each window, the first frame of a flash, and the frame in which a beep begins."""

    name, version, batch, frames = "synced", 1, 4, (FrameRequest(at=lambda c: [0]), FrameRequest())
    audio = AudioRequest(48_000, channels=2)
    windows = Windows(frames=20, every=20, stride=2)
    families = (Family("synced", Scope.CLIP, Array("f32", (2,)), member="synced.safetensors"),)

    def process(self, unit):
        values = []
        for window in unit:
            assert window.audio is None or window.audio.shape == (2, 64_000)
            heard = [] if window.audio is None else onsets_s(window.audio, 48_000)
            seen = flash_frames(window.requested[1].pixels.transpose(3, 0, 1, 2))
            values.append(
                np.array([(seen or [-1])[0], (heard or [-1 / 15])[0] * 15], np.float32)
            )
        return values
'''
RECIPE = {
    "stages": ["own_audio:Synced", "own_audio:Heard"],
    "propose": {"min_s": 0.3, "boundary_threshold": 0.999},
    "dedup": {"enabled": False},
    "filters": {},
    "cut": {"audio": "aac"},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip


@dataclass(frozen=True)
class Heard(Place):
    """A film with beeps at its flashes, and one without audio."""

    settings = ()
    recipe: str = ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    folder = tmp_path_factory.mktemp("heard")
    (folder / "in").mkdir()
    (folder / "own_audio.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    wave = beeps([each / FPS for each in FLASHES], 5.0, channels=2)
    for name, sounds in (("beeps", [Sound(wave=wave)]), ("mute", [])):
        path = folder / "in" / f"{name}.mp4"
        write_film(path, sounds, n_frames=150, size=(160, 64), flashes=FLASHES)
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        patch.syspath_prepend(str(folder))
        place = Heard(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        place.run()
        yield place
    sys.modules.pop("own_audio", None)


@pytest.mark.long
def test_audio_of_a_clip_is_whole_and_absent_where_the_clip_has_none(place: Heard) -> None:
    by_source = {Path(clip["source_uri"]).stem: clip for clip in place.clips()}
    mute, beeping = by_source["mute"], by_source["beeps"]
    assert (mute["audio"], mute["n_samples"], mute["beep_s"]) == ("none", None, None)
    assert beeping["audio"] == "aac"
    seconds = Fraction(beeping["n_frames"], FPS)
    assert beeping["n_samples"] == AudioRequest(16_000).n_samples(seconds)
    first = beeping["start_frame"]
    beep = next(each for each in FLASHES if each >= first)
    assert beeping["beep_s"] == pytest.approx((beep - first) / FPS, abs=0.001)


def test_audio_of_a_window_is_that_of_its_frames(place: Heard) -> None:
    """Pins windows with a stride, together with two requests for frames."""
    dataset = ClipDataset(
        place.out, members=["synced"], video=False, batch_size=1, where="audio='aac'"
    )
    (batch,) = ClipLoader(dataset, num_workers=0)
    seen = batch["synced"][0].numpy()
    assert len(seen) >= 3
    assert (seen[:, 0] >= 0).sum() >= 3
    # A flash has two frames, of which a stride of 2 shows one.
    assert np.abs(seen[:, 0] - seen[:, 1]).max() <= 0.5 + 0.005 * 15


@pytest.mark.parametrize("video", [True, False])
def test_a_stored_window_is_read_with_its_audio(place: Heard, video: bool) -> None:
    """Pins that the drawn window has the beep that its annotator heard."""
    drawn = set()
    for epoch in range(6):
        dataset = ClipDataset(
            place.out, members=["synced"], window="synced", video=video, batch_size=1,
            audio=48_000, where="audio='aac'",
        )  # fmt: skip
        dataset.set_epoch(epoch)
        (batch,) = ClipLoader(dataset, num_workers=0)
        assert ("video" in batch) == video
        assert batch["audio"].shape == (1, 1, 64_000)
        heard = onsets_s(batch["audio"][0].numpy(), 48_000)
        frame = float(batch["synced"][0][1])
        assert (heard or [-1 / 15])[0] * 15 == pytest.approx(frame, abs=0.01)
        drawn.add(int(batch["start_frame"][0]))
    assert len(drawn) > 1


def test_another_rate_computes_values_again_and_another_annotator_stays(place: Heard) -> None:
    """Pins that the request belongs to the fingerprint of its own families."""
    again = place.run("stages=[own_audio:Synced, {use: own_audio:Heard, config: {rate: 8000}}]")
    assert again["work"].get("synced_made", 0) == again["work"]["clips_cut"] == 0
    assert again["work"]["heard_made"] == 2
    (beeping,) = [clip for clip in place.clips() if clip["n_samples"] is not None]
    seconds = Fraction(beeping["n_frames"], FPS)
    assert beeping["n_samples"] == AudioRequest(8_000).n_samples(seconds)


def test_the_request_is_in_the_fingerprint() -> None:
    """Pins rate and channels, and that a class with audio alone requests no frames."""

    class OfAudio(Annotator[StageConfig]):
        name, version = "of_audio", 1
        audio = AudioRequest(16_000)
        families = (Family("own", Scope.CLIP, Array("f32", (2,)), member="own.npy"),)

        def process(self, unit: list[SampledClip]) -> list[np.ndarray]:  # type: ignore[override, type-arg]
            raise NotImplementedError

    assert OfAudio.frames == ()
    prints = set()
    for audio in (AudioRequest(16_000), AudioRequest(8_000), AudioRequest(16_000, 2), None):
        stage = OfAudio(StageConfig())
        stage.audio = audio
        assert stage.decodes == (audio is not None)
        prints.add(stage.versions()["own"].fingerprint)
    assert len(prints) == 4

    class OfBoth(OfAudio):
        frames = (FrameRequest(at=1.0),)

    assert len(OfBoth.frames) == 1
