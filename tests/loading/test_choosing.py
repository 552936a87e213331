"""What a dataset reads: outputs, shares, conditions, views, frames by time, captions, shapes."""

import logging
import shutil
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fake_nvdec import Decoder, fake_module
from small_output import SmallOutput, clip_id

from curator.errors import ShardError, UsageError
from curator.export.output_views import Choice, make_view
from curator.loading import ClipDataset, ClipLoader
from curator.loading import device_windows as device
from curator.loading.caption_choice import captions_of
from curator.loading.window_decoder import FrameWindow
from curator.media.nvdec import Nvdec
from curator.storage import open_store
from tests.made_shards import MadeClip, clip_bytes, made_clips, number_in, write_shards

A, B = "48p_3-2_17f", "48p_1-1_33f"


def keys(dataset: ClipDataset) -> list[str]:
    """Keys of an epoch; a dataset goes on to its next epoch."""
    return [key for batch in dataset for key in batch["key"]]


def names(first: int, count: int) -> list[str]:
    return [f"{i:08x}" for i in range(first, first + count)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An output of 40 clips, and one of 20 clips of two buckets, of which 5 are in both."""
    folder = tmp_path_factory.mktemp("two")
    first = [(A, "train", made_clips(folder, 25)), (A, "train", made_clips(folder, 15, first=25))]
    second = [
        (A, "train", made_clips(folder, 12, first=35)),
        (B, "train", made_clips(folder, 8, first=100, n_frames=40)),
    ]
    return [str(write_shards(folder / n, t)) for n, t in (("a", first), ("b", second))]


def test_several_outputs_are_one_dataset_and_a_clip_of_both_is_read_once(two: list[str]) -> None:
    """Pins the samples of an epoch over ranks, where each is from, and the count of the others."""
    seen: list[str] = []
    for rank in range(2):
        dataset = ClipDataset(
            two, batch_size=4, size=64, video=False, rank=rank, world_size=2, shuffle=8
        )
        assert dataset.excluded == {"in_other_output": 5}
        for batch in ClipLoader(dataset, num_workers=2 * rank):
            seen += batch["key"]
            for key, place in zip(batch["key"], batch["output"], strict=True):
                assert place == two[int(key, 16) >= 40]
    assert sorted(seen) == sorted([*names(0, 47), *names(100, 8)])


def test_shares_of_outputs_are_exact_and_repeat_nothing_unless_asked(
    two: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Pins the length of an epoch, its shares, and that epochs go through the larger output."""
    options: dict[str, Any] = {"shares": [0.4, 0.6], "batch_size": 5, "size": 64, "video": False}
    with caplog.at_level(logging.WARNING):
        dataset = ClipDataset(two, **options)
    # The second output has 15 clips that the first has not: 60% of 25.
    assert "shares: an epoch reads 25 of 55 clips" in caplog.text
    visits: Counter[str] = Counter()
    for _ in range(4):
        of_epoch: Counter[int] = Counter()
        for batch in dataset:
            of_batch = Counter(two.index(place) for place in batch["output"])
            assert abs(of_batch[0] - 2) <= 1
            of_epoch += of_batch
            visits.update(batch["key"])
        assert of_epoch == {0: 10, 1: 15}
    assert set(visits.values()) == {1, 4}
    assert len(visits) == 55
    repeated = ClipDataset(two, **options, repeat=True)
    of_epoch = Counter(two.index(place) for batch in repeated for place in batch["output"])
    assert of_epoch == {0: 22, 1: 33}
    # Batches of one bucket keep the shares too, but for what does not fill a batch.
    options |= {"size": None, "batch_size": 1}
    of_epoch = Counter(p for batch in ClipDataset(two, **options) for p in batch["output"])
    assert of_epoch == {two[0]: 10, two[1]: 15}


def test_a_repeated_clip_has_another_window(tmp_path: Path) -> None:
    """Pins that repetitions within an epoch are not the same frames."""
    out = str(write_shards(tmp_path / "o", [(A, "train", made_clips(tmp_path, 20))]))
    other = str(write_shards(tmp_path / "p", [(A, "train", made_clips(tmp_path, 1, first=90))]))
    dataset = ClipDataset([out, other], shares=[1, 1], repeat=True, batch_size=1, frames=1)
    starts = [int(b["start_frame"][0]) for b in dataset if b["key"] == ["0000005a"]]
    assert len(starts) == 10
    assert len(set(starts)) > 3


def _column_of(out: Path, number: int, clips: int) -> set[str]:
    return {clip_id(number, clip) for clip in range(clips)}


def test_conditions_and_views_choose_clips(tmp_path: Path) -> None:
    """Pins a condition for all outputs, one for each, a view, and all together."""
    pytest.importorskip("duckdb")
    outs = []
    for name, numbers in (("a", {1, 2, 3}), ("b", {4, 5})):
        small = SmallOutput(tmp_path / name, numbers)
        small.run(numbers)
        outs.append(str(small.out))
    options: dict[str, Any] = {"batch_size": 2, "video": False}
    uri = "uri = '/films/2.mp4' or uri = '/films/4.mp4'"
    both = ClipDataset(outs, where=uri, **options)
    assert set(keys(both)) == _column_of(tmp_path, 2, 3) | _column_of(tmp_path, 4, 3)
    assert both.excluded == {"condition": 9}
    assert both.steps == 3
    each = ClipDataset(outs, where=["uri = '/films/1.mp4'", None], **options)
    assert set(keys(each)) == {clip_id(n, c) for n in (1, 4, 5) for c in range(3)}
    chosen = [clip_id(1, 0), clip_id(1, 2), clip_id(3, 1)]
    with pytest.raises(UsageError, match="has no view; `curate views` writes"):
        ClipDataset(outs[0], view="sunny", **options)
    of_chosen = Choice(where=f"clip_id IN ({', '.join(map(repr, chosen))})")
    make_view(open_store(outs[0]), "sunny", of_chosen)
    dataset = ClipDataset(outs[0], view="sunny", **options)
    assert set(keys(dataset)) == set(chosen)
    assert dataset.excluded == {"view": 6}
    dataset = ClipDataset(outs, view=["sunny", None], where="uri <> '/films/3.mp4'", **options)
    assert set(keys(dataset)) == {*chosen[:2], *(clip_id(n, c) for n in (4, 5) for c in range(3))}
    # A view keeps its snapshot.
    SmallOutput(Path(outs[0]), {1, 2, 3}).run({1, 2, 3}, recipe=2)
    assert set(keys(ClipDataset(outs[0], view="sunny", **options))) == set(chosen)
    newest = keys(ClipDataset(outs[0], **options))
    assert not set(chosen) <= set(newest)
    with pytest.raises(UsageError, match=r"snapshot 2 with view 'sunny', whose .* snapshot 1"):
        ClipDataset(outs[0], view="sunny", snapshot=2, **options)
    options["snapshot"] = 1
    # Two parts of one output, in shares.
    parts = ClipDataset(
        [outs[0]] * 2, where=["uri = '/films/1.mp4'", "uri = '/films/2.mp4'"], shares=[2, 1],
        **options,
    )  # fmt: skip
    assert Counter(key in _column_of(tmp_path, 1, 3) for key in keys(parts)) == {True: 3, False: 2}
    for wrong, words in [
        ({"where": "no_column > 1"}, "no column 'no_column'"),
        ({"where": "meta.camera = 1"}, 'needs quotes, such as "meta.camera"'),
        ({"where": "uri = 'none'"}, "nothing is left to read of 9 clips: condition 9 left out"),
        ({"view": "suny", "snapshot": None}, "unknown view 'suny'; did you mean 'sunny'"),
    ]:
        with pytest.raises(UsageError, match=words):
            ClipDataset(outs[0], **(options | wrong))
    with pytest.raises(UsageError, match=r"has no view; .* Name OUT of a run, and not its folder"):
        ClipDataset(f"{outs[0]}/shards", view="sunny", **options)
    with pytest.raises(UsageError, match="has no view; `curate views` writes"):
        ClipDataset(outs[1], view="sunny", **options)
    with pytest.raises(UsageError, match="name OUT of a run, not its folder shards"):
        ClipDataset(f"{outs[0]}/shards", where="width > 1")


def test_a_view_that_is_not_whole_is_not_read(tmp_path: Path) -> None:
    """Pins that neither damage nor another choice's rows decide which clips are read."""
    small = SmallOutput(tmp_path / "o", {1, 2})
    small.run({1, 2})
    out, store = str(small.out), open_store(str(small.out))
    for name, source in (("one", 1), ("two", 2)):
        ids = ", ".join(repr(clip_id(source, n)) for n in range(3))
        make_view(store, name, Choice(where=f"clip_id IN ({ids})"))
    one, two = (small.out / "views" / name for name in ("one", "two"))
    shutil.copy(two / "dataset.parquet", one / "dataset.parquet")
    again = "make the view again: `curate views .* one --replace`"
    with pytest.raises(UsageError, match=f"not the rows that view.json names.*{again}"):
        ClipDataset(out, view="one", video=False)
    (one / "view.json").write_text("{}")
    with pytest.raises(UsageError, match=f"not the facts of a view.*{again}"):
        ClipDataset(out, view="one", video=False)


RATES = [Fraction(25, 2), Fraction(16), Fraction(30000, 1001), Fraction(60), Fraction(120)]


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A clip with numbered frames of each rate, 2 s each, and a clip that is too short."""
    folder = tmp_path_factory.mktemp("rates")
    clips = [
        MadeClip(
            key=f"{i:04x}",
            mp4=clip_bytes(folder, n_frames=int(2 * rate), fps=rate, bframes=2),
            n_frames=int(2 * rate),
            fps=rate,
        )
        for i, rate in enumerate(RATES)
    ]
    short = MadeClip(
        key="00ff", mp4=clip_bytes(folder, n_frames=16, fps=Fraction(16)), n_frames=16,
        fps=Fraction(16),
    )  # fmt: skip
    return str(write_shards(folder / "out", [(A, "train", [*clips, short])]))


@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_a_rate_gives_the_frames_of_the_time_rule(
    rates: str,
    decode: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pins the frames shown a quarter into each interval, counted in exact time, by number.

    A slower clip shows frames twice; the clip that is too short is left out and counted.
    """
    module = fake_module(CreateDecoder=lambda *, codec, **_: Decoder(codec))
    monkeypatch.setattr(device, "gpu_number", lambda gpu: gpu or 0)
    monkeypatch.setattr(device, "engines_of", lambda _: Nvdec(module=module, device="cpu"))
    options: dict[str, Any] = {"fps": 16, "frames": 17, "decode": decode}
    with caplog.at_level(logging.WARNING):
        dataset = ClipDataset(rates, batch_size=5, **options)
    assert dataset.excluded == {"too_short": 1}
    assert "fps=16: 1 clips are too short" in caplog.text
    starts = set()
    for _ in range(3):
        (batch,) = list(dataset)
        assert sorted(batch["key"]) == [f"{i:04x}" for i in range(5)]
        assert batch["fps"].tolist() == [16.0] * 5
        assert not batch.get("not_on_gpu")
        for key, video, start in zip(
            batch["key"], batch["video"], batch["start_frame"], strict=True
        ):
            rate = RATES[int(key, 16)]
            shown = [number_in(video[:, t].numpy(), 104) for t in range(17)]
            first = shown[0] - int(rate / 16 / 4)
            assert shown == [first + int((k + Fraction(1, 4)) / 16 * rate) for k in range(17)]
            assert shown[0] == start
            assert shown[-1] < 2 * rate
            starts.add((key, first))
    assert len(starts) > 8
    fixed = ClipDataset(rates, batch_size=5, window="first", **options)
    assert next(iter(fixed))["start_frame"].sum() == int(Fraction(120, 64))


def test_rates_as_floats_and_paths_give_the_same_frames(rates: str) -> None:
    """Pins fractions of floats: their products exceed 64 bits, or wrap around silently."""
    frames = []
    for fps in ("24000/1001", 24000 / 1001, "23.976023976024", 23.976023976):
        (batch,) = ClipDataset(Path(rates), batch_size=5, fps=fps, frames=40, window="first")
        frames.append({key: batch["video"][b] for b, key in enumerate(batch["key"])})
    assert len(frames[0]) == 5
    for other in frames[1:]:
        assert all((frames[0][key] == other[key]).all() for key in frames[0])
    window = FrameWindow(
        frames=2000, stride=1, fps=Fraction("23.97602397602397"), place="first", decoder_threads=1
    )
    shown = window.offsets(Fraction(30000, 1001))
    assert (np.diff(shown) > 0).all()
    assert abs(shown[-1] - 1999.25 * 1.25) < 1


def test_speeds_that_mix_are_named(rates: str, caplog: pytest.LogCaptureFixture) -> None:
    """Pins the warning without a rate, that fps excludes stride, and a clip of another length."""
    with caplog.at_level(logging.WARNING):
        ClipDataset(rates, frames=16)
    assert "batches mix clips of several frame rates" in caplog.text
    assert "12.5 to 120 frames/s" in caplog.text
    caplog.clear()
    ClipDataset(rates, frames=12, fps=16)
    ClipDataset(rates, frames=1)
    ClipDataset(rates, video=False)
    assert not caplog.text
    with pytest.raises(UsageError, match="fps takes frames by time, and stride by number"):
        ClipDataset(rates, frames=2, fps=16, stride=2)
    for wrong in (0, "fast", -1, 1001):
        with pytest.raises(UsageError, match=f"fps {wrong!r}; expected frames per second"):
            ClipDataset(rates, fps=wrong)
    with pytest.raises(UsageError, match="nothing is left to read of 6 clips: too_short 6"):
        ClipDataset(rates, frames=200, fps=16)


def test_windows_by_time_are_those_of_the_pipeline(tmp_path: Path) -> None:
    """Pins that a window of a whole clip has the frames that `cut.fps` writes of it."""
    from curator.cut_requests import frame_plan
    from curator.loading.window_decoder import FrameWindow
    from curator.records.cuts import CutRequest

    for rate, fps in ((Fraction(30000, 1001), 16), (Fraction(25, 2), 16), (Fraction(60), 24)):
        request = object.__new__(CutRequest)
        pts = (np.arange(90) * 90_000 / float(rate)).round().astype(np.int64)
        for name, value in {
            "frame_pts": pts, "end_pts": round(90 * 90_000 / float(rate)), "is_vfr": False,
            "time_base": Fraction(1, 90_000), "fps": Fraction(fps), "is_resampled": True,
            "n_written": None,
        }.items():  # fmt: skip
            try:
                object.__setattr__(request, name, value)
            except AttributeError:
                assert request.is_resampled
        plan = frame_plan(request)
        window = FrameWindow(
            frames=len(plan), stride=1, fps=Fraction(fps), place="first", decoder_threads=1
        )
        assert window.offsets(rate).tolist() == plan.tolist()
        assert window.span(rate) <= 90


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionedClip(MadeClip):
    """A sample with windows of captions in its JSON."""

    windows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, object]:
        return {**MadeClip.facts.fget(self), "annotation": {"windows": self.windows}}  # type: ignore[attr-defined]


