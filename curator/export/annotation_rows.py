"""Rows of the table `annotations` by clip, for formats with questions and answers."""

from typing import Any

import pyarrow as pa

from curator.dataset.tar_reader import ShardSet
from curator.errors import UsageError
from curator.tables.checksums import read_parquet
from curator.tables.disk_table import taken
from curator.tables.out_layout import SUMMARY
from curator.tables.output_format import read_summary

COLUMNS = (
    "clip_id", "source_id", "window", "start_frame", "end_frame", "shown", "model", "prompt",
    "label", "questions", "judge", "candidates", "asked", "request_keys", "prompt_fingerprint",
    "judge_prompt_fingerprint",
)  # fmt: skip
"""Columns that the export reads from the table `annotations`."""
_REASON = "\nGive your reasoning within <think></think> and your answer within <answer></answer>."
Row = dict[str, Any]


class Annotations:
    """Rows of `annotations` by clip, held in memory as columns; refuses a run without them."""

    def __init__(self, shards: ShardSet) -> None:
        store = shards.store
        if not shards.prefix or not store.exists(SUMMARY):
            raise UsageError(
                f"{store.uri} has no summary.json; expected OUT of a finished `curate run`, whose "
                "tables say what was asked and answered"
            )
        summary = read_summary(store, shards.snapshot)
        parts = summary["tables"].get("annotations")
        if not parts:
            raise UsageError(
                f"{store.uri} has no annotations; `curate recaption {store.uri} --set "
                "caption.captioner=...` makes them"
            )
        tables = [read_parquet(store, part) for part in parts]
        self._table = pa.concat_tables([table.select(COLUMNS) for table in tables])
        self._rows: dict[str, list[int]] = {}
        for row, clip_id in enumerate(self._table["clip_id"].to_pylist()):
            self._rows.setdefault(clip_id, []).append(row)
        self.settings: Row = summary["recipe"]["caption"]

    def of(self, clip_id: str) -> list[Row]:
        """Returns a clip's rows, by window; empty for a clip that no model annotated."""
        rows: list[Row] = taken(self._table, self._rows.get(clip_id, [])).to_pylist()
        return rows


def question_and_answer(made: Row) -> tuple[str, str]:
    """Returns a question and its answer, with the reasoning if there is some."""
    question, answer = made["question"], made["answer"]
    if made["reasoning"]:
        question += _REASON
        answer = f"<think>\n{made['reasoning']}\n</think>\n\n<answer>\n{answer}\n</answer>"
    return question, answer
