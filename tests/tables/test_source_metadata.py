"""Types, limits and joining of metadata."""

from typing import Any

import pyarrow as pa
import pytest

from curator.errors import UsageError
from curator.storage.metadata_columns import CsvText, column_name, column_names, is_metadata
from curator.tables.source_metadata import SourceMetadata


def metadata(*rows: dict[str, Any]) -> SourceMetadata:
    found = SourceMetadata()
    for number, row in enumerate(rows):
        found.add(f"/{number}.mp4", row)
    return found


def values(found: SourceMetadata, n_rows: int) -> list[Any]:
    """The only column of metadata, by source."""
    table = pa.table({"uri": [f"/{number}.mp4" for number in range(n_rows)]})
    return found.joined(table, "uri")["meta.x"].to_pylist()


@pytest.mark.parametrize(
    ("texts", "kind", "expected"),
    [
        (["1", "-20", ""], pa.int64(), [1, -20, None]),
        (["1", "2.5", "1e3"], pa.float64(), [1.0, 2.5, 1000.0]),
        (["true", "False"], pa.bool_(), [True, False]),
        (["007", "12"], pa.string(), ["007", "12"]),
        (["1", "high"], pa.string(), ["1", "high"]),
        (["true", "1"], pa.string(), ["true", "1"]),
        (["99999999999999999999", "1"], pa.float64(), [1e20, 1.0]),
        (["nan", "1.5"], pa.float64(), [None, 1.5]),
        ([" a ", "b"], pa.string(), [" a ", "b"]),
    ],
)
def test_the_type_of_a_csv_column_follows_from_its_texts(
    texts: list[str], kind: pa.DataType, expected: list[Any]
) -> None:
    """Pins that ids with zeros in front stay what they are, and what other types take."""
    found = metadata(*({"meta.x": CsvText(text)} for text in texts))
    assert found.schema() == pa.schema([("meta.x", kind)])
    assert values(found, len(texts)) == expected


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        ([True, False], pa.bool_(), [True, False]),
        ([1, 0.1], pa.float64(), [1.0, 0.1]),
        (["5", "6"], pa.string(), ["5", "6"]),
        ([5, "6"], pa.string(), ["5", "6"]),
        ([["a", "b"], None], pa.list_(pa.string()), [["a", "b"], None]),
        ([["a"], "b"], pa.string(), ['["a"]', "b"]),
        ([2**70, 1], pa.string(), [str(2**70), "1"]),
        ([float("inf"), 1.0], pa.float64(), [None, 1.0]),
        ([{"nested": 1}, 1], pa.int64(), [None, 1]),
    ],
)
def test_typed_values_keep_their_types_unless_they_disagree(
    given: list[Any], kind: pa.DataType, expected: list[Any]
) -> None:
    found = metadata(*({"meta.x": value} for value in given))
    assert found.schema() == pa.schema([("meta.x", kind)])
    assert values(found, len(given)) == expected


@pytest.mark.parametrize(
    ("rows", "warning"),
    [
        ([{"meta.x": "ä" * 3000}, {}], "1 values of metadata are longer than 4096 bytes"),
        ([{f"meta.k{n}": n for n in range(70)}], "6 are left out, such as meta.k64 of /0.mp4"),
        (
            [{"meta.x": 1}, {"meta.x": "a"}],
            "meta.x has values of types ['int', 'text']: it is text",
        ),
    ],
)
def test_what_is_changed_or_left_out_is_logged(
    rows: list[dict[str, Any]], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that sidecars, which nobody checks, cannot make a table of a thousand columns."""
    found = metadata(*rows)
    found.warn()
    assert warning in caplog.text
    assert len(found.schema()) <= 64


def test_many_rows_are_joined_by_uri() -> None:
    """Pins that packs of rows, of which some lack a column, are one table; and what is cut."""
    found = metadata(*({"meta.x": n} if n % 3 else {"meta.y": n} for n in range(9000)))
    rows = pa.table({"source_uri": ["/8999.mp4", "/4.mp4", "/no.mp4", "/4.mp4"]})
    joined = found.joined(rows, "source_uri")
    assert joined["meta.x"].to_pylist() == [8999, 4, None, 4]
    assert found.joined(rows.slice(0, 0), "source_uri").num_rows == 0
    assert SourceMetadata().joined(rows, "source_uri") is rows
    (cut,) = values(metadata({"meta.x": "ä" * 3000}), 1)
    assert len(cut) == 2048


def test_names_are_cleaned_and_collisions_or_missing_columns_refused() -> None:
    assert column_name("Rating (1-5)") == "meta.rating_1_5"
    assert column_name("meta.rating") == "meta.rating"
    assert column_name("評分") is None
    assert is_metadata("meta.rating")
    assert not is_metadata("meta.Rating")
    assert not is_metadata("motion")
    assert column_names(["", "a b"], "m.csv") == {"a b": "meta.a_b"}
    with pytest.raises(UsageError, match=r"more than one column would be 'meta.a_b'"):
        column_names(["a b", "A-B"], "m.csv")
    with pytest.raises(UsageError, match="has 65 columns of metadata; expected at most 64"):
        column_names([f"c{number}" for number in range(65)], "m.csv")
    # A recipe that names no column is refused.
    found = metadata({"meta.rating": 1, "meta.title": "a"})
    found.check(["meta.rating"], ["meta.title", "meta.rating"])
    with pytest.raises(UsageError, match=r"did you mean 'meta.rating'"):
        found.check(["meta.ratings"], [])
    with pytest.raises(UsageError, match=r"meta.title is of type string, and bounds need numbers"):
        found.check(["meta.title"], [])


def test_a_group_is_no_list() -> None:
    with pytest.raises(UsageError, match=r"meta\.group is a list; expected one value"):
        metadata({"meta.group": ["a", "b"]}).check([], [])
    metadata({"meta.group": ["a"]}, {"meta.group": "a"}).check([], [])
