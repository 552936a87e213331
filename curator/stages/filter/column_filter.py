"""The stage that applies rules to columns of annotators, and so to clips that are written already.

Stages before the cut do not know these columns. So duplicates and selection count clips that this
stage rejects.
"""

from collections.abc import Iterator, Set

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.measures.filtering import FilteredClips, filter_columns
from curator.measures.rules import reasons_of
from curator.stage import GraphStage, Phase, Scope, StageReason
from curator.stages.filter.config import FilterConfig


class ColumnFilter(GraphStage[FilterConfig]):
    """Decides about each clip alone, as soon as an annotator has computed the columns of a rule."""

    name = "column_filter"
    version = 1
    phase = Phase.ANNOTATE
    scope = Scope.CLIP
    reads = ("clips",)
    by_content = frozenset(reads)
    config_type = FilterConfig
    sections = ("filters",)
    step = "annotate"
    noun = "clip"

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons of the rules."""
        for reason in reasons_of(self.config.root):
            yield StageReason(name=reason)

    def judge(self, clips: pa.Table, columns: Set[str], keep: NDArray[np.bool_]) -> FilteredClips:
        """Applies the rules on `columns`; `keep` has the clips that users marked, bool [N]."""
        return filter_columns(clips, self.config.root, columns, keep)
