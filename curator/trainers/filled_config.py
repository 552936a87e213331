"""Configurations of trainers for some clips: `config` of a trainer's file, with values filled in.

The numbers of frames, and what else `config` leaves open, are those with which the trainer sees
most of the clips at the right speed, as the trainer's own rules say.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, sqrt
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.number_text import amount
from curator.trainers.clip_fit import OutputSpec, fit_counted, speed_of
from curator.trainers.fit_words import REASONS, seen_line
from curator.trainers.frame_rules import MAX_FRAMES, Drop
from curator.trainers.trainer_files import ConfigFile, Trainer, load_trainer

MORE = 1.02
"""Factor by which a further choice must see more, so that trifles do not complicate a file."""
NEAR_ASPECT = 0.05
"""Difference of aspects up to which the trainer's own size stays."""
_ANY_LENGTH = MAX_FRAMES
_MOST_FORMS, _MOST_LENGTHS, _MOST_RATES = 400, 40, 4
"""Bounds of a search, which then takes about a second."""
_LOSSES = {
    "cut_at_tail": "cut at the tail",
    "retimed": "at another speed",
    "without_sound": "without sound",
}
Forms = Mapping[OutputSpec, tuple[int, float]]
"""Number of clips, and their seconds in the sources, by form."""
_Weights = Mapping[tuple[int, float], float]
"""Seconds of clips by number of frames and rate."""


def config_file(
    name: str, forms: Forms, places: Mapping[str, str], uncaptioned: Forms
) -> tuple[str, str] | None:
    """Returns the name and text of a trainer's configuration; None if it has none.

    Args:
        name: Name of the trainer.
        forms: The clips.
        places: `folder`, `videos`, `root` and `split`, for the text.
        uncaptioned: Those of the clips that have no caption.
    """
    config = load_trainer(name).rules.config
    if config is None:
        return None
    trainer = chosen(name, config, forms)
    about = list(_about(trainer, forms, places, uncaptioned))
    shown = {key: _text(config, value) for key, value in _values(trainer, config).items()}
    shown |= {key: _escaped(config, text) for key, text in places.items()}
    shown |= {"about": _escaped(config, " ".join(about)), "trainer": name}
    lines = [] if config.suffix == ".json" else [f"# {line}" for line in about]
    for line in config.text.splitlines():
        template = Template(line)
        # A value that is not set has no line.
        if all(shown[key] is not None for key in template.get_identifiers()):
            lines.append(template.substitute(shown))
    return f"{name}{config.suffix}", "\n".join(lines) + "\n"


def chosen(name: str, config: ConfigFile, forms: Forms) -> Trainer:
    """Returns a trainer with the values under which it sees most of the clips."""
    weights = _weights(forms)
    options = {key: _options(source, weights) for key, source in config.choose.items()}
    best, best_score = load_trainer(name), -1.0
    for settings in _combined(_size(best, config, forms), options):
        if config.up_to is not None:
            settings |= _lengths(name, config, settings, weights)
        for further in _combined(settings, config.then):
            trainer = load_trainer(name, further)
            score = sum(_scores(trainer, weights))
            if score > MORE * best_score:
                best, best_score = trainer, score
    return best


def _combined(
    settings: Mapping[str, Any], options: Mapping[str, Sequence[Any]]
) -> Iterator[dict[str, Any]]:
    for values in product(*options.values()):
        yield {**settings, **dict(zip(options, values, strict=True))}


def _weights(forms: Forms) -> _Weights:
    """Returns the footage by what the search depends on; a regular sample if there is much."""
    weights: Counter[tuple[int, float]] = Counter()
    for form, (n, _) in forms.items():
        weights[form.n_frames, float(form.fps)] += n * form.n_frames
    every = ceil(len(weights) / _MOST_FORMS) or 1
    return {key: weights[key] / key[1] for key in sorted(weights)[::every]}


def _options(source: str | tuple[Any, ...], weights: _Weights) -> Sequence[Any]:
    """Returns the values to try of a parameter."""
    if not isinstance(source, str):
        return source
    rates: dict[float, float] = {}
    for (_, fps), seconds in weights.items():
        rates[fps] = rates.get(fps, 0.0) + seconds
    return [None, *sorted(rates, key=rates.__getitem__, reverse=True)[:_MOST_RATES]]


def _size(trainer: Trainer, config: ConfigFile, forms: Forms) -> dict[str, int]:
    """Returns the size with the area of the defaults, or less, and the aspect of most clips."""
    if config.multiple is None or not forms:
        return {}
    sizes: Counter[tuple[int, int]] = Counter()
    for form, (n, _) in forms.items():
        sizes[form.width, form.height] += n * form.n_frames
    (width, height), _ = sizes.most_common(1)[0]
    wide, high = trainer.values["width"], trainer.values["height"]
    scale = min(1.0, sqrt(wide * high / (width * height)))
    if scale < 1 and abs(width / height * high / wide - 1) < NEAR_ASPECT:
        return {}
    sides = (max(1, round(side * scale / config.multiple)) for side in (width, height))
    return {key: n * config.multiple for key, n in zip(("width", "height"), sides, strict=True)}


