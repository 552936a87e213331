"""Gives the page of `curate view` clips, facts of a clip, pictures and MP4s of a finished run."""

import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import inf
from threading import RLock
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel

from curator.errors import UsageError
from curator.measures.filtering import Mask
from curator.records.clips import CLAIMS_COLUMN, ClipFormat, format_of
from curator.records.sources import Medium
from curator.tables.candidate_store import read_all_pictures
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import KeyIndex
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.disk_table import taken
from curator.tables.mark_table import Mark, MarkWriter, read_marks
from curator.tables.output_format import read_current_summary
from curator.tables.proof_store import by_reason, read_proofs
from curator.tables.sql_condition import matching_clips
from curator.tools.report.contact_sheets import listed_clusters
from curator.tools.report.page_templates import clean
from curator.tools.retrieval.clip_search import ClipSearch
from curator.tools.retrieval.search_results import match_words
from curator.tools.review.bound_tuning import tune
from curator.tools.review.clip_explanation import explain
from curator.tools.review.clip_marking import CONTENT, SPAN, changed_mark
from curator.tools.review.finished_run import Finished, has_tag
from curator.tools.view.live_funnel import KEPT, LiveFunnel, Outcomes
from curator.tools.view.source_clip import source_clip
from curator.trainers.fit_words import seen_line

PAGE = 60
"""Clips of a page."""
MAX_PAGE = 240
MAX_PICTURES = 2_000
"""Clips whose pictures are held."""
MAX_GROUPS = 200
"""Most tags, buckets and clusters that can be chosen from."""
MAX_SHOTS = 5_000
BY_FILE = "file name"
"""Order by the names of source files and the times in them; no score has a space in its name."""
CHECK_S = 1.0
"""Seconds between two looks for removals: on S3 each is a request."""
_CARD = (
    "clip_id", "source_id", "source_uri", "start_s", "end_s", "decision", "reason", "caption",
    "cluster", "duplicate_of",
)  # fmt: skip
"""Columns of a clip that its card has as they are."""
_MEDIA_TYPES: dict[ClipFormat, str] = {
    "mp4": "video/mp4", "jpg": "image/jpeg", "png": "image/png", "webp": "image/webp",
}  # fmt: skip
Side = Literal["kept", "rejected", "gained", "lost"]
Json = dict[str, Any]


class ClipQuery(BaseModel):
    """Filters and order of the clips on a page; None and empty values exclude no clip.

    Attributes:
        changes: Changes of the recipe; outcomes are the outcomes under these changes.
        side: Kept clips, rejected clips, or clips that the changes newly keep or newly reject.
        reason: First reason of the clip.
        tag: One of the clip's tags.
        bucket: Bucket of the clip.
        cluster: Cluster of the clip.
        source: Id of the clip's source.
        mark: `keep`, `drop`, `label`, `note`, `caption`, or `none`.
        where: SQL condition over columns of `clips`.
        sort: A score, or `BY_FILE`; None for the order of sources.
        descending: Whether high values come first. Clips without a value come last.
    """

    changes: list[str] = []
    side: Side | None = None
    reason: str | None = None
    tag: str | None = None
    bucket: str | None = None
    cluster: int | None = None
    source: str | None = None
    mark: str | None = None
    where: str | None = None
    sort: str | None = None
    descending: bool = False


