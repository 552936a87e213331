"""Files of trainers: `NAME.yaml` in this folder, or a file of the user's own.

A file has parameters, which the trainer's user sets, and five rules. A rule that says `$frames`
takes the value of the parameter `frames`. Variants change the parameters or the rules, for other
models of the same trainer: the variant `hunyuan` of `musubi.yaml` is the trainer `musubi-hunyuan`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from curator.errors import RecipeError, unknown_key
from curator.strict_yaml import read_yaml, yaml_names
from curator.trainers.caption_rules import CaptionRule
from curator.trainers.frame_rules import FrameRule, RateRule, Reading, Rule, read_clip
from curator.trainers.size_rules import SizeRule
from curator.value_errors import explain, value_words

FOLDER = Path(__file__).parent
_RULES = ("rate", "frames", "size", "caption", "sound")
_CACHED_FORMS = 1 << 16


class SoundRule(Rule):
    """Whether a trainer uses the sound of clips."""

    use: Literal["ignored", "optional", "trained"] = "ignored"
    """`optional`: only with a setting of the trainer."""
    missing: str = ""
    """What happens to a clip without sound, in words."""


class Parameter(BaseModel):
    """A value that the trainer's user sets."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    default: Any
    option: str = Field(description="the trainer's own name of the setting, such as --num_frames")


class ConfigFile(BaseModel):
    """A file that makes the trainer read an exported folder; `filled_config` fills it in."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    suffix: Literal[".toml", ".yaml", ".json", ".sh"]
    text: str
    """May name parameters, `names`, `$folder` (of the split), `$videos`, `$root`, `$split`,
    `$trainer`, `$about` and `$buckets` (WxHxF;...). A line that names an unset parameter is left
    out. Places and texts stand in double quotes, in `.sh` in single ones."""
    names: Mapping[str, str] = {}
    """Further values, which variants change."""
    up_to: int | None = Field(None, gt=1)
    """Most frames of a sample, for which the model is made; null if `frames` stays."""
    most: int = Field(1, ge=1, le=4)
    """Most values of `frames`; above 1, it is a list."""
    grid: tuple[int, int] | None = None
    """(m, r), where the model requires m·n + r frames and the rules do not round."""
    choose: Mapping[str, Literal["rates"] | tuple[Any, ...]] = {}
    """Values of other parameters to try; `rates`: null, and the rates of the clips."""
    then: Mapping[str, tuple[Any, ...]] = {}
    """Values to try with the chosen numbers of frames."""
    multiple: int | None = Field(None, ge=1)
    """Divisor of sides, where `width` and `height` follow the clips' aspect."""


class TrainerFile(BaseModel):
    """The contents of a file, with the values of the parameters in the rules."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    about: str = Field(min_length=1, description="what the trainer trains")
    project: str = Field(min_length=1, description="the repository, such as owner/name")
    version: str = Field(min_length=1, description="the version or commit that was read")
    read: Mapping[str, str] = Field({}, description="rules, with the file and lines of each")
    layout: str = Field(min_length=1, description="the files that the trainer reads")
    command: str | None = Field(None, description="the command that writes this layout")
    notes: str = Field("", description="what the rules leave out")
    parameters: Mapping[str, Parameter] = {}
    rate: RateRule
    frames: FrameRule
    size: SizeRule
    caption: CaptionRule
    sound: SoundRule
    config: ConfigFile | None = None


class Trainer:
    """A trainer with values for its parameters.

    Attributes:
        name: Name of the file and of the variant, or path of the file.
        rules: The file, with the values of the parameters.
        values: Values of the parameters.
        changed: Those that differ from the defaults.
    """

    def __init__(self, name: str, rules: TrainerFile, values: Mapping[str, Any]) -> None:
        self.name = name
        self.rules = rules
        self.values = dict(values)
        # A parameter that follows another one is not changed.
        self.changed = {
            key: value
            for key, value in values.items()
            if value != _filled(rules.parameters[key].default, values, name)
        }
        self._readings: dict[tuple[int, float, tuple[int, ...] | None], Reading] = {}

    @cached_property
    def label(self) -> str:
        """The name, with the changed parameters."""
        return " ".join([self.name, *self.settings])

    @property
    def settings(self) -> list[str]:
        """The changed parameters, as `--set` takes them."""
        return [f"{key}={_flow(value)}" for key, value in self.changed.items()]

    @property
    def defaults(self) -> list[str]:
        """All parameters with the trainer's defaults, as `--set` takes them."""
        return [f"{key}={_flow(one.default)}" for key, one in self.rules.parameters.items()]

    def read(self, n_frames: int, fps: float, width: int = 16, height: int = 9) -> Reading:
        """Returns the frames that the trainer reads of a clip; repeated calls are fast.

        Width and height matter only for trainers whose buckets have both sides and frames.
        """
        lengths = None
        size = self.rules.size
        if size.buckets:
            bucket = size.bucket(n_frames, width, height)
            frames = min(b.frames for b in size.buckets) if bucket is None else bucket.frames
            lengths = (frames,)
        key = (n_frames, fps, lengths)
        reading = self._readings.get(key)
        if reading is None:
            if len(self._readings) > _CACHED_FORMS:
                self._readings.clear()
            rules = self.rules
            reading = read_clip(rules.rate, rules.frames, n_frames, fps, lengths)
            self._readings[key] = reading
        return reading


