"""Checks whether an output root holds the complete output of a run."""

from curator.verify.audit import Verified, verify
from curator.verify.removed_check import ProvenRemoved, verify_removed

__all__ = ["ProvenRemoved", "Verified", "verify", "verify_removed"]
