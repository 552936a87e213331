"""Claims about sound and silence, judged by the audio of the source."""

from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Judgement,
    Measured,
    Verdict,
    by_patterns,
)

_CLIP = r"(?:clip|video|footage|recording|film|scene|it|sequence|audio)"
_NOISE = (
    r"(?:sounds?|audio|music|voices?|noises?|voice-?over|narration|soundtrack|singing|laughter|hum|"
    r"speech|chirping|applause|song|dialogue)"
)
_NO_SOUND = r"(?! (?:equipment|board|system|studio|stage|player|stand|hall|video|box))"
_HEARD = (
    r"(?:plays?|playing|(?:can|is|are|could) (?:be )?(?:\w+ly )?heard|audible|recorded|present|"
    r"accompan\w+|explains?|speaks?)"
)
PATTERNS = {
    "silent": (
        rf"{_CLIP} (?:is|are|remains|was) (?:\w+ly )?(?:silent|mute|muted|soundless)",
        r"(?:silent|muted|soundless) (?:clip|video|footage|recording)",
        r"\A(?:silent|muted)(?=\W*\Z)", r"nothing (?:can be|is) heard", r"plays silently",
    ),
    "audible": (
        rf"{_NOISE}[\w ,]{{0,30}}? {_HEARD}", rf"{_NOISE} (?:is|are) (?:\w+ly )?(?:audible|loud)",
        rf"(?:has|have|with|contains?|includes?|hears?) (?:(?!no )\w+ ){{0,3}}?{_NOISE}{_NO_SOUND}",
        rf"(?:loud|audible) (?:\w+ )?{_NOISE}", r"narrator (?:speaks|explains|says|talks)",
        r"audible",
    ),
}  # fmt: skip
_SILENT_DB, _HEARD_DB = -65.0, -50.0
"""Below the first, in dBFS, sound counts as silence; above the second, people hear it."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the share of time with audio, and by its level."""
    coverage, level_db = measured.score("audio_coverage"), measured.score("audio_rms_db")
    if coverage is None:
        return UNMEASURED
    if coverage == 0 or level_db is None:
        is_silent, words = Verdict.CONFIRMED, "no audio"
    else:
        is_silent, words = Verdict.UNKNOWN, f"audio at {level_db:.0f} dBFS"
        if level_db < _SILENT_DB:
            is_silent = Verdict.CONFIRMED
        elif level_db > _HEARD_DB:
            is_silent = Verdict.CONTRADICTED
    return Judgement(is_silent if value == "silent" else is_silent.negated(), words)


KIND = ClaimKind(
    name="sound",
    find=by_patterns(PATTERNS, {"audible": (rf"{_NOISE}{_NO_SOUND}",)}),
    judge=judge,
    scores=("audio_coverage", "audio_rms_db"),
)
