"""Fingerprints: short hashes of settings, versions and other fingerprints."""

import hashlib
import json


def fingerprint(*parts: object) -> str:
    """Hash of values that JSON can hold, with keys in any order: 16 hex digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
