"""The graph: the stages of the pipeline built from a recipe, in order.

`curate run` runs all stages. `curate tune` uses the stages that decide about clips, and
`curate recaption` runs the stages from `caption` on. `curate graph` prints the graph.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from curator.buckets import MAX_ENLARGED
from curator.dataset.shard_index import DATASET_SCHEMA
from curator.errors import ModelError, RecipeError, in_one_line, raised_as, unknown_key
from curator.executor.end_time import ProgressStep
from curator.extensions import Extension, Kind, load_extension
from curator.family import FamilyError, Scope
from curator.fingerprints import fingerprint
from curator.frame_axes import AxisError
from curator.measures.clip_models import Semantics
from curator.measures.filtering import FilterNeeds
from curator.models.weight_store import ModelStore
from curator.recipe import (
    Recipe,
    StageEntry,
    column_rules,
    measures_of,
    score_rules,
    stored_measures_of,
)
from curator.recipe_models import semantics_of
from curator.records.clips import FACT_COLUMNS
from curator.records.tracks import TIME_SIGNALS, is_signal
from curator.run_config import RunConfig
from curator.stage import (
    NOT_IN_CLIPS,
    OFF,
    REASON_NAME,
    Annotator,
    AnyAnnotator,
    AnyCorpusStage,
    AnyGraphStage,
    CorpusStage,
    Phase,
    PixelStage,
    Stage,
    StageReason,
    Wait,
)
from curator.stages import ANNOTATORS, MOVABLE, OPTIONAL, stage_type
from curator.stages.analyze.families import families_of
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.cameras.stage import CamerasStage
from curator.stages.caption.caption_annotators import (
    FAMILY,
    MEMBER,
    CaptionClipScore,
    CaptionEmbeddings,
)
from curator.stages.caption.stage import CaptionStage
from curator.stages.commit.config import CommitConfig
from curator.stages.commit.stage import CommitStage
from curator.stages.cut.stage import CutStage, CutStageConfig, pixel_fingerprints
from curator.stages.dedup.retention import ShortestClip
from curator.stages.dedup.stage import DedupStage
from curator.stages.filter.column_filter import ColumnFilter
from curator.stages.filter.config import FilterConfig
from curator.stages.filter.stage import FilterStage
from curator.stages.propose.stage import ProposeStage
from curator.stages.scan.stage import ScanStage
from curator.stages.select.stage import SelectStage
from curator.stages.shard.frame_signals import FrameSignals
from curator.stages.shard.stage import ShardStage
from curator.storage.metadata_columns import is_metadata
from curator.tables.mark_table import MARK_COLUMNS
from curator.tables.schemas import declared_fields
from curator.tables.track_items import StoredFamily
from curator.value_errors import explain


def built_in_stages(recipe: Recipe, pixels: Sequence[PixelStage[Any]] = ()) -> list[AnyGraphStage]:
    """Returns the stages of this package, configured from the recipe."""
    semantics = semantics_of(recipe)
    cut = CutStageConfig(cut=recipe.cut, max_pixels=recipe.analyze.max_pixels)
    n_frames = max(recipe.cut.length_frames or 0, min(recipe.shard.lengths))
    shortest = ShortestClip(seconds=recipe.propose.min_s, n_frames=n_frames)
    is_growing = recipe.run.mode == "growing"
    measures, stored = measures_of(recipe), stored_measures_of(recipe)
    _refuse_unmeasured(recipe.shard.signals, recipe, "shard.signals")
    return [
        ScanStage(recipe.scan),
        AnalyzeStage(recipe.analyze, clip=semantics.clip, models=semantics.store, measures=stored),
        ProposeStage(
            recipe.propose,
            aggregates=recipe.scores.root,
            heads_fingerprint=semantics.heads_fingerprint,
            measures=stored,
            sizes=recipe.cut.sizes,
        ),
        FilterStage(score_rules(recipe), filter_needs(recipe), measures),
        DedupStage(recipe.dedup, shortest, divides=not is_growing),
        *(stage_type(n).of(getattr(recipe, n), semantics, recipe.run) for n in OPTIONAL),
        SelectStage(recipe.select),
        CamerasStage(recipe.cameras),
        CutStage(cut, pixels),
        CaptionStage(recipe.caption),
        *_caption_annotators(recipe, semantics),
        *_frame_signals(recipe),
        ShardStage(recipe.shard),
        CommitStage(CommitConfig()),
    ]


def _frame_signals(recipe: Recipe) -> list[AnyGraphStage]:
    """Returns the annotator of `shard.signals`; raises `RecipeError` for unusable names."""
    if not recipe.shard.signals:
        return []
    with raised_as(RecipeError, FamilyError, of="shard.signals: "):
        return [FrameSignals(recipe.shard)]


def _caption_annotators(recipe: Recipe, semantics: Semantics) -> list[AnyGraphStage]:
    """Returns the built-in annotators that align and embed captions, if the recipe has models."""
    stages: list[AnyGraphStage] = []
    if semantics.clip is not None and recipe.caption.annotates:
        stages.append(CaptionClipScore(recipe.caption, semantics.clip, semantics.store))
    if recipe.caption.embedding is not None:
        models = ModelStore.at(recipe.models)
        entry = models.catalogue.find(recipe.caption.embedding, "text")
        stages.append(CaptionEmbeddings(recipe.caption, entry, models))
    return stages


_OF_GENERATIONS = {
    "growing": "a stage waits for the sources or clips of its generation alone.",
    "exact": "a stage waits for the sources or clips of its generation and of all before it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The stages of one recipe.

    Attributes:
        stages: All stages in order. Stages that change pixels come directly before `cut`, which
            runs them.
        run: Settings of generations.
        track_families: Returns the families of tracks; raises `ModelError` if weights are missing.
        pixels: Fingerprint of the stages that change pixels; empty without such stages.
        extensions: Stages loaded from outside this package.
    """

    stages: tuple[AnyGraphStage, ...]
    run: RunConfig
    track_families: Callable[[], Sequence[StoredFamily]]
    pixels: str = ""
    extensions: tuple[Extension, ...] = ()

    def __iter__(self) -> Iterator[AnyGraphStage]:
        """Yields the stages in order."""
        return iter(self.stages)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the stage of that name
        """Returns the stage with a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def from_stage(self, name: str) -> "Graph":
        """Returns the graph from the stage `name` on; a snapshot has the results before it."""
        at = [stage.name for stage in self.stages].index(name)
        return replace(self, stages=self.stages[at:])

    def deciding(self) -> list[AnyCorpusStage]:
        """Returns the stages that decide about clips before clips are cut."""
        return [stage for stage in self.stages if isinstance(stage, CorpusStage)]

    def annotators(self) -> list[AnyAnnotator]:
        """Returns the stages that compute values of written clips."""
        return [stage for stage in self.stages if isinstance(stage, Annotator)]

    def column_filter(self) -> ColumnFilter | None:
        """Returns the stage that applies rules on annotators' columns; None without such rules."""
        return next((stage for stage in self.stages if isinstance(stage, ColumnFilter)), None)

    def writer(self, table: str) -> Any:  # noqa: ANN401 - the stage that writes it
        """Returns the stage that writes a table, such as `candidates`; the last one of several."""
        return next(stage for stage in reversed(self.stages) if table in stage.writes)

    def reasons(self) -> list[dict[str, Any]]:
        """Returns the reasons of all stages for `summary.json`, in order of precedence."""
        return [
            {"stage": stage.name, **asdict(reason), "name": str(reason.name)}
            for stage in self.stages
            for reason in stage.reasons()
        ]

    def steps(self) -> list[ProgressStep]:
        """Returns the steps of a run in order; the stages of one step run together."""
        steps: dict[str, ProgressStep] = {}
        for stage in self.stages:
            if isinstance(stage, PixelStage):
                # Runs within the stage that encodes.
                continue
            of, time_share = steps.get(stage.step), stage.time_share if stage.is_on else 0.0
            steps[stage.step] = ProgressStep(
                name=stage.step,
                noun=of.noun if of is not None else stage.noun,
                time_share=(of.time_share if of is not None else 0.0) + time_share,
                is_before_decisions=stage.phase is Phase.MEASURE,
            )
        return list(steps.values())

    def worker_names(self) -> list[str]:
        """Returns the names of the stages that run in workers, with their helpers."""
        stages = (stage for stage in self.stages if isinstance(stage, Stage))
        return [name for stage in stages for name in (stage.name, *stage.helpers)]

    def waits(self) -> list[Wait]:
        """Returns the wait of each stage, in order of the stages."""
        waits: list[Wait] = []
        is_growing = self.run.mode == "growing"
        for stage in self.stages:
            off = Wait(stage=stage.name, granularity=OFF)
            waits.append(stage.wait(waits, is_growing=is_growing) if stage.is_on else off)
        return waits

    def may_cut_ahead(self) -> bool:
        """Whether clips may be cut early: no decision about a clip depends on other clips."""
        (cut,) = (wait for wait in self.waits() if wait.stage == "cut")
        return not cut.is_needed

    def columns(self) -> list[pa.Field]:
        """Returns the columns that annotators add to `clips`, with their declarations."""
        return declared_fields(
            version for stage in self.annotators() for version in stage.versions().values()
        )

    def fingerprints(self) -> dict[str, str]:
        """Returns fingerprints by stage; raises `ModelError` if weights are missing."""
        tables: dict[str, str] = {}
        fingerprints: dict[str, str] = {}
        for stage in self.stages:
            fingerprints[stage.name] = stage.fingerprint(tables)
            tables |= dict.fromkeys(stage.writes, fingerprints[stage.name])
        return fingerprints

    def text(self) -> str:
        """Returns tables of stages and waits, for people."""
        stage_fingerprints, missing = {}, ""
        try:
            stage_fingerprints = self.fingerprints()
        except ModelError as error:
            missing = f"\nfingerprints are not known: {error}"
        rows = [("stage", "scope", "takes", "reads", "writes", "fingerprint")]
        for stage in self.stages:
            families = stage.families if isinstance(stage, Annotator) else ()
            row = stage.name, str(stage.scope), _takes(stage), ", ".join(_reads(stage)) or "-"
            writes = ", ".join([*stage.writes, *(family.name for family in families)]) or "-"
            rows.append((*row, writes, stage_fingerprints.get(stage.name, "-")))
        waits = [("stage", "runs", "waits for")]
        waits += [(wait.stage, wait.granularity, str(wait)) for wait in self.waits()]
        parts = [
            _table(rows) + missing,
            _table(waits),
            f"Sources are taken in generations of about {self.run.generation_hours:,.15g} hours of "
            f"video, in `{self.run.mode}` mode:\n{_OF_GENERATIONS[self.run.mode]}\n"
            "On Ray, the next generation is analyzed while one is cut.",
        ]
        return "\n\n".join(parts)

    def facts(self) -> dict[str, Any]:
        """Returns stages and waits for `--json`; a fingerprint is null if a model is missing."""
        fingerprints: Mapping[str, str] = {}
        with suppress(ModelError):
            fingerprints = self.fingerprints()
        stages = []
        for stage, wait in zip(self.stages, self.waits(), strict=True):
            families = stage.families if isinstance(stage, Annotator) else ()
            stages.append(
                {
                    "name": stage.name,
                    "scope": str(stage.scope),
                    "takes": _takes(stage),
                    "reads": [*_reads(stage)],
                    "writes": [*stage.writes, *(family.name for family in families)],
                    "fingerprint": fingerprints.get(stage.name),
                    "runs": wait.granularity,
                    "waits_for": wait.on or None,
                    "why": wait.why or None,
                }
            )
        return {"mode": self.run.mode, "stages": stages}

    def mermaid(self) -> str:
        """Returns a Mermaid flowchart: stages are boxes, tables label the arrows."""
        lines = ["flowchart LR"]
        for stage, wait in zip(self.stages, self.waits(), strict=True):
            on = f"<br/>waits for {wait.on}:<br/>{wait.why}".replace('"', "#quot;")
            if not wait.on:
                on = f"<br/>{OFF}" if wait.granularity == OFF else ""
            label = f"{stage.name}<br/>{stage.scope}, {_takes(stage)}{on}"
            # Double lines at the sides mark a wait on which results depend.
            box = ("[[", "]]") if wait.is_needed else ("[", "]")
            lines.append(f'  {stage.name}{box[0]}"{label}"{box[1]}')
        writer: dict[str, str] = {}
        for stage in self.stages:
            lines += [
                f"  {writer[table]} -- {table} --> {stage.name}"
                for table in _reads(stage)
                if table in writer
            ]
            writer |= dict.fromkeys(stage.writes, stage.name)
        return "\n".join(lines)


