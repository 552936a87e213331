"""The camera's motion per frame, from velocities that an exact analysis would measure."""

import numpy as np
import pytest
from moving_cameras import MOTIONS, Floats, MovingCamera, measured_signals, velocity_of

from curator.measures.camera_path import RATES, camera_poses, frame_motion, turned

FPS, N_FRAMES = 25.0, 200
FRAME_S = np.arange(N_FRAMES) / FPS
EVERY_HALF_S = np.arange(2, 196, 12) / FPS
SMOOTH = [name for name in MOTIONS if name not in ("still", "shake")]
PAIR_S = 0.12


def accelerating(times_s: Floats) -> Floats:
    """Speeds that are polynomials of time, so that no sample misses anything."""
    t = times_s
    return np.stack([0.1 + 0.2 * t, 0.3 * t - 0.04 * t**2, 0.01 * t, 3 - t + 0.1 * t**3], axis=1)


def true_motion(times_s: Floats) -> Floats:
    """The exact integral of `accelerating` from each time to the next; 0 for the first."""
    t = times_s
    path = np.stack([
        0.1 * t + 0.1 * t**2, 0.15 * t**2 - 0.04 / 3 * t**3, 0.005 * t**2,
        3 * t - t**2 / 2 + 0.025 * t**4,
    ], axis=1)  # fmt: skip
    return np.diff(path, axis=0, prepend=path[:1])


def share(found: Floats, true: Floats) -> float:
    """The root mean square of the error, relative to the motion."""
    return float(np.sqrt(((found - true) ** 2).sum() / (true**2).sum()))


