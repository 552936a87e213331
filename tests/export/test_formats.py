"""The list of formats, and a format that an installed package offers."""

import shutil
from pathlib import Path

import pytest
from made_samples import made_clips, make_shards

from curator.export import FORMATS, export
from curator.export.exporter import Exporter, load_format

EXAMPLE = Path(__file__).parents[2] / "examples" / "jsonl_export.py"


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_one_class_and_says_what_it_is(name: str) -> None:
    """Pins that an entry of the list is all that a format needs: help comes from the class."""
    exporter = load_format(name)[0]
    assert issubclass(exporter, Exporter)
    assert exporter.about
    assert all(field.description for field in exporter.options_type.model_fields.values())


def test_an_installed_package_offers_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the entry point, and that the export names the package and its version."""
    site = tmp_path / "site"
    (site / "lines-2.5.dist-info").mkdir(parents=True)
    (site / "lines-2.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lines\nVersion: 2.5\n"
    )
    (site / "lines-2.5.dist-info" / "top_level.txt").write_text("lines_format\n")
    (site / "lines-2.5.dist-info" / "entry_points.txt").write_text(
        "[curate.exporters]\nlines = lines_format:JsonLines\n"
    )
    shutil.copy(EXAMPLE, site / "lines_format.py")
    monkeypatch.syspath_prepend(str(site))
    make_shards(str(tmp_path / "out"), made_clips())
    done = export(str(tmp_path / "out"), str(tmp_path / "to"), "lines")
    assert done.n_records == 8
    assert done.origin == {
        "class": "lines_format:JsonLines",
        "version": "1",
        "distribution": "lines",
        "distribution_version": "2.5",
    }
