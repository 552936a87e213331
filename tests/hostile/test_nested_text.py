"""YAML and JSON that stand for more than they say, or nest without end, are one-line errors."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from curator.errors import ModelError
from curator.json_bounds import load_bounded
from curator.models.catalogue import load_catalogue
from curator.models.embedding_heads import load_prompts
from curator.models.server_access import error_in, is_out_of_money
from curator.stages.caption.captioners.chat_server import parse_answer
from curator.storage.sidecar_files import SidecarCode, SidecarProblem, read_sidecars
from curator.strict_yaml import StrictYamlError, load_yaml

NINE = 9


def alias_bomb(first: str, repeat: str) -> str:
    """Nine levels of nine aliases each: 151 million times the first value."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, NINE):
        lines.append(f"a{level}: &a{level} " + repeat % ", ".join([f"*a{level - 1}"] * NINE))
    return "\n".join(lines)


BOMBS = {
    "lists": (alias_bomb("[x]", "[%s]"), "its aliases expand to"),
    "merged keys": (alias_bomb("{k: v}", "{<<: [%s]}"), "its aliases expand to"),
    "a long text": (f"a: &a {'x' * 200_000}\nb: [*a, *a]", "its aliases expand to"),
    "a list in itself": ("a: &a [*a]", "line 1, column 4: nested deeper than 64 levels"),
    "a chain": (
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 300)),
        "nested deeper than 64 levels",
    ),
    "deep lists": ("[" * 200_000, "nested deeper than 64 levels"),
    "deep keys": ("{a: " * 60_000, "nested deeper than 64 levels"),
    "too long": ("# " + "x" * 300_000, "300002 characters; expected at most 262144"),
    "digits": ("a: " + "9" * 5000, "a value does not fit its type: Exceeds the limit"),
    "a date": ("a: 2024-99-99", "a value does not fit its type: month must be in 1..12"),
    "a wrong tag": ("a: !!timestamp b", "a value does not fit its type"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_is_refused_in_one_line(name: str) -> None:
    text, said = BOMBS[name]
    with pytest.raises(StrictYamlError, match=said.replace(".", r"\.")) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)


def test_aliases_take_no_memory_in_recipes_prompts_and_catalogues(tmp_path: Path) -> None:
    assert load_yaml("a: &a {b: 1}\nc: [*a, *a]") == {"a": {"b": 1}, "c": [{"b": 1}] * 2}
    # The command ends with its usual error below 1 GiB, as it would with 3.2 before.
    recipe = tmp_path / "bomb.yaml"
    recipe.write_text(alias_bomb("[x, x, x, x, x, x, x, x, x]", "[%s]"))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30,) * 2);"
        "from curator.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "graph", str(recipe)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert f"recipe {recipe} cannot be read as YAML: its aliases expand to" in ran.stderr
    assert "Traceback" not in ran.stderr
    # Prompts and catalogues have the same bound.
    path = tmp_path / "prompts.yaml"
    path.write_text(BOMBS["lists"][0])
    with pytest.raises(ModelError, match="its aliases expand to"):
        load_prompts(str(path))
    with pytest.raises(ModelError, match="its aliases expand to"):
        load_catalogue(BOMBS["lists"][0])


def nested(depth: int) -> bytes:
    return b"[" * depth + b"1" + b"]" * depth


@pytest.mark.parametrize("depth", [65, 300, 990, 1023, 100_000])
def test_deep_json_is_an_error_and_no_recursion(depth: int) -> None:
    """Pins depths at which the parser works and only what follows fails."""
    with pytest.raises(ValueError, match=r"deeper than 64 levels|depth limit exceeded"):
        load_bounded(nested(depth))
    with pytest.raises(ValueError, match="is no JSON"):
        parse_answer(b'{"choices": %b}' % nested(depth))
    body = b'{"error": {"x": %b}}' % nested(depth)
    assert error_in(body, "").startswith('{"error"')
    assert not is_out_of_money(body)


def test_json_of_usual_depth_is_taken() -> None:
    assert load_bounded(nested(64)) == orjson.loads(nested(64))


@pytest.mark.parametrize("depth", [80, 400, 960, 5000])
def test_a_deep_sidecar_is_a_problem_of_that_sidecar(tmp_path: Path, depth: int) -> None:
    (tmp_path / "v.json").write_bytes(b'{"a": %b}' % nested(depth))
    found = read_sidecars([str(tmp_path / "v.mp4")])[str(tmp_path / "v.mp4")]
    assert isinstance(found, SidecarProblem)
    assert found.code is SidecarCode.NOT_JSON
    assert "nested" in found.message
