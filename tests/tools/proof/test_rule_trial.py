"""The trial of `curate prove`: what it finds, what it must not find, and how it says so."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.tools.proof import patch_tokenizer, rule_trial
from curator.tools.proof.patch_tokenizer import LATENTS, gain_db, losses, moments_of, train
from curator.tools.proof.rule_trial import Effect, TrialClips, Verdict, null_rule, run_trial

N_SOURCES, PER_SOURCE = 14, 4
N = N_SOURCES * PER_SOURCE


@cache
def texture(seed: int, noise: float = 0.0) -> NDArray[np.uint8]:
    """A smooth moving pattern, uint8 [8, 32, 40]; each seed has its own directions and motion."""
    rng = np.random.default_rng(seed)
    t, y, x = np.meshgrid(np.arange(8), np.arange(32), np.arange(40), indexing="ij")
    waves = np.zeros(t.shape)
    for _ in range(24):
        rates = rng.normal(0, (0.4, 0.35, 0.35))
        waves += rng.uniform(2, 12) * np.sin(t * rates[0] + y * rates[1] + x * rates[2])
    waves += rng.normal(0, noise, waves.shape)
    return np.clip(128 + waves, 0, 255).astype(np.uint8)


@cache
def own_moments(seed: int, noise: float) -> NDArray[np.float32]:
    return moments_of(texture(seed, noise))


def trial_clips(is_kept: NDArray[np.bool_], noise: float = 0.0) -> TrialClips:
    """Clips of which the rejected ones are noisy."""
    moments = [own_moments(n, 0.0 if kept else noise) for n, kept in enumerate(is_kept)]
    return TrialClips(
        moments_NDD=np.stack(moments),
        is_kept=is_kept,
        sources=np.arange(N) // PER_SOURCE,
    )


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work: what is pinned does not depend on it."""
    monkeypatch.setattr(rule_trial, "REPEATS", 1)


def random_half(seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).permutation(N) < N // 2


def test_transform_is_orthonormal_but_for_its_weights() -> None:
    rows = patch_tokenizer._transform() / patch_tokenizer._weights()[:, None]
    assert np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-5)
    assert np.allclose(rows.sum(axis=1), 0, atol=1e-4)


def test_losses_are_those_of_reconstructed_patches() -> None:
    """Pins the closed form to what a tokenizer does patch by patch."""
    luma = texture(3, noise=5.0)
    basis = train(moments_of(texture(4, noise=5.0)))
    blocks = luma.reshape(2, 4, 4, 8, 5, 8).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 256)
    x = blocks @ patch_tokenizer._transform().T
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + patch_tokenizer.LEAST_CONTRAST**2)
    lost = [np.square(x - x @ basis[:, :n] @ basis[:, :n].T).sum() for n in LATENTS]
    expected = np.array(lost) / np.square(x).sum()
    assert losses(basis, moments_of(luma)) == pytest.approx(expected, rel=1e-3)
    assert gain_db(expected, 10 * expected) == pytest.approx(10)


def test_rule_against_noise_helps_and_more_noise_more() -> None:
    is_kept = random_half(0)
    gains = []
    for noise in (20.0, 60.0):
        trial = run_trial(trial_clips(is_kept, noise), n_controls=12)
        assert trial.on_kept.verdict() is Verdict.HELPS
        gains.append(trial.on_kept.db)
    assert 0 < gains[0] < gains[1]


@pytest.mark.parametrize("level", [0, 17])
def test_flat_clips_give_numbers(level: int) -> None:
    """Pins black clips, of which nothing is lost, and levels that leave rounding errors."""
    flat = moments_of(np.full((4, 32, 32), level, np.uint8))
    noise = moments_of(np.random.default_rng(0).integers(0, 255, (4, 32, 32)).astype(np.uint8))
    lost = [losses(train(moments), flat) for moments in (flat, noise)]
    assert gain_db(*lost) == 0
    assert np.isfinite(losses(train(flat), noise)).all()


def test_random_rules_have_no_effect_and_results_repeat() -> None:
    first, again = (run_trial(trial_clips(random_half(2)), n_controls=12) for _ in range(2))
    assert first.on_kept.verdict() not in (Verdict.HELPS, Verdict.HARMS)
    assert first.on_kept == again.on_kept
    assert first.controls_db.tolist() == again.controls_db.tolist()


def test_time_limit_leaves_out_controls_but_for_the_least() -> None:
    trial = run_trial(trial_clips(random_half(1)), n_controls=30, ends_s=0.0)
    assert len(trial.controls_db) == rule_trial.LEAST_CONTROLS


def test_null_rules_keep_as_many_clips_and_whole_sources() -> None:
    whole = np.repeat(np.arange(N_SOURCES) < 7, PER_SOURCE)
    clips = TrialClips(
        moments_NDD=np.zeros((N, 0), np.float32), is_kept=whole, sources=np.arange(N) // PER_SOURCE
    )
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = null_rule(clips, rng)
        assert drawn.sum() == whole.sum()
        n_divided = sum(len(set(drawn[clips.sources == s].tolist())) == 2 for s in range(N_SOURCES))
        assert n_divided <= 2


def test_a_rule_of_the_same_form_in_each_source_is_not_its_own_control() -> None:
    first = np.arange(N) % PER_SOURCE == 0
    clips = TrialClips(
        moments_NDD=np.zeros((N, 0), np.float32), is_kept=first, sources=np.arange(N) // PER_SOURCE
    )
    rng = np.random.default_rng(0)
    shared = [float((null_rule(clips, rng) & first).sum() / first.sum()) for _ in range(50)]
    assert max(shared) < 0.9


def test_sources_that_cannot_be_divided_are_refused() -> None:
    is_kept = np.arange(N) >= PER_SOURCE
    clips = TrialClips(
        moments_NDD=np.zeros((N, 255, 255), np.float32),
        is_kept=is_kept,
        sources=np.arange(N) // PER_SOURCE,
    )
    assert "4 rejected clips of 1 sources" in (clips.lacks() or "")
    with pytest.raises(UsageError, match="cannot be divided"):
        run_trial(clips, n_controls=12)


def test_interval_is_that_of_students_t() -> None:
    controls = np.array([-1.0, 0.0, 1.0, 2.0])
    effect = Effect.of(5.0, controls)
    assert effect.db == 4.5
    # t of 3 degrees at 0.995 is 5.8409; the spread is that of one more control.
    assert effect.half_db == pytest.approx(5.8409 * np.std(controls, ddof=1) * 1.25**0.5, rel=1e-3)
    assert effect.verdict() is Verdict.TOO_FEW
    assert effect.clips_needed(100) > 100
    assert Effect(db=0.1, low_db=-0.3, high_db=0.5).verdict() is Verdict.NO_EFFECT
    assert Effect(db=-1.0, low_db=-1.2, high_db=-0.8).verdict() is Verdict.HARMS
