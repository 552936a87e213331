"""The annotator `rows`: each drawn frame has the row of the source's frame that it shows."""

import csv
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from captioned import work_here
from film_makers import write_video
from made_cuts import Film
from numbered_films import number_of, numbered
from place import Place

from curator.errors import RecipeError
from curator.loading import ClipDataset, ClipLoader
from curator.pipeline import graph_of
from curator.recipe import load_recipe

N_FRAMES, RATE_HZ = 130, 25
LOST = 5
"""Every fifth frame has no row."""
RECIPE = {
    "propose": {"min_s": 0.5, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [9], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip
STAGE: dict[str, Any] = {
    "table": "{stem}.csv", "time": "t", "unit": "ms", "columns": ["number", "half"]
}  # fmt: skip


def frame_times_s(path: Path) -> list[float]:
    """The times of the frames of a film, from its first one."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pts = sorted(p.pts for p in container.demux(stream) if p.pts is not None)
        return [float((each - pts[0]) * stream.time_base) for each in pts]


def rows_of(path: Path) -> list[tuple[float, int, float]]:
    """A row for each frame but every fifth, in no order, up to 0.4 of a frame from its time."""
    times_s = frame_times_s(path)
    rng = np.random.default_rng(len(path.name))
    rows = []
    for number, at_s in enumerate(times_s):
        near_s = min(abs(at_s - other) for n, other in enumerate(times_s) if n != number)
        if number % LOST:
            rows.append(((at_s + rng.uniform(-0.4, 0.4) * near_s) * 1000, number, number / 2))
    rng.shuffle(rows)
    return [(float(t), int(number), float(half)) for t, number, half in rows]


def tall(n_frames: int) -> Iterator[Film]:
    """Yields numbered frames of a shape that no bucket crops through the numbers."""
    for film in numbered(n_frames):
        yield np.concatenate([film, np.full_like(film, 90)])


def write_films(folder: Path) -> None:
    """Films of a constant rate, with few key frames and with many, and of a variable rate."""
    folder.mkdir()
    for name, gop in (("long", 250), ("short", 12)):
        write_video(
            folder / f"{name}.mp4", tall(N_FRAMES), fps=Fraction(RATE_HZ), gop=gop, bframes=0,
            options={"x264-params": "scenecut=0"},
        )  # fmt: skip
    steps = np.random.default_rng(2).integers(20, 60, N_FRAMES)
    write_video(
        folder / "vfr.mkv", tall(N_FRAMES), pts=(1400 + np.cumsum(steps)).tolist(),
        time_base=Fraction(1, 1000),
    )  # fmt: skip


def write_csv(folder: Path, names: Sequence[str] = ("long.mp4", "short.mp4", "vfr.mkv")) -> None:
    """Writes a table beside each film."""
    for name in names:
        with (folder / name).with_suffix(".csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["note", "half", "t", "number"])
            writer.writerows(["x", half, t, number] for t, number, half in rows_of(folder / name))


@dataclass(frozen=True)
class WithRows(Place):
    """Numbered films with rows of numbers, and an output whose samples have them."""

    settings = ()
    recipe: str = ""

    def check_drawn(self, n_windows: int = 0, **options: Any) -> int:  # noqa: ANN401
        """Compares the rows of drawn frames with what these show; returns the windows."""
        dataset = ClipDataset(
            str(self.out), batch_size=1,
            **{"frames": 5, "seed": 3, "members": {"rows": {"columns": "number, half"}}} | options,
        )  # fmt: skip
        n = 0
        while n <= n_windows:
            before = n
            for batch in ClipLoader(dataset, num_workers=0):
                shown = [
                    number_of(frame.permute(1, 2, 0).numpy())
                    for frame in batch["video"][0].movedim(1, 0)
                ]
                numbers = np.where(np.array(shown) % LOST, shown, np.nan)
                expected = np.stack([numbers, numbers / 2], axis=1).astype(np.float32)
                np.testing.assert_array_equal(batch["rows"][0].numpy(), expected)
                n += 1
            assert n > before
            if not n_windows:
                break
            dataset.set_epoch(n)
        return n


def stages(**changes: object) -> str:
    """The setting with the annotator."""
    config = yaml.safe_dump({**STAGE, **changes}, default_flow_style=True, width=1000).strip()
    return f"stages=[{{use: rows, config: {config}}}]"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithRows]:
    """A run at the sources' own rates; not to be changed."""
    folder = tmp_path_factory.mktemp("rows")
    write_films(folder / "in")
    write_csv(folder / "in")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place = WithRows(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        place.run(stages())
        yield place


def test_copied_and_encoded_clips_and_those_of_a_variable_rate(finished: WithRows) -> None:
    modes = {(Path(c["source_uri"]).stem, c["cut_mode"]) for c in finished.clips()}
    assert {("short", "copy"), ("long", "encode"), ("vfr", "encode")} <= modes
    assert finished.check_drawn() == len(finished.clips())
    finished.check_drawn(stride=2)
    finished.check_drawn(fps=11)


@pytest.mark.parametrize(
    "settings",
    [
        ("cut.fps=10", "cut.most_repeated=1"),
        ("cut.fps=30", "cut.most_repeated=1", "cut.length_frames=20"),
        ("propose.windows=[17@16]", "cut.most_repeated=1"),
    ],
)
def test_resampled_and_shortened_clips(
    finished: WithRows, settings: Sequence[str], tmp_path: Path
) -> None:
    place = finished.copy(tmp_path)
    place.run(stages(), *settings)
    assert place.check_drawn() == len(place.clips())


def test_only_clips_of_a_changed_table_get_rows_again(finished: WithRows, tmp_path: Path) -> None:
    sources = shutil.copytree(finished.sources, tmp_path / "in")
    place = replace(finished, sources=sources, out=tmp_path / "out")
    assert place.run(stages())["work"]["rows_made"] == len(place.clips())
    table = sources / "short.csv"
    of_film = [c for c in place.clips() if c["source_uri"].endswith("short.mp4")]
    # A table in another order has the same rows.
    header, *lines = table.read_text().splitlines()
    table.write_text("\n".join([header, *reversed(lines)]))
    work = place.run(stages())["work"]
    assert (work.get("rows_made", 0), work["clips_cut"]) == (0, 0)
    lines[0] = lines[0].replace("x,", "x,9", 1)
    table.write_text("\n".join([header, *lines]))
    work = place.run(stages())["work"]
    assert (work["rows_made"], work["clips_cut"]) == (len(of_film), 0)


def test_a_clip_without_rows_has_no_value(
    finished: WithRows, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = shutil.copytree(finished.sources, tmp_path / "in")
    place = replace(finished, sources=sources, out=tmp_path / "out")
    (sources / "long.csv").unlink()
    header, *lines = (sources / "vfr.csv").read_text().splitlines()
    early = [line for line in lines if float(line.split(",")[2]) < 500]
    (sources / "vfr.csv").write_text("\n".join([header, *early]))
    place.run(stages())
    assert caplog.text.count("there is no table") == 1
    assert "long.csv" in caplog.text
    dataset = ClipDataset(str(place.out), frames=5, batch_size=1, members=["rows"])
    clips = {clip["clip_id"]: clip for clip in place.clips()}
    with_rows = {b["key"][0] for b in dataset if b["rows"][0] is not None}
    expected = {
        name
        for name, clip in clips.items()
        if clip["source_uri"].endswith("short.mp4")
        or (clip["source_uri"].endswith("vfr.mkv") and clip["start_frame"] == 0)
    }
    assert with_rows == expected


def test_a_table_that_is_not_as_declared_fails_its_own_clips(
    finished: WithRows, tmp_path: Path
) -> None:
    sources = shutil.copytree(finished.sources, tmp_path / "in")
    place = replace(finished, sources=sources, out=tmp_path / "out")
    (sources / "short.csv").write_text("t,half\n1,2\n")
    place.run(stages(), "--max-failed=1.0")
    failed = place.clips("rejected")
    assert {Path(clip["source_uri"]).name for clip in failed} == {"short.mp4"}
    assert {clip["reason"] for clip in failed} == {"rows_failed"}
    assert "has no column 'number'; it has t, half" in failed[0]["reason_detail"]
    assert len(place.clips()) == 6


def test_one_table_in_nanoseconds_since_1970_with_lists(finished: WithRows, tmp_path: Path) -> None:
    """Pins that whole times are exact, and that metadata says whose rows are whose."""
    start_ns = 1_760_000_000_123_456_789
    paths = sorted(path for path in finished.sources.iterdir() if path.suffix != ".csv")
    columns: dict[str, list[Any]] = {"stamp": [], "take": [], "state": []}
    for take, path in enumerate(paths):
        for t_ms, number, half in rows_of(path):
            columns["stamp"].append(start_ns + take + round(t_ms * 1e6))
            columns["take"].append(take)
            columns["state"].append([number, half])
    kind = pa.schema(
        [("stamp", pa.int64()), ("take", pa.int32()), ("state", pa.list_(pa.float64(), 2))]
    )
    pq.write_table(pa.table(columns, kind), tmp_path / "all.parquet")
    manifest = tmp_path / "takes.csv"
    lines = [f"{path},{take},{start_ns + take}" for take, path in enumerate(paths)]
    manifest.write_text("\n".join(["uri,take,started", *lines]))
    place = replace(finished, sources=manifest, out=tmp_path / "out")
    place.run(
        stages(
            table=str(tmp_path / "all.parquet"), time="stamp", unit="ns", columns=["state"],
            first_frame="meta.started", source="take", source_value="meta.take",
        )
    )  # fmt: skip
    assert place.check_drawn(members={"rows": {"columns": "state"}}) == len(place.clips()) > 3


def test_one_table_with_paths_beside_it(finished: WithRows, tmp_path: Path) -> None:
    table = finished.sources.parent / "all.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "t", "number", "half"])
        for name in ("long.mp4", "vfr.mkv"):
            writer.writerows([f"in/{name}", *row] for row in rows_of(finished.sources / name))
    place = finished.copy(tmp_path)
    place.run(stages(table=str(table), source="file"))
    dataset = ClipDataset(str(place.out), frames=5, batch_size=1, members=["rows"])
    n_rows = sum(batch["rows"][0] is not None for batch in dataset)
    assert n_rows == sum("short" not in clip["source_uri"] for clip in place.clips())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"table": "{stem}.xlsx"}, "expected a name that ends in .csv, .tsv or .parquet"),
        ({"table": "all.csv"}, "is the same for all sources; expected `source`"),
        ({"source": "file"}, "belongs to one source, and source: 'file'"),
        ({"source_value": "meta.take"}, "source_value without source"),
        ({"columns": ["a", "a"]}, "expected each column once"),
        ({"columns": []}, "columns"),
    ],
)  # fmt: skip
def test_unusable_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        graph_of(load_recipe("quickstart", [stages(**config)]))
