"""Finds the division of footage into clips under which trainers see most of it.

The search divides a sample of the usable takes by each of some hundred settings. The figures of the
result are of all takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from curator.frame_rate import LEAST_FPS, MOST_FPS, parsed_rate
from curator.recipe import Recipe, WindowConfig
from curator.tools.planning.divided_takes import Division, divided
from curator.tools.planning.seen_footage import Seen, Watcher, sample_lengths, seen
from curator.tools.planning.usable_takes import Takes
from curator.trainers.trainer_files import Trainer

SAMPLED = 300
"""Takes of the sample."""
MOST_FRAMES = 300
"""Longest window: longer than those of the trainers here."""
PAIRED = 18
"""Windows of which each two are tried together."""
LENGTHS_PER_RATE = 14
# A further size costs the time and bytes of all footage again.
PER_WINDOW = 0.01
"""Share of the footage that a further size of windows must add."""
PER_UNUSED = 0.03
"""Cost of clips as long as all footage that show a trainer nothing more: overlaps, unread tails."""
PER_CLIPS = 0.005
"""Share that the greatest possible number of clips must add."""
PER_SHORT = 0.05
"""Cost of footage that is seen only in samples below the trainer's longest length."""
PER_ODD = 0.004
"""Share that a window must add if its frames are no length of a trainer and no class of the recipe;
the same for a window with a stride."""
PER_SEEN = 0.01
"""Worth of footage that is seen, but not well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What trainers see of the clips of a division, as shares of the usable footage.

    Attributes:
        seen: Of each trainer.
        total_s: Seconds of usable footage.
        score: Mean share that is seen well, less what clips and windows cost.
    """

    division: Division
    seen: tuple[Seen, ...]
    total_s: float
    n_clips: float
    score: float

    @property
    def well(self) -> list[float]:
        """Shares that are seen well."""
        return [each.well_s / self.total_s for each in self.seen]


def solved(takes: Takes, trainers: Sequence[Trainer], recipe: Recipe) -> Outcome:
    """Returns the best division of takes for trainers, evaluated on all takes.

    The division maximises the mean over the trainers of the share that is seen well. A second size
    of windows, footage in several clips, and more clips cost a part of a percent.
    """
    watchers = [Watcher(trainer) for trainer in trainers]
    search = _Search(takes.sample(SAMPLED), watchers, recipe)
    return search.outcome(search.best(), takes.distinct())


def evaluated(
    takes: Takes, division: Division, trainers: Sequence[Trainer], recipe: Recipe
) -> Outcome:
    """Returns what trainers see of a division."""
    search = _Search(takes.distinct(), [Watcher(trainer) for trainer in trainers], recipe)
    return search.outcome(division)


