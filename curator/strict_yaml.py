"""YAML as people write it by hand: what is said twice, or cannot be read, is an error."""

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class StrictYamlError(ValueError):
    """Text that is not YAML, or says a key twice; one line, with the place."""


def load_yaml(text: str) -> Any:  # noqa: ANN401
    """Reads YAML; None for nothing.

    Raises:
        StrictYamlError: Naming line, column and what is wrong.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise StrictYamlError(_said(error)) from error
    except yaml.YAMLError as error:
        raise StrictYamlError(" ".join(str(error).split())) from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader takes the last of equal keys, and drops the others without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Makes a mapping of a node whose keys differ."""
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name = (key.tag, key.value)
            if name in first:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands twice, first in line {first[name]}",
                    problem_mark=key.start_mark,
                )
            first[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def _said(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    told = error.problem or error.context or "it is not YAML"
    if "'\\t'" in told:
        told = "a tab; YAML takes only spaces at the beginning of a line"
    elif error.context and error.context_mark is not None and error.problem:
        told = f"{told}, {error.context} of line {error.context_mark.line + 1}"
    return place + " ".join(told.split())
