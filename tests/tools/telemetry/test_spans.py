"""Spans come to a receiver where the standard variables name one, and cost nothing elsewhere."""

import gzip
import importlib
import io
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from curator.executor.progress import Progress
from curator.executor.unit_times import UnitTimes
from curator.installation import install_extra
from curator.tools.telemetry.spans import exported_spans

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Receiver:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: dict[bytes, Any] = {}
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_packed = self.headers.get("Content-Encoding") == "gzip"
                receiver.take(gzip.decompress(body) if is_packed else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    def take(self, body: bytes) -> None:
        module = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
        request: Any = importlib.import_module(module).ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            values = {fact.key: fact.value.string_value for fact in resource.resource.attributes}
            self.services.add(values["service.name"])
            for scope in resource.scope_spans:
                self.spans.update({span.span_id: span for span in scope.spans})


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{receiver.server.server_port}")
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


def run_of(n_units: int) -> None:
    unit_times = UnitTimes()
    progress = Progress(io.StringIO(), live=False)
    with exported_spans(progress, unit_times):
        progress.stage("analyze")
        for number in range(n_units):
            unit_times.add("analyze", "node a", time.time() - 1, time.time(), f"{number % 2}")
        progress.stage("cut")


def test_units_are_within_stages_and_stages_within_the_run(receiver: Receiver) -> None:
    run_of(1024)
    by_name: dict[str, list[Any]] = {}
    for span in receiver.spans.values():
        by_name.setdefault(span.name, []).append(span)
    (run,), (analyze,), (cut,) = (by_name[name] for name in ("curate run", "analyze", "cut"))
    assert (analyze.parent_span_id, cut.parent_span_id) == (run.span_id, run.span_id)
    units = by_name["analyze unit"]
    # All of the first 256, every second of the next 256, every fourth of the next 512.
    assert len(units) == 256 + 128 + 128
    assert {unit.parent_span_id for unit in units} == {analyze.span_id}
    first = units[0]
    assert first.end_time_unix_nano - first.start_time_unix_nano == pytest.approx(1e9, rel=0.1)
    values = {fact.key: fact.value for fact in first.attributes}
    assert values["curate.node"].string_value == "node a"
    assert receiver.services == {"curate"}


@pytest.mark.parametrize(
    "variables", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}]
)
def test_without_a_request_nothing_is_imported(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(VARIABLE, "http://127.0.0.1:9")

    def import_module(name: str) -> Any:  # noqa: ANN401
        raise AssertionError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    run_of(3)


def test_a_missing_package_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:9")

    def import_module(name: str) -> Any:  # noqa: ANN401
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with caplog.at_level(logging.WARNING):
        run_of(3)
    (record,) = caplog.records
    assert install_extra("metrics") in record.getMessage()
