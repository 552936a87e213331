"""Measures which faces `blur_faces` removes, by a second detector that it does not know.

    python benchmarks/faces.py --mtcnn FOLDER --sheet sheet.png VIDEO ...

Each video's first seconds go through the stage with its default settings. In frames that its
detector did not see, MTCNN (facenet-pytorch 2.6, unpacked with `unzip` into FOLDER, because it pins
an old torch) looks for faces before and after. A face counts if it is taller than 5% of the
picture. It is gone if MTCNN finds nothing that overlaps its box afterwards. `--sheet` draws every
counted face, so that a person can say which are faces: `--not-faces` lists the numbers of others.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from curator.models.face_detector import FaceDetector, overlaps
from curator.stage import ClipFrames
from curator.stages.derive.blur_faces import BlurFaces, BlurFacesConfig

LEAST_HEIGHT = 0.05
N_FRAMES, EVERY = 90, 9
"""Frames of a video, and the distance of checked ones: mostly between the samples of the stage."""
SIDE_PX = 960


def frames_of(path: Path) -> list[NDArray[np.uint8]]:
    """Returns the first frames of a video, uint8 RGB."""
    with av.open(str(path)) as film:
        frames: list[NDArray[np.uint8]] = []
        for frame in film.decode(video=0):
            frames.append(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
            if len(frames) == N_FRAMES:
                break
    return frames


def second_detector(folder: Path) -> Any:  # noqa: ANN401 - an untyped package
    """Returns a function from a frame to boxes in shares, float32 [N, 5]."""
    sys.path.insert(0, str(folder))
    import torch
    from facenet_pytorch import MTCNN

    torch.set_num_threads(1)
    network = MTCNN(keep_all=True, min_face_size=20, device="cpu")

    def boxes(frame: NDArray[np.uint8]) -> NDArray[np.float32]:
        height, width = frame.shape[:2]
        scale = SIDE_PX / max(height, width)
        size = round(width * scale), round(height * scale)
        found, confidence = network.detect(cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR))
        if found is None:
            return np.zeros((0, 5), np.float32)
        shares = found / [*size, *size]
        sure: NDArray[np.float32] = np.column_stack([shares, confidence])[confidence > 0.9]
        return sure.astype(np.float32)

    return boxes


def main() -> None:
    """Prints a row for each video, and the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--mtcnn", type=Path, required=True)
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--not-faces", type=int, nargs="*", default=[])
    options = parser.parse_args()
    second = second_detector(options.mtcnn)
    stage = BlurFaces(BlurFacesConfig())
    stage.setup()
    counted = FaceDetector(longer_px=640, least_confidence=0.5)
    crops: list[NDArray[np.uint8]] = []
    total = gone = by_us = number = 0
    cpu_s = film_s = 0.0
    for path in options.videos:
        frames = frames_of(path)
        begun_s = time.process_time()
        unit = ClipFrames(clip_id="x", fps=Fraction(25), frames=iter(frames))
        blurred = list(stage.process(unit))
        cpu_s += time.process_time() - begun_s
        film_s += len(frames) / 25
        assert len(blurred) == len(frames)
        seen = removed = 0
        for at in range(2, len(frames), EVERY):
            before, after = second(frames[at]), second(blurred[at])
            ours = counted.boxes(frames[at])
            for box in before:
                if box[3] - box[1] <= LEAST_HEIGHT:
                    continue
                crops.append(crop(frames[at], box, number))
                crops.append(crop(blurred[at], box, number))
                number += 1
                if number - 1 in options.not_faces:
                    continue
                seen += 1
                removed += not len(after) or bool(overlaps(box[None], after).max() < 0.2)
                by_us += bool(len(ours)) and bool(overlaps(box[None], ours).max() > 0.2)
                if len(after) and overlaps(box[None], after).max() >= 0.2:
                    print(f"  left: face {number - 1}, frame {at} of {path.name}")
        total, gone = total + seen, gone + removed
        if seen:
            print(f"{path.name:60} {seen:4} {removed:4}", flush=True)
    if options.sheet is not None and crops:
        cv2.imwrite(str(options.sheet), sheet(crops)[:, :, ::-1])
    result = {
        "faces": total, "gone": gone, "share": round(gone / max(total, 1), 4),
        "found_by_annotator": by_us, "cpu_s_per_s_of_video": round(cpu_s / max(film_s, 0.1), 2),
    }  # fmt: skip
    print(json.dumps(result))


def crop(frame: NDArray[np.uint8], box: NDArray[np.float32], number: int) -> NDArray[np.uint8]:
    """Returns a picture of a box and what is around it, with its number."""
    height, width = frame.shape[:2]
    side = box[2:4] - box[:2]
    begin, end = np.clip(box[:2] - side / 2, 0, 1), np.clip(box[2:4] + side / 2, 0, 1)
    part = frame[
        int(begin[1] * height) : max(int(end[1] * height), int(begin[1] * height) + 2),
        int(begin[0] * width) : max(int(end[0] * width), int(begin[0] * width) + 2),
    ]
    made = cv2.resize(part, (96, 96))
    cv2.putText(made, str(number), (2, 12), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 0), 1)
    return np.asarray(made, np.uint8)


def sheet(crops: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Returns all crops in rows of 20."""

    def rows() -> Iterator[NDArray[np.uint8]]:
        for at in range(0, len(crops), 20):
            some = crops[at : at + 20]
            some += [np.zeros_like(crops[0])] * (20 - len(some))
            yield np.concatenate(some, axis=1)

    return np.concatenate(list(rows()))


if __name__ == "__main__":
    main()
