"""Checks that an output root holds the output of a run."""

from curator.verify.audit import Verified, verify

__all__ = ["Verified", "verify"]
