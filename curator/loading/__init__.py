"""Reads shards into a training loop. Decoding runs in the loop's machine or in a Ray cluster."""

from curator.loading.batch_values import Repeated, as_unit
from curator.loading.camera_rays import plucker_rays
from curator.loading.data_loader import ClipLoader
from curator.loading.dataset import ClipDataset
from curator.loading.ray_decoding import ray_clips
from curator.records.audio_requests import AudioRequest

__all__ = [
    "AudioRequest", "ClipDataset", "ClipLoader", "Repeated", "as_unit", "plucker_rays", "ray_clips",
]  # fmt: skip
