"""Checks whether an output root holds the complete output of a run."""

from curator.tools.verify.audit import Verified, verify
from curator.tools.verify.removed_check import ProvenRemoved, verify_removed

__all__ = ["ProvenRemoved", "Verified", "verify", "verify_removed"]
