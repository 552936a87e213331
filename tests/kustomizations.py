"""Renders the part of kustomize that `infra/kuberay` uses, because tests run without `kubectl`.

`tests/infra/test_kubernetes.py` compares the result with `kubectl kustomize` where it is installed.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

_KEYS = {"apiVersion", "kind", "resources", "components", "patches", "replacements", "images"}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LEFT_OUT = "config.kubernetes.io/local-config"


@cache
def _text(path: Path) -> str:
    """The documents of a file as JSON, so that no two parts of them are one object."""
    return json.dumps(list(yaml.load_all(path.read_text(), _LOADER)))


def documents(path: Path) -> list[Any]:
    """Returns the YAML documents of a file."""
    return list(json.loads(_text(path)))


def rendered(folder: Path) -> list[Document]:
    """Returns the resources that a folder with a kustomization leads to."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    return built(kustomization, folder)


def built(
    kustomization: Mapping[str, Any], folder: Path, resources: Iterable[Document] = ()
) -> list[Document]:
    """Returns the resources of a kustomization, or `resources` as a component changes them."""
    unknown = set(kustomization) - _KEYS
    assert not unknown, f"{folder}: cannot render {unknown}"
    made = list(resources)
    for name in kustomization.get("resources", ()):
        path = (folder / name).resolve()
        made += rendered(path) if path.is_dir() else documents(path)
    for name in kustomization.get("components", ()):
        path = (folder / name).resolve()
        (component,) = documents(path / "kustomization.yaml")
        made = built(component, path, made)
    for patch in kustomization.get("patches", ()):
        _patch(made, patch, folder)
    for image in kustomization.get("images", ()):
        assert set(image) == {"name", "newName"}
        _rename(made, image["name"], image["newName"])
    for replacement in kustomization.get("replacements", ()):
        _replace(made, replacement)
    return [one for one in made if _LEFT_OUT not in one["metadata"].get("annotations", {})]


def _selected(made: Iterable[Document], target: Mapping[str, str]) -> list[Document]:
    assert set(target) <= {"kind", "name", "fieldPath"}
    return [
        one
        for one in made
        if one["kind"] == target["kind"] and target.get("name") in (None, one["metadata"]["name"])
    ]


def _patch(made: Iterable[Document], patch: Mapping[str, Any], folder: Path) -> None:
    if "path" in patch:
        (operations,) = documents(folder / patch["path"])
    else:
        operations = yaml.load(patch["patch"], _LOADER)
    for one in _selected(made, patch["target"]):
        for operation in json.loads(json.dumps(operations)):
            _operate(one, operation)


def _operate(document: Document, operation: Mapping[str, Any]) -> None:
    """Does an operation of RFC 6902."""
    *way, last = (
        step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]
    )
    at: Any = document
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    key: Any = int(last) if isinstance(at, list) and last != "-" else last
    if operation["op"] == "test":
        assert at[key] == operation["value"], f"{operation['path']} is {at[key]!r}"
    elif operation["op"] == "remove":
        del at[key]
    elif key == "-":
        at.append(operation["value"])
    else:
        assert operation["op"] == "add", operation
        assert isinstance(at, dict), operation
        at[key] = operation["value"]


def _rename(node: object, name: str, new_name: str) -> None:
    if isinstance(node, dict):
        for container in (*(node.get("containers") or ()), *(node.get("initContainers") or ())):
            if container["image"].partition(":")[0] == name:
                container["image"] = new_name + container["image"].removeprefix(name)
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            _rename(child, name, new_name)


def _replace(made: list[Document], replacement: Mapping[str, Any]) -> None:
    """Copies one field into the targets, as a whole."""
    source = replacement["source"]
    (found,) = _selected(made, source)
    for target in replacement["targets"]:
        for one in _selected(made, target["select"]):
            for path in target["fieldPaths"]:
                outer, inner = path.split(".")
                one[outer][inner] = json.loads(json.dumps(found[source["fieldPath"]]))
