"""Formats numbers and names for people, on pages, in terminals and in logs."""


def plain(text: object) -> str:
    """Formats a name for one line of a terminal: escapes characters that are not printable.

    Names are untrusted. They can contain line ends, terminal escape sequences, and bytes that UTF-8
    cannot encode.
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in str(text)
    )


def count(number: int | None) -> str:
    """Formats a whole number with separators; None as a dash."""
    return "-" if number is None else f"{number:,}"


def amount(number: int, noun: str) -> str:
    """Formats a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def length(seconds: float | None) -> str:
    """Formats seconds in the most readable unit: `0.25 s`, `4.2 min`, `40.1 h`."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 60:
        return f"{seconds:.2f} s" if abs(seconds) < 1 else f"{seconds:.1f} s"
    if abs(seconds) < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def clock(seconds: float) -> str:
    """Formats a time as `h:mm:ss`."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def moment(seconds: float) -> str:
    """Formats a time within a video to a hundredth: `7.96 s`, and from a minute on `0:02:30.5`."""
    hundredths = max(0, round(100 * seconds))
    whole, rest = divmod(hundredths, 100)
    fraction = f".{rest:02}".rstrip("0") if rest else ""
    return f"{whole}{fraction} s" if whole < 60 else f"{clock(whole)}{fraction}"


def size(n_bytes: int | None) -> str:
    """Formats bytes in decimal units: `1.2 GB`."""
    if n_bytes is None:
        return "-"
    if n_bytes < 1000:
        return amount(n_bytes, "byte")
    value = n_bytes / 1000
    for unit in ("kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"


def score(value: float | None) -> str:
    """Formats a score in three digits; None as a dash."""
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """Formats a part of a whole in percent; 0% if the whole is 0."""
    if not whole:
        return "0%"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"


def percent(fraction: float) -> str:
    """Formats a fraction in percent with all its digits: `15%`, `0.5%`."""
    return f"{100 * fraction:.6g}%"


def compared(value: float, bound: float) -> str:
    """Formats a score and the bound that it misses, with enough digits to distinguish them."""
    for digits in (3, 4, 6, 9):
        left, right = f"{value:.{digits}g}", f"{bound:.{digits}g}"
        if left != right:
            break
    return f"{left} {'<' if value < bound else '>'} {right}"
