"""Recipes: one readable file that sets everything a run does.

A recipe is a YAML file, under `pipelines/` or of the user. The typed models of the stages check its
keys, and `--set key=value` changes a key. Each run stores its recipe.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from curator.errors import RecipeError, UsageError, raised_as
from curator.field_docs import description_of
from curator.measures.clip_semantics import SemanticConfig
from curator.measures.rule_config import SHORT_SIDE, TRAINED, Rule
from curator.measures.score_list import SCORES, Measures, RecipeContext, ScoreConfig
from curator.rights_config import RightsConfig
from curator.run_config import RunConfig
from curator.stage import StageConfig
from curator.stages import MOVABLE, OPTIONAL, section_type
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.cameras.config import CamerasConfig
from curator.stages.caption.config import CaptionConfig
from curator.stages.cut.config import CutConfig
from curator.stages.dedup.config import DedupConfig
from curator.stages.filter.config import FilterConfig
from curator.stages.propose.config import ProposeConfig as ProposeConfig
from curator.stages.propose.config import WindowConfig as WindowConfig
from curator.stages.scan.config import ScanConfig
from curator.stages.select.config import SelectConfig
from curator.stages.shard.config import ShardConfig
from curator.storage.base import has_scheme
from curator.storage.metadata_columns import PREFIX
from curator.strict_yaml import StrictYamlError, load_yaml, pipelines_folder, read_yaml, yaml_names
from curator.trainers.trainer_files import Trainer, is_path, load_trainer
from curator.value_errors import explain, fields_at, model_of, value_words

logger = logging.getLogger(__name__)

Overrides = Sequence[str] | Mapping[str, Any]
"""Changes of a recipe: texts `key=value`, with a dotted key and a value in YAML; or a mapping of
dotted keys, or of sections and keys, to values."""

DEFAULT_RECIPE = "quickstart"
BASE = "base"
"""Key of a recipe that names the recipe which it changes."""
MAX_BASES = 4
MAX_NEAR = 4
"""Most keys that a message proposes for an unknown key."""


class SuitabilityConfig(BaseModel):
    """The model that gives the score."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    model: str | None = Field(
        None,
        description="model of the score suitability: a file or object that `curate learn` wrote, "
        "such as OUT/learned/suitability.json; null for no such score",
    )

    @field_validator("model")
    @classmethod
    def _absolute(cls, address: str | None) -> str | None:
        # OUT stores the recipe, and the next run may start in another folder.
        return address if address is None or has_scheme(address) else os.path.abspath(address)


class StageEntry(BaseModel):
    """A custom stage, or a built-in stage that the recipe moves.

    In a recipe, `my_package.blur:BlurFaces` is short for `{use: my_package.blur:BlurFaces}`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    use: str = Field(
        description="package.module:Class, an entry point, or one of " + ", ".join(MOVABLE)
    )
    before: str | None = Field(None, description="stage that follows this stage")
    after: str | None = Field(None, description="stage that precedes this stage")
    config: dict[str, Any] = Field({}, description="settings of the stage")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, entry: object) -> object:
        return {"use": entry} if isinstance(entry, str) else entry

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.before is not None and self.after is not None:
            raise ValueError(
                f"{self.use!r} has before: {self.before} and after: {self.after}; set only one"
            )
        return self


class TrainFor(BaseModel):
    """A trainer that will read the clips, with values of its parameters.

    In a recipe, `ltx2` is short for `{trainer: ltx2}`.
    """

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    trainer: str = Field(description="a name from `curate fit --list`, or the path of a file")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, entry: object) -> object:
        return {"trainer": entry} if isinstance(entry, str) else entry

    @model_validator(mode="after")
    def _exists(self) -> Self:
        # The recipe of an output stays readable when a file of the user's own is gone.
        if not is_path(self.trainer):
            self.load()
        return self

    def load(self) -> Trainer:
        """Returns the trainer; raises `ValueError` if its file or a value is wrong."""
        with raised_as(ValueError, RecipeError):
            return load_trainer(self.trainer, self.model_extra)


class _Measured(BaseModel):
    """Settings of the stages up to the search for duplicates."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    about: str = Field("", description="what the recipe is for")
    scan: ScanConfig = Field(default_factory=ScanConfig)
    rights: RightsConfig = Field(default_factory=RightsConfig)
    analyze: AnalyzeConfig = Field(default_factory=AnalyzeConfig)
    propose: ProposeConfig = Field(default_factory=ProposeConfig)
    # Pydantic checks fields in this order, so `measures` precedes the sections that name scores.
    measures: tuple[str, ...] = Field(
        (),
        validate_default=True,
        description="custom measures: package.module:Class, or entry points of curate.measures",
        json_schema_extra={"unit": "names"},
    )
    # Rules may name columns of these stages.
    stages: tuple[StageEntry, ...] = Field(
        (), description="custom stages, by dotted path or entry point, and their places in a run"
    )
    suitability: SuitabilityConfig = Field(default_factory=SuitabilityConfig)
    scores: ScoreConfig = Field(default_factory=lambda: ScoreConfig({}))
    filters: FilterConfig = Field(default_factory=lambda: FilterConfig({}))
    dedup: DedupConfig = Field(default_factory=DedupConfig)


