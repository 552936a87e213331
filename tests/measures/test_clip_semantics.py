"""Scores that are read from CLIP embeddings and descriptors, and what preflight asks for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filtered_clips import decide
from numpy.typing import NDArray
from samples import made_track
from tiny_clip import tiny_folder

from curator.errors import ModelError, UsageError
from curator.measures.clip_models import Semantics
from curator.measures.clip_semantics import NEEDS, SemanticConfig, content_of
from curator.measures.clip_view import ClipView
from curator.measures.consistency import lowest_similarity
from curator.measures.rule_config import FilterConfig
from curator.measures.score_list import BUILT_IN, SCORES
from curator.models import embedding_heads as prompts
from curator.models.embedding_heads import Heads, LinearHead, ZeroShot, load_prompts
from curator.models.weight_store import ModelStore
from curator.records.clips import Reason, Span
from curator.records.tracks import Track
from curator.stages.propose.candidate_row import candidate_of
from curator.stages.shard.config import ShardConfig
from curator.tables.clip_rows import candidates_table

SPAN = Span(start_frame=60, end_frame=180, shot=0)
HEADS = Heads(
    aesthetic=LinearHead(np.array([2.0, 0, 0, 0]), 3.0),
    content=ZeroShot(("road", "sea", "cat"), np.eye(3, 4), scale=100.0),
    safety=ZeroShot(("safe", "bad"), np.eye(4)[[0, 3]], scale=100.0),
    unsafe=("bad",),
)


def seen(*rows: list[float], frames: tuple[int, ...] = (30, 60, 90, 179, 180)) -> Track:
    """A track whose CLIP model looked at some frames."""
    embeddings = np.array(rows, np.float16)
    return made_track(300, clip_frame=np.array(frames, np.int32), clip_embedding=embeddings)


TRACK = seen([0, 0, 0, 1], [1, 0, 0, 0], [0.8, 0.6, 0, 0], [0.6, 0.8, 0, 0], [0, 0, 0, 1])


def scores(track: Track, heads: Heads | None, **aggregates: str) -> dict[str, float | None]:
    return BUILT_IN.score_clip(track, SPAN, aggregates, heads)  # type: ignore[arg-type]


def test_scores_are_of_the_pictures_within_the_clip_and_absent_without_a_model() -> None:
    # Pins that frames 60 to 179 count, and the aggregation that the recipe may choose.
    found = scores(TRACK, HEADS)
    assert found["aesthetic"] == pytest.approx(3 + 2 * (1 + 0.8 + 0.6) / 3, abs=2e-3)
    assert scores(TRACK, HEADS, aesthetic="min")["aesthetic"] == pytest.approx(4.2, abs=2e-3)
    assert found["consistency"] == pytest.approx(0.6, abs=1e-3)
    assert found["nsfw"] == pytest.approx(0, abs=1e-6)
    # Pins that the highest probability counts, not the mean.
    track = seen([1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0])
    assert scores(track, HEADS)["nsfw"] == pytest.approx(1)
    # Pins a clip of two pictures of a road and one of the sea.
    name, probability = content_of(ClipView(TRACK, SPAN, HEADS))
    assert name == "road"
    assert probability == pytest.approx(2 / 3, abs=1e-3)
    assert scores(TRACK, HEADS)["content_probability"] == probability
    # Absence, not zero: without embeddings, without heads, and without pictures inside.
    outside = seen([1, 0, 0, 0], frames=(10,))
    for track, heads in ((made_track(300), HEADS), (outside, HEADS), (made_track(300), None)):
        assert [scores(track, heads)[name] for name in NEEDS] == [None] * len(NEEDS)
        assert content_of(ClipView(track, SPAN, heads)) == (None, None)
    found = scores(TRACK, None)
    assert found["consistency"] is not None
    assert [found[name] for name in NEEDS if name != "consistency"] == [None] * 3
    assert scores(TRACK, Heads())["nsfw"] is None


def test_consistency_is_the_lowest_of_neighbours_and_of_the_first() -> None:
    # Pins cuts, slow drift away from the first picture, and what cannot be compared.
    turned = np.array([[np.cos(a), np.sin(a)] for a in (0, 0.5, 1.0, 1.5)])
    assert lowest_similarity(turned) == pytest.approx(np.cos(1.5))
    cut = np.array([[1, 0], [1, 0], [0, 1], [1, 0.0]])
    assert lowest_similarity(cut) == pytest.approx(0)
    there_and_back = np.array([[1, 1], [-1, 1], [1, -1.0]])
    assert lowest_similarity(there_and_back) == pytest.approx(-1)
    assert lowest_similarity(np.array([[1, 0], [0, 0], [2, 0.0]])) == pytest.approx(1)
    assert lowest_similarity(np.eye(1)) is None
    assert lowest_similarity(np.zeros((3, 2))) is None
    # Pins that a change of layout within the clip shows, and one outside does not.
    track = made_track(300)

    def with_change(frame: int) -> NDArray[np.float32]:
        changed = track.sample_frame >= frame
        return np.eye(2, 8, dtype=np.float32)[changed.astype(int)]

    for frame, expected in ((100, 0.0), (20, 1.0), (200, 1.0)):
        made = made_track(300, descriptor=with_change(frame))
        assert scores(made, None)["layout_consistency"] == pytest.approx(expected)


def row(track: Track, semantic: SemanticConfig, heads: Heads | None = HEADS) -> dict[str, object]:
    made = candidate_of(track, SPAN, "u", aggregates={}, crop_borders=False, heads=heads)
    clips = candidates_table([made], SCORES)
    decided = decide(clips, {}, min_s=2.0, shard=ShardConfig(), semantic=semantic)
    (filtered,) = decided.clips.to_pylist()
    return filtered


def test_unwanted_content_types_are_rejected_when_sure() -> None:
    """Pins the column, the reason and the bound of `semantic.reject`."""
    kept = row(TRACK, SemanticConfig(reject=("sea",)))
    assert (kept["content_type"], kept["decision"]) == ("road", "kept")
    rejected = row(TRACK, SemanticConfig(reject=("road", "cat")))
    assert rejected["reason"] == Reason.CONTENT_TYPE_UNWANTED
    assert rejected["reason_score"] == pytest.approx(2 / 3, abs=1e-3)
    assert rejected["reason_threshold"] == 0.5
    unsure = row(TRACK, SemanticConfig(reject=("road",), reject_from=0.7))
    assert unsure["decision"] == "kept"
    unknown = row(made_track(300), SemanticConfig(reject=("road",)))
    assert (unknown["content_type"], unknown["decision"]) == (None, "kept")


def test_the_packaged_taxonomy_has_26_types() -> None:
    # Pins the number that Predict2.5 balances by, and that no prompt stands twice.
    packaged = load_prompts()
    assert len(packaged.content) == 26
    flat = [p for words in (packaged.content | packaged.safety).values() for p in words]
    assert len(set(flat)) == len(flat)
    assert packaged.texts(["x"]) == [t.format("x") for t in packaged.templates]
    # Every score that needs a model is a score.
    assert set(NEEDS) < set(SCORES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("templates: ['{}']\ncontent: {a: [x], b: [y]}", "safety"),
        ("templates: ['{}']\ncontent: {a: [x], b: []}\nsafety: {s: [x], u: [y]}\nunsafe: [u]",
         "b has no prompt"),
        ("templates: ['a']\ncontent: {a: [x], b: [y]}\nsafety: {s: [x], u: [y]}\nunsafe: [u]",
         "template 'a'"),
        ("templates: ['{}']\ncontent: {a: [x], b: [y]}\nsafety: {s: [x], u: [y]}\nunsafe: [v]",
         "unsafe is"),
    ],
)  # fmt: skip
def test_prompts_of_another_form_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ModelError, match=words):
        load_prompts(str(tmp_path / "p.yaml"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    return ModelStore(str(tiny_folder(tmp_path_factory.mktemp("models"))))


def rejecting(rules: dict[str, Any]) -> dict[str, str]:
    return FilterConfig.model_validate(rules).rejecting()


def refusal(
    store: ModelStore,
    clip: str | None,
    *,
    rules: dict[str, dict[str, Any]],
    by: tuple[str, ...] = (),
    **semantic: object,
) -> str:
    with pytest.raises(UsageError) as caught:
        Semantics(SemanticConfig.model_validate(semantic), clip, store).check(rejecting(rules), by)
    return str(caught.value)


@pytest.mark.parametrize("name", NEEDS)
def test_a_rule_on_a_score_that_is_not_made_names_the_remedy(models: ModelStore, name: str) -> None:
    """Pins, for every score that needs a model, the message and that bounds alone ask for it."""
    message = refusal(models, None, rules={name: {"min": 0.1}})
    assert message.startswith(f"filters.{name} asks for a score that is not made; set analyze.clip")
    assert "curate models pull" in message
    Semantics(SemanticConfig(), None, models).check(rejecting({name: {}}))


@pytest.mark.parametrize(
    ("clip", "semantic", "rules", "words"),
    [
        ("test-tiny", {}, {"aesthetic": {"min": 4}}, "semantic.aesthetic=laion-mlp-l-14"),
        ("test-tiny", {"content": False}, {"content_probability": {"min": 0.1}},
         "semantic.content switches off"),
        ("test-tiny", {"safety": False}, {"nsfw": {"max": 0.5}}, "semantic.safety switches off"),
        (None, {"aesthetic": "test-head"}, {}, "set analyze.clip=test-tiny"),
        ("openai-vit-b-32", {"aesthetic": "test-head"}, {}, "analyze.clip is openai-vit-b-32"),
        ("openai-vit-b-32", {}, {}, "`curate models pull openai-vit-b-32`"),
        ("test-tiny", {"reject": ["aerail"]}, {}, "did you mean 'aerial'"),
        (None, {"reject": ["aerial"]}, {}, "semantic.reject asks for content types; set analyze"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(
    models: ModelStore,
    clip: str | None,
    semantic: dict[str, object],
    rules: dict[str, dict[str, float]],
    words: str,
) -> None:
    assert words in refusal(models, clip, rules=rules, **semantic)


@pytest.mark.parametrize("rule", [{"drop_lowest": 0.1}, {"drop_highest": 0.1}, {"min": 1}])
def test_every_kind_of_rule_asks_for_its_score(models: ModelStore, rule: dict[str, Any]) -> None:
    """Pins bounds by quantile, rules with names of their own, and that a flag asks for nothing."""
    message = refusal(models, "test-tiny", rules={"pretty": {"score": "aesthetic", **rule}})
    assert message.startswith("filters.pretty asks for a score that is not made")
    flagged = {"pretty": {"score": "aesthetic", "severity": "flag", **rule}}
    Semantics(SemanticConfig(), None, models).check(rejecting(flagged))


def test_a_selection_by_content_type_asks_for_it(models: ModelStore) -> None:
    """Pins that clips without a type are no group by accident."""
    for clip, semantic, words in (
        (None, {}, "select.by asks for content types; set analyze.clip"),
        ("test-tiny", {"content": False}, "select.by asks for content types, which semantic.conte"),
    ):
        assert words in refusal(models, clip, rules={}, by=("content_type",), **semantic)
    Semantics(SemanticConfig(), "test-tiny", models).check({}, ("content_type",))


def test_the_stamp_of_the_heads_follows_what_they_give(models: ModelStore, tmp_path: Path) -> None:
    """Pins that weights and words count, and neither paths nor what is rejected."""

    def fingerprint_of(clip: str | None = "test-tiny", **semantic: object) -> str | None:
        return Semantics(SemanticConfig.model_validate(semantic), clip, models).heads_fingerprint

    own = tmp_path / "own.yaml"
    own.write_text(Path(prompts.__file__).with_name("content_types.yaml").read_text())
    assert fingerprint_of(None) is None
    same = fingerprint_of()
    assert (
        fingerprint_of(reject=["aerial"], reject_from=0.9)
        == fingerprint_of(prompts=str(own))
        == same
    )
    fingerprints = {
        same,
        fingerprint_of(aesthetic="test-head"),
        fingerprint_of(content=False),
        fingerprint_of(safety=False),
    }
    own.write_text(own.read_text().replace("unsafe: ", "unsafe:  ").replace("aerial", "airborne"))
    fingerprints.add(fingerprint_of(prompts=str(own)))
    assert len(fingerprints) == 5


def test_heads_are_made_once_and_kept(models: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that a second run computes no text embedding and reads no network."""
    semantics = Semantics(SemanticConfig(aesthetic="test-head"), "test-tiny", models)
    semantics.check({})
    first = semantics.heads()
    for name in ("embed_texts", "load_linear_head"):
        monkeypatch.setattr(
            f"curator.measures.clip_models.{name}", lambda *a, **k: pytest.fail("again")
        )
    second = Semantics(SemanticConfig(aesthetic="test-head"), "test-tiny", models).heads()
    assert first is not None
    assert second is not None
    assert first.content is not None
    assert second.content is not None
    assert second.content.names == tuple(load_prompts().content)
    np.testing.assert_array_equal(first.content.class_KD, second.content.class_KD)
    np.testing.assert_allclose(np.linalg.norm(second.content.class_KD, axis=1), 1)
    rows = np.eye(2, 32)
    assert first.aesthetic is not None
    assert second.aesthetic is not None
    np.testing.assert_array_equal(first.aesthetic.scores_N(rows), second.aesthetic.scores_N(rows))
    assert second.unsafe == ("sexual", "gore")
