"""Says what clips lack because the recipe leaves a default as it is: sound, and described pictures.

Trainers who expect either of them would otherwise notice after the training.
"""

from collections.abc import Mapping
from typing import Any

from curator.number_text import amount

KEPT_WITH_AUDIO = "kept_with_audio"
"""Key of `counts` in `summary.json`: kept clips for which the source has audio."""
WITHOUT_TEXT = "clips_without_text"
"""Key of `work` in `summary.json`: kept clips whose column of captions has no text."""


def default_words(summary: Mapping[str, Any]) -> list[str]:
    """Returns a line for each such default that concerns kept clips of a run."""
    counts, recipe = summary.get("counts") or {}, summary.get("recipe") or {}
    cut, caption = recipe.get("cut") or {}, recipe.get("caption") or {}
    lines, n_with_audio = [], counts.get(KEPT_WITH_AUDIO) or 0
    if n_with_audio and cut.get("audio") == "drop":
        lines.append(
            f"audio: dropped, although the sources of {amount(n_with_audio, 'kept clip')} have "
            "sound; --audio keep writes it"
        )
    if n_empty := (summary.get("work") or {}).get(WITHOUT_TEXT):
        lines.append(
            f"captions: {amount(n_empty, 'kept clip')} without a text in {caption['column']}"
        )
    elif caption.get("column") and counts.get("kept"):
        lines.append(f"captions: from {caption['column']}")
    is_template = caption.get("enabled", True) and caption.get("captioner") == "measured"
    if counts.get("kept") and is_template:
        lines.append(
            "captions: composed of measurements; those of a model: --set caption.captioner=openai "
            "--set caption.url=URL --set caption.model=NAME, or caption.captioner=local; your own: "
            "caption.captioner=column (docs/captions.md)"
        )
    return lines
