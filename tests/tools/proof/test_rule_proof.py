"""`curate prove` from the sources to the report: which clips, what is stored, when it is old."""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Curate
from film_makers import write_video
from made_out import candidates_table, made_out
from numpy.typing import NDArray

from curator.recipe import load_recipe
from curator.storage import open_store
from curator.tables.clip_rows import ClipRows
from curator.tables.mark_table import MarkWriter
from curator.tables.proof_store import by_reason, read_proofs
from curator.tools.proof import rule_trial
from curator.tools.proof.patch_tokenizer import moments_of
from curator.tools.proof.ruled_clips import find_rule, ruled_clips
from curator.tools.proof.source_windows import source_window
from curator.tools.review.finished_run import open_finished
from curator.tools.view.viewed_run import ViewedRun

N_FILMS, PER_FILM, FRAMES, FPS = 12, 4, 16, 25
N = N_FILMS * PER_FILM
RECIPE = {
    "filters": {"noise": {"max": 2.0}, "motion": {"min": 0.5}},
    "dedup": {"enabled": False},
    "shard": {"lengths": [1]},
}
"""Odd clips are noisy; the last clip of the first film has too little motion as well."""


def frames(film: int) -> Iterator[NDArray[np.uint8]]:
    """Waves that move; the odd clips of a film have noise."""
    rng = np.random.default_rng(film)
    y, x = np.meshgrid(np.arange(48), np.arange(64), indexing="ij")
    rates = rng.normal(0, (0.4, 0.3, 0.3), (16, 3))
    for t in range(PER_FILM * FRAMES):
        waves = sum(8 * np.sin(t * a + y * b + x * c) for a, b, c in rates)
        luma = 128 + waves + rng.normal(0, (40 if t // FRAMES % 2 else 5), (48, 64))
        yield np.repeat(np.clip(luma, 0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over small films; not to be changed, but for its proofs."""
    root = tmp_path_factory.mktemp("prove")
    films = [root / f"{number}.mp4" for number in range(N_FILMS)]
    for number, film in enumerate(films):
        write_video(film, frames(number), fps=Fraction(FPS), options={"crf": "10"}, gop=FRAMES)
    made_out(root / "out", clips_of(films), load_recipe(RECIPE))
    return root / "out"


def clips_of(films: list[Path]) -> Any:  # noqa: ANN401 - a table
    ticks = 512 * FRAMES
    at = [number % PER_FILM for number in range(N)]
    return candidates_table(
        N,
        source_id=[f"{number // PER_FILM:032x}" for number in range(N)],
        source_uri=[str(films[number // PER_FILM]) for number in range(N)],
        start_pts=[ticks * place for place in at],
        end_pts=[ticks * (place + 1) for place in at],
        time_base=["1/12800"] * N,
        n_frames=[FRAMES] * N,
        noise=[float(place % 2) * 4 for place in at],
        motion=[0.1 if number == 3 else 1.0 for number in range(N)],
    )


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work: what is pinned does not depend on it."""
    monkeypatch.setattr(rule_trial, "REPEATS", 1)


def test_rules_are_named_by_rule_reason_or_condition(out: Path) -> None:
    finished = open_finished(str(out))
    for text in ("noise", "filters.noise", "rules.noise", "noise_too_high"):
        rule = find_rule(finished, text)
        assert (rule.reasons, rule.rules) == (("noise_too_high",), ("noise",))
    # Clip 3 is rejected by another rule, too.
    ruled = ruled_clips(finished, find_rule(finished, "noise"), 100, 0)
    assert (ruled.n_kept, ruled.n_rejected) == (N // 2, N // 2 - 1)
    pytest.importorskip("duckdb")
    ruled = ruled_clips(finished, find_rule(finished, "start_pts = 0"), 5, 0)
    assert (ruled.n_kept, ruled.n_rejected) == (N_FILMS, N_FILMS)
    # At most five of either kind, of different sources.
    for kind in (ruled.is_kept, ~ruled.is_kept):
        assert len(set(ruled.clips.filter(kind)["source_id"].to_pylist())) == 5


def test_window_is_what_the_source_shows_there(out: Path) -> None:
    clips = open_finished(str(out)).clips
    rows = list(ClipRows(clips, clips.schema))
    first, second = (source_window(rows[number], None, 0) for number in (0, 1))
    assert isinstance(first, np.ndarray)
    assert isinstance(second, np.ndarray)
    shown = np.stack([frame[:, :, 0] for frame in frames(0)])
    for place, window, most in ((0, first, 4), (FRAMES, second, 12)):
        # Patches begin three pixels behind the blocks of a codec.
        assert window.shape == (FRAMES, 48 - 3, 64 - 3)
        own = shown[place : place + FRAMES, 3:, 3:]
        assert np.abs(window.astype(float) - own).mean() < most
    assert moments_of(first).shape == (255, 255)
    assert "has changed" in str(source_window(rows[0], "another", 0))


def test_proof_is_stored_shown_and_out_of_date(
    out: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = curate("prove", out, "--rule", "noise", "--clips", 24, "--controls", 12)
    assert "verdict: helps" in text
    store = open_store(str(out))
    (proof,) = read_proofs(store)
    assert proof.n_clips == {"kept": 24, "rejected": 23, "unreadable": 0}
    assert proof.on_kept is not None
    assert 0 < proof.on_kept[1] < proof.on_kept[0]
    finished = open_finished(str(out))
    words = by_reason([proof], finished.summary)["noise_too_high"]
    assert words == proof.words(finished.summary)
    assert "helps, +" in words
    assert "out of date" not in words
    # The same command gives the same result.
    again = json.loads(
        curate("prove", out, "--rule", "noise_too_high", "--clips", 24, "--controls", 12, "--json")
    )
    assert again["on_kept"] == list(proof.on_kept)
    assert len(read_proofs(store)) == 1
    viewed = ViewedRun(finished, MarkWriter(store))
    assert viewed.overview()["proofs"] == {"noise_too_high": words}
    curate("report", out)
    assert words in (out / "report/index.html").read_text()
    newer = dict(finished.summary) | {"snapshot": 7}
    assert "out of date: of snapshot 1" in proof.words(newer)
    rules = [dict(rule) | {"max": 3.0} for rule in finished.summary["rules"]]
    assert "the rule has changed" in proof.words(newer | {"rules": rules})


def test_what_cannot_be_proved_is_refused(out: Path, curate: Curate, tmp_path: Path) -> None:
    store = open_store(str(out))
    before = len(list(store.list("proofs/")))
    assert "did you mean 'noise'" in curate("prove", out, "--rule", "nois", code=2)
    assert "rejects no video clip" in curate("prove", out, "--rule", "too_short", code=2)
    assert "expected 20 or more" in curate("prove", out, "--rule", "noise", "--clips", 3, code=2)
    assert "no finished run" in curate("prove", tmp_path, "--rule", "noise", code=2)
    assert len(list(store.list("proofs/"))) == before


def test_a_time_limit_that_leaves_too_few_clips_is_named(out: Path, curate: Curate) -> None:
    limit = ("--minutes", 1e-6, "--dry-run")
    text = curate("prove", out, "--rule", "noise", "--clips", 24, *limit)
    assert "verdict: too few clips" in text
    assert "after 1 of 47 clips: raise --minutes" in text


def test_a_condition_is_not_said_to_be_shown(out: Path, curate: Curate) -> None:
    pytest.importorskip("duckdb")
    text = curate("prove", out, "--rule", "start_pts = 0", "--minutes", 1e-6)
    (out / text.split()[-1]).unlink()
    assert "proofs/" in text
    assert "curate report" not in text


def test_sources_that_are_gone_are_named(tmp_path: Path, curate: Curate) -> None:
    gone = [tmp_path / f"{number}.mp4" for number in range(N_FILMS)]
    made_out(tmp_path / "out", clips_of(gone), load_recipe(RECIPE))
    text = curate("prove", tmp_path / "out", "--rule", "noise", code=2)
    assert "no window of 47 clips can be decoded" in text
    assert ".mp4' is not there" in text


def test_damaged_proof_is_left_out(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("proofs/0123456789abcdef.json", b'{"rule": "noise"}')
    store.write("proofs/fedcba9876543210.json", b"{")
    assert read_proofs(store) == []
    of_text = {"rule": "noise", "recipe": "a", "created_at": "2026", "verdict": "", "why": ""}
    effects = {key: (1.0, 0.5, 1.5) for key in ("on_kept", "over_random", "on_rejected")}
    good: dict[str, object] = {"snapshot": 1, **of_text, **effects}
    good |= {key: {} for key in ("bounds", "settings", "n_clips", "n_sources")}
    good |= {key: () for key in ("reasons", "controls_db")}
    store.write("proofs/0123456789abcdef.json", json.dumps(good).encode())
    assert [proof.rule for proof in read_proofs(store)] == ["noise"]
    wrong = {"on_kept": [None] * 3, "on_rejected": [1.0], "reasons": None, "created_at": 5}
    for name, value in wrong.items():
        store.write("proofs/fedcba9876543210.json", json.dumps(good | {name: value}).encode())
        assert [proof.rule for proof in read_proofs(store)] == ["noise"]
