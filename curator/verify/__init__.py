"""Checks that an output root holds what a run wrote."""

from curator.verify.audit import Verified, verify

__all__ = ["Verified", "verify"]
