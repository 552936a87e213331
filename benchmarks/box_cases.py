"""Draws boxes and labels that follow what moves, as detectors draw them."""

import random
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
from drawn_over import COLOURS
from numpy.typing import NDArray
from recorded_clips import FPS

from curator.tools.footage.scenes import Picture

CLASSES = ("person", "car", "dog", "bottle", "bicycle", "truck", "face")


def _flow(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    nothing: Any = None
    return np.asarray(
        cv2.calcOpticalFlowFarneback(before, after, nothing, 0.5, 2, 13, 2, 5, 1.1, 0)
    )


def _followed(frames: list[Picture], rng: random.Random, n: int) -> list[list[tuple[float, ...]]]:
    """Returns for each frame the places of `n` boxes that follow what moves, as shares."""
    small = [cv2.cvtColor(cv2.resize(f, (160, 90)), cv2.COLOR_RGB2GRAY) for f in frames]
    change = sum(
        cv2.absdiff(a, b).astype(np.float32) for a, b in pairwise(small[:: FPS // 2])
    ) / len(small)  # fmt: skip
    energy = cv2.GaussianBlur(np.asarray(change), (0, 0), 6) + 1e-3
    boxes = []
    for _ in range(n):
        place = rng.choices(range(energy.size), energy.ravel().tolist())[0]
        w, h = rng.uniform(0.06, 0.3), rng.uniform(0.1, 0.5)
        boxes.append([place % 160 / 160 - w / 2, place // 160 / 90 - h / 2, w, h])
    paths = []
    for index in range(len(small)):
        flow = None
        if index and index % 3 == 0:
            flow = _flow(small[index - 3], small[index])
        for box in boxes if flow is not None else ():
            x0, y0 = max(0, int(box[0] * 160)), max(0, int(box[1] * 90))
            assert flow is not None
            inside = flow[y0 : y0 + int(box[3] * 90) + 1, x0 : x0 + int(box[2] * 160) + 1]
            if inside.size:
                box[0] += float(inside[..., 0].mean()) / 160
                box[1] += float(inside[..., 1].mean()) / 90
        paths.append([tuple(v + rng.gauss(0, 0.002) for v in box) for box in boxes])
    return paths


def detections(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """Draws boxes as detectors do: 1 to 8, of 1 to 4 px, with labels or without."""
    height, width = frames[0].shape[:2]
    n, thick = rng.choice((1, 1, 2, 3, 4, 6, 8)), rng.choice((1, 2, 2, 3, 4))
    one_colour = rng.random() < 0.5
    colours = [rng.choice(COLOURS)] * n if one_colour else rng.choices(COLOURS, k=n)
    label = rng.choice(("tag", "tag", "text", "none"))
    names = [f"{rng.choice(CLASSES)} {rng.uniform(0.3, 1):.2f}" for _ in range(n)]
    font = max(0.35, width / 1600)
    begins = [rng.choice((0, 0, rng.randrange(len(frames) // 2))) for _ in range(n)]
    made = []
    for index, (frame, boxes) in enumerate(zip(frames, _followed(frames, rng, n), strict=True)):
        shown = np.ascontiguousarray(frame.copy())
        for (x, y, w, h), colour, name, begin in zip(boxes, colours, names, begins, strict=True):
            if index < begin:
                continue
            x0, y0 = round(x * width), round(y * height)
            x1, y1 = round((x + w) * width), round((y + h) * height)
            cv2.rectangle(shown, (x0, y0), (x1, y1), colour, thick)
            if label != "none":
                (wide, tall), base = cv2.getTextSize(name, 0, font, 1)
                if label == "tag":
                    cv2.rectangle(shown, (x0, y0 - tall - base), (x0 + wide, y0), colour, -1)
                ink = colour if label == "text" else (0, 0, 0) if sum(colour) > 300 else (255,) * 3
                cv2.putText(shown, name, (x0, y0 - base // 2 - 1), 0, font, ink, 1, cv2.LINE_AA)
        made.append(shown)
    return made
