"""Reads shards into a training loop: batches for PyTorch, or decoded by other machines."""

from curator.loading.dataset import ClipDataset, ClipLoader, Repeated, as_unit
from curator.loading.remote import ray_clips

__all__ = ["ClipDataset", "ClipLoader", "Repeated", "as_unit", "ray_clips"]