def graph_of(recipe: Recipe) -> Graph:
    """Builds the graph of a recipe.

    Raises `RecipeError` if a stage cannot be loaded, or cannot be at the place in the recipe.
    """
    extensions: list[Extension] = []
    own: list[tuple[StageEntry, AnyGraphStage]] = []
    for entry in recipe.stages:
        if entry.use not in MOVABLE:
            extension, stage = _loaded(entry, recipe.models)
            if entry.use not in ANNOTATORS:
                extensions.append(extension)
            own.append((entry, stage))
    pixels = [stage for _, stage in own if isinstance(stage, PixelStage)]
    stages = built_in_stages(recipe, pixels)
    made = Counter(n for s in stages if isinstance(s, Annotator) for n in _declared(s))
    for (what, name), n_stages in made.items():
        if n_stages > 1:
            raise RecipeError(
                f"shard.signals: captions make the {what} {name!r} already; leave out this signal"
            )
    for entry in recipe.stages:
        if entry.use in MOVABLE:
            if entry.config:
                raise RecipeError(
                    f"stages: {entry.use!r} is only moved here, and has config; its settings are "
                    f"the section {entry.use} of the recipe"
                )
            moved = next(stage for stage in stages if stage.name == entry.use)
            stages.remove(moved)
            _insert(stages, moved, entry)
    for entry, stage in own:
        if stage.name in [other.name for other in stages]:
            raise RecipeError(f"stages: {entry.use!r}: there is a stage {stage.name!r} already")
        if isinstance(stage, Annotator):
            _refuse_unmeasured(stage.signals, recipe, f"stages: signals of {entry.use!r}")
            _insert_annotator(stages, stage, entry, measures_of(recipe).specs)
        else:
            _insert(stages, stage, entry)
    if (rules := column_rules(recipe)).root:
        _refuse_unknown_columns(rules, stages, measures_of(recipe).specs)
        stages.insert([stage.name for stage in stages].index("shard"), ColumnFilter(rules))
    scan, *others = stages
    assert isinstance(scan, ScanStage)
    accepts = (AnalyzeStage.media & scan.config.accepted).union(
        *(stage.media for _, stage in own if "scan" in stage.reads)
    )
    return Graph(
        stages=(ScanStage(scan.config, accepts), *others),
        run=recipe.run,
        pixels=fingerprint(pixel_fingerprints(pixels)) if pixels else "",
        track_families=next(s for s in stages if isinstance(s, AnalyzeStage)).stored_families,
        extensions=tuple(extensions),
    )


