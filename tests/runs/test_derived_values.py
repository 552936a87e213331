"""Values of windows, of times and of requested frames: from the class to the trainer, and proved.

Films show the number of each frame. Annotators store the numbers that they saw, so each value says
for which frames it stands.
"""

import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from captioned import work_here
from film_makers import write_video
from numbered_films import number_of, numbered
from place import Place

from curator import annotator_worker
from curator.cli import main
from curator.errors import ShardError, UsageError
from curator.frame_axes import DrawnFrames, TimeAxis, Windows
from curator.loading import ClipDataset, ClipLoader, shard_reader
from curator.loading.stored_values import StoredValue
from curator.storage.local_store import LocalStore
from curator.tables.json_objects import sealed_json, to_json
from curator.tools.commands.arguments import EXIT_OK
from curator.value_header import ValueHeader

RATE_HZ = 25
OWN = '''"""Annotators that store which frames they saw."""

import numpy as np
import torch
from numbered_films import number_of

from curator.family import REQUESTED, Array, Family, Scope, Windows, per_second
from curator.stage import Annotator, FrameRequest, StageConfig

FACTS = {"vae": "numbers", "sample": "mean", "scale": 0.5}


class Config(StageConfig):
    most: int | None = None


class OfWindows(Annotator[Config]):
    name, version, config_type, batch = "of_windows", 1, Config, 2
    families = (
        Family("seen", Scope.CLIP, Array("bf16", (7,)), member="seen.safetensors", facts=FACTS),
    )

    @property
    def windows(self):
        return Windows(frames=7, every=9, most=self.config.most, stride=2)

    def process(self, unit):
        seen = [[number_of(frame) for frame in window.frames] for window in unit]
        for window, own in zip(unit, seen):
            numbers = range(window.start, window.start + 13, 2)
            assert list(window.requested[0].numbers) == list(numbers)
        return [torch.tensor(own, dtype=torch.bfloat16) for own in seen]


class OfTimes(Annotator[StageConfig]):
    """Thirds of seconds, and frames 1, 4, 9, ..."""

    name, version = "of_times", 1
    frames = (FrameRequest(at=lambda clip: [n * n for n in range(1, 9) if n * n < clip.n_frames]),)
    columns = ("caption",)
    families = (
        Family("thirds", Scope.CLIP, Array("i32", (per_second(3),)), member="thirds.npy"),
        Family("squares", Scope.CLIP, Array("i32", (REQUESTED, 2)), member="squares.safetensors"),
    )

    def setup(self):
        open(os.environ["SET_UP"], "a").write("of_times\\n")

    def process(self, unit):
        answers = []
        for clip in unit:
            n = -(-3 * clip.facts.n_frames // int(clip.facts.fps))
            numbers = np.array([number_of(frame) for frame in clip.frames], np.int32)
            answers.append({
                "thirds": np.arange(n, dtype=np.int32),
                "squares": np.stack([numbers, -numbers], axis=1),
            })
        return answers


class OfTexts(Annotator[StageConfig]):
    name, version, frames, columns = "of_texts", 1, (), ("caption",)
    families = (
        Family("letters", Scope.CLIP, Array("i32", ("tokens",)), member="letters.safetensors"),
    )

    def process(self, unit):
        return [np.array([*map(ord, clip.facts.columns["caption"])], np.int32) for clip in unit]
'''.replace("import numpy as np", "import os\n\nimport numpy as np", 1)
RECIPE = {
    "stages": [{"use": f"own_values:{name}"} for name in ("OfWindows", "OfTimes", "OfTexts")],
    "propose": {"min_s": 0.3, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip


@dataclass(frozen=True)
class Derived(Place):
    """Two films, of 2 s and .36 s."""

    settings = ()
    recipe: str = ""

    @property
    def tar(self) -> Path:
        (tar,) = self.out.glob("shards/*/*.tar")
        return tar

    def members(self) -> dict[str, bytes]:
        """All members of all tars by name."""
        found = {}
        for tar in (self.out / "shards").rglob("*.tar"):
            with tarfile.open(tar) as source:
                for member in source:
                    found[member.name] = source.extractfile(member).read()  # type: ignore[union-attr]
        return found

    def rewrite(self, change: Callable[[str, bytes], bytes]) -> str:
        """Returns a copy of the shards whose members are changed, without a size that says so."""
        copy = self.copy(self.out.parent / f"changed-{len(list(self.out.parent.iterdir()))}")
        for tar in (copy.out / "shards").rglob("*.tar"):
            self.rewrite_tar(tar, change)
        return str(copy.out / "shards")

    @staticmethod
    def rewrite_tar(tar: Path, change: Callable[[str, bytes], bytes]) -> None:
        old, new = io.BytesIO(tar.read_bytes()), io.BytesIO()
        with (
            tarfile.open(fileobj=old) as source,
            tarfile.open(fileobj=new, mode="w", format=tarfile.USTAR_FORMAT) as target,
        ):
            for member in source:
                data = source.extractfile(member).read()  # type: ignore[union-attr]
                changed = change(member.name.partition(".")[2], data)
                assert len(changed) == len(data)
                target.addfile(member, io.BytesIO(changed))
        # A tar of `tarfile` has more empty blocks at its end.
        tar.write_bytes(new.getvalue()[: len(old.getvalue())])


@pytest.fixture(scope="module", params=["sample", "side"])
def own(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The user's file, with all values in the samples, or most in tars of their own."""
    folder = tmp_path_factory.mktemp("own")
    text = OWN
    if request.param == "side":
        for end, place in (
            ("facts=FACTS)", "side"),
            ('thirds.npy")', "side"),
            ('letters.safetensors")', "shared"),
        ):
            assert text.count(end) == 1
            text = text.replace(end, f'{end[:-1]}, place="{place}")')
    (folder / "own_values.py").write_text(text)
    sys.modules.pop("own_values", None)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[1]}")
        patch.setenv("SET_UP", str(folder / "set_up"))
        work_here(patch)
        yield folder


@pytest.fixture(scope="module")
def finished(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Derived:
    """A run with all values; not to be changed."""
    folder = tmp_path_factory.mktemp("derived")
    (folder / "in").mkdir()
    options = {"x264-params": "scenecut=0"}
    for name, n_frames in (("long", 50), ("short", 9)):
        write_video(
            folder / "in" / f"{name}.mp4", numbered(n_frames), fps=Fraction(RATE_HZ), gop=10,
            bframes=2, options=options,
        )  # fmt: skip
    place = Derived(folder / "in", folder / "out", recipe=str(own / "recipe.yaml"))
    summary = place.run()
    assert summary["counts"]["kept"] == 2
    assert summary["work"]["seen_made"] == 1, "a clip shorter than a window has no value"
    assert summary["work"]["of_windows_lacking"] == 1
    assert summary["work"]["squares_made"] == 2
    return place


def batches(out: str | Path, **options: object) -> list[dict[str, Any]]:
    dataset = ClipDataset(str(out), batch_size=1, **options)  # type: ignore[arg-type]
    return list(ClipLoader(dataset, num_workers=0))


def shown(batch: dict[str, Any]) -> list[int]:
    """The numbers that the frames of a batch of one clip show."""
    (video_CTHW,) = batch["video"]  # noqa: N806
    return [
        number_of(video_CTHW[:, t].permute(1, 2, 0).numpy()) for t in range(video_CTHW.shape[1])
    ]


@pytest.mark.long
def test_a_stored_window_comes_with_exactly_its_frames(finished: Derived) -> None:
    """Pins each value by the numbers that its frames show, over epochs that draw all windows."""
    dataset = ClipDataset(str(finished.out), members=["seen"], window="seen", batch_size=1)
    assert dataset.excluded == {"too_short": 1}
    starts = set()
    for epoch in range(40):
        dataset.set_epoch(epoch)
        (batch,) = dataset
        assert batch["seen"].dtype == torch.bfloat16
        assert batch["seen"][0].tolist() == shown(batch)
        starts.add(int(batch["start_frame"]))
    assert starts == {0, 9, 18, 27, 36}
    assert main(["verify", str(finished.out), "--json"]) == EXIT_OK


def test_windows_are_drawn_without_video_too(finished: Derived) -> None:
    """Pins that only frames are missing: the same windows, and the entries of their times."""
    members = ["seen", "squares"]
    seen = ClipDataset(str(finished.out), members=members, window="seen", batch_size=1)
    blind = ClipDataset(
        str(finished.out), members=members, window="seen", batch_size=1, video=False
    )
    assert blind.excluded == {"too_short": 1}
    for epoch in range(8):
        seen.set_epoch(epoch)
        blind.set_epoch(epoch)
        (batch,), (other,) = seen, blind
        assert "video" not in other
        for name in (*members, "squares_frames"):
            assert torch.equal(batch[name], other[name])


@pytest.mark.parametrize("stride", [1, 2])
def test_values_of_times_and_of_requested_frames_follow_the_window(
    finished: Derived, stride: int
) -> None:
    found = set()
    for seed in range(12):
        for batch in batches(
            finished.out, members=["thirds", "squares"], frames=5, stride=stride, seed=seed
        ):
            numbers = shown(batch)
            first, last = numbers[0], numbers[-1]
            squares = [n * n for n in range(1, 9) if first <= n * n <= last]
            (values,), (frames,) = batch["squares"], batch["squares_frames"]
            assert values[:, 0].tolist() == (-values[:, 1]).tolist() == squares
            assert frames.tolist() == squares
            begin = first * 3 // RATE_HZ
            n_thirds = -(-(last - first + 1) * 3 // RATE_HZ)
            assert batch["thirds"][0].tolist() == [*range(begin, begin + n_thirds)]
            found.add(begin)
    assert len(found) > 2
    whole = {b["key"][0]: b for b in batches(finished.out, members=["thirds"], video=False)}
    assert sorted(len(batch["thirds"][0]) for batch in whole.values()) == [2, 6]


def test_windows_are_drawn_without_frames_too(finished: Derived) -> None:
    """Pins that a training on latents alone gets one window, and no clip without windows."""
    with_frames = ClipDataset(str(finished.out), members=["seen"], window="seen", batch_size=1)
    without = ClipDataset(
        str(finished.out), members=["seen"], window="seen", batch_size=1, video=False
    )
    assert without.excluded == {"too_short": 1}
    for epoch in range(8):
        with_frames.set_epoch(epoch)
        without.set_epoch(epoch)
        (shown_batch,), (batch,) = with_frames, without
        assert "video" not in batch
        assert batch["seen"].shape == (1, 7)
        assert torch.equal(batch["seen"], shown_batch["seen"])
        assert torch.equal(batch["start_frame"], shown_batch["start_frame"])


def test_outputs_with_other_values_are_refused_or_named(
    finished: Derived, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that a difference which a declaration shows is refused, and another one is told."""
    copy = finished.copy(tmp_path)
    outs = [str(finished.out), str(copy.out)]
    manifest = copy.out / "shards" / "manifest.json"
    before = json.loads(manifest.read_text())

    def read(change: Callable[[dict[str, Any]], object]) -> ClipDataset:
        changed = json.loads(json.dumps(before))
        del changed["object"], changed["checksum"]
        change(changed["members"]["seen.safetensors"])
        manifest.write_bytes(sealed_json(changed, to_json, "shards/manifest.json"))
        return ClipDataset(outs, members=["seen"], window="seen")

    read(lambda family: None)
    assert "other code or settings" not in caplog.text
    read(lambda family: family.update(fingerprint="0"))
    assert "'seen' was computed with other code or settings in another output" in caplog.text
    with pytest.raises(UsageError, match=r"'seen' has facts.sample = 'mean' in one.*'draw'"):
        read(lambda family: family["facts"].update(sample="draw"))
    with pytest.raises(UsageError, match=r"'seen' has windows = .*'every': 9.*'every': 8"):
        read(lambda family: family["windows"].update(every=8))


def test_values_of_texts_follow_the_caption(finished: Derived) -> None:
    """Pins that a dropped caption has no vectors of the text, and values of frames stay."""
    members = ["letters", "squares"]
    for batch in batches(finished.out, members=members, frames=5):
        assert "".join(map(chr, batch["letters"][0].tolist())) == batch["caption"].unique[0] != ""
    for batch in batches(finished.out, members=members, frames=5, caption_dropout=1.0):
        assert (batch["caption"].unique[0], batch["letters"]) == ("", [None])
        assert batch["squares"][0] is not None
    header = ValueHeader(fingerprint="f", columns={"caption": "0"})
    with pytest.raises(UsageError, match="captions with members that were computed from the clips"):
        StoredValue("vectors", header).for_caption("short")


def test_a_family_of_windows_needs_its_window(finished: Derived) -> None:
    with pytest.raises(
        UsageError, match=r"'seen'.*values of windows of 7 frames.*give window='seen'"
    ):
        ClipDataset(str(finished.out), members=["seen"], batch_size=1)
    with pytest.raises(UsageError, match=r"members 'seen'; expected a list of names: \['seen'\]"):
        ClipDataset(str(finished.out), members="seen")
    with pytest.raises(UsageError, match="7 frames at stride 2, for which its values were"):
        ClipDataset(str(finished.out), members=["seen"], window="seen", frames=9)
    with pytest.raises(UsageError, match=r"window 'thirds'.*values of windows: seen"):
        ClipDataset(str(finished.out), members=["seen", "thirds"], window="thirds")


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"vae": "other"}, "computed with vae = 'numbers', and this training expects 'other'"),
        ({"sample": "draw"}, "sample = 'mean'.*expects 'draw'"),
        ({"scale": 0.25}, "scale = 0.5.*expects 0.25"),
        ({"shift": 0.0}, "'seen' does not declare 'shift', expected 0.0; it declares vae, sample"),
    ],
)
def test_facts_that_a_training_does_not_expect_are_refused_before_the_first_batch(
    finished: Derived, expected: dict[str, Any], words: str
) -> None:
    right = {"vae": "numbers", "sample": "mean", "scale": 0.5}
    ClipDataset(str(finished.out), members={"seen": right}, window="seen")
    with pytest.raises(UsageError, match=words):
        ClipDataset(str(finished.out), members={"seen": right | expected}, window="seen")


def changed_header(field: str, old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(suffix: str, data: bytes) -> bytes:
        if suffix != "seen.safetensors":
            return data
        assert f'"{field}":"{old}'.encode() in data
        return data.replace(f'"{field}":"{old}'.encode(), f'"{field}":"{new}'.encode())

    return change


def shifted(suffix: str, data: bytes) -> bytes:
    """Moves the windows' rows by one frame, as a faulty script would."""
    if suffix != "seen.safetensors":
        return data
    return data[:-70] + data[-68:] + data[-70:-68]


FAULTS: dict[str, tuple[Callable[[str, bytes], bytes], str]] = {
    "windows off by one": (changed_header("frames", "[0,9,18", "[1,9,18"), r"from \[0, 9, 18"),
    "another window": (changed_header("frames", "[0,9,18", "[0,9,17"), r"frames \[0, 9, 17"),
    "rows shifted": (shifted, "the value's bytes have the SHA-256"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_values_that_do_not_belong_to_their_frames_are_refused(
    finished: Derived, name: str
) -> None:
    change, words = FAULTS[name]
    out = finished.rewrite(change)
    with pytest.raises(ShardError, match=f"clip .* seen: .*{words}"):
        batches(out, members=["seen"], window="seen")


def test_a_value_of_another_mp4_or_family_is_refused(finished: Derived, own: Path) -> None:
    (data,) = (d for name, d in finished.members().items() if name.endswith("seen.safetensors"))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    for field, words in (("mp4_sha256", "computed from the MP4 0000"), ("family", "is 0000")):
        out = finished.rewrite(changed_header(field, header[field][:6], "000000"))
        with pytest.raises(ShardError, match=words):
            batches(out, members=["seen"], window="seen")
        assert main(["verify", out]) != EXIT_OK


def test_windows_that_memory_does_not_hold_together_have_the_same_values(
    finished: Derived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a decode from a key frame on gives the frames of a decode from the start."""
    window_bytes = 7 * 160 * 64 * 3
    monkeypatch.setattr(annotator_worker, "MAX_BATCH_BYTES", 2 * window_bytes)
    again = finished.copy(tmp_path)
    again.run("stages=[{use: own_values:OfTimes},{use: own_values:OfWindows,config: {most: 4}}]")
    values = [
        b for b in batches(again.out, members=["seen"], video=False) if b["seen"][0] is not None
    ]
    assert values[0]["seen"][0].tolist() == [
        [start + 2 * n for n in range(7)] for start in (0, 9, 18, 36)
    ]


def test_only_stages_with_missing_values_are_set_up(
    finished: Derived, own: Path, tmp_path: Path
) -> None:
    """Pins that an idle stage loads nothing when another one has work."""
    log = own / "set_up"
    log.unlink(missing_ok=True)
    again = finished.copy(tmp_path)
    summary = again.run(
        "stages=[{use: own_values:OfTimes},{use: own_values:OfWindows,config: {most: 2}}]"
    )
    assert (summary["work"]["seen_made"], summary["work"].get("squares_made", 0)) == (1, 0)
    assert not log.exists()


def test_the_loader_reads_only_the_members_that_it_needs(
    finished: Derived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins bytes: without video, no MP4 is read."""
    read: list[tuple[int, int]] = []
    inner = LocalStore.read_range

    def read_range(self: LocalStore, key: str, first: int, end: int) -> bytes:
        read.append((first, end))
        return inner(self, key, first, end)

    monkeypatch.setattr(LocalStore, "read_range", read_range)
    monkeypatch.setattr(shard_reader, "LOCAL_GAP_BYTES", 0)
    batches(finished.out, members=["thirds"], video=False)
    partly = sum(end - first for first, end in read)
    read.clear()
    batches(finished.out, members=["thirds", "squares", "seen"], whole_clip_values=True, frames=5)
    wholly = sum(end - first for first, end in read)
    mp4s = sum(row["mp4_bytes"] for row in finished.table("clips"))
    assert wholly - partly >= mp4s


@pytest.mark.parametrize(
    ("windows", "n_frames", "starts"),
    [
        (Windows(frames=17), 50, (0, 17)),
        (Windows(frames=17), 51, (0, 17, 34)),
        (Windows(frames=17), 16, ()),
        (Windows(frames=17, most=1), 100, (34,)),
        (Windows(frames=17, every=1, most=3), 37, (0, 10, 20)),
        (Windows(frames=5, stride=4), 34, (0, 17)),
    ],
)
def test_windows_start_where_the_rule_says(
    windows: Windows, n_frames: int, starts: tuple[int, ...]
) -> None:
    assert windows.starts(n_frames) == starts
    assert all(windows.numbers(start)[-1] < n_frames for start in starts)


def test_entries_per_second_stay_inside_the_clip() -> None:
    """Pins that no window asks for an entry that the clip does not have, at odd rates."""
    for rate in (Fraction(1, 3), Fraction(3), Fraction(50), Fraction(44100, 1024)):
        axis = TimeAxis(0, rate=rate)
        for fps in (Fraction(24000, 1001), Fraction(25), Fraction(60)):
            for n_frames in (17, 40, 121):
                n_entries = -(-n_frames * rate // fps)
                lengths = set()
                for start in range(n_frames - 16):
                    drawn = DrawnFrames(np.arange(start, start + 17), n_frames, fps, "")
                    entries = axis.entries(drawn)
                    lengths.add(len(entries))
                    assert entries[-1] < n_entries
                    assert entries[0] <= start / fps * rate < entries[0] + 1
                assert len(lengths) == 1
