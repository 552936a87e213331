"""Reads shards into a training loop: batches for PyTorch, or decoded by other machines."""

from curator.loading.dataset import ClipDataset
from curator.loading.loader import ClipLoader
from curator.loading.remote import ray_clips
from curator.loading.values import Repeated, as_unit

__all__ = ["ClipDataset", "ClipLoader", "Repeated", "as_unit", "ray_clips"]
