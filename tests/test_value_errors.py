"""Messages about wrong values are for people, and an unknown key leads to the right one."""

import re
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, RootModel, ValidationError

from curator.errors import ModelError, RecipeError
from curator.models.catalogue import ModelEntry, load_catalogue
from curator.models.embedding_heads import Prompts
from curator.recipe import Recipe, load_recipe
from curator.stages.caption.dialogs.prompt_files import Prompt
from curator.tools.planning.planner import MachineKind
from curator.value_errors import explain, model_of

WRONG: tuple[object, ...] = (
    True, "abc", "720p", "", -1, 10**30, 1.5, float("nan"), None, date(2020, 1, 1), [], [1], [[1]],
    ["a", "b", "c"], [True], [1, 2, 3], {"a": "b"}, {"a": {"b": []}}, [{"a": 1}],
)  # fmt: skip
PYTHON = re.compile(
    r"tuple\[|list\[|dict\[|Input should|type=|pydantic|Field required|items? after validation|"
    r"NoneType|literal\[|function-|should (be|have)|\bvalid (string|integer|list)"
)


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yields a model and all models below it."""
    yield model
    for field in model.model_fields.values():
        below = model_of(field.annotation)
        if below is not None and not issubclass(below, RootModel):
            yield from sections(below)


def test_no_message_of_any_key_is_in_pythons_words() -> None:
    """Tries each key of a recipe, of a prompt and of a machine with values of all types."""
    n_refused, keys = 0, set()
    for model in (*sections(Recipe), Prompt, MachineKind, ModelEntry, Prompts):
        required = {"name": "a", "cpus": 1, "user": "{format}", "repair": "{error}"}
        required = {k: v for k, v in required.items() if k in model.model_fields}
        for name, field in model.model_fields.items():
            key = field.alias or name
            for value in WRONG:
                try:
                    model.model_validate({**required, key: value})
                except ValidationError as error:
                    location, words = explain(error, model)
                    text = ": ".join([*location, words])
                    assert not PYTHON.search(text), f"{model.__name__}.{key}={value!r}: {text}"
                    n_refused += 1
                    keys.add((model, key))
    assert n_refused > 1500
    assert len(keys) > 150


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("fps=24", "fps: unknown key 'fps'; did you mean 'cut.fps' or 'filters.fps.min'?"),
        ("size=720p", "did you mean 'cut.size'?"),
        ("sizes=720p", "did you mean 'cut.size'?"),
        ("motion=0.3", "did you mean 'filters.motion.min'?"),
        ("motion.min=0.3", "did you mean 'filters.motion.min'?"),
        ("propose.fps=24", "propose.fps: unknown key 'fps'; did you mean 'cut.fps'"),
        ("cut.min_s=2", "did you mean 'propose.min_s'?"),
        ("cut.fsp=24", "did you mean 'fps'?"),
        ("filter.motion.min=1", "did you mean 'filters'?"),
        ("audio=copy", "did you mean 'analyze.audio' or 'cut.audio'?"),
        ("filters.motion.max=.inf", "filters.motion.max: expected a finite number; got inf"),
        ("propose.max_s=.inf", "propose.max_s: expected a finite number; got inf"),
        ("shard.resolutions=[0]", "expected distinct numbers from 1"),
        ("shard.lengths=[17, 17]", "expected distinct numbers from 1"),
        ("cut.size=[1]", "1280x720"),
        ("cut.size=true", "1280x720"),
        ("cut.fps=true", "cut.fps: expected a frame rate such as 24 or 30000/1001"),
        ("filters.fps=24", "filters.fps: expected keys below it, such as filters.fps.min; got 24"),
        ("filters.fps.min=[a]", "filters.fps.min: expected a number; got ['a']"),
        ("stages=3", "stages: expected a list such as [a, b]; got 3"),
        ("shard.resolutions=240", "shard.resolutions: expected a list such as [240]; got 240"),
        ("caption.reject={safety: 3}", "caption.reject.safety: expected a list such as [3]; got 3"),
    ],
)
def test_a_change_leads_to_the_right_key_and_form(change: str, words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("quickstart", [change])
    text = str(refused.value)
    assert text.startswith("--set: ")
    assert words in text
    assert not PYTHON.search(text)


def test_options_of_other_models_are_worded_too() -> None:
    """Pins lists in unions, and names that a file has and the model has not."""

    class Own(BaseModel):
        pair: tuple[int, int] | list[str] | None = None
        below: dict[str, tuple[float, float]] = {}

    def said(**values: Any) -> str:  # noqa: ANN401 - anything
        with pytest.raises(ValidationError) as refused:
            Own(**values)
        location, words = explain(refused.value, Own)
        return ": ".join([*location, words])

    assert said(pair=3) == "pair: expected a list such as [3] or a list such as [a, b]; got 3"
    assert said(below={"a": [1]}) == "below: a: 1: missing; expected a number"
    with pytest.raises(ModelError, match=r"Mine: name: expected a text that matches"):
        load_catalogue("Mine: {kind: clip, about: a, file: f, licence: l, url: 'https://a.b/c'}")
    with pytest.raises(ValidationError) as refused:
        Prompt.model_validate({"user": "x", "answer": "text", "schema": 3})
    assert explain(refused.value, Prompt) == (
        ["schema"], "expected names and values such as {name: value}; got 3"
    )  # fmt: skip