if TYPE_CHECKING:
    _WithOptional = _Measured
else:
    # In this place, so that sections are in the order of the stages.
    _WithOptional = create_model(
        "_WithOptional",
        __base__=_Measured,
        **{
            name: (section_type(name), Field(default_factory=section_type(name)))
            for name in OPTIONAL
        },
    )


class Recipe(_WithOptional):
    """Settings of all stages."""

    select: SelectConfig = Field(default_factory=SelectConfig)
    cameras: CamerasConfig = Field(default_factory=CamerasConfig)
    caption: CaptionConfig = Field(default_factory=CaptionConfig)
    cut: CutConfig = Field(default_factory=CutConfig)
    shard: ShardConfig = Field(default_factory=ShardConfig)
    semantic: SemanticConfig = Field(default_factory=SemanticConfig)
    run: RunConfig = Field(default_factory=RunConfig)
    train_for: tuple[TrainFor, ...] = Field(
        (),
        description="trainers that will read the clips, as names or {trainer: ltx2, frames: 97}: "
        "the run says how much of the footage each of them sees; changes no clip",
    )
    models: str | None = Field(
        None,
        description="folder or s3://bucket/prefix of model weights; null for $CURATE_MODELS, else "
        "curate/models in the user's cache",
    )
    follow_size: tuple[str, ...] = Field(
        (),
        description="keys whose values follow from the size of the clips, because the recipe does "
        "not set them; filled in by curate, so that a change of the size changes them, too",
    )

    @field_validator("measures")
    @classmethod
    def _loaded(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        with raised_as(ValueError, RecipeError):
            Measures.of(names)
        return names

    @field_validator("scores", "filters", "dedup", "select", mode="before")
    @classmethod
    def _of_measures(cls, section: object, info: ValidationInfo) -> object:
        """Checks that sections name only scores that the recipe's measures give."""
        kind: type[BaseModel] = cls.model_fields[str(info.field_name)].annotation  # type: ignore[assignment]
        names = info.data.get("measures", ())
        learned = info.data.get("suitability", SuitabilityConfig()).model
        stages = info.data.get("stages", ())
        context = RecipeContext(
            measures=Measures.of(names, has_learned=learned is not None),
            has_annotators=any(entry.use not in MOVABLE for entry in stages),
        )
        return kind.model_validate(section, context=context)

    @model_validator(mode="before")
    @classmethod
    def _fits_written_size(cls, sections: object) -> object:
        """Completes settings that follow from the size of the written clips.

        Unless the recipe sets `shard.resolutions`, a size below the smallest class of resolution is
        a class, too, and so is each of several sizes. `min: trained` of a rule on short_side_px
        becomes the smallest side. `follow_size` gets the keys of such values; those that it names
        already are completed again.
        """
        if not isinstance(sections, dict):
            return sections
        before, following = sections.get(FOLLOW_SIZE) or (), list[str]()
        is_list = isinstance(before, list | tuple)
        before = before if is_list else ()
        section, _, name = RESOLUTIONS.partition(".")
        given = sections.get(section, {})
        if RESOLUTIONS in before and isinstance(given, dict):
            given = {key: value for key, value in given.items() if key != name}
        try:
            cut = CutConfig.model_validate(sections.get("cut", {}))
            propose = ProposeConfig.model_validate(sections.get("propose", {}))
            shard = ShardConfig.model_validate(given)
        except ValidationError:
            # Validation of the section names the key. An unresolved bound would come first.
            cut, propose, shard = CutConfig(), ProposeConfig(), ShardConfig()
        least_px = least_trained_px(cut, propose, shard)[1]
        sides = {min(size) for size in written_sizes(cut, propose)}
        if len(sides) < 2:
            sides = {least_px} if least_px < min(shard.resolutions) else set()
        own = given.model_dump(exclude_unset=True) if isinstance(given, ShardConfig) else given
        if isinstance(own, dict) and name not in own:
            following.append(RESOLUTIONS)
            classes = {name: tuple(sorted({*sides, *shard.resolutions}))}
            sections = sections | {section: own | classes}
        rules = sections.get("filters")
        if isinstance(rules, dict):
            rules = dict(rules)
            for label, rule in rules.items():
                key = f"filters.{label}.min"
                is_size = isinstance(rule, dict) and (rule.get("score") or label) == SHORT_SIDE
                if is_size and (rule.get("min") == TRAINED or key in before):
                    rules[label] = rule | {"min": float(least_px)}
                    following.append(key)
            sections = sections | {"filters": rules}
        # Validation names a value of another kind.
        return sections | {FOLLOW_SIZE: following} if is_list else sections

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        """Refuses settings of a section that exclude settings of another one."""
        for _, section in self:
            if isinstance(section, StageConfig) and (problem := section.problem_in(self)):
                raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _joins_by_vectors(self) -> Self:
        """Refuses to join shots by vectors that the analysis does not compute."""
        if self.propose.join_similarity is not None and not self.analyze.scenes:
            raise ValueError(
                f"propose.join_similarity is {self.propose.join_similarity}, and analyze.scenes is "
                "false: joining shots needs picture vectors; set analyze.scenes to true"
            )
        return self

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        """Refuses a rate or length of all clips if windows have their own."""
        for name in ("fps", "length_frames"):
            value = getattr(self.cut, name)
            if self.propose.windows and value is not None:
                windows = ", ".join(map(str, self.propose.windows))
                raise ValueError(
                    f"cut.{name} is {value}, and propose.windows is [{windows}], which sets the "
                    f"frames and the rate of clips; set cut.{name} to null, or propose.windows to "
                    "[]"
                )
        return self

    @field_validator("train_for")
    @classmethod
    def _distinct_trainers(cls, trainers: tuple[TrainFor, ...]) -> tuple[TrainFor, ...]:
        return tuple(one for n, one in enumerate(trainers) if one not in trainers[:n])

    @model_validator(mode="after")
    def _tone_maps_what_is_kept(self) -> Self:
        """Refuses tone mapping if a rule rejects all HDR clips."""
        if self.cut.hdr == "tonemap":
            for name, rule in self.filters.root.items():
                is_hdr = (rule.score or name) == "hdr" and rule.severity == "reject"
                if is_hdr and isinstance(rule.max, int | float) and rule.max < 1:
                    raise ValueError(
                        f"cut.hdr is tonemap, but filters.{name} rejects all PQ and HLG clips; "
                        f"remove that rule or set filters.{name}.max to 1"
                    )
        return self


def written_sizes(cut: CutConfig, propose: ProposeConfig) -> frozenset[tuple[int, int]]:
    """Returns the sizes that the recipe sets; empty if some clips have other sizes."""
    of_windows = [window.size for window in propose.windows] or [None]
    others = cut.sizes or ([cut.one_size] if isinstance(cut.one_size, tuple) else [])
    if not others and None in of_windows:
        return frozenset()
    own = {size for size in of_windows if size is not None}
    return frozenset(own.union(others) if None in of_windows else own)


def least_trained_px(cut: CutConfig, propose: ProposeConfig, shard: ShardConfig) -> tuple[str, int]:
    """Returns the key that says the smallest shorter side of written clips, and the side in px."""
    sizes = written_sizes(cut, propose)
    if not sizes:
        return "shard.resolutions", min(shard.resolutions)
    is_of_windows = any(window.size is not None for window in propose.windows)
    return "propose.windows" if is_of_windows else "cut.size", min(map(min, sizes))


def measures_of(recipe: Recipe) -> Measures:
    """Returns the measures of a recipe with all their scores, `suitability` included."""
    return Measures.of(recipe.measures, has_learned=recipe.suitability.model is not None)


def stored_measures_of(recipe: Recipe) -> Measures:
    """Returns the measures whose scores are stored: all except `suitability`, which uses them."""
    return Measures.of(recipe.measures)


def score_rules(recipe: Recipe) -> FilterConfig:
    """Returns the rules on scores and metadata, which apply before clips are cut."""
    return recipe.filters.of_scores(measures_of(recipe).specs)


def column_rules(recipe: Recipe) -> FilterConfig:
    """Returns the rules on columns of annotators, which apply to written clips."""
    return recipe.filters.of_columns(measures_of(recipe).specs)


def recipe_names() -> list[str]:
    """Returns the names that `--recipe` accepts, sorted."""
    return yaml_names(pipelines_folder())


def load_recipe(name: str | Mapping[str, Any], overrides: Overrides = ()) -> Recipe:
    """Reads and checks a recipe: one of `recipe_names`, the path of a YAML file, or its contents.

    A recipe with the key `base` changes another recipe, a name or a path relative to its own file.

    Raises:
        RecipeError: The message names the file, the key, the fault and the nearest valid key.
    """
    path: Path | str
    data: dict[str, Any] | None
    if isinstance(name, str):
        path, data = read_yaml(name, pipelines_folder(), "recipe")
    else:
        path, data = "given as a mapping", _as_plain(name, "recipe")
    if data:
        data = _with_base(data, path)
    if not data:
        raise RecipeError(
            f"recipe {path} is empty: it would have no rules, and would keep every clip; begin "
            f"with a copy of {pipelines_folder() / DEFAULT_RECIPE}.yaml"
        )
    # What a file says counts, also in a copy of a stored recipe.
    data.pop(FOLLOW_SIZE, None)
    return _changed(data, overrides, path)


def _with_base(data: dict[str, Any], path: Path | str, above: int = 0) -> dict[str, Any]:
    """Returns the contents of a recipe, with the keys of its `base` that it does not change."""
    base = data.get(BASE)
    if BASE not in data:
        return data
    if not isinstance(base, str) or not base:
        raise RecipeError(f"recipe {path}: {BASE} is {base!r}; expected the name of a recipe")
    if above >= MAX_BASES:
        raise RecipeError(f"recipe {path}: more than {MAX_BASES} recipes with a {BASE}, or a cycle")
    if isinstance(path, Path) and base not in recipe_names():
        base = str(path.parent / base)
    base_path, under = read_yaml(base, pipelines_folder(), "recipe")
    own = {key: value for key, value in data.items() if key not in (BASE, "about")}
    about = {"about": data["about"]} if "about" in data else {}
    return _merged(_with_base(under or {}, base_path, above + 1), own) | about


def _merged(under: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes keys of a mapping; null in place of a mapping removes it."""
    merged = dict(under)
    for key, value in changes.items():
        is_section = isinstance(merged.get(key), dict)
        if is_section and value is None:
            del merged[key]
        elif is_section and isinstance(value, dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


FOLLOW_SIZE, RESOLUTIONS = "follow_size", "shard.resolutions"

GONE = (("caption", "batch_tokens"), ("caption", "judge", "batch_tokens"))
"""Keys of earlier recipes that have no meaning now; stored recipes may have them."""


def recipe_used(summary: Mapping[str, Any], uri: str) -> Recipe:
    """Returns the recipe in a summary; raises `UsageError` if this version cannot read it."""
    data = deepcopy(summary["recipe"])
    for *sections, key in GONE:
        section: Any = data
        for name in sections:
            section = (section or {}).get(name)
        if isinstance(section, dict):
            section.pop(key, None)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        location, why = explain(error, Recipe)
        where = ".".join(location)
        if where == "measures":
            raise UsageError(
                f"{uri} was made with a custom measure: {why}; or run again with another recipe "
                "(--recipe)"
            ) from error
        raise UsageError(
            f"{uri} was made by curate {summary.get('curate_version')} with a recipe that this "
            f"version cannot read ({where}: {why}); run it again with --recipe"
        ) from error


def with_changes(recipe: Recipe, changes: Overrides) -> Recipe:
    """Returns a recipe with changes; raises the errors of `load_recipe`."""
    return _changed(recipe.model_dump(mode="json"), changes, "as it was used")


def _changed(data: dict[str, Any], overrides: Overrides, path: Path | str) -> Recipe:
    if isinstance(overrides, Mapping):
        source, changes = "overrides", list(leaves(_as_plain(overrides, "overrides")))
    elif isinstance(overrides, str) or not all(isinstance(text, str) for text in overrides):
        raise RecipeError(
            f"overrides is {overrides!r}; expected a list of texts such as 'cut.fps=24', or a "
            'mapping such as {"cut.fps": 24}'
        )
    else:
        source, changes = "--set", [_parsed(override) for override in overrides]
    for key, value in changes:
        if isinstance(overrides, Mapping) and [key for key, _ in changes].count(key) > 1:
            raise RecipeError(f"overrides sets {key} twice; omit one")
        words = f"{source} {f'{key}={value_words(value)}'!r}"
        if key == FOLLOW_SIZE:
            raise RecipeError(f"{words}: curate fills this key in; set the keys that it names")
        _set(data, key, value, words)
    if isinstance(following := data.get(FOLLOW_SIZE), list):
        # What a change sets follows the size no longer.
        data[FOLLOW_SIZE] = [
            name
            for name in following
            if not any(f"{name}.".startswith(f"{key}.") for key, _ in changes)
        ]
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        keys = [key for key, _ in changes]
        raise RecipeError(_explain(error, f"recipe {path}", source, keys)) from error


def _as_plain(values: Any, name: str) -> Any:  # noqa: ANN401 - of a caller
    """Copies values of a caller; paths become texts, and numbers of numpy those of Python.

    Raises `RecipeError` for a key that is no text.
    """
    if isinstance(values, Mapping):
        for key in values:
            if not isinstance(key, str) or not key.strip():
                raise RecipeError(f"{name} has the key {key!r}; expected a text such as 'cut.fps'")
        return {key: _as_plain(value, f"{name}[{key!r}]") for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_as_plain(value, name) for value in values]
    if isinstance(values, os.PathLike):
        return os.fspath(values)
    return values.item() if hasattr(values, "item") else values


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted keys with their values, which are no mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield above + name, value


def _parsed(override: str) -> tuple[str, Any]:
    """Parses `key=value`, with a dotted key and a value in YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"--set {override!r}: expected key=value, such as filters.motion.min=0.3")
    if not text.strip():
        raise RecipeError(f"--set {override!r} has no value; {key.strip()}=null removes the value")
    with raised_as(RecipeError, StrictYamlError, of=f"--set {override!r}: "):
        value = load_yaml(text)
    return key.strip(), value


def _set(data: dict[str, Any], key: str, value: object, words: str) -> None:
    *parents, leaf = _keys(key)
    node = data
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise RecipeError(f"{words}: {parent!r} is a value, without keys below it")
        node = child
    node[leaf] = value


def _keys(key: str) -> list[str]:
    """Splits a dotted path into keys. The name of a rule on metadata contains a dot."""
    section, _, rest = key.partition(".")
    if section == "filters" and rest.startswith(PREFIX):
        name, _, below = rest.removeprefix(PREFIX).partition(".")
        return [section, PREFIX + name, *below.split(".")] if below else [section, PREFIX + name]
    return key.split(".")


def _explain(error: ValidationError, recipe: str, source: str, changed: Sequence[str]) -> str:
    location, message = explain(error, Recipe)
    key = ".".join(location)
    if message.startswith("unknown key"):
        message = _unknown(location, message)
    is_changed = any(f"{key}.".startswith(f"{o}.") or o.startswith(key) for o in changed)
    named = source if is_changed else recipe
    return ": ".join(part for part in (named, key, message) if part)


def _unknown(location: Sequence[str], message: str) -> str:
    """Returns a message that names keys of other sections if these are nearer to an unknown key."""
    name, ends = location[-1], defaultdict[str, list[str]](list)
    for key in _all_keys(Recipe):
        ends[key.rpartition(".")[2]].append(key)
    for score in SCORES:
        ends[score].append(f"filters.{score}.min")
    beside = [beside for beside, _ in fields_at(location[:-1], Recipe)]
    near = get_close_matches(name, [*beside, *(end for end in ends if end not in beside)], n=1)
    if not near or near[0] in beside:
        return message
    return f"unknown key {name!r}; did you mean {' or '.join(map(repr, ends[near[0]][:MAX_NEAR]))}?"


def _all_keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yields the keys below the sections of a recipe, in full."""
    for name, field in model.model_fields.items():
        below = model_of(field.annotation)
        if below is not None and not issubclass(below, RootModel):
            yield from _all_keys(below, f"{above}{name}.")
        elif above:
            yield above + name


def describe(recipe: Recipe) -> Iterator[tuple[str, Any, str, str]]:
    """Yields each key of a recipe with its value, unit and meaning."""
    measures = measures_of(recipe)
    for name, info in type(recipe).model_fields.items():
        section = getattr(recipe, name)
        if isinstance(section, FilterConfig):
            yield from _describe_rules(section, measures)
        elif isinstance(section, ScoreConfig):
            for score, how in section.root.items():
                kind = "aggregate" if isinstance(how, str) else "share below it"
                yield f"scores.{score}", how, kind, measures.specs[score].meaning
        elif isinstance(section, BaseModel):
            for key, field in type(section).model_fields.items():
                extra = field.json_schema_extra
                unit = str(extra.get("unit", "")) if isinstance(extra, Mapping) else ""
                value = section.model_dump(mode="json")[key]
                yield f"{name}.{key}", value, unit, description_of(type(section), key)
        else:
            yield name, section, "", info.description or ""


def _describe_rules(
    filters: FilterConfig, measures: Measures
) -> Iterator[tuple[str, Any, str, str]]:
    for name, rule in filters.root.items():
        spec = measures.spec_of(rule.score or name)
        meaning = f"{spec.meaning}. {rule.why}".strip()
        for bound, value in rule.bounds.items():
            if bound in ("min", "max"):
                yield f"filters.{name}.{bound}", value, spec.unit, meaning
            else:
                meant = Rule.model_fields[bound].description
                yield f"filters.{name}.{bound}", value, "share of clips", f"{meant}. {meaning}"
        for key in ("one_of", "none_of", "score", "severity"):
            field = Rule.model_fields[key]
            if (value := getattr(rule, key)) != field.default:
                yield f"filters.{name}.{key}", value, "", field.description or ""
