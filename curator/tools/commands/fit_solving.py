"""`curate fit --solve`: the recipe under which trainers see most of the footage of OUT."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

from curator.errors import UsageError
from curator.frame_size import parsed_size, shape_of, size_words
from curator.number_text import amount, length, share
from curator.tools.commands.arguments import Result

if TYPE_CHECKING:
    from curator.recipe import Recipe, WindowConfig
    from curator.tools.planning.recipe_search import Outcome
    from curator.tools.planning.seen_footage import Seen
    from curator.tools.planning.usable_takes import Takes
    from curator.trainers.trainer_files import Trainer

LEAST_GAIN = 0.005
"""Share of the footage that a smaller size must gain to be named."""


def solve(options: argparse.Namespace, trainers: "Sequence[Trainer]") -> Result:
    """Prints the recipe, and what the trainers see before and after."""
    import numpy as np

    from curator.recipe import recipe_used, with_changes
    from curator.storage import open_store
    from curator.tables.kept_clips import kept_clips
    from curator.tables.snapshot_store import find_summary, read_snapshot
    from curator.tools.planning.recipe_search import recipe_changes, solved
    from curator.tools.planning.seen_footage import Watcher, seen
    from curator.tools.planning.usable_takes import usable_takes, written_clips

    for name in ("where", "split", "explain"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} does not apply to --solve, which reads all takes of OUT")
    store = open_store(options.out)
    number = options.snapshot
    summary = find_summary(store) if number is None else read_snapshot(store, number)
    if summary is None:
        raise UsageError(
            f"{options.out} has no finished run; run `curate run SOURCE {options.out}`"
        )
    used = recipe_used(summary, store.uri)
    takes = usable_takes(store, summary)
    sized: dict[str, Any] = {}
    if options.size is not None:
        try:
            sized["cut.size"] = list(parsed_size(options.size))
        except ValueError as error:
            raise UsageError(f"--size: {error}") from error
    elif written := {*used.cut.sizes, *(w.size for w in used.propose.windows if w.size)}:
        named = ", ".join(map(size_words, sorted(written)))
        raise UsageError(
            f"the recipe of {options.out} writes clips of several sizes ({named}); name the size "
            "that the trainers read, such as --size 1280x720"
        )
    wants_sound = any(t.rules.sound.use == "trained" for t in trainers)
    if wants_sound and used.cut.audio == "drop" and takes.kinds[:, 2].any():
        sized["cut.audio"] = "copy"
    recipe = with_changes(used, sized)
    clips = written_clips(kept_clips(store, summary))
    ones = np.ones(int(clips.place.max(initial=0)) + 1)
    before = [seen(Watcher(trainer), clips, ones) for trainer in trainers]
    outcome = solved(takes, trainers, recipe)
    changed = sized | recipe_changes(outcome.division, recipe)
    if not changed:
        # A measurement is better than a prediction: copies may begin at a later key frame.
        outcome = replace(outcome, seen=tuple(before))
    recipe = with_changes(used, changed)
    base, changes = based(recipe)
    enlarged = [_enlarged(trainer, takes, recipe) for trainer in trainers]
    facts = {
        "footage_s": outcome.total_s,
        "takes": len(takes.weight),
        "clips": round(outcome.n_clips),
        "changed": sorted(changed),
        "base": base,
        "changes": changes,
        "mean_share": sum(outcome.well) / len(trainers),
        "least_share": min(outcome.well),
        "trainers": [
            {
                "trainer": trainer.name,
                "parameters": trainer.values,
                "before": _shares(old, outcome.total_s),
                "after": _shares(new, outcome.total_s),
                "where": where(outcome.division.windows, new.windows),
                "enlarged_share": share_of,
                "size_without": size,
            }
            for trainer, old, new, (share_of, size) in zip(
                trainers, before, outcome.seen, enlarged, strict=True
            )
        ],
        "samples_per_s": _samples_per_s(outcome.division.windows, takes, recipe),
        "smaller_sizes": _smaller(takes, outcome, trainers, recipe),
    }
    print(*_lines(options.out, trainers, facts), sep="\n")
    return Result(facts)


def where(windows: "Sequence[WindowConfig]", used: Sequence[int]) -> str | None:
    """Returns the condition for the clips that a trainer should read; None for all."""
    if len(windows) < 2 or len(used) == len(windows):
        return None
    conditions = []
    for number in used:
        frames, fps, _ = windows[number - 1].form
        rate = "window_fps is null" if fps is None else f"window_fps = {fps:.6g}"
        shared = any(w.frames == frames for n, w in enumerate(windows, 1) if n not in used)
        conditions.append(f"window_frames = {frames}" + (f" and {rate}" if shared else ""))
    return " or ".join(conditions)


def _samples_per_s(
    windows: "Sequence[WindowConfig]", takes: "Takes", recipe: "Recipe"
) -> float | None:
    """Returns the samples per second that the shortest window needs; None if it has enough.

    A clip without a pair of samples has no motion, and rules reject it as not measured.
    """
    fastest = float(takes.fps.max())
    lengths = [window.frames / float(window.rate or fastest) for window in windows]
    between_s = min(lengths, default=60.0) - recipe.analyze.motion_pair_s
    if between_s * recipe.analyze.samples_per_s >= 1:
        return None
    return float(ceil(1 / between_s)) if between_s > 0 else None


def _shares(seen: "Seen", total_s: float) -> dict[str, float]:
    return {
        "well_s": seen.well_s, "well_share": seen.well_s / total_s,
        "seen_s": seen.seen_s, "seen_share": seen.seen_s / total_s,
    }  # fmt: skip


def _enlarged(trainer: "Trainer", takes: "Takes", recipe: "Recipe") -> tuple[float, str | None]:
    """Returns the share of the footage that a trainer enlarges, and the size that would not."""
    frames = next((window.frames for window in recipe.propose.windows), 121)
    enlarged_s, size = 0.0, None
    largest = 0.0
    for number, (width, height, _) in enumerate(takes.kinds.tolist()):
        if isinstance(recipe.cut.one_size, tuple):
            width, height = recipe.cut.one_size
        fit = trainer.rules.size.fitted(frames, width, height)
        if fit is None or not fit.is_enlarged:
            continue
        of = takes.kind == number
        enlarged_s += float((takes.seconds * takes.weight)[of].sum())
        if fit.scale > largest:
            largest, step = fit.scale, max(16, trainer.rules.size.multiple)
            sides = (int(side / fit.scale) // step * step for side in (fit.width, fit.height))
            size = "x".join(map(str, sides))
    return enlarged_s / takes.total_s, size


def _smaller(
    takes: "Takes", outcome: "Outcome", trainers: "Sequence[Trainer]", recipe: "Recipe"
) -> list[dict[str, Any]]:
    """Returns sizes below `cut.size` under which the trainers see more, with what they see."""
    from curator.recipe import with_changes
    from curator.tools.planning.recipe_search import evaluated

    if not isinstance(recipe.cut.one_size, tuple):
        return []
    width, height = recipe.cut.one_size
    gains = []
    for side in sorted(recipe.shard.resolutions, reverse=True):
        if side >= min(width, height):
            continue
        size = shape_of(side, width, height)
        smaller = with_changes(recipe, {"cut.size": list(size)})
        there = evaluated(takes, outcome.division, trainers, smaller)
        pairs = list(zip(there.seen, outcome.seen, strict=True))
        gain = sum(a.well_s + a.seen_s - b.well_s - b.seen_s for a, b in pairs) / 2
        if gain > LEAST_GAIN * len(trainers) * outcome.total_s:
            gains.append({"size": f"{size[0]}x{size[1]}", "well_shares": there.well})
    return gains


def based(recipe: "Recipe") -> tuple[str, dict[str, Any]]:
    """Returns the recipe of this package that is nearest to a recipe, and the keys that differ."""
    from curator.recipe import FOLLOW_SIZE, leaves, load_recipe, recipe_names

    wanted = recipe.model_dump(mode="json")
    wanted["propose"]["windows"] = [_short(window) for window in recipe.propose.windows]
    nearest: tuple[int, str, dict[str, Any]] | None = None
    for name in recipe_names():
        changes = _differences(load_recipe(name).model_dump(mode="json"), wanted)
        for key in ("about", FOLLOW_SIZE):
            changes.pop(key, None)
        found = len(list(leaves(changes))), name, changes
        if nearest is None or found[0] < nearest[0]:
            nearest = found
    assert nearest is not None
    return nearest[1], nearest[2]


def _short(window: "WindowConfig") -> str | dict[str, Any]:
    """Returns a window as a recipe says it in the fewest words."""
    if window.stride is None and window.remainder == "drop":
        return str(window)
    return {
        key: value
        for key, value in window.model_dump(mode="json").items()
        if value not in (None, "drop")
    }


def _differences(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of `wanted` that differ, and null for sections that it lacks."""
    changes: dict[str, Any] = {key: None for key in own if key not in wanted}
    for key, value in wanted.items():
        before = own.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = _differences(before, value)
            if inner:
                changes[key] = inner if value else None
        elif value != before:
            changes[key] = value
    return changes


