"""Logs as JSON lines: progress, warnings with their errors, and the command's own errors."""

import io
import json
import logging
from datetime import datetime
from pathlib import Path

import pytest

from curator.cli import main
from curator.executor.json_log import JsonFormatter
from curator.executor.progress import Progress
from curator.tools.commands.arguments import EXIT_USAGE


def test_progress_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    with caplog.at_level(logging.INFO), Progress(stream, is_logged=True) as progress:
        progress.stage("scan")
        progress.stage("analyze")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["level"], line["stage"], line["message"]) for line in lines] == [
        ("INFO", "scan", "scan"),
        ("INFO", "analyze", "analyze"),
    ]
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo is not None
    assert not stream.getvalue()


def test_an_error_stays_on_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("curator.x", logging.ERROR, "f", 1, "a %s", ("b\nc",), None)
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    record_fields = json.loads(line)
    assert (record_fields["logger"], record_fields["message"]) == ("curator.x", "a b\nc")
    assert record_fields["error"].startswith("Traceback")


def test_the_command_says_its_errors_so_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Undone afterwards.
    for handler in logging.getLogger().handlers:
        monkeypatch.setattr(handler, "formatter", handler.formatter)
    monkeypatch.setattr(logging.getLogger("curator.executor.progress"), "level", logging.NOTSET)
    run = ["run", str(tmp_path / "none.mp4"), str(tmp_path / "out"), "--log-format", "json"]
    assert main(run) == EXIT_USAGE
    (record,) = caplog.records
    assert "does not exist" in record.getMessage()
    handler = logging.getLogger().handlers[0]
    assert "does not exist" in json.loads(handler.format(record))["message"]