def _refuse_unknown_columns(
    rules: FilterConfig, stages: Iterable[AnyGraphStage], scores: Iterable[str]
) -> None:
    """Raises `RecipeError` for rules that no column of an annotator fits."""
    annotators = [stage for stage in stages if isinstance(stage, Annotator)]
    kinds = {
        name: kind
        for stage in annotators
        for family in stage.families
        for name, kind in family.columns.items()
    }
    for name, rule in rules.root.items():
        column = rule.score or name
        if column not in kinds:
            known = [*kinds, *scores]
            raise RecipeError(f"filters: {unknown_key(column, known, 'score or column')}")
        if rule.score is not None and name != column and (name in kinds or name in scores):
            raise RecipeError(
                f"filters: rule {name!r} has the name of a score or column and bounds another one, "
                f"{column!r}; rename the rule"
            )
        if rule.bounds and kinds[column] in ("text", "bool"):
            raise RecipeError(
                f"filters: rule {name!r} has min or max, and the column {column!r} is "
                f"{kinds[column]}: set one_of or none_of"
            )


def _refuse_unmeasured(signals: Iterable[str], recipe: Recipe, where: str) -> None:
    """Raises `RecipeError` for signals that tracks of the recipe do not have."""
    families = families_of(recipe.analyze, users=stored_measures_of(recipe).users)
    measured = (column for f in families for column in f.columns if is_signal(column))
    known = sorted((*measured, *TIME_SIGNALS))
    for name in signals:
        if name not in known:
            raise RecipeError(f"{where}: " + unknown_key(name, known, "signal"))


