"""Stored pairs: what was compared is not compared again, wherever its other clip is."""

from dataclasses import replace
from functools import partial
from unittest.mock import MagicMock

import cv2
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from curator.executor.corpus_work import CorpusWork
from curator.matching import picture_vectors
from curator.matching.clip_footage import ClipFootage, joined
from curator.matching.verify_pair import Match
from curator.records.clips import Reason
from curator.stage import ReferenceClips
from curator.stages.dedup import near_duplicates
from curator.stages.dedup import stage as dedup_stage
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.near_duplicates import Takes, find_pairs
from curator.stages.dedup.stage import DedupStage
from curator.tables.duplicate_pairs import NearDuplicatePairs, Pair
from curator.tables.footage_store import FootageInMemory
from tests.made_out import SAME

MATCH = Match(
    offset_s=1.5, speed=1.0, start_s=0.0, overlap_s=3.0, share_a=0.75, share_b=1.0, mirrored=True,
    similarity=0.9, n_inliers=40,
)  # fmt: skip


def pair(clip_id: str, other: str, place: str = "") -> Pair:
    return Pair(clip_id=clip_id, other=other, place=place, match=MATCH)


def ids(*names: str) -> pa.Array:
    return pa.array(names, pa.string())


def none() -> NearDuplicatePairs:
    return NearDuplicatePairs.of(None, "settings")


def named(pairs: NearDuplicatePairs) -> list[tuple[str, str, str]]:
    rows = pairs.pairs.to_pylist()
    return [
        (row["clip_id"], row["other"], pairs.places[row["place"]] if row["place"] >= 0 else "")
        for row in rows
    ]


def test_pairs_are_stored_for_the_same_search_and_go_with_clips_and_places() -> None:
    pairs = none().with_new(ids("a", "b"), ["x"], [pair("a", "b"), pair("b", "far", "x")])
    again = NearDuplicatePairs.of(pairs.table(), "settings")
    assert named(again) == named(pairs) == [("a", "b", ""), ("b", "far", "x")]
    assert again.compared.equals(ids("a", "b"))
    assert again.places == ("x",)
    row = again.pairs.to_pylist()[0]
    assert (row["offset_s"], row["share"], row["share_of_other"]) == (1.5, 0.75, 1.0)
    assert (row["mirrored"], row["inliers"]) == (True, 40)
    # Pairs of another search do not count.
    pairs = none().with_new(ids("a", "b"), [], [pair("a", "b")])
    other = NearDuplicatePairs.of(pairs.table(), "other settings")
    assert (len(other.compared), other.pairs.num_rows) == (0, 0)
    # Pairs come and go with clips and places.
    pairs = none().with_new(ids("a", "b"), [], [pair("a", "b")])
    more = pairs.with_new(ids("a", "b", "c"), [], [pair("a", "c")])
    assert named(more) == [("a", "b", ""), ("a", "c", "")]
    # Clips that are gone take their pairs.
    pairs = none().with_new(ids("a", "b", "c"), [], [pair("a", "b"), pair("b", "c")])
    assert named(pairs.with_new(ids("b", "c"), [], [])) == [("b", "c", "")]
    # Places that are gone take their pairs and others are numbered anew.
    new = [pair("a", "far", "x"), pair("a", "near", "y"), pair("a", "b")]
    pairs = none().with_new(ids("a", "b"), ["x", "y"], new)
    now = pairs.with_new(ids("a", "b"), ["y", "z"], [pair("b", "new", "z")])
    assert sorted(named(now)) == [("a", "b", ""), ("a", "near", "y"), ("b", "new", "z")]
    assert now.places == ("y", "z")