def _window(start: int, end: int, name: str, *lengths: str) -> dict[str, Any]:
    return {"start_frame": start, "end_frame": end, **{n: f"{n} {name}" for n in lengths}}


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """200 clips of 24 frames with two windows and one around an event, and one clip without."""
    folder = tmp_path_factory.mktemp("captioned")
    mp4 = clip_bytes(folder)
    every = ("short", "medium", "long")
    windows = [
        _window(0, 14, "begin", *every), _window(14, 24, "end", *every),
        _window(4, 10, "event", "short"),
    ]  # fmt: skip
    clips = [
        CaptionedClip(key=f"{i:04x}", mp4=mp4, windows=windows, caption=f"text {i}")
        for i in range(200)
    ]
    bare = CaptionedClip(key="ffff", mp4=mp4, caption="bare")
    return str(write_shards(folder / "out", [(A, "train", [*clips, bare])]))


def _captions(dataset: ClipDataset) -> dict[str, tuple[str, str, int]]:
    return {
        key: (batch["caption"].unique[place], kind, int(start))
        for batch in dataset
        for key, place, kind, start in zip(
            batch["key"], batch["caption"].inverse, batch["caption_kind"],
            batch.get("start_frame", [0] * len(batch["key"])), strict=True,
        )
    }  # fmt: skip