MODELS_FOLDER = "models_folder"
"""Key of a stage's settings that is the recipe's `models` unless the entry sets it."""


def _loaded(entry: StageEntry, models: str | None) -> tuple[Extension, AnyGraphStage]:
    extension = load_extension(Kind.STAGE, entry.use, ANNOTATORS)
    target = extension.target
    if not issubclass(target, PixelStage | CorpusStage | Annotator):
        raise RecipeError(
            f"stages: {entry.use!r} is {target.__name__}, which is neither a PixelStage, a "
            "ClipFilter nor an Annotator, nor another CorpusStage, of curator.stage"
        )
    try:
        own = {MODELS_FOLDER: models} if MODELS_FOLDER in target.config_type.model_fields else {}
        config = target.config_type.model_validate(own | entry.config)
    except ValidationError as error:
        location, why = explain(error, target.config_type)
        where = ": ".join(filter(None, (".".join(location), why)))
        raise RecipeError(f"stages: config of {entry.use!r}: {where}") from error
    _refuse_incomplete(entry.use, target)
    try:
        stage = target(config)
        if isinstance(stage, Annotator):
            stage.declared_families()
    except (FamilyError, AxisError) as error:
        raise RecipeError(f"stages: {entry.use!r}: {error}") from error
    if not isinstance(stage, Annotator):
        # The reason of an annotator follows from its name, which is checked.
        _refuse_odd_reasons(entry.use, stage)
    return extension, stage


