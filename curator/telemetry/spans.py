"""Spans of a run, its stages and some of its units, for OpenTelemetry.

Without its standard variables, nothing of OpenTelemetry is imported.
"""

import importlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from curator.errors import install_extra
from curator.executor.progress import Progress
from curator.executor.timeline import Timeline

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OFF = (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"))
_NAMES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
_MODULES = ("trace", "sdk.trace", "sdk.trace.export", "sdk.resources",
            "exporter.otlp.proto.http.trace_exporter")  # fmt: skip
ALL_BITS = 8
"""Of the first 256 units of a stage each has a span, and 128 of each further doubling."""
FLUSH_MS = 5000
"""Longest wait for a receiver at the end of a run."""


@contextmanager
def exported_spans(progress: Progress, timeline: Timeline) -> Iterator[None]:
    """Exports spans of the block, of the stages of `progress` and of units of `timeline`."""
    is_off = any(os.environ.get(name, "").strip().lower() == value for name, value in _OFF)
    if is_off or not any(map(os.environ.get, _ENDPOINTS)):
        yield
        return
    try:
        # Loaded by name: these are optional packages.
        modules: list[Any] = [importlib.import_module(f"opentelemetry.{m}") for m in _MODULES]
    except ImportError as error:
        logger.warning("no spans: %s is not installed: %s", error.name, install_extra("metrics"))
        yield
        return
    trace, sdk, export, resources, otlp = modules
    name = {} if any(map(os.environ.get, _NAMES)) else {"service.name": "curate"}
    provider = sdk.TracerProvider(resource=resources.Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    # Else each export to a receiver that is gone logs all of its attempts.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    tracer = provider.get_tracer("curate")
    try:
        with tracer.start_as_current_span("curate run") as run:
            spans = _StageSpans(tracer, run, trace.set_span_in_context)
            progress.on_stage, timeline.on_unit = spans.stage, spans.unit
            yield
    finally:
        progress.on_stage, timeline.on_unit = None, None
        spans.stage(None)
        # A receiver that does not answer must not hold the run up.
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


class _StageSpans:
    """The span of the stage under way, and those of units, within that of the run."""

    def __init__(self, tracer: Any, run: Any, within: Any) -> None:  # noqa: ANN401
        self._tracer, self._run, self._within = tracer, run, within
        self._stage: Any = None
        self._n_units = Counter[str]()

    def stage(self, name: str | None) -> None:
        """Ends the stage under way, and begins one, or none."""
        if self._stage is not None:
            self._stage.end()
        within = self._within(self._run)
        self._stage = None if name is None else self._tracer.start_span(name, within)

    def unit(self, stage: str, node: str, begun_s: float, ended_s: float) -> None:
        """Notes a unit that ended."""
        number = self._n_units[stage]
        self._n_units[stage] += 1
        if number & ((1 << max(0, number.bit_length() - ALL_BITS)) - 1) == 0:
            within = self._within(self._stage or self._run)
            facts = {"curate.unit": number, "curate.node": node}
            begun_ns, ended_ns = int(begun_s * 1e9), int(max(begun_s, ended_s) * 1e9)
            start = self._tracer.start_span
            start(f"{stage} unit", within, attributes=facts, start_time=begun_ns).end(ended_ns)
