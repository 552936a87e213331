"""The stage that keeps the clips of a moment together."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import Reason
from curator.stage import (
    CarriedState,
    Corpus,
    CorpusStage,
    Decisions,
    Remainders,
    StageReason,
    Work,
)
from curator.stages.cameras.config import CamerasConfig


class CamerasStage(CorpusStage[CamerasConfig]):
    """Rejects clips of cameras without a common clock, and clips of incomplete moments."""

    name = "cameras"
    version = 1
    config_type = CamerasConfig
    time_share = 0.01
    needs_all = "a moment is complete if the clips of all its cameras are kept"

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons, if the settings can reject a clip."""
        if self.is_on:
            if self.config.unaligned == "reject":
                yield StageReason(name=Reason.NOT_ALIGNED)
            if self.config.incomplete == "reject":
                yield StageReason(name=Reason.INCOMPLETE_MOMENT)

    def decide(
        self, corpus: Corpus, work: Work, /
    ) -> Iterator[Decisions | CarriedState | Remainders | str]:
        """Rejects clips, by the columns of their moments."""
        del work
        if not self.config.enabled or not corpus.num_rows:
            return
        moments, sizes = corpus["moment"].combine_chunks(), corpus["moment_cameras"]
        names = moments.to_pylist()
        if "output_size" in corpus.column_names:
            # Each size of the clips of a moment is complete without the others.
            outputs = corpus["output_size"].to_pylist()
            names = [n and f"{n} {size}" for n, size in zip(names, outputs, strict=True)]
        if self.config.unaligned == "reject":
            is_refused = pc.fill_null(pc.equal(sizes, 0), False).to_numpy()
            yield _rejected(np.flatnonzero(is_refused), Reason.NOT_ALIGNED)
        if self.config.incomplete == "reject":
            n_kept = Counter(names)
            rows = [
                (row, n_kept[name], size)
                for row, (name, size) in enumerate(zip(names, sizes.to_pylist(), strict=True))
                if name is not None and n_kept[name] < size
            ]
            numbers = np.array([row for row, _, _ in rows], np.int64)
            details = [f"{n} of {size} cameras are kept" for _, n, size in rows]
            yield _rejected(numbers, Reason.INCOMPLETE_MOMENT, details)


def _rejected(
    rows: NDArray[np.int64], reason: Reason, details: Sequence[str | None] | None = None
) -> Decisions:
    columns = {
        "reason": pa.array([str(reason)] * len(rows), pa.string()),
        "reason_detail": pa.array([None] * len(rows) if details is None else details, pa.string()),
    }
    return Decisions(rows, pa.table(columns))
