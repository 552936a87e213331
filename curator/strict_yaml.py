"""Strict YAML for files that people write by hand: repeated keys are errors.

YAML may be untrusted. With aliases, a few lines can expand to gigabytes, and nesting can be
endless. The reader checks both before it constructs values.

libyaml parses, ten times faster than PyYAML's own parser. Its composer recurses in C, where endless
nesting ends the process, so nodes are composed in Python.
"""

from pathlib import Path
from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from curator.errors import RecipeError, unknown_key

MAX_CHARACTERS = 256 << 10
"""Most characters of a text, before and after aliases are expanded."""
MAX_DEPTH = 64
_MERGE = "tag:yaml.org,2002:merge"
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, or without end"


class StrictYamlError(ValueError):
    """The text is not valid YAML, or repeats a key. The message is one line with the place."""


def load_yaml(text: str, *, max_characters: int = MAX_CHARACTERS) -> Any:  # noqa: ANN401
    """Reads YAML; returns None for an empty text.

    `max_characters` limits the text before and after aliases are expanded. Raises
    `StrictYamlError`, which names the fault and, if known, line and column.
    """
    if len(text) > max_characters:
        raise StrictYamlError(f"{len(text)} characters; expected at most {max_characters}")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, max_characters)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise StrictYamlError(_error_message(error, text)) from error
    except yaml.YAMLError as error:
        raise StrictYamlError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise StrictYamlError(_TOO_DEEP) from error
    # PyYAML's constructors of numbers, dates and tagged values raise Python's own errors.
    except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise StrictYamlError(f"a value does not fit its type: {error}") from error


def pipelines_folder() -> Path:
    """Returns the folder of recipes and prompts: in the package, or next to it in a checkout."""
    packaged = Path(__file__).parent / "pipelines"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "pipelines"


def yaml_names(folder: Path) -> list[str]:
    """Returns the names of the YAML files in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_yaml(name: str, folder: Path, kind: str) -> tuple[Path, dict[str, Any] | None]:
    """Reads a YAML file by its name in a folder, or by its path.

    Returns the path, and the contents or None for an empty file. Raises `RecipeError`, which names
    the file's `kind` and the fault.
    """
    path, known = folder / f"{name}.yaml", yaml_names(folder)
    if name not in known:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml") and "/" not in name:
            raise RecipeError(unknown_key(name, known, kind))
        if not path.is_file():
            raise RecipeError(f"{kind} file {name!r} does not exist; known: {', '.join(known)}")
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (StrictYamlError, UnicodeDecodeError) as error:
        raise RecipeError(f"{kind} {path} cannot be read as YAML: {error}") from error
    except OSError as error:
        raise RecipeError(f"{kind} {path} cannot be read: {error.strerror}") from error
    if not (data is None or isinstance(data, dict)):
        raise RecipeError(f"{kind} {path} is a {type(data).__name__}; expected keys and values")
    return path, data


def _check_size(root: yaml.Node, max_characters: int) -> None:
    """Refuses aliases that expand to too much. Each node is measured once, despite its aliases."""
    measured: dict[int, tuple[int, int]] = {}

    def measure(node: yaml.Node, level: int) -> tuple[int, int]:
        """Returns the number of characters with aliases expanded, and the number of levels."""
        size, depth = measured.get(id(node), (0, 0))
        if level + depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=node.start_mark)
        if size:
            return size, depth
        if isinstance(node, yaml.ScalarNode):
            size = 1 + len(node.value)
        else:
            parts = (
                [part for pair in node.value for part in pair]
                if isinstance(node, yaml.MappingNode)
                else node.value
            )
            inner = [measure(part, level + 1) for part in parts]
            size = 1 + sum(size for size, _ in inner)
            depth = 1 + max((depth for _, depth in inner), default=0)
        measured[id(node)] = size, depth
        return size, depth

    size, _ = measure(root, 0)
    if size > max_characters:
        raise yaml.YAMLError(
            f"its aliases expand to {size} characters; expected at most {max_characters}: write "
            "the values without aliases"
        )


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """A safe loader that refuses repeated keys. PyYAML's own silently keeps the last one."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Constructs a mapping; raises an error if a key occurs twice."""
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name = (key.tag, key.value)
            if name in first:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} occurs twice, first in line {first[name]}",
                    problem_mark=key.start_mark,
                )
            first[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def _error_message(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    problem = error.problem or error.context or "it is not YAML"
    problem = problem.replace("did not find expected", "expected")
    if mark is not None and problem == "found character that cannot start any token":
        problem = f"{text[mark.index]!r} begins no value; quote a text that begins with it"
        if text[mark.index] == "\t":
            problem = "a tab; YAML takes only spaces at the beginning of a line"
    elif error.context and error.context_mark is not None and error.problem:
        problem = f"{problem}, {error.context} of line {error.context_mark.line + 1}"
    return place + " ".join(problem.split())
