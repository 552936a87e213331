"""The stage that probes sources. It imports little, so that its process starts soon."""

from curator.errors import ErrorCode
from curator.records.sources import Failure, SourceRef
from curator.stage import Resources, Scope, Stage
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.probe import ScanRow, failure_columns, identity_columns, scan_source

MAX_PROBE_S = 30.0
"""CPU-seconds for one header: the longest index, of a day at 120 frames/s, takes 5."""
MAX_PROBE_BYTES = 768 << 20
"""Memory for one header, of which an index of a day at 120 frames/s takes 500 MB."""


class ScanStage(Stage[ScanConfig, SourceRef, ScanRow]):
    """Probes sources without decoding them."""

    name = "scan"
    version = 1
    scope = Scope.SOURCE
    writes = ("scan",)
    config_type = ScanConfig
    results_ignore = frozenset({"sidecar_meta"})
    boxed = True
    memory_code = ErrorCode.TOO_LARGE_TO_PROBE
    limit_bytes = MAX_PROBE_BYTES
    # Reading headers is mostly waiting.
    resources = Resources(cpus=0.5)

    def limit_s(self, unit: SourceRef) -> float:
        """CPU-seconds for a header."""
        return MAX_PROBE_S

    def process(self, unit: SourceRef) -> ScanRow:
        """Probes a source."""
        return scan_source(unit.uri, unit.n_bytes, unit.version)

    def failed(self, unit: SourceRef, failure: Failure) -> ScanRow:
        """Returns the row of a source that cannot be probed."""
        return identity_columns(unit) | failure_columns(failure)