def test_the_caption_is_that_of_the_window_with_the_frames(captioned: str) -> None:
    """Pins the window, shares of lengths, dropout, and what a clip without windows has."""
    shares = {"short": 0.2, "medium": 0.3, "long": 0.5}
    options: dict[str, Any] = {"batch_size": 20, "captions": shares, "caption_dropout": 0.25}
    dataset = ClipDataset(captioned, frames=4, **options)
    found = _captions(dataset)
    bare = found.pop("ffff")
    assert bare[:2] in {("bare", "text"), ("", "dropped")}
    kinds = Counter(kind for _, kind, _ in found.values())
    assert set(kinds) == {"short", "medium", "long", "dropped"}
    expected = {"short": 30, "medium": 45, "long": 75, "dropped": 50}
    assert all(abs(kinds[kind] - n) < 22 for kind, n in expected.items()), kinds
    windows = set()
    for caption, kind, start in found.values():
        length, _, window = caption.partition(" ")
        if kind == "dropped":
            assert caption == ""
            continue
        middle = start + 1.5
        window_of = "event" if 4 <= start <= 6 else "begin" if middle < 13.5 else "end"
        assert window == window_of
        # Only the event's window lacks two lengths: the share of the third is all.
        assert (length, kind) == (("short",) * 2 if window == "event" else (kind, kind))
        windows.add(window)
    assert windows == {"begin", "end", "event"}