def _flow(value: object) -> str:
    """Returns a value as YAML in one line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_flow, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def trainer_names() -> list[str]:
    """Returns the names of all trainers of this package, with their variants, sorted."""
    return sorted(
        name
        for stem in yaml_names(FOLDER)
        for name in (stem, *(f"{stem}-{variant}" for variant in _contents(stem)["variants"]))
    )


def load_trainer(name: str, values: Mapping[str, Any] | None = None) -> Trainer:
    """Reads a trainer by its name or by the path of its file.

    Args:
        name: One of `trainer_names`, or the path of a YAML file.
        values: Values of parameters, instead of the trainer's defaults.

    Raises:
        RecipeError: The message names the file, the key and the nearest valid key.
    """
    stem, variant = _split(name)
    contents = _contents(stem)
    data = {key: value for key, value in contents.items() if key != "variants"}
    if variant is not None:
        data = _merged(data, contents["variants"][variant])
    given = dict(values or {})
    named = data.get("parameters") or {}
    if not isinstance(named, dict):
        raise RecipeError(
            f"trainer {name}: parameters is {value_words(named)}; expected names and defaults such "
            "as frames: {default: 49, option: num_frames}"
        )
    defaults = {
        key: one.get("default") if isinstance(one, dict) else None for key, one in named.items()
    }
    for key in given:
        if key not in defaults:
            raise RecipeError(f"{name}: {unknown_key(key, list(defaults), 'parameter')}")
    filled = defaults | given
    # A parameter may default to another one, and this to a third.
    for _ in defaults:
        filled = {key: _filled(value, filled, name) for key, value in filled.items()}
    for rule in _RULES:
        if rule in data:
            data[rule] = _filled(data[rule], filled, name)
    try:
        rules = TrainerFile.model_validate(data)
    except ValidationError as error:
        raise RecipeError(_problem(error, name, data, given)) from error
    return Trainer(name, rules, filled)


def is_path(name: str) -> bool:
    """Returns whether a name is the path of a file of the user's own."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def _split(name: str) -> tuple[str, str | None]:
    """Returns the file of a trainer, and the variant."""
    if is_path(name):
        return name, None
    known = yaml_names(FOLDER)
    if name in known:
        return name, None
    for stem in known:
        variant = name.removeprefix(f"{stem}-")
        if variant != name and variant in _contents(stem)["variants"]:
            return stem, variant
    raise RecipeError(unknown_key(name, trainer_names(), "trainer"))


def _contents(name: str) -> dict[str, Any]:
    return _read(name) if is_path(name) else _packaged(name)


@lru_cache
def _packaged(name: str) -> dict[str, Any]:
    return _read(name)


def _read(name: str) -> dict[str, Any]:
    path, data = read_yaml(name, FOLDER, "trainer")
    variants = (data or {}).get("variants") or {}
    if not data or not isinstance(variants, dict):
        raise RecipeError(f"trainer {path}: expected the keys {', '.join(_keys())}")
    return {**data, "variants": variants}


def _keys() -> Iterator[str]:
    yield from TrainerFile.model_fields
    yield "variants"


def _merged(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a file with the changes of a variant; keys of rules and parameters one by one."""
    merged = dict(data)
    for key, change in changes.items():
        before = merged.get(key)
        if key == "parameters" and isinstance(before, dict):
            merged[key] = {
                name: one | {"default": change[name]} if name in change else one
                for name, one in before.items()
            }
        elif isinstance(before, dict) and isinstance(change, dict):
            merged[key] = before | change
        else:
            merged[key] = change
    return merged


def _filled(value: Any, values: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - of YAML
    """Returns a value with parameters in place of their names."""
    if isinstance(value, str) and value.startswith("$"):
        key = value[1:]
        if key not in values:
            raise RecipeError(f"{name}: {unknown_key(key, list(values), 'parameter')}")
        return values[key]
    if isinstance(value, dict):
        return {key: _filled(one, values, name) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, values, name) for one in value]
    return value


def _problem(
    error: ValidationError, name: str, data: Mapping[str, Any], given: Mapping[str, Any]
) -> str:
    location, problem = explain(error, TrainerFile)
    of = ".".join(location)
    wrong = error.errors()[0]["input"]
    for key, value in given.items():
        if value is wrong or value == wrong:
            of = f"the parameter {key}"
    return f"trainer {name}: {of}: {problem}"
