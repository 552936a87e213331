"""Filtering a table of clips: the same as clip by clip, and what each rule is counted for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from filtered_clips import decide, needs
from one_by_one import flags, verdicts_on

from curator.measures.clip_semantics import SemanticConfig
from curator.measures.filtering import FilteredClips, corpus_of, filter_table
from curator.measures.rule_config import FilterConfig
from curator.measures.rules import resolve
from curator.measures.score_list import SCORES
from curator.records.clips import Reason
from curator.stages.shard.config import ShardConfig
from curator.tables.schemas import candidates_schema


def clips_with(n: int, **columns: Sequence[Any]) -> pa.Table:
    """Candidates of 1280x720 and 5 s, with what is changed; scores are 1."""
    values: dict[str, Sequence[Any]] = {
        "clip_id": [f"{number:024x}" for number in range(n)], "source_id": ["s"] * n,
        "width": [1280] * n, "height": [720] * n, "n_frames": [150] * n, "seconds": [5.0] * n,
        "written_fps": [30.0] * n, "tags": [[]] * n, **{name: [1.0] * n for name in SCORES},
    }  # fmt: skip
    values |= columns
    arrays = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else pa.nulls(n, field.type)
        for field in candidates_schema(SCORES)
    ]
    return pa.table(arrays, schema=candidates_schema(SCORES))


def decided(clips: pa.Table, rules: dict[str, dict[str, Any]]) -> FilteredClips:
    config = FilterConfig.model_validate(rules).root
    return decide(clips, config, min_s=2.0, shard=ShardConfig())


def counts(result: FilteredClips) -> dict[str, tuple[int, int, int]]:
    return {rule.rule: (rule.n_first, rule.n_alone, rule.n_any) for rule in result.rules}


def test_a_table_is_filtered_as_its_clips_are_one_by_one() -> None:
    """Pins every column against `verdicts_on` and `flags`, on random scores with ties and gaps."""
    rng = np.random.default_rng(7)
    n, names = 500, list(SCORES)[:11]
    scores = {
        name: [None if gap else float(value) for gap, value in zip(
            rng.random(n) < 0.1, rng.integers(0, 20, n) / 4, strict=True)]
        for name in names
    }  # fmt: skip
    clips = clips_with(
        n,
        **scores,
        seconds=[float(s) for s in rng.choice([1.0, 2.0, 5.0], n)],
        tags=[["pan_left"] if odd else [] for odd in rng.random(n) < 0.5],
    )
    rules: dict[str, dict[str, Any]] = {
        name: {"min": 0.5, "max": 4.0} for name in names[: len(names) // 2]
    }
    rules |= {name: {"drop_lowest": 0.1, "max": 4.5} for name in names[len(names) // 2 : -1]}
    rules |= {
        "odd_" + names[0]: {"score": names[0], "max": 3.0, "severity": "flag"},
        names[-1]: {"min": 1.0, "drop_highest": 0.2, "severity": "flag"},
    }
    long_enough = [s >= 2.0 for s in clips["seconds"].to_pylist()]

    def corpus(name: str) -> np.ndarray:
        pairs = zip(scores[name], long_enough, strict=True)
        return np.array([value for value, keep in pairs if keep and value is not None])

    bounds = resolve(FilterConfig.model_validate(rules).root, corpus)
    rows = decided(clips, rules).clips.to_pylist()
    assert {row["decision"] for row in rows} == {"kept", "rejected"}
    for number, row in enumerate(rows):
        clip = {name: values[number] for name, values in scores.items()}
        verdicts = verdicts_on(clip, bounds)
        reasons = ([] if long_enough[number] else ["too_short"]) + [str(v.reason) for v in verdicts]
        assert row["reasons"] == list(dict.fromkeys(reasons))
        assert row["decision"] == ("rejected" if reasons else "kept")
        assert row["reason"] == (reasons[0] if reasons else None)
        if long_enough[number] and verdicts:
            assert row["reason_score"] == verdicts[0].score
            assert row["reason_threshold"] == verdicts[0].threshold
        own = clips["tags"][number].as_py()
        assert row["tags"] == own + flags(clip, bounds)
        assert row["bucket"] == "720p_16-9_129f"


def test_rules_ask_for_what_they_name_and_what_they_take_is_counted() -> None:
    # Pins `unmeasured: keep` by columns and one by one; the bound itself still holds.
    clips = clips_with(3, motion=[None, 0.2, 3.0])
    rules: dict[str, Any] = {"motion": {"max": 2.0, "unmeasured": "keep"}}
    rows = decided(clips, rules).clips.to_pylist()
    assert [row["reasons"] for row in rows] == [[], [], ["motion_too_high"]]
    bounds = resolve(FilterConfig.model_validate(rules).root)
    assert verdicts_on(dict.fromkeys(SCORES), bounds) == []
    # Pins that clips of a table from before a score existed count as unmeasured.
    older = clips_with(3).drop_columns(["title_card"])
    for unmeasured, reasons in (("keep", []), ("reject", ["not_measured"])):
        rule = {"title_card": {"max": 0.5, "unmeasured": unmeasured}}
        bounds = resolve(FilterConfig.model_validate(rule).root)
        rows = filter_table(older, bounds, needs(ShardConfig())).clips.to_pylist()
        assert [row["reasons"] for row in rows] == 3 * [reasons]
    # Pins that a rule on `fps` is about the score, and not the rate that the clip is written at.
    clips = clips_with(2, written_fps=[30.0, 30.0], fps=[8.0, 29.0])
    rows = decided(clips, {"fps": {"min": 9.5}}).clips.to_pylist()
    assert [row["reasons"] for row in rows] == [["fps_too_low"], []]
    assert [row["written_fps"] for row in rows] == [30.0, 30.0]
    # Pins that an older table without a score can be filtered where no bound asks for it.
    clips = clips_with(3).drop_columns(["noise", "tags"])
    bounds = resolve(FilterConfig.model_validate({"noise": {}, "motion": {"min": 2}}).root)
    result = filter_table(clips, bounds, needs(ShardConfig()))
    assert result.clips["decision"].to_pylist().count("kept") == 0
    # The counts on clips that fail motion, luma, both, nothing, and length with motion.
    clips = clips_with(
        5, motion=[0.0, 1.0, 0.0, 1.0, 0.0], luma=[1.0, 0.0, 0.0, 1.0, 1.0],
        seconds=[5.0, 5.0, 5.0, 5.0, 1.0],
    )  # fmt: skip
    result = decided(clips, {"motion": {"min": 0.5}, "luma": {"min": 0.5}})
    assert counts(result) == {
        "propose.min_s": (1, 0, 1),
        "motion": (2, 1, 3),
        "luma": (1, 1, 2),
        "shard.bucket": (0, 0, 0),
    }
    assert result.clips["decision"].to_pylist().count("kept") == 1


def test_content_types_are_checked_after_rules_and_before_buckets() -> None:
    """Pins the order of reasons and counts, the bound itself, and that no type is no reason."""
    clips = clips_with(
        6, content_type=["ad", "ad", "ad", "sea", None, "ad"],
        content_probability=[0.9, 0.5, 0.49, 0.9, None, 0.9], motion=[0.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        width=[100, 1280, 1280, 1280, 1280, 1280], seconds=[5.0, 5.0, 5.0, 5.0, 5.0, 1.0],
    )  # fmt: skip
    config = FilterConfig.model_validate({"motion": {"min": 0.5}}).root
    unwanted = SemanticConfig(reject=("ad", "other"), reject_from=0.5)
    result = decide(clips, config, min_s=2.0, shard=ShardConfig(), semantic=unwanted)
    rows = result.clips.to_pylist()
    assert [row["reasons"] for row in rows] == [
        ["motion_too_low", "content_type_unwanted", "no_bucket"], ["content_type_unwanted"],
        [], [], [], ["too_short", "content_type_unwanted"],
    ]  # fmt: skip
    assert (rows[1]["reason_score"], rows[1]["reason_threshold"]) == (0.5, 0.5)
    assert list(counts(result)) == ["propose.min_s", "motion", "semantic.reject", "shard.bucket"]
    assert counts(result)["semantic.reject"] == (1, 1, 3)
    assert "semantic.reject" not in counts(decided(clips, {}))


def test_every_clip_has_a_bucket_or_a_reason() -> None:
    """Pins the reason for odd shapes, its score and bound, and buckets by content type."""
    clips = clips_with(
        6,
        width=[1280, 1720, 1720, 0, 1280, 720],
        height=[720, 720, 720, 0, 720, 1280],
        n_frames=[150, 150, 10, 150, 150, 150],
        content_type=["sea", "ad", "ad", "sea", None, "sea"],
    )
    config = ShardConfig(aspects_strict=True, by_content_type=True)
    result = decide(clips, {}, min_s=2.0, shard=config)
    rows = result.clips.to_pylist()
    assert [row["reasons"] for row in rows] == [
        [], ["no_aspect_class"], ["no_bucket", "no_aspect_class"], ["no_bucket"], [], [],
    ]  # fmt: skip
    assert [row["bucket"] for row in rows] == [
        "720p_16-9_129f_sea", None, None, None, "720p_16-9_129f_unknown", "720p_9-16_129f_sea",
    ]  # fmt: skip
    assert rows[1]["reason_score"] == pytest.approx(0.256, abs=0.001)
    assert rows[1]["reason_threshold"] == 0.1
    assert (rows[2]["reason_score"], rows[2]["reason_threshold"]) == (10, 17)
    assert counts(result)["shard.bucket"] == (3, 3, 3)
    lenient = decided(clips, {}).clips.to_pylist()
    assert [row["bucket"] for row in lenient[:2]] == ["720p_16-9_129f"] * 2


def test_a_flag_keeps_the_clip_and_names_what_it_misses() -> None:
    """Pins both forms of a tag, that an absent score gives none, and that flags reject nothing."""
    rules = {
        "noise": {"max": 2.0, "severity": "flag"},
        "grainy": {"score": "noise", "max": 1.5, "severity": "flag"},
        "motion": {"min": 0.5},
    }
    clips = clips_with(4, noise=[3.0, 1.7, None, 3.0], motion=[1.0, 1.0, 1.0, 0.0])
    result = decided(clips, rules)
    rows = result.clips.to_pylist()
    assert [row["tags"] for row in rows] == [
        ["noise_too_high", "grainy"], ["grainy"], [], ["noise_too_high", "grainy"],
    ]  # fmt: skip
    assert [row["decision"] for row in rows] == ["kept", "kept", "kept", "rejected"]
    assert [row["reasons"] for row in rows[:3]] == [[], [], []]
    assert counts(result)["noise"] == (0, 0, 2)
    assert counts(result)["grainy"] == (0, 0, 3)


def test_a_bound_by_quantile_is_of_all_clips_that_are_long_enough() -> None:
    """Pins the corpus: clips that other rules reject count, short ones and gaps do not."""
    clips = clips_with(
        13,
        sharpness=[*map(float, range(10)), -1.0, -1.0, None],
        seconds=[5.0] * 10 + [1.0, 1.0, 5.0],
        motion=[0.0] * 5 + [1.0] * 8,
    )
    result = decided(clips, {"motion": {"min": 0.5}, "sharpness": {"drop_lowest": 0.2}})
    (rule,) = [rule for rule in result.rules if rule.rule == "sharpness"]
    assert rule.bounds is not None
    assert (rule.bounds.min, rule.bounds.n_measured) == (2.0, 10)
    rows = result.clips.to_pylist()
    assert [row["reasons"] for row in rows[:6]] == [
        ["motion_too_low", "sharpness_too_low"], ["motion_too_low", "sharpness_too_low"],
        ["motion_too_low"], ["motion_too_low"], ["motion_too_low"], [],
    ]  # fmt: skip
    assert rows[12]["reasons"] == ["not_measured"]


@pytest.mark.parametrize("rules", [{}, {"motion": {"drop_lowest": 0.5}}])
def test_no_clips_are_no_error(rules: dict[str, dict[str, Any]]) -> None:
    """Pins that a corpus without clips has tables with all columns."""
    result = decided(candidates_schema(SCORES).empty_table(), rules)
    assert result.clips["decision"].to_pylist().count("kept") == 0
    assert set(result.clips.column_names) >= {"decision", "reason", "reasons", "tags", "bucket"}


def test_order_and_division_of_the_table_change_nothing() -> None:
    """Pins that each clip's row is the same in a shuffled table of several chunks."""
    rng = np.random.default_rng(3)
    clips = clips_with(60, sharpness=rng.random(60).round(1), width=[640] * 30 + [100] * 30)
    rules = {"sharpness": {"drop_lowest": 0.3, "drop_highest": 0.1}}
    expected = {row["clip_id"]: row for row in decided(clips, rules).clips.to_pylist()}
    order = pa.array(rng.permutation(60))
    mixed = pa.concat_tables([clips.take(order[:17]), clips.take(order[17:])])
    result = decided(mixed, rules)
    assert {row["clip_id"]: row for row in result.clips.to_pylist()} == expected
    assert {row["reason"] for row in expected.values()} >= {None, str(Reason.NO_BUCKET)}