class ViewedRun:
    """The run that `curate view` serves. Several threads may call its methods.

    Args:
        finished: The run.
        writer: Stores marks. It must be older than `finished`, to notice every later removal.
    """

    def __init__(self, finished: Finished, writer: MarkWriter) -> None:
        self.finished, self.writer = finished, writer
        self.clips = finished.clips
        self.funnel = LiveFunnel(finished)
        self.marks = read_marks(finished.store)
        self._lock = RLock()
        self._rows = KeyIndex(self.clips["clip_id"])
        self._pictures: OrderedDict[str, list[bytes]] = OrderedDict()
        self._shown: list[str] = []
        self._checked_s = -inf
        # Many pages in a row have one condition and few orders.
        self._fulfils = lru_cache(1)(self._matching)
        self._order_of = lru_cache(4)(self._sorted_by)
        self._counts_now = self.funnel.counts(self.funnel.now)
        self._mark_funnel()

    def overview(self) -> Json:
        """Returns facts that stay the same while the page is open; reads marks of other writers."""
        with self._lock:
            self.marks = read_marks(self.finished.store)
            self._mark_funnel()
        summary, specs = self.finished.summary, self.finished.measures.specs
        ruled = self._bounded_scores()
        names = [name for name in (*ruled, *specs) if self._is_measured(name)]
        listed = listed_clusters(summary)
        words = {entry["cluster"]: ", ".join(entry.get("words", ())) for entry in listed}
        return {
            "uri": self.finished.store.uri,
            "snapshot": summary.get("snapshot"),
            "newest": read_current_summary(self.finished.store).get("snapshot"),
            "n_clips": self.clips.num_rows,
            "fit": [seen_line(facts) for facts in summary.get("fit") or ()],
            "scores": [
                {"name": n, "unit": specs[n].unit, "meaning": specs[n].meaning}
                | {"is_bounded": n in ruled}
                for n in dict.fromkeys(names)
                if n in specs
            ],
            "rules": [
                {"rule": name, "score": rule.score or name}
                | {key: getattr(rule, key) for key in ("severity", "drop_lowest", "drop_highest")}
                for name, rule in self.finished.recipe.filters.root.items()
            ],
            "reasons": self._counted("reason"),
            "proofs": by_reason(read_proofs(self.finished.store), summary),
            "buckets": self._counted("bucket"),
            "tags": self._counted("tags"),
            "clusters": [
                {"cluster": number, "n": n, "words": words.get(number, "")}
                for number, n in self._counted("cluster")
            ],
            "can_search": {
                "text": match_words(self._search.default_match),
                "picture": self.finished.recipe.analyze.scenes,
            },
        }

    def funnel_of(self, changes: Sequence[str], scores: Sequence[str]) -> Json:
        """Returns the funnel of the run, the funnel with changes, and histograms of scores."""
        with self._lock:
            outcomes = self.funnel.decide(changes)
            (now, now_s), (then, then_s) = self._counts_now, self.funnel.counts(outcomes.codes)
            now += [0] * (len(then) - len(now))
            counted = zip(self.funnel.reasons, now, then, strict=True)
            rows: list[Json] = [
                {"reason": reason, "now": n_now, "then": n_then}
                for reason, n_now, n_then in counted
                if n_now or n_then or reason is None
            ]
            rows.sort(key=lambda row: (row["reason"] is not None, -row["now"]))
            charts = [
                {
                    "score": name,
                    "axis": axis and [axis.low, axis.high, axis.is_log],
                    "bins": self.funnel.histogram(name, outcomes.codes),
                }
                for name in filter(self._is_measured, scores)
                for axis in (self.funnel.score(name).axis,)
            ]
        rules = [
            {"rule": b.rule, "score": b.score, "min": b.min, "max": b.max, "severity": b.severity}
            for b in outcomes.bounds
            if b.min is not None or b.max is not None
        ]
        kept_s = [now_s[KEPT], then_s[KEPT]]
        return {"rows": rows, "kept_s": kept_s, "charts": charts, "rules": rules}

    def exactly(self, changes: Sequence[str]) -> Json:
        """Returns the funnel of `curate tune`, which decides duplicates and selection again."""
        # The copy reads marks again.
        tuned = tune(replace(self.finished), changes)
        now, then = Counter(tuned.now), Counter(tuned.then)
        return {
            "rows": [
                {"reason": name, "now": now[name], "then": then[name]}
                for name in dict.fromkeys([None, *(name for name, _ in now.most_common()), *then])
            ],
            "n_lost": len(tuned.moved(was_kept=True)),
            "n_gained": len(tuned.moved(was_kept=False)),
        }

    def page(self, query: ClipQuery, start: int, n: int) -> Json:
        """Returns clips of a query, from number `start`; `UsageError` for a wrong condition."""
        self.refuse_removed()
        if query.where is not None:
            # Before the lock: it may take long.
            self._fulfils(query.where)
        with self._lock:
            outcomes = self.funnel.decide(query.changes)
            rows = self._ordered(query, self._wanted(query, outcomes))
            shown = rows[start : start + min(n, MAX_PAGE)]
            return {"n": len(rows), "clips": self.cards(shown.tolist(), outcomes)}

    def search(self, by: str, query: str, k: int, where: str | None) -> list[Json]:
        """Returns the nearest clips to a clip, a picture, a video or a text, with their scores."""
        self.refuse_removed()
        with self._lock:
            matches = self._search.find(by, query, k, where)
            rows = self._rows.find_all([match.clip_id for match in matches]).tolist()
            cards = self.cards(rows, self.funnel.decide(()))
        return [
            card | {"similarity": match.score, "at_s": match.at_s, "words": match.words}
            for card, match in zip(cards, matches, strict=True)
        ]

    def cards(self, rows: Sequence[int], outcomes: Outcomes) -> list[Json]:
        """Returns the facts on the card of each clip."""
        with self._lock:
            clips = self._clips(rows)
            self._shown = [clip.clip_id for clip in clips]
            return [
                self._facts(clip, self._outcome(row, outcomes))
                for row, clip in zip(rows, clips, strict=True)
            ]

    def clip(self, clip_id: str, changes: Sequence[str]) -> Json:
        """Returns all facts of a clip, spans in its source, and the original of a duplicate."""
        self.refuse_removed()
        with self._lock:
            row = self.row_of(clip_id)
            outcomes = self.funnel.decide(changes)
            (clip,) = self._clips([row])
            other = None
            if clip.duplicate_of is not None:
                at = self._rows.find_all([clip.duplicate_of]).tolist()
                other = self.cards(at, outcomes)[0] if at[0] >= 0 else None
            scores = {name: value for name, value in clip.scores.items() if value is not None}
            candidates = self.funnel.stored
            if row >= candidates.num_rows:
                candidates = None
            return {
                **self._facts(clip, self._outcome(row, outcomes)),
                "scores": scores,
                "declared": {
                    name: str(value)
                    for name, value in clip.declared().items()
                    if name != CLAIMS_COLUMN
                },
                "explanation": explain(
                    # A search for duplicates takes seconds.
                    replace(self.finished),
                    clip_id,
                    candidates,
                    max_tried=0,
                ),
                "original": other,
                "overlap_s": clip.duplicate_overlap_s,
                "offset_s": clip.duplicate_offset_s,
                "source": self._source(clip.source_id, outcomes),
            }

    def refuse_removed(self) -> None:
        """Raises `UsageError` if `curate remove` took footage out since the run was opened.

        Memory still holds rows and pictures of the removed clips.
        """
        now_s = time.monotonic()
        if now_s >= self._checked_s + CHECK_S:
            self.writer.refuse_removed()
            self._checked_s = now_s

    def pictures(self, clip_id: str) -> list[bytes]:
        """Returns thumbnails of a clip, and reads those of the other clips of its page."""
        self.refuse_removed()
        with self._lock:
            if clip_id not in self._pictures:
                ids = [clip_id, *(name for name in self._shown if name not in self._pictures)]
                stored = read_all_pictures(
                    self.finished.store, self.finished.stored_objects("pictures"), ids
                )
                for name in ids:
                    self._pictures[name] = stored.get(name, [])
                while len(self._pictures) > MAX_PICTURES:
                    self._pictures.popitem(last=False)
            return self._pictures.get(clip_id, [])

    def mp4_of(self, clip_id: str) -> tuple[str, int, int, str]:
        """Returns the tar of a clip's file, first byte, length, and type; `UsageError` without."""
        self.refuse_removed()
        (clip,) = self._clips([self.row_of(clip_id)])
        if clip.shard is None or clip.mp4_offset is None:
            raise UsageError(f"clip {clip_id} is {clip.decision} and in no tar")
        kind = _MEDIA_TYPES[format_of(clip.format)]
        return clip.shard, clip.mp4_offset, clip.mp4_bytes, kind

    def source_mp4(self, clip_id: str) -> bytes:
        """Returns an unwritten clip, decoded from its source; `UsageError` if it cannot."""
        self.refuse_removed()
        with self._lock:
            (clip,) = self._clips([self.row_of(clip_id)])
            version = self._versions.get(clip.source_uri)
        return source_clip(clip, version)

    def mark(self, clip_id: str, changes: Json, query: ClipQuery | None = None) -> Json:
        """Changes fields of a clip's mark, None clears one; `UsageError` for a wrong one.

        Returns the mark, the clip's outcome, and whether and how many clips fulfil `query` now.
        """
        query = query or ClipQuery()
        if query.where is not None:
            self._fulfils(query.where)
        with self._lock:
            row = self.row_of(clip_id)
            (clip,) = self._clips([row])
            # Another writer may have marked the clip meanwhile.
            self.marks = read_marks(self.finished.store)
            span = {name: getattr(clip, name) for name in SPAN}
            mark = changed_mark(self.marks.get(clip_id), span, changes)
            self.writer.put(mark)
            self.marks.pop(clip_id, None)
            if mark.content:
                self.marks[clip_id] = mark
            self._mark_funnel()
            outcomes = self.funnel.decide(query.changes)
            wanted = self._wanted(query, outcomes)
            then = self._outcome(row, outcomes)
        return {
            "mark": _mark_facts(mark),
            "then": then,
            "n": int(wanted.sum()),
            "is_listed": bool(wanted[row]),
        }

    def row_of(self, clip_id: str) -> int:
        """Returns the number of a clip; `UsageError` where there is no such clip."""
        row = int(self._rows.find_all([clip_id])[0])
        if row < 0:
            raise UsageError(f"no clip {clip_id[:80]!r}")
        return row

    @cached_property
    def _search(self) -> ClipSearch:
        return ClipSearch(self.finished, rejected=True)

    @cached_property
    def _versions(self) -> dict[str, str]:
        """The version of each source that the run read, by address."""
        names = ["uri", "version"]
        parts = self.finished.summary["tables"].get("sources", ())
        rows = (read_parquet(self.finished.store, part, names).to_pylist() for part in parts)
        return {row["uri"]: row["version"] for row in itertools.chain.from_iterable(rows)}

    @cached_property
    def _shots(self) -> pa.Table:
        names = ["source_id", "start_s", "end_s"]
        parts = self.finished.summary["tables"].get("shots", ())
        tables = [read_parquet(self.finished.store, part, names) for part in parts]
        return pa.concat_tables(tables) if tables else pa.table({name: [] for name in names})

    def _clips(self, rows: Iterable[int]) -> ClipRows:
        return ClipRows(taken(self.clips, list(rows)), self.clips.schema)

    def _outcome(self, row: int, outcomes: Outcomes) -> str | None:
        """The first reason against a clip with the changes; parts of clips stay as they are."""
        if row < len(outcomes.codes):
            return self.funnel.reasons[int(outcomes.codes[row])]
        part = str(self.clips["reason"][row])
        return None if str(self.clips["decision"][row]) == "kept" else part

    def _facts(self, clip: ClipRow, then: str | None) -> Json:
        mark = self.marks.get(clip.clip_id)
        is_picture = clip.medium == Medium.IMAGE
        is_written = clip.shard is not None and clip.mp4_offset is not None
        facts = {name: getattr(clip, name) for name in _CARD} | {
            "then": then,
            "reasons": clip.reasons or [],
            "tags": clip.tags or [],
            "size": [clip.width, clip.height],
            "can_play": is_written and not is_picture,
            "is_picture": is_picture,
            "is_written": is_written,
            "mark": None if mark is None else _mark_facts(mark),
        }
        return {name: clean(value) for name, value in facts.items()}

    def _source(self, source_id: str, outcomes: Outcomes) -> Json:
        own = pc.indices_nonzero(pc.equal(self.clips["source_id"], source_id)).to_pylist()
        names = ["clip_id", "start_s", "end_s"]
        clips = taken(self.clips.select(names), own[:MAX_SHOTS]).to_pylist()
        shots = self._shots.filter(pc.equal(self._shots["source_id"], source_id))
        return {
            "shots": shots.slice(0, MAX_SHOTS).select(names[1:]).to_pylist(),
            "clips": [
                clip | {"then": self._outcome(row, outcomes)}
                for row, clip in zip(own, clips, strict=False)
            ],
        }

    def _bounded_scores(self) -> list[str]:
        """Returns the scores with a bound: of rules that reject first, by the clips against."""
        facts = {fact["rule"]: fact for fact in self.finished.summary.get("rules") or ()}
        bounded = [b for b in self.funnel.rules if b.min is not None or b.max is not None]
        bounded.sort(key=lambda b: (b.severity, facts.get(b.rule, {}).get("any", 0)), reverse=True)
        return list(dict.fromkeys(bound.score for bound in bounded))

    def _is_measured(self, name: str) -> bool:
        there = self.funnel.candidates.column_names
        return name in there and self.funnel.score(name).n_measured > 0

    def _counted(self, column: str) -> list[tuple[str, int]]:
        values = self.clips[column]
        if pa.types.is_list(values.type):
            values = pc.list_flatten(values)
        rows = pc.value_counts(values.drop_null()).to_pylist()
        counts = sorted(((row["counts"], row["values"]) for row in rows), reverse=True)
        return [(name, n) for n, name in counts[:MAX_GROUPS]]

    def _wanted(self, query: ClipQuery, outcomes: Outcomes) -> Mask:
        """Returns the clips that a query asks for, bool [C], the parts of clips last."""
        n_parts = self.clips.num_rows - len(outcomes.codes)
        now, then = (
            np.append(codes == KEPT, np.zeros(n_parts, np.bool_))
            for codes in (self.funnel.now, outcomes.codes)
        )
        if n_parts:
            is_kept = pc.equal(self.clips["decision"].slice(len(outcomes.codes)), "kept")
            now[-n_parts:] = then[-n_parts:] = is_kept.to_numpy(zero_copy_only=False)
        by_side = {
            "kept": then, "rejected": ~then, "gained": then & ~now, "lost": now & ~then,
        }  # fmt: skip
        wanted = np.ones(len(now), np.bool_) if query.side is None else by_side[query.side]
        if query.reason is not None:
            wanted = wanted & self._has_reason(query.reason, outcomes)
        for column in ("bucket", "cluster", "source"):
            value = getattr(query, column)
            if value is not None:
                name = "source_id" if column == "source" else column
                is_own = pc.equal(self.clips[name], value).fill_null(False)
                wanted = wanted & is_own.to_numpy()
        if query.tag is not None:
            wanted = wanted & has_tag(self.clips, query.tag)
        if query.mark is not None:
            wanted = wanted & self._has_mark(query.mark)
        if query.where is not None:
            wanted = wanted & self._fulfils(query.where)
        return wanted

    def _has_reason(self, reason: str, outcomes: Outcomes) -> Mask:
        code = self.funnel.reasons.index(reason) if reason in self.funnel.reasons else -1
        parts = pc.equal(self.clips["reason"].slice(len(outcomes.codes)), reason)
        return np.append(
            outcomes.codes == code, parts.fill_null(False).to_numpy(zero_copy_only=False)
        ).astype(np.bool_)

    def _mark_funnel(self) -> None:
        if self.finished.recipe.run.marks != "override":
            return
        n = len(self.funnel.now)
        self.funnel.mark(self._has_mark("keep")[:n], self._has_mark("drop")[:n])

    def _has_mark(self, mark: str) -> Mask:
        has = self._among(
            clip_id
            for clip_id, own in self.marks.items()
            if mark in ("none", own.verdict) or getattr(own, mark, None) is not None
        )
        return ~has if mark == "none" else has

    def _matching(self, where: str) -> Mask:
        ids = matching_clips(
            self.clips, where, example="motion > 0.3", instead="leave it out", option="where"
        )
        return self._among(ids)

    def _among(self, clip_ids: Iterable[str]) -> Mask:
        """Returns which clips have one of some ids, bool [C]."""
        is_among = np.zeros(self.clips.num_rows, np.bool_)
        rows = self._rows.find_all(list(clip_ids))
        is_among[rows[rows >= 0]] = True
        return is_among

    def _ordered(self, query: ClipQuery, wanted: Mask) -> NDArray[np.int64]:
        if query.sort is None:
            return np.flatnonzero(wanted)
        order = self._order_of(query.sort)
        if query.descending:
            n = len(order) if query.sort == BY_FILE else self.funnel.score(query.sort).n_measured
            order = np.append(order[:n][::-1], order[n:])
        order = np.append(order, np.arange(len(order), len(wanted)))
        return order[wanted[order]]

    def _sorted_by(self, score: str) -> NDArray[np.int64]:
        if score == BY_FILE:
            uris = self.clips["source_uri"]
            names = pc.utf8_lower(pc.replace_substring_regex(uris, ".*/", ""))
            table = pa.table([names, uris, self.clips["start_s"]], ["name", "uri", "start_s"])
            keys = [(key, "ascending") for key in table.column_names]
            return np.asarray(pc.sort_indices(table, sort_keys=keys), np.int64)
        if not self._is_measured(score):
            raise UsageError(f"no clip has the score {score[:80]!r}")
        return np.argsort(self.funnel.score(score).values, kind="stable")


def _mark_facts(mark: Mark) -> Json:
    return {name: getattr(mark, name) for name in CONTENT}
