"""Which stages of a recipe wait for all sources or clips of a generation, and why.

`runs/one_pass.py` takes a generation through the stages one after the other; this says it in words,
and which of the waits the recipe asks for. `curate graph` prints it. Where the recipe asks for none
before the cut, a cluster, or a machine with a GPU, cuts clips while other sources are analyzed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from curator.run_config import RunConfig
from curator.stage import AnyStage, ClipFilter, Scope
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.stage import CaptionStage
from curator.stages.commit.stage import CommitStage
from curator.stages.cut.stage import CutStage
from curator.stages.dedup.stage import DedupStage
from curator.stages.filter.stage import FilterStage
from curator.stages.select.config import SelectConfig
from curator.stages.select.stage import SelectStage
from curator.stages.shard.stage import ShardStage

MAX_NAMED = 4
"""Most rules that are named."""

_GOES = {
    Scope.SOURCE: "source by source",
    Scope.CLIP: "clip by clip",
    Scope.CORPUS: "all at once",
}
_BY_ORDER = "only because a run takes stages in turn"
_OFF = "off"
_DECISIONS = "the decisions about all clips"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """How a stage goes through a generation.

    Attributes:
        goes: Source by source, clip by clip, or all at once; `off` where it does nothing.
        on: What must be complete before it begins; empty for nothing.
        is_needed: Whether results depend on the wait; else only the order of a run makes it.
    """

    stage: str
    goes: str
    on: str = ""
    why: str = ""
    is_needed: bool = False

    def __str__(self) -> str:
        return f"{self.on}: {self.why}" if self.on else "-"


class _Barrier(NamedTuple):
    on: str
    why: str
    is_needed: bool = True


def waits(stages: Iterable[AnyStage], run: RunConfig) -> list[Wait]:
    """Returns how each stage of a graph goes, in the order of the graph."""
    found: list[Wait] = []
    for stage in stages:
        may_be_off = isinstance(stage, DedupStage | SelectStage | CaptionStage)
        if may_be_off and not stage.config.enabled:
            found.append(Wait(stage=stage.name, goes=_OFF))
            continue
        on, why, is_needed = _wait(stage, run, found) or ("", "", False)
        goes = _GOES[stage.scope]
        found.append(Wait(stage=stage.name, goes=goes, on=on, why=why, is_needed=is_needed))
    return found


def waits_text(stages: Iterable[AnyStage], run: RunConfig) -> str:
    """Returns the waits as a table for people."""
    found = waits(stages, run)
    rows = [("stage", "goes", "waits for"), *((one.stage, one.goes, str(one)) for one in found)]
    name, goes = (max(len(row[column]) for row in rows) for column in range(2))
    lines = [f"{row[0].ljust(name)}  {row[1].ljust(goes)}  {row[2]}" for row in rows]
    return "\n".join([*lines, "", *_of_generations(run)])


def _wait(stage: AnyStage, run: RunConfig, before: Sequence[Wait]) -> _Barrier | None:
    """Returns what a stage that is not off waits for; None if it takes what comes."""
    match stage:
        case AnalyzeStage():
            why = "the hashes of their contents put them into generations"
            return _Barrier("every source of the run to be scanned", why)
        case FilterStage():
            return _filter_wait(stage, run)
        case DedupStage():
            why = "of clips that show the same footage the best one stays"
            if run.mode == "growing":
                why += ", or the one that an earlier generation kept"
            return _Barrier("every clip to be judged", why)
        case SelectStage():
            return _Barrier("every clip to be judged", _select_words(stage.config, run))
        case ClipFilter():
            return _Barrier("every clip to be judged", "it gets all kept clips in one table")
        case CaptionStage():
            return _caption_wait(stage.config, before)
        case CutStage():
            return _cut_wait(before)
        case ShardStage():
            why = "a hash orders the clips of each tar, and tars that hold the same clips stay"
            has_captions = any(one.stage == "caption" and one.goes != _OFF for one in before)
            captioned = " and captioned" if has_captions else ""
            return _Barrier(f"every kept clip to be cut{captioned}", why)
        case CommitStage():
            return _Barrier("every tar to be written", "readers see a generation as a whole")
    return None


def _filter_wait(stage: FilterStage, run: RunConfig) -> _Barrier:
    rules = [name for name, rule in stage.config.root.items() if rule.is_by_quantile]
    on = "every source to be analyzed"
    if not rules:
        return _Barrier(on, f"{_BY_ORDER}; no bound depends on other clips", is_needed=False)
    more = f" and {len(rules) - MAX_NAMED} more" if len(rules) > MAX_NAMED else ""
    why = f"bounds by quantile ({', '.join(rules[:MAX_NAMED])}{more}) are of all clips"
    if run.mode == "growing":
        why += f" of the first generation, then frozen: later ones wait {_BY_ORDER}"
    return _Barrier(on, why)


def _select_words(config: SelectConfig, run: RunConfig) -> str:
    has_share = config.keep_fraction is not None or bool(config.keep_fractions)
    taken = ["a share"] if has_share else []
    taken += [f"at most {config.max_per_group:,}"] if config.max_per_group is not None else []
    of = f"of each group by {', '.join(config.by)}" if config.by else "of all clips"
    why = f"{' and '.join(taken)} {of}, chosen by a hash"
    if run.mode == "growing" and config.max_per_group is not None:
        why += "; those of earlier generations count"
    return why


def _caption_wait(config: CaptionConfig, before: Sequence[Wait]) -> _Barrier | None:
    if config.decides:
        return _decided(before)
    if config.asks:
        # Frames are taken, and windows requested, while clips are cut.
        return None
    return _Barrier("every kept clip to be cut", _BY_ORDER, is_needed=False)


def _cut_wait(before: Sequence[Wait]) -> _Barrier:
    asked = [one for one in before if one.stage == "caption" and one.on == _DECISIONS]
    if asked:
        return _Barrier("every kept clip to be annotated", "answers may reject it")
    asks = any(one.stage == "caption" and one.goes != _OFF and not one.on for one in before)
    found = _decided(before)
    if found.is_needed or asks:
        return found
    where = "on a cluster, and beside a GPU, clips are cut as they are decided about"
    return found._replace(why=f"{found.why}; {where}")


def _decided(before: Sequence[Wait]) -> _Barrier:
    """Returns the wait for the stages that reject clips."""
    needed = [one.stage for one in before if one.is_needed and one.goes == _GOES[Scope.CORPUS]]
    if needed:
        return _Barrier(_DECISIONS, f"{', '.join(needed)} may reject any of them")
    return _Barrier(_DECISIONS, f"{_BY_ORDER}; none depends on other clips", is_needed=False)


def _of_generations(run: RunConfig) -> Iterator[str]:
    hours = f"{run.generation_hours:,.15g}"
    yield f"Sources are taken in generations of about {hours} hours of video, in `{run.mode}` mode:"
    if run.mode == "growing":
        yield "a stage waits for the sources or clips of its generation alone."
    else:
        yield "a stage waits for the sources or clips of its generation and of all before it."
    yield "On Ray, the next generation is analyzed while one is cut."
