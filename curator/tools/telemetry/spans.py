"""Exports OpenTelemetry spans of a run, its stages and some of its units.

OpenTelemetry is imported only if its standard environment variables name an endpoint.
"""

import importlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from curator.executor.progress import Progress
from curator.executor.unit_times import UnitTimes
from curator.installation import install_extra

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OFF = (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"))
_NAMES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
_MODULES = ("trace", "sdk.trace", "sdk.trace.export", "sdk.resources",
            "exporter.otlp.proto.http.trace_exporter")  # fmt: skip
ALL_BITS = 8
"""Each of the first 2**8 units of a stage has a span; each further doubling adds 128 spans."""
FLUSH_MS = 5000
"""Longest wait for the receiver at the end of a run."""


@contextmanager
def exported_spans(progress: Progress, unit_times: UnitTimes) -> Iterator[None]:
    """Exports spans of the block, of stages in `progress` and of units in `unit_times`."""
    is_off = any(os.environ.get(name, "").strip().lower() == value for name, value in _OFF)
    if is_off or not any(map(os.environ.get, _ENDPOINTS)):
        yield
        return
    try:
        # The packages are optional.
        modules: list[Any] = [importlib.import_module(f"opentelemetry.{m}") for m in _MODULES]
    except ImportError as error:
        logger.warning("no spans: %s is not installed: %s", error.name, install_extra("metrics"))
        yield
        return
    trace, sdk, export, resources, otlp = modules
    name = {} if any(map(os.environ.get, _NAMES)) else {"service.name": "curate"}
    provider = sdk.TracerProvider(resource=resources.Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    # Each failed export would log all of its attempts.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    tracer = provider.get_tracer("curate")
    try:
        with tracer.start_as_current_span("curate run") as run:
            spans = _StageSpans(tracer, run, trace.set_span_in_context)
            progress.on_stage, unit_times.on_unit = spans.stage, spans.unit
            yield
    finally:
        progress.on_stage, unit_times.on_unit = None, None
        spans.stage(None)
        # An unresponsive receiver must not delay the end of the run.
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


class _StageSpans:
    """Creates the spans of stages and units within the span of the run."""

    def __init__(self, tracer: Any, run: Any, within: Any) -> None:  # noqa: ANN401
        self._tracer, self._run, self._within = tracer, run, within
        self._stage: Any = None
        self._n_units = Counter[str]()

    def stage(self, name: str | None) -> None:
        """Ends the present stage, and begins stage `name` unless that is None."""
        if self._stage is not None:
            self._stage.end()
        within = self._within(self._run)
        self._stage = None if name is None else self._tracer.start_span(name, within)

    def unit(self, stage: str, node: str, begun_s: float, ended_s: float) -> None:
        """Counts a finished unit, and exports its span if the sampling selects the unit."""
        number = self._n_units[stage]
        self._n_units[stage] += 1
        if number & ((1 << max(0, number.bit_length() - ALL_BITS)) - 1) == 0:
            within = self._within(self._stage or self._run)
            facts = {"curate.unit": number, "curate.node": node}
            begun_ns, ended_ns = int(begun_s * 1e9), int(max(begun_s, ended_s) * 1e9)
            start = self._tracer.start_span
            start(f"{stage} unit", within, attributes=facts, start_time=begun_ns).end(ended_ns)
