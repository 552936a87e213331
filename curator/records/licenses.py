"""Spellings of licences as SPDX identifiers.

Source: SPDX License List 3.27, and the paths of creativecommons.org.
"""

import re
from functools import lru_cache

_IDS = (
    "CC0-1.0", "CC-PDM-1.0", "MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Unlicense",
    "ODbL-1.0", "ODC-By-1.0", "PDDL-1.0", "CDLA-Permissive-1.0", "CDLA-Permissive-2.0",
    "CDLA-Sharing-1.0", "OGL-UK-3.0",
)  # fmt: skip
"""Identifiers of licences that footage and data sets have, besides `CC-BY…`."""
_NAMES = {
    "cc0": "CC0-1.0", "cc 0": "CC0-1.0", "cc zero": "CC0-1.0", "cc0 1 0 universal": "CC0-1.0",
    "creative commons zero": "CC0-1.0", "creative commons zero v1 0 universal": "CC0-1.0",
    "mit license": "MIT", "apache license 2 0": "Apache-2.0", "apache 2": "Apache-2.0",
    "odbl": "ODbL-1.0", "pddl": "PDDL-1.0",
    "youtube cc": "CC-BY", "creative commons attribution license reuse allowed": "CC-BY",
}  # fmt: skip
"""Other names, in lower case with spaces for all but letters and digits."""
_BY_NAME = {re.sub(r"[^a-z0-9]+", " ", name.lower()): name for name in _IDS} | _NAMES
_URL = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/"
    r"(?:licenses/(?P<kind>by(?:-nc)?(?:-sa|-nd)?)|publicdomain/(?P<public>zero|mark))"
    r"/(?P<version>[1-4]\.0|2\.5)/?(?:deed|legalcode)?(?:\.[a-z-]+)?/?",
    re.IGNORECASE,
)
_WORDS = {
    "attribution": "by", "noncommercial": "nc", "non commercial": "nc", "sharealike": "sa",
    "share alike": "sa", "noderivatives": "nd", "noderivs": "nd", "no derivatives": "nd",
}  # fmt: skip
_CREATIVE_COMMONS = re.compile(
    r"(?:cc )?(?P<kind>by(?: nc)?(?: sa| nd)?)(?: (?:license )?v?(?P<version>[1-4](?: 0)?|2 5)"
    r"(?: international| unported| generic)?)?(?: license)?"
)


@lru_cache(maxsize=4096)
def spdx_id(text: str) -> str | None:
    """Returns the SPDX identifier of a licence, or the text itself if its spelling is not known.

    A Creative Commons licence without a version becomes `CC-BY`, `CC-BY-SA` and so on, which are no
    SPDX identifiers: the version is not guessed. Ported versions (`by/3.0/us`) stay as they are.

    Returns:
        None for an empty text.

    Example:
        >>> spdx_id("Creative Commons Attribution-ShareAlike 4.0 International")
        'CC-BY-SA-4.0'
    """
    text = text.strip()
    if not text:
        return None
    if (url := _URL.fullmatch(text)) is not None:
        version = url["version"]
        if url["kind"] is not None:
            return f"CC-{url['kind'].upper()}-{version}"
        return f"CC0-{version}" if url["public"].lower() == "zero" else f"CC-PDM-{version}"
    words = re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    if words in _BY_NAME:
        return _BY_NAME[words]
    for word, short in _WORDS.items():
        words = words.replace(word, short)
    match = _CREATIVE_COMMONS.fullmatch(words.removeprefix("creative commons "))
    if match is None:
        return text
    kind = match["kind"].upper().replace(" ", "-")
    if match["version"] is None:
        return f"CC-{kind}"
    version = match["version"].replace(" ", ".")
    return f"CC-{kind}-{version if '.' in version else f'{version}.0'}"
