"""Detects title cards: centred text over a background that shows little, or stands still.

Text of a scene, such as a sign or a page, is seldom centred to a few hundredths of the width. Over
a plain background, it makes no difference whether the text stays, rolls or fades.

Shape letters: T overlay samples, B lines of text, E cells of an edge map.
"""

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.drawn_marks import EDGE_SIDE, edges_of
from curator.measures.measure_contract import OF_TIME, ScoreSpec

_CONFIDENCE = 0.72  # smallest confidence of a line that counts
_CENTRED = 0.025  # largest distance of a row's middle from the picture's middle
_LOWEST = 0.72  # rows that begin below are captions, not titles
_PLAIN = 0.04  # largest share of cells with edges outside of text, of a plain background
_AROUND = 2  # cells around a line that belong to it
_STAYS = 0.9  # smallest `stay` of a line, and
_STILL = 0.65  # smallest `around` of a line before a background that stands still
_MOST_TEXT = 0.35  # largest share of the picture that the text of a card covers; pages have more
_ON_PLAIN, _ON_STILL = (0.004, 0.75), (0.02, 0.9)
"""Smallest share of the picture that the text of a card covers, and smallest share of the text that
is in centred rows. Before a still background, a sign in front of a tripod looks like small text."""

Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


def _title_card(clip: ClipView) -> float | None:
    track = clip.track
    own = clip.holds(track.look_frame)
    if not track.has_text or not own.any():
        return None
    in_clip = clip.holds(track.text_frame)
    frames, lines = track.text_frame[in_clip], track.text_line[in_clip]
    edges_TEE = np.asarray(edges_of(track.look_edges[own]).any(1), bool)
    shown = [
        _is_card(lines[frames == frame], edges_EE)
        for frame, edges_EE in zip(track.look_frame[own], edges_TEE, strict=True)
    ]
    return float(np.mean(shown))


def _is_card(lines: Floats, edges_EE: Mask) -> bool:
    if not len(lines):
        return False
    area = np.where(lines[:, 4] >= _CONFIDENCE, lines[:, 5], 0)
    if area.sum() > _MOST_TEXT:
        return False
    centred = area[_centred_rows(lines)].sum() / max(area.sum(), 1e-9)
    titles = area[lines[:, 1] < _LOWEST].sum()
    stays, around = lines[:, 6] >= _STAYS, lines[:, 7]
    is_still = area[stays & ((around >= _STILL) | np.isnan(around))].sum() >= 0.9 * area.sum()
    if titles >= _ON_PLAIN[0] and centred >= _ON_PLAIN[1] and _is_plain(lines, edges_EE):
        return True
    return bool(is_still and titles >= _ON_STILL[0] and centred >= _ON_STILL[1])


def _is_plain(lines: Floats, edges_EE: Mask) -> bool:
    background = edges_EE.copy()
    for box in lines:
        left, top = (np.floor(box[:2] * EDGE_SIDE).astype(int) - _AROUND).clip(0)
        right, bottom = np.ceil(box[2:4] * EDGE_SIDE).astype(int) + _AROUND
        background[top:bottom, left:right] = False
    return bool(edges_EE.any()) and float(background.mean()) <= _PLAIN


def _centred_rows(lines: Floats) -> Mask:
    """Returns lines in rows around the middle of the width, or in two columns that meet there."""
    x0, y0, x1, y1 = lines[:, :4].T
    middle, tall = (y0 + y1) / 2, y1 - y0
    same = np.abs(middle[:, None] - middle[None, :]) < 0.5 * np.minimum(
        tall[:, None], tall[None, :]
    )
    begins = np.where(same, x0[None, :], 1).min(1)
    ends = np.where(same, x1[None, :], 0).max(1)
    is_centred = np.abs((begins + ends) / 2 - 0.5) <= _CENTRED
    meets = (same & (np.abs(x1[None, :] - 0.5) <= 2 * _CENTRED)).any(1)
    meets &= (same & (np.abs(x0[None, :] - 0.5) <= 2 * _CENTRED)).any(1)
    return np.asarray(is_centred | meets, bool)


SCORES = {
    "title_card": ScoreSpec(
        unit="0 to 1",
        range="0 without to 1 throughout; null with analyze.text off",
        meaning="share of overlay samples that show a title card: centred lines of text, such as a "
        "title or credits, over a background that is plain or stands still",
        outside="title_card",
        of=_title_card,
        needs="analyze.text",
        media=OF_TIME,
    )
}
