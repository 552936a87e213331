"""YAML by hand: what is said twice or cannot be read is one line with its place."""

import pytest

from curator.strict_yaml import StrictYamlError, load_yaml


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("motion: {min: 1}\nluma: 2\nmotion: {max: 2}", "line 3, column 1: the key 'motion' occurs "
         "twice, first in line 1"),
        ("a: {b: 1, b: 1}", "line 1, column 11: the key 'b' occurs twice, first in line 1"),
        ("a: {b: 1\nc: 2", "line 2, column 2: expected ',' or '}'"),
        ("a:\n\tb: 1", "line 2, column 1: a tab; YAML takes only spaces"),
        ("a: !!python/object/apply:os.system [id]", "line 1, column 4: could not determine"),
        ("a: [1, 2", "expected ',' or ']', while parsing a flow sequence of line 1"),
        ("a: @b", "line 1, column 4: '@' begins no value; quote a text that begins with it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_place(text: str, said: str) -> None:
    with pytest.raises(StrictYamlError) as caught:
        load_yaml(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "unicode string" not in str(caught.value)


def test_equal_names_in_unlike_places_are_no_repetition_and_nothing_is_none() -> None:
    text = "base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  x: 3\n1: a\n'1': b"
    assert load_yaml(text) == {
        "base": {"x": 1, "y": 2}, "other": {"x": 3, "y": 2}, 1: "a", "1": "b",
    }  # fmt: skip
    # Nothing is none.
    assert load_yaml("# only a remark") is None