class _Search:
    def __init__(self, takes: Takes, watchers: Sequence[Watcher], recipe: Recipe) -> None:
        self._takes, self._watchers, self._recipe = takes, watchers, recipe
        self.least_s = shortest_s([w.trainer for w in watchers], recipe)
        self._known = {n for w in watchers for n in w.lengths} | {*recipe.shard.lengths}
        self._outcomes: dict[Division, Outcome] = {}

    def outcome(self, division: Division, takes: Takes | None = None) -> Outcome:
        """Returns what the trainers see, of the sample if `takes` is None."""
        if takes is None and division in self._outcomes:
            return self._outcomes[division]
        of = self._takes if takes is None else takes
        clips = divided(of, division, self._recipe)
        per_trainer = tuple(seen(watcher, clips, of.weight) for watcher in self._watchers)
        total, weight = of.total_s, of.weight[clips.place]
        n_clips = float(weight.sum())
        score = (
            np.mean([each.well_s for each in per_trainer]) / total
            - PER_SHORT * np.mean([each.well_s - each.full_s for each in per_trainer]) / total
            - PER_ODD * sum(self._n_odd(window) for window in division.windows)
            + PER_SEEN * np.mean([each.seen_s for each in per_trainer]) / total
            - PER_WINDOW * max(0, len(division.windows) - 1)
            - PER_UNUSED * np.mean([each.clip_s - each.seen_s for each in per_trainer]) / total
            - PER_CLIPS * n_clips * self.least_s / total
        )
        result = Outcome(
            division=division, seen=per_trainer, total_s=total, n_clips=n_clips, score=float(score)
        )
        if takes is None:
            self._outcomes[division] = result
        return result

    def _n_odd(self, window: WindowConfig) -> int:
        return (window.frames not in self._known) + (window.stride is not None)

    def best(self) -> Division:
        """Returns the best division of the sample."""
        singles = [(window,) for rate in self._rates() for window in self._windows(rate)]
        for windows in singles:
            self._tried(windows)
        for (window,) in self._top(singles, 4):
            for near in self._near(window):
                self._tried((near,))
                singles.append((near,))
        pool = [windows[0] for windows in self._top(singles, PAIRED, by_size=True)]
        for pair in combinations(pool, 2):
            if pair[0].form != pair[1].form:
                self._tried(pair)
        for fps in (None, *(rate for rate in self._rates() if rate is not None)):
            for max_s in self._max_lengths():
                division = Division(
                    min_s=self.least_s, max_s=max_s, fps=None if fps is None else parsed_rate(fps)
                )
                self.outcome(division)
        # The first of equally good ones is the simplest.
        return max(self._outcomes.values(), key=lambda one: round(one.score, 6)).division

    def _tried(self, windows: tuple[WindowConfig, ...]) -> Outcome:
        return self.outcome(
            Division(windows=windows, min_s=self.least_s, max_s=self._recipe.propose.max_s)
        )

    def _top(
        self, of: Sequence[tuple[WindowConfig]], n: int, *, by_size: bool = False
    ) -> list[tuple[WindowConfig]]:
        """Returns the best windows; with `by_size` of distinct sizes, and the best per trainer."""
        order = sorted(dict.fromkeys(of), key=lambda one: -self._tried(one).score)
        if not by_size:
            return order[:n]
        sizes: dict[tuple[int, float | None], tuple[WindowConfig]] = {}
        for at in range(len(self._watchers)):
            for one in sorted(order, key=lambda w, at=at: -self._tried(w).well[at])[:2]:  # type: ignore[misc]
                sizes.setdefault(one[0].form[:2], one)
        # Every second place is for a rate that is not yet among them, or a length far off.
        for one in order:
            sizes.setdefault(one[0].form[:2], one)
        return list(sizes.values())[:n]

    def _rates(self) -> list[str | None]:
        """Returns rates of windows: of the models, of the trainers, and the source's own."""
        rates: dict[str, None] = {}
        for watcher in self._watchers:
            rule, stride = watcher.trainer.rules.rate, watcher.trainer.rules.frames.stride
            # Of every second frame, a model sees its rate at twice that rate.
            strided = (rule.model_fps or 0) * stride if isinstance(stride, int) else None
            rates |= {
                f"{fps:g}": None
                for fps in (rule.model_fps, rule.fps, strided)
                if fps and LEAST_FPS <= fps <= MOST_FPS
            }
        return [*rates, None]

    def _max_lengths(self) -> list[float]:
        """Returns most seconds of equal parts: the recipe's, and multiples of samples."""
        own = self._recipe.propose.max_s
        lengths = {own}
        for watcher in self._watchers:
            rate = watcher.trainer.rules.rate
            fps = rate.fps or rate.model_fps
            for frames in watcher.lengths:
                if fps is not None:
                    lengths |= {frames / fps, 2 * frames / fps}
        return sorted(length for length in lengths if length >= 2 * self.least_s)

    def _windows(self, fps: str | None) -> Iterator[WindowConfig]:
        for frames in self._frames(fps):
            for remainder in ("drop", "keep", "overlap"):
                yield WindowConfig(frames=frames, fps=fps, remainder=remainder)

    def _frames(self, fps: str | None) -> list[int]:
        """Returns frames of windows at a rate of which trainers see nearly all."""
        rates = [float(Fraction(fps))] if fps is not None else self._source_rates()
        found: set[int] = set()
        # A window at the sources' rates must be long enough at the fastest.
        fastest = self._takes.fps.max() if fps is None else rates[0]
        least = max(2, int(np.ceil(self.least_s * fastest - 1e-6)))
        frames = np.arange(least, MOST_FRAMES + 1)
        for rate in rates:
            table = np.array(
                [[self._share(w, int(n), rate) for n in frames] for w in self._watchers]
            )
            for row in (*table, table.mean(axis=0)):
                if row.max() > 0:
                    peaks = frames[row >= row.max() - 0.02]
                    found.update(_thinned(peaks.tolist()))
        found.update(n for n in self._recipe.shard.lengths if n >= least)
        lengths = {n for w in self._watchers for n in w.lengths}
        return sorted(found | lengths | {n + 1 for n in lengths})

    def _share(self, watcher: Watcher, n_frames: int, rate: float) -> float:
        """Returns the largest share of a window that a trainer sees well, over the sizes."""
        best = 0.0
        for kind in dict.fromkeys(watcher.kinds(self._takes.kinds)):
            form = watcher.form(n_frames, rate, kind)
            best = max(best, sum(end - begin for begin, end in form.spans) * form.is_well)
        return best

    def _source_rates(self) -> list[float]:
        """Returns the commonest rates of the sources, at most three."""
        rates, of = np.unique(self._takes.fps, return_inverse=True)
        seconds = np.bincount(of.reshape(-1), self._takes.seconds * self._takes.weight)
        return [float(rates[at]) for at in np.argsort(-seconds)[:3]]

    def _near(self, window: WindowConfig) -> Iterator[WindowConfig]:
        """Yields windows with a few frames more or less, or with the stride of what is seen."""
        for by in (-4, -3, -2, -1, 1, 2, 3, 4):
            frames = window.frames + by
            fps = float(self._takes.fps.max() if window.rate is None else window.rate)
            if frames >= max(2, self.least_s * fps - 1e-6):
                yield window.model_copy(update={"frames": frames})
        for stride in {window.frames - 1, window.frames * 3 // 4, window.frames // 2}:
            if stride >= 1:
                yield window.model_copy(update={"stride": stride})


def _thinned(frames: Sequence[int]) -> list[int]:
    """Returns at most `LENGTHS_PER_RATE` numbers, evenly by their logarithms, with both ends."""
    if len(frames) <= LENGTHS_PER_RATE:
        return list(frames)
    wanted = np.geomspace(frames[0], frames[-1], LENGTHS_PER_RATE)
    return [frames[int(np.abs(np.array(frames) - each).argmin())] for each in wanted]


def shortest_s(trainers: Sequence[Trainer], recipe: Recipe) -> float:
    """Returns the shortest clip that a solution makes: the recipe's, or a trainer's sample.

    A trainer that reads clips of any length gets no shorter clips than the recipe wants.
    """
    least = recipe.propose.min_s
    for trainer in trainers:
        fps = trainer.rules.rate.fps or trainer.rules.rate.model_fps
        lengths = sample_lengths(trainer)
        if fps is not None and lengths:
            least = min(least, min(lengths) / fps)
    return least


def recipe_changes(division: Division, recipe: Recipe) -> dict[str, Any]:
    """Returns the keys of a recipe that a division changes, with their values."""
    changes: dict[str, Any] = {}
    propose, cut = recipe.propose, recipe.cut
    if division.windows != propose.windows:
        changes["propose.windows"] = [_plain(window) for window in division.windows]
    if not division.windows and division.max_s != propose.max_s:
        changes["propose.max_s"] = round(division.max_s, 4)
    uses_min_s = not division.windows or any(w.remainder == "keep" for w in division.windows)
    if uses_min_s and division.min_s < propose.min_s:
        changes["propose.min_s"] = round(division.min_s, 4)
    fps = None if division.fps is None else str(division.fps)
    if cut.rate != division.fps:
        changes["cut.fps"] = fps
    if cut.length_frames is not None:
        changes["cut.length_frames"] = None
    classes = sorted({*recipe.shard.lengths, *(window.frames for window in division.windows)})
    if division.windows and tuple(classes) != tuple(sorted(recipe.shard.lengths)):
        changes["shard.lengths"] = classes
    return changes


def _plain(window: WindowConfig) -> Mapping[str, Any] | str:
    if window.stride is None and window.remainder == "drop":
        return str(window)
    return window.model_dump(mode="json", exclude_defaults=True)