MAX_REASON_WORDS = 1000
"""Most characters of the words of a custom reason."""


def _refuse_odd_reasons(use: str, stage: AnyGraphStage) -> None:
    """Raises `RecipeError` for reasons of a custom stage that no table or page could hold."""
    try:
        reasons = list(stage.reasons())
    except Exception as error:
        raise RecipeError(f"stages: reasons of {use!r} fail: {in_one_line(error)}") from error
    names = []
    for reason in reasons:
        if not isinstance(reason, StageReason):
            raise RecipeError(
                f"stages: {use!r} declares the reason {reason!r:.80}; expected a StageReason"
            )
        is_name = isinstance(reason.name, str) and REASON_NAME.fullmatch(reason.name)
        if not is_name or reason.name == "kept" or reason.name in names:
            raise RecipeError(
                f"stages: {use!r} declares the reason {reason.name!r:.80}; expected each name "
                "once, of lower case letters, digits and _, at most 64, and not 'kept'"
            )
        if not isinstance(reason.words, str) or len(reason.words) > MAX_REASON_WORDS:
            raise RecipeError(
                f"stages: {use!r}: words of the reason {reason.name!r}: expected a text of at most "
                f"{MAX_REASON_WORDS} characters"
            )
        names.append(reason.name)


def _refuse_incomplete(use: str, target: type) -> None:
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    if missing:
        raise RecipeError(f"stages: {use!r} has no {', '.join(missing)}; a stage of its kind must")
    for name, kind in (("name", str), ("version", int)):
        value = getattr(target, name, None)
        if not isinstance(value, kind):
            raise RecipeError(
                f"stages: {use!r} has the {name} {value!r}; expected {kind.__name__}, such as "
                f"{name} = {'my_stage' if kind is str else 1!r}"
            )


def _insert(stages: list[AnyGraphStage], stage: AnyGraphStage, entry: StageEntry) -> None:
    names = [other.name for other in stages]
    place = entry.before or entry.after
    default = "cut" if isinstance(stage, PixelStage) else "select"
    if place is None:
        place = default if default in names else "cut"
    if place not in names:
        raise RecipeError("stages: " + unknown_key(place, names, "stage"))
    at = names.index(place) + (entry.after is not None)
    # Stages that decide about clips come after `filter`, and before clips are cut.
    first, last = names.index("filter") + 1, names.index("cut")
    if not first <= at <= last or (isinstance(stage, PixelStage) and at != last):
        expected = "just before cut" if isinstance(stage, PixelStage) else "from filter to cut"
        where = f"before {entry.before}" if entry.before else f"after {entry.after}"
        raise RecipeError(f"stages: {entry.use!r} cannot run {where}; expected {expected}")
    stages.insert(at, stage)