def test_accelerations_are_exact_between_samples() -> None:
    """A cubic velocity is found exactly; held velocities would be wrong by half a second's change.

    Beyond the first and the last sample, velocity is taken to change evenly.
    """
    motion = frame_motion(measured_signals(accelerating, FRAME_S, EVERY_HALF_S, PAIR_S))
    inside = (EVERY_HALF_S[0] + PAIR_S < FRAME_S) & (EVERY_HALF_S[-1] > FRAME_S)
    expected = true_motion(FRAME_S)
    np.testing.assert_allclose(motion[inside], expected[inside], rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(motion[:, 0], expected[:, 0], atol=2e-6)
    assert (motion[0] == 0).all()


@pytest.mark.parametrize("motion", SMOOTH)
@pytest.mark.parametrize("seed", [50, 51, 52])
def test_five_samples_a_second_follow_smooth_motions(motion: str, seed: int) -> None:
    """Pins 5%, nearly all of it before the first and after the last sample."""
    velocity = velocity_of(motion, seed)
    true = MovingCamera(velocity=velocity, n_frames=N_FRAMES, seed=seed).motion()
    found = frame_motion(measured_signals(velocity, FRAME_S, np.arange(0, 195, 5) / FPS, PAIR_S))
    assert share(found, true) < 0.05
    assert share(found[5:190], true[5:190]) < 0.002


@pytest.mark.parametrize("motion", SMOOTH)
def test_times_of_variable_rates_repeated_frames_and_cuts_count(motion: str) -> None:
    """Pins that motion is that of the shown frames' times, whatever the rate of the clip."""
    velocity = velocity_of(motion, 53)
    rng = np.random.default_rng(1)
    source_s = np.cumsum(rng.uniform(0.02, 0.06, 190)) - 0.02
    shown = np.sort(rng.integers(20, 180, 150))  # frames are left out and repeated
    starts_s = np.arange(source_s[20], source_s[180] - 0.1, 0.2)
    fine = measured_signals(velocity, source_s[shown], starts_s, 0.1)
    motion_of = frame_motion(fine)
    dense = np.linspace(0, source_s[-1], 40_001)
    path = np.concatenate([np.zeros((1, 4)), np.cumsum(velocity((dense[1:] + dense[:-1]) / 2), 0)])
    path *= dense[1]
    at = np.stack([np.interp(source_s[shown], dense, path[:, c]) for c in range(4)], axis=1)
    true = np.diff(at, axis=0, prepend=at[:1])
    assert share(motion_of, true) < 0.02
    repeats = np.flatnonzero(np.diff(shown) == 0) + 1
    assert len(repeats) > 10
    assert (motion_of[repeats] == 0).all()


def test_the_mean_of_each_pair_is_what_was_measured() -> None:
    """Pins pairs without gaps, where the velocity in their middle is not their mean."""
    velocity = velocity_of("shake", 54)
    starts_s = np.arange(0, 196, 2) / FPS
    motion = frame_motion(measured_signals(velocity, FRAME_S, starts_s, 2 / FPS))
    true = MovingCamera(velocity=velocity, n_frames=N_FRAMES, seed=0).motion()
    pairs = motion[1:193].reshape(-1, 2, 4).sum(axis=1)
    np.testing.assert_allclose(pairs, true[1:193].reshape(-1, 2, 4).sum(axis=1), atol=5e-4)


def test_one_unknown_sample_is_bridged_and_longer_gaps_are_unknown() -> None:
    velocity = velocity_of("steady", 55)
    signals = measured_signals(velocity, FRAME_S, EVERY_HALF_S, PAIR_S)
    of_sample = np.searchsorted(EVERY_HALF_S, FRAME_S, side="right") - 1
    whole = frame_motion(signals)
    for lost, n_unknown in (((4,), 0), ((4, 5, 6), 12)):
        holes = {n: np.where(np.isin(of_sample, lost), np.nan, signals[n]) for n in RATES}
        motion = frame_motion(signals | {n: v.astype(np.float32) for n, v in holes.items()})
        is_unknown = np.isnan(motion).any(axis=1)
        assert abs(int(is_unknown.sum()) - n_unknown) <= 12 * bool(n_unknown)
        assert bool(is_unknown.any()) == bool(n_unknown)
        np.testing.assert_allclose(motion[~is_unknown], whole[~is_unknown], atol=1e-6)
    nothing = frame_motion(
        signals | {name: np.full(N_FRAMES, np.nan, np.float32) for name in RATES}
    )
    assert np.isnan(nothing).all()


@pytest.mark.parametrize("n_samples", [1, 2, 3, 4])
def test_few_samples_of_an_even_motion_are_enough(n_samples: int) -> None:
    velocity = velocity_of("steady", 56)
    shown_s = FRAME_S[: 12 * n_samples]
    motion = frame_motion(measured_signals(velocity, shown_s, EVERY_HALF_S[:n_samples], PAIR_S))
    np.testing.assert_allclose(motion[1:], velocity(shown_s[1:]) / FPS, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("degrees", [0.3, 2.0, -4.0])
def test_turns_are_in_degrees_though_edges_move_faster(axis: int, degrees: float) -> None:
    """A fit of a turning camera is off by up to a fifth from its centre's motion."""
    from curator.measures import camera_path
    from curator.measures.motion import fit_camera

    focal, (width, height) = 1.2, (320, 180)
    turn = [degrees, 0.0] if axis == 0 else [0.0, degrees]
    y, x = np.mgrid[:height, :width]
    rays = np.stack([(x - 159.5) / 180 / focal, (y - 89.5) / 180 / focal, np.ones(x.shape)], -1)
    seen = rays @ turned(turn[0], turn[1], 0.0).T
    flow = ((seen[..., :2] / seen[..., 2:]) - rays[..., :2]) * focal * 180
    fit = fit_camera(flow.astype(np.float32), np.ones(18 * 32, np.float32))
    assert fit is not None
    shift = np.array([-fit.shift.real if axis == 0 else fit.shift.imag])
    found = camera_path._degrees(shift, axis, focal, (width, height))
    assert found[0] == pytest.approx(degrees, rel=0.05)
    assert (np.sign(found) == np.sign(degrees)).all()


def test_poses_add_turns_up_in_the_camera_s_own_axes() -> None:
    motion = np.zeros((5, 4))
    motion[1] = (30, 0, 0, 0)
    motion[2] = (0, 20, 0.5, 0)
    motion[4] = np.nan
    poses = camera_poses(motion, 1.5)
    np.testing.assert_allclose(poses[0], [0, 0, 0, 1.5])
    # Axes are right, down and forward, so a turn to the right is positive about the second.
    np.testing.assert_allclose(poses[1], [0, np.radians(30), 0, 1.5], atol=1e-12)
    assert poses[2, 3] == pytest.approx(1.5 * np.exp(0.5))
    np.testing.assert_array_equal(poses[2], poses[3])
    assert np.isnan(poses[4]).all()