def test_windows_have_no_least_length_and_their_ends_are_kept_by_size() -> None:
    """Pins min_s and max_s against windows and ends, and the corpus of quantiles."""
    clips = clips_with(
        6, window_frames=[81, 81, 81, 81, None, 81],
        window_fps=[16.0, 16.0, None, 16.0, None, 16.0],
        n_frames=[81, 40, 40, 30, 150, 81], seconds=[1.0, 2.5, 2.5, 1.0, 1.0, 200.0],
        motion=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    )  # fmt: skip
    every = needs(ShardConfig(), max_s=60.0)
    some = replace(every, kept_ends=frozenset({(81, 16.0, None)}))
    end = ["shorter_than_window"]
    for of, expected, corpus in (
        (every, [[], end, end, end, ["too_short"], []], [1.0, 6.0]),
        (some, [[], [], end, ["too_short"], ["too_short"], []], [1.0, 2.0, 6.0]),
    ):
        result = filter_table(clips, [], of)
        assert result.clips["reasons"].to_pylist() == expected
        assert corpus_of(clips, of)("motion").tolist() == corpus
        assert counts(result)["propose.windows"][0] == sum(row == end for row in expected)
    row = filter_table(clips, [], every).clips.to_pylist()[1]
    assert (row["reason_score"], row["reason_threshold"]) == (40, 81)
