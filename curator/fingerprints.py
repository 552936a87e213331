"""Fingerprints: short hashes of settings, versions and other fingerprints."""

import hashlib
import json


def fingerprint(*parts: object) -> str:
    """Returns a hash of JSON values, independent of the order of keys: 16 hex digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