def _insert_annotator(
    stages: list[AnyGraphStage], stage: AnyAnnotator, entry: StageEntry, scores: Iterable[str]
) -> None:
    """Inserts an annotator before `shard`, after earlier annotators of the recipe.

    `scores` are the names of all scores of the recipe, which are columns of `clips`.
    """
    if entry.before is not None or entry.after is not None:
        raise RecipeError(
            f"stages: {entry.use!r} is an annotator, which reads written clips. Annotators run "
            "between cut and shard, in the order of the recipe; leave out before and after"
        )
    if not stage.families:
        raise RecipeError(f"stages: {entry.use!r} declares no families")
    if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", stage.name) is None:
        raise RecipeError(
            f"stages: {entry.use!r}: the name {stage.name!r}; expected lower case letters, digits "
            "and underscores"
        )
    for name, value, least in (("batch", stage.batch, 1), ("timeout_s", stage.timeout_s, 0.1)):
        if not least <= value < math.inf:
            raise RecipeError(
                f"stages: {entry.use!r} declares {name} = {value}; expected {least} or more"
            )
    named = list(_declared(stage))
    for what, name in named:
        if named.count((what, name)) > 1:
            plural = {"family": "families"}.get(what, f"{what}s")
            raise RecipeError(f"stages: {entry.use!r} declares two {plural} of one name: {name!r}")
    if any(family.scope is not Scope.CLIP for family in stage.families):
        raise RecipeError(f"stages: {entry.use!r}: families of an annotator have the scope clip")
    of_clips = [*FACT_COLUMNS, *MARK_COLUMNS, *scores, *NOT_IN_CLIPS]
    exported = [*DATASET_SCHEMA.names, "json", "video"]
    taken = dict.fromkeys((("column", name) for name in exported), "an exported table has")
    taken |= dict.fromkeys((("column", name) for name in of_clips), "the table clips has")
    taken |= dict.fromkeys((("family", FAMILY), ("member", MEMBER)), "the stage 'caption' makes")
    taken |= {
        declared: f"the stage {other.name!r} makes"
        for other in stages
        if isinstance(other, Annotator)
        for declared in _declared(other)
    }
    for what, name in named:
        if (what, name) in taken:
            raise RecipeError(
                f"stages: {entry.use!r}: {taken[what, name]} the {what} {name!r} already"
            )
    columns = [name for what, name in taken if what == "column"]
    for name in stage.columns:
        if name not in columns and not is_metadata(name):
            raise RecipeError(
                f"stages: {entry.use!r} reads: " + unknown_key(name, columns, "column of clips")
            )
    stages.insert([other.name for other in stages].index("shard"), stage)


def _declared(stage: AnyAnnotator) -> Iterator[tuple[str, str]]:
    """Yields kind and name of each family, member and column that an annotator declares."""
    for family in stage.families:
        yield "family", family.name
        if family.member:
            yield "member", family.member
        yield from (("column", name) for name in family.columns)


def filter_needs(recipe: Recipe) -> FilterNeeds:
    """Returns the settings outside the section `filters` that the rules need."""
    return FilterNeeds(
        min_s=recipe.propose.min_s,
        max_s=recipe.propose.max_s,
        kept_ends=frozenset(w.form for w in recipe.propose.windows if w.remainder == "keep"),
        min_frames=recipe.cut.length_frames,
        classes=recipe.shard,
        semantic=recipe.semantic,
        most_enlarged=MAX_ENLARGED if recipe.cut.enlarge == "never" else None,
        most_cropped=recipe.cut.most_cropped,
        most_repeated=recipe.cut.most_repeated,
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _reads(stage: AnyGraphStage) -> tuple[str, ...]:
    """Returns the tables that a stage reads."""
    is_of_tracks = isinstance(stage, Annotator) and bool(stage.track_columns)
    return (*stage.reads, "tracks") if is_of_tracks else stage.reads


def _takes(stage: AnyGraphStage) -> str:
    """Returns the resources of a worker, for people."""
    try:
        each = stage.resources
    except ModelError:
        # The size of missing weights is unknown.
        return "1 CPU"
    gpus = f", {each.gpus:g} GPU" if each.gpus else ""
    return f"{each.cpus:g} CPU{gpus}, {each.memory_bytes / (1 << 30):g} GiB"