def test_a_new_clip_is_compared_with_clips_that_a_rule_rejects_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins that a rule that keeps them again finds their pairs, although nothing is searched."""
    config = DedupConfig()
    none = NearDuplicatePairs.of(None, config.search_fingerprint)
    stored = none.with_new(pa.array(["stays", "rejected"]), [], []).table()
    corpus = MagicMock(read=lambda _: stored, reference_clips=list)
    asked = {}

    def find_pairs(
        own: object, ids: pa.Array, new: pa.Array, *_: object, **__: object
    ) -> list[Pair]:
        asked["own"], asked["new"] = ids.to_pylist(), new.to_pylist()
        return [Pair(clip_id="new", other="rejected", match=SAME)]

    monkeypatch.setattr(dedup_stage, "find_pairs", find_pairs)
    stage = DedupStage(config)
    now = pa.array(["stays", "new"])
    pairs, is_new = stage._pairs(corpus, now, None, [], CorpusWork("dedup"))
    assert (asked["own"], asked["new"]) == (["stays", "rejected", "new"], ["new"])
    assert is_new
    again = MagicMock(read=lambda _: pairs.table(), reference_clips=list)
    whole = pa.array(["stays", "rejected", "new"])
    found, is_new = stage._pairs(again, whole, None, [], CorpusWork("dedup"))
    assert not is_new
    assert found.pairs["other"].to_pylist() == ["rejected"]


def made(name: str, vectors: list[list[float]], n_pictures: int = 1) -> ClipFootage:
    """A clip whose pictures cannot be told apart."""
    return ClipFootage(
        clip_id=name, fps=25.0, picture_s=np.arange(n_pictures, dtype=np.float32),
        pictures=(PICTURE,) * n_pictures, vector_s=np.arange(len(vectors), dtype=np.float32),
        vectors_VD=np.array(vectors, np.float32).reshape(len(vectors), -1 if vectors else 0),
        luma_F=np.zeros(50, np.float32), luma_spread_F=np.zeros(50, np.float32),
    )  # fmt: skip


PICTURE = cv2.imencode(".jpg", np.zeros((90, 160, 3), np.uint8))[1].tobytes()


def found_in(
    removed: ClipFootage, own: list[ClipFootage], monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Ids of clips that are compared with removed footage, whatever else is near them."""
    monkeypatch.setattr(near_duplicates, "verify_pair", lambda *_: SAME)
    place = ReferenceClips(
        key="x", reason=Reason.REMOVED_BEFORE, footage=FootageInMemory("x", [removed])
    )
    names = ids(*(clip.clip_id for clip in own))
    pairs = find_pairs(
        FootageInMemory("own", own), names, names, [place], CorpusWork("dedup"), known_places=(),
        similarity=0.45, neighbours=1, among=False,
    )  # fmt: skip
    return {pair.clip_id for pair in pairs if pair.place == "x" and pair.other == "gone"}


