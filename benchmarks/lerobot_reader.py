"""Opens an export for LeRobot with LeRobot's own package, in an environment that has it.

    python benchmarks/lerobot_reader.py DEST/train

The pictures show their number (`benchmarks/lerobot_export.py` makes them), and the rows have it.
Each item is decoded by its timestamp with LeRobot's tolerance of 1e-4 s. Prints JSON.
"""

import importlib.metadata
import json
import sys

import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found]

SIDE, BITS = 16, 10
CAMERA = "observation.images.main"


def shown(picture: torch.Tensor) -> int:
    """Reads the number in a picture, float [3, H, W]."""
    squares = picture[:, 2 * SIDE, SIDE // 2 :: SIDE].mean(dim=0)
    return sum(int(square > 0.5) << bit for bit, square in enumerate(squares[:BITS].tolist()))


def main() -> None:
    """Compares each picture with its row."""
    dataset = LeRobotDataset("made/export", root=sys.argv[1], tolerance_s=1e-4)
    n_right, wrong = 0, []
    for number in range(len(dataset)):
        item = dataset[number]
        if shown(item[CAMERA]) == int(item["observation.state"][0]):
            n_right += 1
        else:
            wrong.append(number)
    deltas = LeRobotDataset(
        "made/export", root=sys.argv[1], tolerance_s=1e-4,
        delta_timestamps={"observation.state": [0.0, 1 / dataset.fps], CAMERA: [0.0]},
    )  # fmt: skip
    state = deltas[0]["observation.state"]
    print(
        json.dumps(
            {
                "lerobot": importlib.metadata.version("lerobot"),
                "episodes": dataset.num_episodes,
                "items": len(dataset),
                "right": n_right,
                "wrong": wrong[:10],
                "next_row_is_one_on": bool(state[1][0] == state[0][0] + 1),
                "task": dataset[0]["task"],
                "stats": sorted(dataset.meta.stats),
            }
        )
    )


if __name__ == "__main__":
    main()
