"""The stage that probes sources. This module imports little, so a worker starts quickly."""

from collections.abc import Sequence, Set
from importlib.util import find_spec
from typing import TYPE_CHECKING

from curator.errors import ErrorCode, UsageError
from curator.installation import install_extra
from curator.records.sources import Failure, Medium, SourceRef
from curator.stage import ItemStage, Phase, Resources, Scope
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.content_credentials import CredentialReader
from curator.stages.scan.probe import ScanRow, scan_source

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PROBE_S = 30.0  # CPU-seconds; the index of a day at 120 frames/s takes 5
C2PA_BYTES_PER_S = 5e7  # a twelfth of what one core reads: benchmarks/results/rights.md
MAX_PROBE_BYTES = 768 << 20  # the index of a day at 120 frames/s takes 500 MB


class ScanStage(ItemStage[ScanConfig, SourceRef, ScanRow]):
    """Reads ids and headers of sources, without decoding frames.

    `accepts` are the media that stages which read the scan accept; sources of other media fail.
    """

    name = "scan"
    version = 7
    phase = Phase.LIST
    scope = Scope.SOURCE
    writes = ("scan",)
    key = ("version", "uri")
    unit_items = 64
    config_type = ScanConfig
    change_effect = "metadata of the sources is read again"
    noun = "source"
    # `models` has the media that are accepted.
    results_ignore = frozenset({"sidecar_meta", "media"})
    sandboxed = True
    memory_code = ErrorCode.TOO_LARGE_TO_PROBE
    limit_bytes = MAX_PROBE_BYTES
    # A worker mostly waits for the storage.
    resources = Resources(cpus=0.5)

    def __init__(
        self, config: ScanConfig, accepts: Set[Medium] = frozenset({Medium.VIDEO})
    ) -> None:
        super().__init__(config)
        self._accepts = accepts
        self._credentials: CredentialReader | None = None

    def models(self) -> tuple[object, ...]:
        """Returns the accepted media."""
        return tuple(sorted(self._accepts))

    def limit_s(self, unit: SourceRef) -> float:
        """Returns the limit for one source, in CPU-seconds."""
        return MAX_PROBE_S + (unit.n_bytes / C2PA_BYTES_PER_S if self.config.c2pa else 0.0)

    def preflight(self) -> None:
        """Raises `UsageError` if manifests are to be read and c2pa-python is missing."""
        if self.config.c2pa and find_spec("c2pa") is None:
            raise UsageError(f"scan.c2pa needs c2pa-python: {install_extra('rights')}")

    def setup(self) -> None:
        """Loads the reader of C2PA manifests, if the recipe wants them."""
        if self.config.c2pa:
            self.preflight()
            self._credentials = CredentialReader()

    def process(self, unit: SourceRef) -> ScanRow:
        """Probes a source."""
        return scan_source(unit.uri, unit.n_bytes, unit.version, self._accepts, self._credentials)

    def failed(self, unit: SourceRef, failure: Failure) -> ScanRow:
        """Returns the row of a source that could not be probed."""
        return _names(unit) | failure.columns()

    def rows(self, items: Sequence[SourceRef], results: Sequence[ScanRow]) -> "pa.Table":
        """Returns rows of `SCAN_SCHEMA`."""
        from curator.tables.parts import rows_to_table
        from curator.tables.schemas import SCAN_SCHEMA

        pairs = zip(items, results, strict=True)
        return rows_to_table((row | _names(source) for source, row in pairs), SCAN_SCHEMA)


def _names(source: SourceRef) -> ScanRow:
    """Returns the columns that identify a source; they never come from a sandbox."""
    return {"uri": source.uri, "bytes": source.n_bytes, "version": source.version}
