"""Reads frame rates as users give them."""

from fractions import Fraction

LEAST_FPS, MOST_FPS = 1, 240


def parsed_rate(text: str) -> Fraction:
    """Returns a frame rate, such as 24 or 30000/1001, in frames per second.

    Decimals such as 29.97 become broadcast fractions.

    Raises:
        ValueError: The text is no rate, or is not from `LEAST_FPS` to `MOST_FPS`.
    """
    try:
        # `Fraction` also takes digits of other scripts, and `_`.
        rate = Fraction(text if text.isascii() and "_" not in text else "")
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"fps {text!r}; expected frames per second, such as 24 or 30000/1001"
        ) from error
    if not LEAST_FPS <= rate <= MOST_FPS:
        raise ValueError(f"fps {text}; expected {LEAST_FPS} to {MOST_FPS}")
    ntsc = Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)
    is_ntsc = rate.denominator != 1 and abs(rate - ntsc) < Fraction(1, 100)
    return ntsc if is_ntsc else rate


def as_words(fps: object) -> object:
    """Returns a number of YAML as text, so that it is parsed as written."""
    return str(fps) if isinstance(fps, int | float) and not isinstance(fps, bool) else fps
