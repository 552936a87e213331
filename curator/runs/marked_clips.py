"""Writes captions and columns of marks into kept clips, and counts marks. Stages apply verdicts."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.family import Columns, Family, FamilyVersion, Scope
from curator.fingerprints import fingerprint
from curator.recipe import Recipe
from curator.records.clips import BY_HAND
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipColumns, ClipRows
from curator.tables.mark_table import MARK_COLUMNS, Mark, read_marks
from curator.tables.schemas import declared_fields

logger = logging.getLogger(__name__)
SUMMARY_KEY = "marks"
_FAMILY = Family("marks", Scope.CLIP, Columns(dict.fromkeys(MARK_COLUMNS, "text")))


def honoured_marks(store: Store, recipe: Recipe) -> dict[str, Mark]:
    """Returns the marks that a run of this recipe honours, by clip id."""
    return read_marks(store) if recipe.run.marks == "override" else {}


class MarkedClips:
    """The marks of a run; `before` is the summary of earlier generations, which do not change."""

    def __init__(self, marks: Mapping[str, Mark], before: Mapping[str, Any] | None = None) -> None:
        self._marks, self._before = marks, before
        self._has_columns = any(_values(mark) for mark in marks.values())
        if before is not None:
            # The rows of all generations must have the same columns.
            self._has_columns = before.get(SUMMARY_KEY, {}).get("columns", False)

    def columns(self) -> list[pa.Field]:
        """Returns the columns of `clips` for marks; none if no mark has a value for them."""
        version = FamilyVersion(_FAMILY, fingerprint("marks", _FAMILY.version))
        return declared_fields([version]) if self._has_columns else []

    def write(self, clips: ClipRows) -> None:
        """Writes captions, verdicts, labels and notes into kept clips."""
        ids = pa.array(self._marks, pa.string())
        is_marked = pc.is_in(clips.column("clip_id"), value_set=ids)
        for number in pc.indices_nonzero(is_marked).to_pylist():
            clip = clips[number]
            mark = self._marks[clip.clip_id]
            if clip.decision == "kept" and mark.caption is not None:
                clip.caption, clip.caption_model, clip.caption_failure = mark.caption, BY_HAND, None
            if clip.decision == "kept" and self._has_columns:
                for name, value in _values(mark).items():
                    clips.change(number, name, value)

    def facts(self, clips: ClipColumns, store: Store) -> dict[str, Any]:
        """Returns counts of marks for the summary, and warns of marks without effect.

        `clips` are all clips of the pass; `store` has the rows of earlier generations.
        """
        if not self._marks:
            return {}
        names = ["clip_id", "decision", "caption", *(field.name for field in self.columns())]
        parts = self._before["tables"]["clips"] if self._before is not None else ()
        n_old, old = self._without_effect(read_parquet(store, part, names) for part in parts)
        n_new, new = self._without_effect(clips.blocks(names))
        why = "run.mode is growing: `curate remove` takes clips out, run.mode=exact decides again"
        for lost, reason in ((old, why), (new, "`curate explain` says why")):
            if lost:
                logger.warning(
                    "%d marks have no effect, such as of %s; %s", len(lost), lost[0], reason
                )
        n_lost, n_clips = len(old) + len(new), n_old + n_new
        return {
            SUMMARY_KEY: {
                "honoured": n_clips - n_lost,
                "without_effect": n_lost,
                "without_clip": len(self._marks) - n_clips,
                "columns": self._has_columns,
            }
        }

    def _without_effect(self, blocks: Iterable[pa.Table]) -> tuple[int, list[str]]:
        """Returns the number of marked clips, and the ids of clips that contradict their mark."""
        ids = pa.array(self._marks, pa.string())
        own = (block.filter(pc.is_in(block["clip_id"], value_set=ids)) for block in blocks)
        rows = [row for block in own for row in block.to_pylist()]
        return len(rows), [
            r["clip_id"] for r in rows if not has_effect(self._marks[r["clip_id"]], r)
        ]


def has_effect(mark: Mark, row: Mapping[str, Any]) -> bool:
    """Returns whether a row of `clips` agrees with the mark of its clip."""
    is_kept = row["decision"] == "kept"
    if not is_kept or mark.verdict == "drop":
        return is_kept == (mark.verdict == "keep") or mark.verdict is None
    has_values = all(row.get(name) == value for name, value in _values(mark).items())
    return has_values and mark.caption in (None, row["caption"])


def _values(mark: Mark) -> dict[str, str]:
    """Returns the values of a mark that the columns of a kept clip hold, without empty ones."""
    verdict = "keep" if mark.verdict == "keep" else None
    values = zip(MARK_COLUMNS, (verdict, mark.label, mark.note), strict=True)
    return {name: value for name, value in values if value is not None}
