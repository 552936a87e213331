"""Draws sheets of clips without their decisions, for a person to judge, and compares the judgement.

    python benchmarks/judged_clips.py draw OUT FOLDER      # sheet0.png ... sheet3.png, key.json
    python benchmarks/judged_clips.py compare FOLDER RKKR… # a letter per clip: R reject, K keep

20 rejected and 20 kept clips are drawn at random and shuffled. Duplicates, shots that are too short
and divided clips are left out, because a clip alone does not show them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

NOT_SEEN = ("duplicate", "too_short", "divided")
EACH, SEED, SHOWN = 20, 580, 5
WIDE, HIGH = 256, 160


def draw(out: Path, folder: Path) -> None:
    """Writes the sheets, and the key with the decisions."""
    clips = pq.read_table(out / "clips").to_pylist()
    uris = {row["source_id"]: row["uri"] for row in pq.read_table(out / "sources").to_pylist()}
    rng = np.random.default_rng(SEED)
    rejected = [c for c in clips if c["reason"] not in (None, *NOT_SEEN)]
    kept = [c for c in clips if c["reason"] is None]
    drawn = [
        [some[i] for i in rng.choice(len(some), EACH, replace=False)] for some in (rejected, kept)
    ]
    both = [*drawn[0], *drawn[1]]
    shuffled = [both[i] for i in rng.permutation(len(both))]
    rows = [row_of(clip, uris[clip["source_id"]], n) for n, clip in enumerate(shuffled)]
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(rows), 10):
        cv2.imwrite(str(folder / f"sheet{at // 10}.png"), np.concatenate(rows[at : at + 10]))
    key = [
        {"reason": c["reason"], "uri": uris[c["source_id"]], "start_s": c["start_s"]}
        for c in shuffled
    ]
    (folder / "key.json").write_text(json.dumps(key))


def row_of(clip: dict[str, Any], uri: str, number: int) -> NDArray[np.uint8]:
    """Returns five frames of a clip in a row, with its number and length."""
    length_s = clip["end_s"] - clip["start_s"]
    wanted = [clip["start_s"] + length_s * (k + 0.5) / SHOWN for k in range(SHOWN)]
    tiles: list[NDArray[np.uint8]] = []
    with av.open(uri) as container:
        for frame in container.decode(video=0):
            while wanted and frame.time is not None and frame.time >= wanted[0]:
                tiles.append(tile_of(np.asarray(frame.to_ndarray(format="bgr24"), np.uint8)))
                del wanted[0]
            if not wanted:
                break
    tiles += [np.zeros((HIGH, WIDE, 3), np.uint8)] * (SHOWN - len(tiles))
    row = np.concatenate(tiles, axis=1)
    words = f"{number} {length_s:.0f}s"
    cv2.putText(row, words, (3, 14), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 255, 255), 1)
    return row


def tile_of(frame_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:  # noqa: N803 - shape letters
    """Returns a frame fitted into a tile."""
    height, width = frame_HWC.shape[:2]
    scale = min(WIDE / width, HIGH / height)
    small = cv2.resize(frame_HWC, (int(width * scale), int(height * scale)))
    tile = np.zeros((HIGH, WIDE, 3), np.uint8)
    tile[: small.shape[0], : small.shape[1]] = small
    return tile


def compare(folder: Path, judgement: str) -> None:
    """Prints how often the judgement agrees with each decision, and where it does not."""
    key = json.loads((folder / "key.json").read_text())
    assert len(judgement) == len(key), f"{len(judgement)} letters for {len(key)} clips"
    for letter, word in (("R", "reject"), ("K", "keep")):
        own = [n for n, clip in enumerate(key) if (clip["reason"] is None) == (letter == "K")]
        print(f"{word}: {sum(judgement[n] == letter for n in own)} of {len(own)} agree")
        for n in own:
            if judgement[n] != letter:
                print(f"  {n}: decided {word} ({key[n]['reason']}), {key[n]['uri']}")


def main() -> None:
    """Runs `draw` or `compare`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    tasks = parser.add_subparsers(dest="task", required=True)
    drawing = tasks.add_parser("draw")
    drawing.add_argument("out", type=Path)
    drawing.add_argument("folder", type=Path)
    comparing = tasks.add_parser("compare")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("judgement")
    options = parser.parse_args()
    if options.task == "draw":
        draw(options.out, options.folder)
    else:
        compare(options.folder, options.judgement)


if __name__ == "__main__":
    main()