def test_captions_depend_on_seed_epoch_and_clip_only(captioned: str) -> None:
    options: dict[str, Any] = {"captions": {"short": 1, "long": 1}, "video": False}
    first = ClipDataset(captioned, batch_size=20, **options)
    once, again = _captions(first), _captions(first)
    assert once != again
    assert _captions(ClipDataset(captioned, batch_size=7, shuffle=3, **options)) == once
    assert _captions(ClipDataset(captioned, batch_size=20, seed=1, **options)) != once
    # Without frames, a caption is of the whole clip: its windows' captions in their order.
    texts = {caption for caption, kind, _ in once.values() if kind != "text"}
    assert texts == {"short begin short end short event", "long begin long end"}
    single = next(iter(ClipDataset(captioned, captions={"short": 1}, video=False)))
    assert single["caption_kind"] in ("short", "text")
    plain = _captions(ClipDataset(captioned, batch_size=5, video=False))
    assert plain["0003"][:2] == ("text 3", "text")
    none = _captions(ClipDataset(captioned, batch_size=5, video=False, caption_dropout=1.0))
    assert {value[:2] for value in none.values()} == {("", "dropped")}


def test_frames_and_batch_sizes_are_by_bucket(two: list[str]) -> None:
    """Pins names of buckets, of classes and `*`, a budget of pixels, and ranks that agree."""
    options: dict[str, Any] = {"frames": {"17f": 9, "*": 33}, "drop_last": True}
    by_name = ClipDataset(two[1], batch_size={A: 3, "33f": 2}, **options)
    shapes = Counter(tuple(batch["video"].shape) for batch in by_name)
    assert shapes == {(3, 3, 9, 68, 104): 4, (2, 3, 33, 68, 104): 4}
    # Batches have frames * height * width * B up to the budget.
    n_pixels = 68 * 104 * 33
    budget = ClipDataset(two[1], max_pixels=2 * n_pixels + 1, **options)
    assert budget.batch_sizes == {A: 7, B: 2}
    with pytest.raises(
        UsageError, match=rf"max_pixels {n_pixels - 1}; .*33 x 68 x 104 = {n_pixels}"
    ):
        ClipDataset(two[1], max_pixels=n_pixels - 1, **options)
    # With a size, buckets with the same frames and batch size share batches.
    sized = ClipDataset(two[1], batch_size=4, size=64, frames=9, drop_last=True)
    assert sized.steps == 5
    kinds = []
    for rank in range(2):
        of_rank = {"rank": rank, "world_size": 2, "size": 64}
        dataset = ClipDataset(two[1], max_pixels=64 * 64 * 70, **options, **of_rank)
        batches = list(ClipLoader(dataset, num_workers=2))
        assert all(len(b["key"]) == {9: 7, 33: 2}[b["video"].shape[2]] for b in batches)
        kinds.append([b["bucket"][0] for b in batches])
    assert kinds[0] == kinds[1]
    assert Counter(kinds[0]) == {B: 2}
    state = dataset.state_dict()
    dataset.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shares": [1]}, "shares has 1 values for 2 outputs"),
        ({"shares": [1, 0]}, "weight 0 of output '1'; expected a number above 0"),
        ({"shares": [1, 1], "buckets": {A: 1}}, "shares of outputs with shares of buckets"),
        ({"shares": [1, 1], "buckets": [B]}, "share of an output without clips to read"),
        ({"shares": [1, 1], "batch_size": 32, "drop_last": True}, "an epoch has 31 clips and no"),
        ({"shares": [1, 1e-9]}, "share of 'output 1' is so small"),
        ({"repeat": True}, "repeat=True without shares"),
        ({"where": ["a", "b", "c"]}, "where has 3 values for 2 outputs"),
        ({"batch_size": {"17f": 2}}, "batch_size has none for bucket '48p_1-1_33f'"),
        ({"batch_size": {"48p": 2, "33f": 2, "*": 1}}, "batch_size has two, '48p' and '33f',"),
        ({"batch_size": {"34f": 2, "*": 1}}, "unknown batch_size '34f'; did you mean '33f'"),
        ({"batch_size": {"*": 0}}, "batch_size 0 of '\\*'; expected a whole number from 1"),
        ({"frames": {"33f": 50, "*": 1}}, "50 frames at stride 1 need .* or give fps"),
        ({"max_pixels": 1, "batch_size": 1}, "max_pixels with batch_size; give one"),
        ({"captions": {"tiny": 1}}, "unknown length of captions 'tiny'"),
        ({"captions": {"short": 0}}, "weight 0 of length 'short'"),
        ({"captions": {}}, "captions {}; expected shares of short, medium and long"),
        ({"captions": ["short"]}, r"captions \['short'\]; expected shares of short"),
        ({"captions": {"short": "1"}}, "weight '1' of length 'short'; expected a number"),
        ({"caption_dropout": "0.1"}, "caption_dropout '0.1'; expected a share from 0 to 1"),
        ({"max_pixels": 1e7, "batch_size": None}, "max_pixels 10000000.0; expected a whole number"),
        ({"shares": 0.5}, "shares is 0.5 for 2 outputs; expected a list with one for each"),
        ({"shares": ["a", 1]}, "weight 'a' of output '0'; expected a number above 0"),
        ({"caption_dropout": 1.5}, "caption_dropout 1.5; expected a share from 0 to 1"),
        ({"captions": {"long": 1}, "caption_embedding": True}, "captions with caption_embedding"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_choices_that_do_not_fit_are_refused(
    two: list[str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ClipDataset(
            two, **({"batch_size": 2} | options if "max_pixels" not in options else options)
        )


def test_a_table_that_lacks_rows_of_a_tar_is_named(tmp_path: Path) -> None:
    """Pins that a clip is never taken for another one, whose row is missing."""
    out = write_shards(tmp_path / "out", [(A, "train", made_clips(tmp_path, 4))])
    table = out / "shards/dataset.parquet"
    pq.write_table(pq.read_table(table).slice(1), table)
    with pytest.raises(ShardError, match=r"has 3 rows of '.*tar', which has 4 samples in manifest"):
        ClipDataset(str(out))


def test_frames_that_no_window_of_the_annotation_holds_have_no_length() -> None:
    """Pins the borders of windows, which are half-open: an end is no frame of the window."""
    windows = [
        {"start_frame": 0, "end_frame": 10, "short": "first"},
        {"start_frame": 20, "end_frame": 30, "short": "second"},
    ]
    fact = {"annotation": {"windows": windows}}
    for frames, found in [
        ((0, 9), "first"), ((9, 19), "first"), ((10, 19), None), ((19, 20), "second"),
        ((29, 40), "second"), ((30, 40), None), ((5, 25), "second"), ((4, 25), "first"),
    ]:  # fmt: skip
        assert captions_of(fact, frames).get("short") == found, frames
