"""What judging all clips says aloud."""

import pytest
from judged import needs
from made_out import candidates_table

from curator.executor.corpus_work import CorpusWork
from curator.runs.corpus import CLIP_ORDER, Corpus
from curator.stages.filter.config import FilterConfig
from curator.stages.filter.stage import FilterStage
from curator.stages.shard.config import ShardConfig
from curator.tables.disk_table import SortedRows


@pytest.mark.parametrize("unmeasured", ["keep", "reject"])
@pytest.mark.parametrize("severity", ["flag", "reject"])
def test_clips_without_a_score_that_only_cpus_give_are_counted_aloud(
    unmeasured: str, severity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins tracks that a GPU made: no such clip is kept, rejected or left without a tag in silence.

    Other absent scores, as luma here, are the clip's own.
    """
    given = {"max": 38, "severity": severity, "unmeasured": unmeasured}
    rules = FilterConfig.model_validate({"quantizer": given, "luma": {"min": 0.1}})
    corpus = Corpus(lambda clips: clips, 1 << 24)
    clips = candidates_table(5, quantizer=[30.0, None, 45.0, None, 1.0], luma=[None] * 5)
    corpus._candidates = SortedRows(clips.schema, CLIP_ORDER, 1 << 20)
    corpus._candidates.add(clips)
    corpus.decide(FilterStage(rules, needs(ShardConfig())), CorpusWork("filter"))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("filters.quantizer: 2 clips have no quantizer, because a GPU decoded")
