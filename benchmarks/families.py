#!/usr/bin/env python3
"""Measures what adding CLIP to a measured output costs, and what going back costs.

    families.py [--seconds 40] [--rounds 3]

Two films of 1280x720 are made by code. One process measures them by the stage and the parts that a
run uses: first all families but CLIP, then CLIP alone, then without CLIP again. It is compared with
a decode of the same films and nothing else, and with the time inside of CLIP. CLIP is ViT-B/32
with random weights, which changes no time. Times are CPU-seconds of the process, without its start.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from measure import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def entry_of(folder: Path) -> Any:  # noqa: ANN401
    """A catalogue entry of ViT-B/32, and its random weights in a folder of models."""
    import open_clip
    import torch
    from tiny_clip import save_weights

    from curator.models.catalogue import ModelEntry

    torch.manual_seed(0)
    config = {"quick_gelu": True, **open_clip.get_model_config("ViT-B-32")}
    save_weights(open_clip.CLIP(**config).eval(), folder / "random" / "model.safetensors")
    return ModelEntry(
        name="random", kind="clip", about="random weights", file="model.safetensors",
        licence="none", config=config, dim=512,
    )  # fmt: skip


def made_films(folder: Path, seconds: int) -> list[Any]:
    """Two films of 25 frames/s."""
    from film_makers import write_video
    from film_shots import moving_texture

    from curator.records.sources import SourceRef
    from curator.storage.source_reader import stat_source

    sources = []
    for seed in range(2):
        path = folder / f"film{seed}.mp4"
        frames = moving_texture(25 * seconds, width_px=1280, height_px=720, seed=seed)
        options = {"preset": "veryfast"}
        write_video(path, frames, fps=Fraction(25), audio_tone_s=float(seconds), options=options)
        n_bytes, version = stat_source(str(path))
        sources.append(
            SourceRef(uri=str(path), n_bytes=n_bytes, version=version, source_id=path.name)
        )
    return sources


def cpu_s(work: Callable[[], object]) -> tuple[float, Any]:
    """CPU-seconds of this process for some work, and its result."""
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def decode(sources: list[Any]) -> None:
    """Decodes as analyze does for CLIP, and looks at nothing."""
    from curator.media.container import open_container, video_stream
    from curator.media.decode import FrameReader
    from curator.models.shot_pictures import needs_smoothing

    for source in sources:
        with (
            open(source.uri, "rb") as reader,
            open_container(reader, source.uri, n_bytes=source.n_bytes) as container,
        ):
            stream = video_stream(container, source.uri)
            smooths = needs_smoothing(stream)
            frames = FrameReader(
                container, stream, source.uri, threads=1, max_pixels=10**8, smooths_all=smooths
            )
            for _ in frames:
                pass


class Place:
    """An output root, and a worker of each set of families."""

    def __init__(self, folder: Path, entry: Any, models: Any) -> None:  # noqa: ANN401
        from curator.executor.unit_worker import UnitWorker
        from curator.stages.analyze.config import AnalyzeConfig
        from curator.stages.analyze.families import families_of
        from curator.stages.analyze.stage import AnalyzeStage
        from curator.storage import open_store
        from curator.tables.track_parts import TrackParts

        config = AnalyzeConfig(device="cpu")
        with_clip = config.model_copy(update={"clip": entry.name})
        store = open_store(str(folder))
        self.without = TrackParts(store, families_of(config))
        self.all = TrackParts(store, families_of(with_clip, "weights"))
        self.names = frozenset(family.name for family in families_of(config))
        self.first = UnitWorker(
            stage=AnalyzeStage(config, families=self.names), keep=self.without.keep
        )
        stage = AnalyzeStage(with_clip, families={"clip"}, clip=entry, models=models)
        self.adding = UnitWorker(stage=stage, keep=self.all.keep)

    def missing(self, parts: Any, names: set[str], sources: list[Any]) -> list[Any]:  # noqa: ANN401
        """The sources that lack families, as a run finds them."""
        from curator.tables.track_items import SourceItem

        stored, _ = parts.stored([source.source_id for source in sources])
        items = []
        for source in sources:
            known = stored.get(source.source_id, {})
            if lacks := frozenset(names).difference(known):
                items.append(SourceItem(source=source, families=lacks, parts=known))
        return items


def one_round(folder: Path, entry: Any, models: Any, sources: list[Any]) -> dict[str, float]:  # noqa: ANN401
    """CPU-seconds of each case, by name."""
    place = Place(folder, entry, models)
    # Loads networks, which is part of a worker's start.
    place.first([])
    place.adding([])
    spent: dict[str, float] = {}
    items = place.missing(place.without, set(place.names), sources)
    spent["first run, without CLIP"], first = cpu_s(lambda: place.first(items))
    items = place.missing(place.all, {*place.names, "clip"}, sources)
    assert all(item.families == {"clip"} for item in items)
    spent["adding CLIP"], added = cpu_s(lambda: place.adding(items))
    spent["decode alone"], _ = cpu_s(lambda: decode(sources))
    spent["CLIP alone"] = added.cpu_s["clip"]
    spent["shot network, first run"] = first.cpu_s["shot_network"]
    spent["shot network, adding CLIP"] = added.cpu_s.get("shot_network", 0.0)
    spent["store, first run"] = first.cpu_s["store"]
    back = place.missing(place.without, set(place.names), sources)
    spent["sources decoded, back again"] = float(len(back))
    return spent


def main() -> None:
    """Prints a table, and JSON as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    from curator.models.weight_store import ModelStore

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        entry, sources = entry_of(folder / "models"), made_films(folder, options.seconds)
        models = ModelStore.at(str(folder / "models"))
        rounds = [
            one_round(folder / f"out{number}", entry, models, sources)
            for number in range(options.rounds)
        ]
    table = {key: [one[key] for one in rounds] for key in rounds[0]}
    ratio = [one["adding CLIP"] / (one["decode alone"] + one["CLIP alone"]) for one in rounds]
    table["adding CLIP / (decode + CLIP)"] = ratio
    for key, values in table.items():
        listed = " ".join(f"{value:.3f}" for value in values)
        print(f"{key:32} {statistics.median(values):8.3f}   ({listed})")
    print(json.dumps({"machine": machine(), **table}))


if __name__ == "__main__":
    main()
