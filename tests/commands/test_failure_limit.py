"""How many sources, clips and windows may fail before a command says so."""

from pathlib import Path
from typing import Any

import pytest

from curator.commands.arguments import EXIT_FAILED, EXIT_OK
from curator.commands.run import failures_exit_code, is_too_many
from curator.storage import open_store


@pytest.mark.parametrize(
    ("n_failed", "n", "max_failed", "expected"),
    [
        (0, 0, None, False), (0, 9, None, False), (1, 2, None, False), (1, 1, None, True),
        (2, 2, None, True), (2, 16, None, True), (2, 20, None, False), (3, 29, None, True),
        (100, 1000, None, False), (101, 1000, None, True),
        (1, 2, 0.4, True), (1, 2, 0.5, False), (1, 100, 0.0, True), (4, 4, 1.0, False),
    ],
)  # fmt: skip
def test_a_tenth_may_fail_and_one_in_any_case(
    n_failed: int, n: int, max_failed: float | None, expected: bool
) -> None:
    """Pins the default, and that a share that is named counts as it is."""
    assert is_too_many(n_failed, n, max_failed) == expected


def summary(**by_reason: int) -> dict[str, Any]:
    """Of a run with 20 kept clips and one failed source of 20."""
    return {
        "counts": {"failed": 1, "sources": 20, "kept": 20, "by_reason": by_reason,
                   "by_error": {"not_a_video": 1}},
        "work": {}, "tables": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("by_reason", "code"),
    [
        ({"motion_too_low": 99, "cut_failed": 2}, EXIT_OK),
        ({"cut_failed": 3}, EXIT_FAILED),
        ({"cut_failed": 1, "source_changed": 1, "not_annotated": 1}, EXIT_FAILED),
    ],
)
def test_clips_count_that_were_to_be_kept(
    tmp_path: Path, by_reason: dict[str, int], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that clips which the recipe rejects are neither failures nor a part of the whole."""
    store = open_store(str(tmp_path))
    assert failures_exit_code(store, summary(**by_reason), None) == code
    said = capsys.readouterr().err
    if code == EXIT_OK:
        assert not said
    else:
        assert "curate: 3 of 23 clips that the recipe keeps could not be cut" in said
