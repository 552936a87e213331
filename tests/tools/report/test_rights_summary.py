"""The summary of kept clips by licence and origin."""

from typing import Any

import pyarrow as pa
import pytest

from curator.records.clips import LICENSED
from curator.rights_config import RightsConfig
from curator.tools.report.rights_summary import domain, rights_summary, rights_text


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("https://www.example.org:8080/a?b", "example.org"),
        ("films.example/1", "films.example"),
        ("own camera", "own camera"),
        ("Studio 4. Second take", "Studio 4. Second take"),
        ("http://[", "http://["),
        (None, None),
    ],
)
def test_domains_of_origins(origin: str | None, name: str | None) -> None:
    assert domain(origin) == name


def test_counts_hours_and_shares() -> None:
    """Pins totals, the top tenth of twelve domains, unknown values, and rejected clips."""

    def clip(number: int, **of: Any) -> dict[str, Any]:  # noqa: ANN401
        return {
            "source_id": f"s{number}", "decision": "kept", "medium": "video", "n_frames": 90_000,
            "written_fps": 25.0, **dict.fromkeys(LICENSED), "meta.kind": "crawled", **of,
        }  # fmt: skip

    clips = [clip(n, license="CC0-1.0", origin=f"https://a{n}.example/x") for n in range(11)]
    clips += [
        clip(0, license="MIT", origin="https://b.example/1", c2pa="valid", c2pa_generated=True),
        clip(20, license="MIT", origin="https://b.example/2", c2pa="none"),
        clip(21, medium="image", n_frames=1, written_fps=1.0),
        clip(22, decision="rejected", license="GPL"),
    ]
    sources = pa.table(
        {
            "error_code": ["license_not_allowed", "license_not_allowed", "not_a_video"],
            "license": ["a|b\nc", "a|b\nc", None],
        }
    )
    config = RightsConfig(license="meta.license", category="meta.kind")
    summary = rights_summary(pa.Table.from_pylist(clips), sources, config)
    assert summary["total"] == {"sources": 13, "clips": 14, "hours": 13.0}
    by_license = {e["name"]: (e["sources"], e["clips"], e["hours"]) for e in summary["by_license"]}
    assert by_license == {"CC0-1.0": (11, 11, 11.0), "MIT": (2, 2, 2.0), "unknown": (1, 1, 0.0)}
    assert summary["by_license"][0]["share"] == pytest.approx(11 / 14)
    assert summary["domains"] == 12
    assert [e["name"] for e in summary["top_domains"]] == ["b.example", "a0.example"]
    assert summary["generated"] == {"sources": 1, "clips": 1, "hours": 1.0}
    assert [(e["name"], e["clips"]) for e in summary["by_category"]] == [("crawled", 14)]
    text = rights_text(summary)
    assert "## Domains of origin: 2 of 12, the largest 10% by hours (2.3)" in text
    assert "| license_not_allowed | a\\|b" in text
    assert all(line.count("|") in (0, 4, 5, 6) for line in text.splitlines()), text