def _lengths(
    name: str, config: ConfigFile, settings: Mapping[str, Any], weights: _Weights
) -> dict[str, Any]:
    """Returns the numbers of frames under which most is seen, for the parameter `frames`."""
    candidates = _candidates(name, config, settings, weights)
    if not candidates:
        return {}
    is_list = config.most > 1
    scores = np.array(
        [
            list(
                _scores(load_trainer(name, {**settings, "frames": [n] if is_list else n}), weights)
            )
            for n in candidates
        ]
    )
    best = sorted(candidates[at] for at in _covering(scores, config.most))
    return {"frames": best if is_list else best[0]}


def _candidates(
    name: str, config: ConfigFile, settings: Mapping[str, Any], weights: _Weights
) -> list[int]:
    """Returns the numbers of frames, in samples and on the model's grid, that clips have."""
    rules = (probe := load_trainer(name, {**settings, "frames": _ANY_LENGTH})).rules
    grid = rules.frames
    if config.grid is not None:
        grid = grid.model_copy(update={"grid": config.grid})
    lengths = set()
    for n_frames, fps in weights:
        if rules.rate.policy == "spread":
            n: float = round(n_frames / fps * (rules.rate.model_fps or fps))
        else:
            reading = probe.read(n_frames, fps)
            has = reading.has if reading.reason is Drop.TOO_SHORT else None
            n = has or max((one.count for one in reading.samples), default=0)
        lengths.add(grid.on_grid(min(int(n), config.up_to or 0)))
    several = sorted(length for length in lengths if length > 1)
    return several[:: -max(1, ceil(len(several) / _MOST_LENGTHS))][::-1]


def _covering(scores: NDArray[np.float64], most: int) -> list[int]:
    """Returns rows, at most `most`, whose maximum has about the largest sum."""
    rows: list[int] = []

    def best_with(others: list[int]) -> tuple[int, float]:
        base = scores[others].max(axis=0) if others else np.zeros(scores.shape[1])
        sums = np.maximum(scores, base).sum(axis=1)
        # Equal to a rounding error: the shorter one.
        at = int(np.argmax(sums >= sums.max() * (1 - 1e-9)))
        return at, float(sums[at])

    total = 0.0
    while len(rows) < most:
        at, sees = best_with(rows)
        if rows and sees <= total * MORE:
            break
        rows, total = [*rows, at], sees
        for place in range(len(rows) - 1):
            others = rows[:place] + rows[place + 1 :]
            rows[place], total = best_with(others)
    return rows


def _scores(trainer: Trainer, weights: _Weights) -> Iterator[float]:
    """Yields the seconds seen of each kind of clip; those at a wrong speed count less."""
    for (n_frames, fps), seconds in weights.items():
        reading = trainer.read(n_frames, fps)
        speed = speed_of(trainer, reading, fps) or 1.0
        yield seconds * reading.frames_seen[0] / n_frames * min(speed, 1 / speed) ** 2


def _values(trainer: Trainer, config: ConfigFile) -> dict[str, Any]:
    values = {**trainer.values, **config.names}
    if {"width", "height", "frames"} <= values.keys():
        frames = values["frames"] if isinstance(values["frames"], list) else [values["frames"]]
        values["buckets"] = ";".join(f"{values['width']}x{values['height']}x{n}" for n in frames)
    return values


def _text(config: ConfigFile, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else _escaped(config, value)
    return json.dumps(value)


def _escaped(config: ConfigFile, text: str) -> str:
    """Returns a text as it stands between double quotes, in a shell between single ones."""
    if config.suffix == ".sh":
        return text.replace("'", "'\\''")
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _by_caption(
    forms: Forms, uncaptioned: Forms
) -> Iterator[tuple[OutputSpec, float, str | None, int]]:
    """Yields form, seconds, caption and number of the clips with a caption, and of the others."""
    for form, (n, seconds) in forms.items():
        n_without, seconds_without = uncaptioned.get(form, (0, 0.0))
        if n > n_without:
            yield form, seconds - seconds_without, "-", n - n_without
        if n_without:
            yield form, seconds_without, None, n_without


def _about(
    trainer: Trainer, forms: Forms, places: Mapping[str, str], uncaptioned: Forms
) -> Iterator[str]:
    """Yields what the trainer sees and loses with its values, in lines."""
    rules = trainer.rules
    yield f"{rules.about} ({rules.project} {rules.version}), for the split {places['split']}."
    facts = fit_counted(trainer, _by_caption(forms, uncaptioned))
    yield f"{seen_line(facts)}."
    losses = [
        f"{amount(n, 'clip')} dropped ({REASONS[Drop(why)]})" for why, n in facts["dropped"].items()
    ]
    losses += [
        f"{amount(facts[key], 'clip')} {words}" for key, words in _LOSSES.items() if facts[key]
    ]
    rates = sorted({float(form.fps) for form in forms})
    if len(rates) > 1 and facts["retimed"]:
        losses.append(f"clips have {', '.join(f'{rate:.5g}' for rate in rates)} frames/s")
    if losses:
        yield f"Losses: {'; '.join(losses)}."
    if rules.config is not None and rules.config.up_to is not None:
        yield f"No sample has more than {rules.config.up_to} frames, for which the model is made."
    sets = "".join(f" --set '{setting}'" for setting in trainer.settings)
    yield f"curate fit OUT --split {places['split']} --for {trainer.name}{sets}"
