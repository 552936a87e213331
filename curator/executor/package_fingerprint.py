"""The version of this package, by its code: what nodes of a cluster must agree on."""

import hashlib
from functools import cache
from pathlib import Path

import curator


@cache
def package_fingerprint() -> str:
    """Returns the version and a short hash of all modules."""
    root = Path(curator.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{curator.__version__} ({digest.hexdigest()[:12]})"