def recipe_text(base: str, changes: Mapping[str, Any]) -> str:
    """Returns a recipe in YAML."""
    import yaml

    # One section at a time, scalars in blocks: YAML would put a recipe of one key into braces.
    parts = [
        yaml.safe_dump(
            {key: value},
            sort_keys=False,
            default_flow_style=None if isinstance(value, Mapping | list) else False,
        ).strip()
        for key, value in changes.items()
    ]
    return "\n".join([f"base: {base}", *parts])


def _lines(out: str, trainers: "Sequence[Trainer]", facts: Mapping[str, Any]) -> Iterator[str]:
    takes = amount(facts["takes"], "take")
    yield f"{out}: {length(facts['footage_s'])} in {takes} that no rule on content rejects"
    labels = [trainer.label for trainer in trainers]
    widths = [max(len(label), 12) for label in labels]

    def row(title: str, cells: Sequence[str]) -> str:
        parts = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{title:<24}{'  '.join(parts)}".rstrip()

    yield row("footage seen", labels)
    titles = {"before": "now", "after": "with the recipe below"}
    for when, title in list(titles.items())[: 2 if facts["changed"] else 1]:
        yield row(title, [share(f[when]["well_share"], 1) for f in facts["trainers"]])
        if any(f[when]["seen_s"] - f[when]["well_s"] > 0.001 for f in facts["trainers"]):
            wrong = [f[when]["seen_share"] - f[when]["well_share"] for f in facts["trainers"]]
            yield row("  more at a wrong rate", [share(each, 1) for each in wrong])
    if len(trainers) > 1:
        yield f"mean {share(facts['mean_share'], 1)}, least {share(facts['least_share'], 1)}"
    if not facts["changed"]:
        yield "no other recipe that was tried is better: keep the recipe of this output"
    elif any(f["after"]["seen_s"] for f in facts["trainers"]):
        yield f"\n{recipe_text(facts['base'], facts['changes'])}\n"
        yield (
            "Write these lines to a file such as solved.yaml, and run it: about "
            f"{amount(facts['clips'], 'clip')}"
        )
    if facts["samples_per_s"] is not None:
        yield (
            "some of these clips are too short for a sample, and rules would reject them as "
            f"not_measured: --set analyze.samples_per_s={facts['samples_per_s']:g} measures them"
        )
    for trainer, of in zip(trainers, facts["trainers"], strict=True):
        if of["where"] is not None:
            yield f'{trainer.label} should read only its clips: export with --where "{of["where"]}"'
        if not of["after"]["well_s"]:
            yield (
                f"no recipe of this size shows {trainer.label} anything at its rate: `curate fit "
                f"{out} --for {trainer.name} --explain CLIP` says why"
            )
        if of["enlarged_share"] > LEAST_GAIN:
            yield (
                f"{trainer.label} enlarges the pictures of {share(of['enlarged_share'], 1)} of the "
                f"footage; at {of['size_without']} it would enlarge none"
            )
    for smaller in facts["smaller_sizes"][:1]:
        seen = ", ".join(share(each, 1) for each in smaller["well_shares"])
        yield f"With --size {smaller['size']}, the trainers would see {seen}"
