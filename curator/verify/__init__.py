"""Checks that what lies under an output root is what a run wrote, and says what is not."""

from curator.verify.audit import Verified, verify

__all__ = ["Verified", "verify"]
