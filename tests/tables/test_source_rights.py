"""Spellings of licences, and which sources a recipe refuses."""

import json

import pyarrow as pa
import pytest

from curator.records.licenses import spdx_id
from curator.rights_config import RightsConfig
from curator.tables.source_rights import refusals, with_rights


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("CC0", "CC0-1.0"),
        ("Creative Commons Zero v1.0 Universal", "CC0-1.0"),
        ("http://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("https://creativecommons.org/publicdomain/mark/1.0/", "CC-PDM-1.0"),
        ("cc-by-4.0", "CC-BY-4.0"),
        ("CC BY 4", "CC-BY-4.0"),
        ("CC BY-NC 2.0 Generic", "CC-BY-NC-2.0"),
        ("Creative Commons Attribution-NonCommercial-ShareAlike 4.0 International",
         "CC-BY-NC-SA-4.0"),
        ("https://creativecommons.org/licenses/by-nc-nd/2.5/deed.de", "CC-BY-NC-ND-2.5"),
        ("by-sa", "CC-BY-SA"),
        ("YouTube CC", "CC-BY"),
        ("Creative Commons Attribution license (reuse allowed)", "CC-BY"),
        ("mit", "MIT"),
        ("Apache License 2.0", "Apache-2.0"),
        # Unknown ones stay: no such version, a ported one, other words.
        ("CC-BY-5.0", "CC-BY-5.0"),
        ("http://creativecommons.org/licenses/by/3.0/us/",
         "http://creativecommons.org/licenses/by/3.0/us/"),
        ("standby 4.0", "standby 4.0"),
        (" Pexels License ", "Pexels License"),
        ("public domain", "public domain"),
        ("  ", None),
    ],
)  # fmt: skip
def test_spellings_of_licences(text: str, licence: str | None) -> None:
    """Pins that a version is never guessed, and that an id is its own id."""
    assert spdx_id(text) == licence
    assert licence is None or spdx_id(licence) == licence


def test_the_first_refusal_of_a_source_names_its_value() -> None:
    """Pins codes, absent values, spans, and what counts as a reservation."""
    config = RightsConfig(
        license="meta.license", allow=("cc0", "CC BY 4.0"), reserved="meta.tdm", generated="refuse"
    )
    spans = [
        {"start_s": 0, "end_s": 1, "meta": {"meta.license": "cc0"}},
        {"start_s": 1, "end_s": None, "meta": {"meta.license": "other"}},
    ]
    plain = {"meta.license": "CC0-1.0", "meta.tdm": None, "c2pa_generated": None, "spans": None}
    rows = {
        "plain": {},
        "by": {"meta.license": "https://creativecommons.org/licenses/by/4.0/"},
        "nc": {"meta.license": "CC BY-NC 4.0"},
        "without": {"meta.license": None},
        "spans": {"spans": json.dumps(spans)},
        "reserved": {"meta.tdm": 1},
        "robots": {"meta.tdm": "noai"},
        "not reserved": {"meta.tdm": 0},
        "no": {"meta.tdm": "False"},
        "generated": {"c2pa_generated": True},
        "captured": {"c2pa_generated": False},
    }
    found = {f.uri: f for f in refusals([plain | {"uri": n} | r for n, r in rows.items()], config)}
    assert {uri: str(failure.code) for uri, failure in found.items()} == {
        "nc": "license_not_allowed", "without": "license_not_allowed",
        "spans": "license_not_allowed", "reserved": "rights_reserved",
        "robots": "rights_reserved", "generated": "generated",
    }  # fmt: skip
    assert "is 'CC-BY-NC-4.0', and rights.allow has CC0-1.0, CC-BY-4.0" in found["nc"].message
    assert "is 'other'" in found["spans"].message


def test_columns_of_any_type_become_texts_in_their_order() -> None:
    config = RightsConfig(license="meta.license", origin="meta.id")
    licences = pa.chunked_array([["cc0", None], ["mit", "cc0"]], pa.string())
    table = pa.table({"meta.license": licences, "meta.id": [3, None, 5, 3]})
    rights = with_rights(table, config)
    assert rights["license"].to_pylist() == ["CC0-1.0", None, "MIT", "CC0-1.0"]
    assert rights["origin"].to_pylist() == ["3", None, "5", "3"]
