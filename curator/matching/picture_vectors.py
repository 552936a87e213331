"""Computes vectors of clips that have pictures and no vector, such as clips between two vectors."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from curator.matching.clip_footage import ClipFootage
from curator.media.opencv import cv2
from curator.models.picture_network import Picture
from curator.models.scene_network import SceneNetwork, scene_picture

_APART_S = 1.9  # least distance of two pictures with a vector: the analysis has one per 2 s


def with_vectors(clips: Iterable[ClipFootage]) -> Iterator[ClipFootage]:
    """Yields clips; those without vectors get vectors of their stored pictures, if they have any.

    Loads the network for the first such clip. Raises `ModelError` if its weights are missing.
    """
    network: SceneNetwork | None = None
    for clip in clips:
        if len(clip.vector_s) or not len(clip.pictures):
            yield clip
            continue
        network = network or SceneNetwork()
        yield _described(clip, network)


def _described(clip: ClipFootage, network: SceneNetwork) -> ClipFootage:
    at: list[int] = []
    pictures: list[Picture] = []
    for number, (second, picture) in enumerate(zip(clip.picture_s, clip.pictures, strict=True)):
        if isinstance(picture, bytes) and (not at or second - clip.picture_s[at[-1]] >= _APART_S):
            at.append(number)
            pictures.append(_prepared(picture))
    vectors_VD = network.embed(pictures)
    is_shown = np.any(vectors_VD != 0, axis=1)
    return replace(clip, vector_s=clip.picture_s[at][is_shown], vectors_VD=vectors_VD[is_shown])


def _prepared(jpeg: bytes) -> Picture:
    bgr_HWC = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if bgr_HWC is None:
        raise ValueError(f"OpenCV cannot decode a picture of {len(jpeg)} bytes")
    return scene_picture(np.asarray(bgr_HWC[:, :, ::-1], np.uint8))
