#!/usr/bin/env python3
"""Finds scenes by a detector of PySceneDetect, in an environment that has it.

    scene_cuts.py DETECTOR FILE...

DETECTOR is AdaptiveDetector or ContentDetector, with its defaults. Prints a JSON object per file
and line: path, and first and last frame of each scene, half-open; null if it cannot be read.
"""

import json
import sys

import scenedetect


def main() -> None:
    """Detects and prints."""
    detector, *paths = sys.argv[1:]
    for path in paths:
        try:
            scenes = scenedetect.detect(path, getattr(scenedetect, detector)(), start_in_scene=True)
            spans = [(start.frame_num, end.frame_num) for start, end in scenes]
        except scenedetect.VideoOpenFailure:
            spans = None
        print(json.dumps({"path": path, "scenes": spans}), flush=True)


if __name__ == "__main__":
    main()
