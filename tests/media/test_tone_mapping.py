"""Colours of other primaries and of high dynamic range, as BT.709 codes them."""

from pathlib import Path

import numpy as np
import pytest

from curator.media.tone_mapping import HLG, PQ, colour_table, pq_to_nits, to_bt709

GREYS = np.linspace(0, 1, 21)[:, None].repeat(3, axis=1)


@pytest.mark.parametrize("primaries", [5, 6, 7, 9, 12])
def test_greys_stay_grey_and_as_bright(primaries: int) -> None:
    """Pins that primaries with the same white change colours alone."""
    np.testing.assert_allclose(to_bt709(GREYS, primaries, 1), GREYS, atol=1e-6)


def test_bt709_in_bt2020_comes_back_and_pq_has_the_light_that_smpte_says() -> None:
    """Pins BT.2020's matrix, with the numbers of ITU-R BT.2087 the other way."""
    to_2020 = np.array(
        [[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]]
    )
    colours = np.random.default_rng(0).random((200, 3))
    coded = np.clip((colours**2.4) @ to_2020.T, 0, 1) ** (1 / 2.4)
    np.testing.assert_allclose(to_bt709(coded, 9, 14), colours, atol=0.01)
    # BT.2020's green is moved towards grey and not clipped to another brightness.
    (green,) = to_bt709(np.array([[0.0, 1.0, 0.0]]), 9, 14)
    assert green.argmax() == 1
    assert (green**2.4) @ [0.2126, 0.7152, 0.0722] == pytest.approx(0.678, abs=0.002)
    # Code values of 0, 100, 203, 1,000 and 10,000 cd/m2 (BT.2408, table 1).
    nits = pq_to_nits(np.array([0, 0.508, 0.581, 0.752, 1.0]))
    np.testing.assert_allclose(nits, [0, 100, 203, 1000, 10_000], rtol=0.01)


@pytest.mark.parametrize(("transfer", "knee"), [(PQ, 0.5), (HLG, 0.5)])
def test_greys_of_high_dynamic_range_rise_to_white(transfer: int, knee: float) -> None:
    """Pins the curve: black stays black, 1,000 cd/m2 is white, nothing falls or steps."""
    codes = np.linspace(0, 1, 401)[:, None].repeat(3, axis=1)
    mapped = to_bt709(codes, 9, transfer)
    assert np.abs(mapped - mapped[:, :1]).max() < 1e-6
    grey = mapped[:, 0]
    assert grey[0] == 0
    assert (np.diff(grey) >= -1e-9).all()
    assert np.diff(grey).max() < 0.03
    peak = 0.752 if transfer == PQ else 1.0
    assert grey[round(peak * 400)] == pytest.approx(1, abs=0.01)
    # 58% of PQ and 75% of HLG are the white of a page: bright, and not all that there is.
    white = 0.581 if transfer == PQ else 0.75
    assert 0.85 < grey[round(white * 400)] < 0.97


def test_only_what_differs_gets_a_table() -> None:
    """Pins that BT.709, untagged and unknown primaries are left alone."""
    assert colour_table(1, 1) is colour_table(2, 2) is colour_table(8, 1) is None
    assert _table(2, PQ) == _table(9, PQ) != _table(9, HLG)
    assert _table(9, 14) == _table(9, 1)


def _table(primaries: int, transfer: int) -> str:
    path = colour_table(primaries, transfer)
    assert path is not None
    return Path(path).read_text()
