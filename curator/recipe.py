"""Recipes: one readable file that says everything a run does.

A recipe is YAML under `pipelines/`, or a file of the user's. Keys are checked by the stages' own
typed models; `--set key=value` changes one. What a run used is written beside its results.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curator.captions.config import CaptionConfig
from curator.errors import RecipeError, unknown_key
from curator.models.store import ModelStore
from curator.stages.analyze_config import AnalyzeConfig
from curator.stages.cut_config import CutConfig
from curator.stages.dedup import DedupConfig
from curator.stages.filters import FilterConfig, Rule
from curator.stages.propose import ProposeConfig
from curator.stages.scores import SCORES, ScoreConfig
from curator.stages.select import SelectConfig
from curator.stages.semantic import SemanticConfig, Semantics
from curator.stages.shard_config import ShardConfig

DEFAULT_RECIPE = "quickstart"


class Recipe(BaseModel):
    """Settings of all stages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = Field("", description="what the recipe is for")
    analyze: AnalyzeConfig = Field(default_factory=AnalyzeConfig)
    propose: ProposeConfig = Field(default_factory=ProposeConfig)
    scores: ScoreConfig = Field(default_factory=lambda: ScoreConfig({}))
    filters: FilterConfig = Field(default_factory=lambda: FilterConfig({}))
    dedup: DedupConfig = Field(default_factory=DedupConfig)
    select: SelectConfig = Field(default_factory=SelectConfig)
    caption: CaptionConfig = Field(default_factory=CaptionConfig)
    cut: CutConfig = Field(default_factory=CutConfig)
    shard: ShardConfig = Field(default_factory=ShardConfig)
    semantic: SemanticConfig = Field(default_factory=SemanticConfig)
    models: str | None = Field(
        None,
        description="folder or s3://bucket/prefix of model weights; null for $CURATE_MODELS, else "
        "curate/models in the user's cache",
    )

    @model_validator(mode="after")
    def _tone_maps_what_is_kept(self) -> Self:
        """Refuses tone mapping where a rule rejects all that there is to map."""
        if self.cut.hdr == "tonemap":
            for name, rule in self.filters.root.items():
                is_hdr = (rule.score or name) == "hdr" and rule.severity == "reject"
                if is_hdr and isinstance(rule.max, int | float) and rule.max < 1:
                    raise ValueError(
                        f"cut.hdr is tonemap, and filters.{name} rejects PQ and HLG before; remove "
                        f"that rule or set filters.{name}.max to 1"
                    )
        return self


def semantics_of(recipe: Recipe) -> Semantics:
    """The models that a recipe names, and where their weights lie.

    Raises:
        ModelError: A name is unknown.
    """
    return Semantics(recipe.semantic, recipe.analyze.clip, ModelStore.at(recipe.models))


def recipe_folder() -> Path:
    """Where the recipes of this installation lie: in the package, or beside it in a checkout."""
    packaged = Path(__file__).parent / "pipelines"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "pipelines"


def recipe_names() -> list[str]:
    """Names that `--recipe` takes, sorted."""
    return sorted(path.stem for path in recipe_folder().glob("*.yaml"))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and checks a recipe.

    Args:
        name: One of `recipe_names`, or the path of a YAML file.
        overrides: `key=value` each, the key with dots, the value in YAML.

    Raises:
        RecipeError: Naming the file, the key, what is wrong and the nearest valid key.
    """
    path = _find(name)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise RecipeError(f"recipe {path} cannot be read as YAML: {_one_line(error)}") from error
    if not isinstance(data, dict):
        raise RecipeError(f"recipe {path} is a {type(data).__name__}; expected keys and values")
    for override in overrides:
        _override(data, override)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(_explain(error, path, overrides)) from error


def with_changes(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """A recipe with some keys changed.

    Args:
        recipe: What it is without them.
        changes: `key=value` each, as for `load_recipe`.

    Raises:
        RecipeError: Naming the key, what is wrong and the nearest valid key.
    """
    data = recipe.model_dump(mode="json")
    for change in changes:
        _override(data, change)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(_explain(error, Path("as it was used"), changes)) from error


def _find(name: str) -> Path:
    path = recipe_folder() / f"{name}.yaml"
    if name in recipe_names():
        return path
    if Path(name).suffix in (".yaml", ".yml") or "/" in name:
        if not Path(name).is_file():
            raise RecipeError(f"recipe file {name!r} does not exist; `curate recipes` lists names")
        return Path(name)
    raise RecipeError(unknown_key(name, recipe_names(), "recipe"))


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"--set {override!r}: expected key=value, such as filters.motion.min=0.3")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override!r}: {_one_line(error)}") from error
    *parents, leaf = key.strip().split(".")
    node = data
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise RecipeError(f"--set {override!r}: {parent!r} is a value and has no keys below it")
        node = child
    node[leaf] = value


def _explain(error: ValidationError, path: Path, overrides: Sequence[str]) -> str:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        known = list(_keys_at(location[:-1]))
        message = unknown_key(location[-1], known, "key")
    else:
        message = first["msg"].removeprefix("Value error, ")
        if location[-1:] != ["url"]:
            # An address may hold a password.
            message += f"; got {first['input']!r}"
    source = f"recipe {path}"
    if any(o.partition("=")[0].strip().startswith(key) for o in overrides):
        source = "--set"
    return f"{source}: {key}: {message}"


def _keys_at(location: Sequence[str]) -> Iterator[str]:
    model: type[BaseModel] = Recipe
    for part in location:
        field = model.model_fields.get(part)
        if field is None or not isinstance(field.annotation, type):
            break
        if issubclass(field.annotation, FilterConfig):
            yield from Rule.model_fields
            return
        model = field.annotation
    yield from model.model_fields


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def describe(recipe: Recipe) -> Iterator[tuple[str, Any, str, str]]:
    """Each key of a recipe with its value, unit and why, for people."""
    for name, info in type(recipe).model_fields.items():
        section = getattr(recipe, name)
        if isinstance(section, FilterConfig):
            yield from _describe_rules(section)
        elif isinstance(section, ScoreConfig):
            for score, how in section.root.items():
                kind = "aggregate" if isinstance(how, str) else "share below it"
                yield f"scores.{score}", how, kind, SCORES[score].meaning
        elif isinstance(section, BaseModel):
            for key, field in type(section).model_fields.items():
                extra = field.json_schema_extra
                unit = str(extra.get("unit", "")) if isinstance(extra, Mapping) else ""
                value = section.model_dump(mode="json")[key]
                yield f"{name}.{key}", value, unit, field.description or ""
        else:
            yield name, section, "", info.description or ""


def _describe_rules(filters: FilterConfig) -> Iterator[tuple[str, Any, str, str]]:
    for name, rule in filters.root.items():
        spec = SCORES[rule.score or name]
        said = f"{spec.meaning}. {rule.why}".strip()
        for bound, value in rule.bounds.items():
            if bound in ("min", "max"):
                yield f"filters.{name}.{bound}", value, spec.unit, said
            else:
                meant = Rule.model_fields[bound].description
                yield f"filters.{name}.{bound}", value, "share of clips", f"{meant}. {said}"
        for key in ("score", "severity"):
            field = Rule.model_fields[key]
            if (value := getattr(rule, key)) != field.default:
                yield f"filters.{name}.{key}", value, "", field.description or ""