def test_similar_clips_do_not_hide_removed_footage(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = [1.0, 0.1], [0.0, 1.0]
    unit = [[v / np.hypot(*near) for v in near] + [0.0] * 1278]
    copies = [made(f"copy {n}", unit) for n in range(20)]
    other = made("other", [far + [0.0] * 1278])
    found = found_in(made("gone", [[1.0] + [0.0] * 1279]), [*copies, other], monkeypatch)
    assert found == {clip.clip_id for clip in copies}


def test_a_clip_without_a_vector_is_compared_by_its_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins what a clip between two vectors needs, and a removed clip of a run without vectors."""
    vector = np.eye(1, 1280, dtype=np.float32)
    n_embedded = []

    def embed(_: object, pictures: list[object]) -> NDArray[np.float32]:
        n_embedded.append(len(pictures))
        return np.repeat(vector, len(pictures), axis=0)

    network = MagicMock(return_value=MagicMock(embed=partial(embed, None)))
    monkeypatch.setattr(picture_vectors, "SceneNetwork", network)
    own = [made("short", []), made("blind", [], n_pictures=0), made("seen", vector.tolist())]
    assert found_in(made("gone", vector.tolist()), own, monkeypatch) == {"short", "seen"}
    assert n_embedded == [1]
    (long,) = picture_vectors.with_vectors([made("long", [], n_pictures=5)])
    assert long.vector_s.tolist() == [0, 2, 4]


def test_windows_are_compared_as_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that windows without a vector are found, and that windows of a take hide no copy."""
    compared = []

    def verified(a: ClipFootage, b: ClipFootage, *_: object) -> Match:
        compared.append((a.duration_s, b.duration_s))
        return replace(SAME, offset_s=-0.5, start_s=0.5, overlap_s=7.5)

    monkeypatch.setattr(near_duplicates, "verify_pair", verified)
    near = {"a": [1.0, 0.1], "b": [1.0, 0.3]}
    # Each second window has a vector, and the windows of a film are nearer than those of its copy.
    own = [
        made(f"{film}{n}", [[v / np.hypot(*near[film]) for v in near[film]]] * (n % 2))
        for film in "ab"
        for n in range(4)
    ]
    names = ids(*(clip.clip_id for clip in own))
    windows = Takes(
        names, np.repeat([0, 1], 4), np.tile(np.arange(4) * 2.0, 2), np.tile([False, True], 4)
    )
    assert len(windows.undescribed) == 0
    search = partial(
        find_pairs, FootageInMemory("own", own), names, places=[], work=CorpusWork("dedup"),
        known_places=(), similarity=0.5, neighbours=1, takes=windows,
    )  # fmt: skip
    found = {(p.clip_id, p.other): p.match for p in search(names)}
    assert compared == [(8.0, 8.0)]
    assert {pair: (m.offset_s, m.start_s, m.overlap_s) for pair, m in found.items()} == {
        (f"a{n}", f"b{n}"): (-0.5, 0.5, 1.5) for n in range(4)
    } | {(f"a{n + 1}", f"b{n}"): (1.5, 0.0, 0.5) for n in range(3)}
    assert found["a0", "b0"].share_a == found["a0", "b0"].share_b == 0.75
    # Of a take that was compared before, only the new window is.
    again = {(p.clip_id, p.other) for p in search(ids("b0"))}
    assert again == {("a0", "b0"), ("a1", "b0")}


def test_a_take_without_a_vector_is_compared_by_its_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pins that pictures get vectors only where no window of the take has one."""
    vector = np.eye(1, 1280, dtype=np.float32)
    n_embedded = []

    def embed(pictures: list[object]) -> NDArray[np.float32]:
        n_embedded.append(len(pictures))
        return np.repeat(vector, len(pictures), axis=0)

    network = MagicMock(return_value=MagicMock(embed=embed))
    monkeypatch.setattr(picture_vectors, "SceneNetwork", network)
    monkeypatch.setattr(near_duplicates, "verify_pair", lambda *_: SAME)
    own = [made("a0", vector.tolist()), made("a1", []), made("b0", []), made("b1", [])]
    names = ids("a0", "a1", "b0", "b1")
    is_described = np.array([True, False, False, False])
    windows = Takes(names, np.array([0, 0, 1, 1]), np.array([0.0, 2.0, 0.0, 2.0]), is_described)
    assert windows.undescribed.to_pylist() == ["b0", "b1"]
    pairs = find_pairs(
        FootageInMemory("own", own), names, names, [], CorpusWork("dedup"), known_places=(),
        similarity=0.5, neighbours=1, takes=windows,
    )  # fmt: skip
    assert {(pair.clip_id, pair.other) for pair in pairs} == {("a0", "b0"), ("a1", "b1")}
    assert n_embedded == [1, 1]


def test_footage_of_windows_that_overlap_is_that_of_their_take() -> None:
    """Pins pictures, vectors and luma, which two windows have twice."""
    at_s = np.arange(0, 8, 2, dtype=np.float32)
    take = replace(
        made("take", [[float(n), 1.0] for n in range(4)], 8), vector_s=at_s,
        luma_F=np.linspace(0, 1, 200, dtype=np.float32), luma_spread_F=np.ones(200, np.float32),
    )  # fmt: skip

    def window(begin_s: float, end_s: float) -> tuple[ClipFootage, float]:
        is_shown, has_vector = (
            (begin_s <= times) & (times < end_s) for times in (take.picture_s, take.vector_s)
        )
        frames = slice(round(begin_s * 25), round(end_s * 25))
        clip = replace(
            take, picture_s=take.picture_s[is_shown] - np.float32(begin_s),
            pictures=take.pictures[: is_shown.sum()], luma_F=take.luma_F[frames],
            vector_s=take.vector_s[has_vector] - np.float32(begin_s),
            vectors_VD=take.vectors_VD[has_vector], luma_spread_F=take.luma_spread_F[frames],
        )  # fmt: skip
        return clip, begin_s

    whole = joined([window(0, 3), window(2, 5), window(5, 5.8), window(5.8, 8)])
    for name in ("picture_s", "vector_s", "vectors_VD", "luma_F", "luma_spread_F"):
        np.testing.assert_allclose(getattr(whole, name), getattr(take, name), atol=1e-6)
    assert whole.pictures == take.pictures
