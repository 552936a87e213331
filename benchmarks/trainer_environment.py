#!/usr/bin/env python3
"""Measures a trainer's installation: packages, size, and the loader's tests in that environment.

    trainer_environment.py [--extras run] [--python 3.11] [--keep FOLDER]

Builds the wheel, and installs it with the versions and hashes of `constraints.txt` into a new
environment. Torch and packages that only torch needs are counted separately. Without extras, the
script then installs the test tools and runs `tests/loading` there, outside the checkout.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from measure import ROOT, arguments, last_json, tell, work_folder

TEST_TOOLS = ("moto[s3,server]", "opencv-python-headless", "pytest")
ABSENT = ("ray", "faiss", "rapidocr", "cv2", "pydantic")
MEASURE = """
import importlib.metadata as metadata, json, os, re
from importlib.util import find_spec
name = lambda text: re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", text)[0]).lower()
sizes, needs = {}, {}
for found in metadata.distributions():
    files = [str(file.locate()) for file in found.files or []]
    own = name(found.metadata["Name"])
    sizes[own] = sum(os.stat(file).st_size for file in files if os.path.isfile(file))
    needs[own] = {name(line) for line in found.requires or [] if "extra ==" not in line}
def reached(first, without):
    todo, done = list(first), set()
    while todo:
        one = todo.pop()
        if one in sizes and one not in done and one != without:
            done.add(one)
            todo += needs[one]
    return done
print(json.dumps({
    "sizes": sizes,
    "beside_torch": sorted(reached(needs["curate-video"] | %r, "torch")),
    "importable": [one for one in %r if find_spec(one) is not None],
}))
"""


def output_of(*command: str | Path) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--extras", default="", help="extras of this project, comma-separated")
    parser.add_argument("--python", default="3.11", help="version of the environment")
    parser.add_argument("--keep", type=Path, help="working folder, which is kept")
    options = parser.parse_args()
    with work_folder(options.keep, "trainer-") as folder:
        return measured(folder, options.extras, options.python)


def measured(folder: Path, extras: str, version: str) -> int:
    uv = Path(sys.executable).with_name("uv")
    held = ("-c", ROOT / "constraints.txt", "-b", ROOT / "constraints.txt")
    output_of(uv, "build", "--quiet", "--wheel", "-b", held[1], "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    output_of(uv, "venv", "--quiet", "--clear", "--python", version, folder / "venv")
    install: Sequence[str | Path] = (uv, "pip", "install", "--quiet", "--python", python, *held)
    output_of(*install, f"{wheel}[{extras}]" if extras else wheel)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = [extra["optional-dependencies"][name] for name in filter(None, extras.split(","))]
    needed = {re.split(r"[^A-Za-z0-9._-]", line)[0] for lines in chosen for line in lines}
    facts = last_json(python, "-c", MEASURE % (needed, ABSENT))
    sizes: dict[str, int] = facts["sizes"]
    beside = [name for name in facts["beside_torch"] if name in sizes]
    for name in sorted(beside, key=lambda name: -sizes[name]):
        print(f"{sizes[name] / 1e6:8.1f} MB  {name}")
    figures = {
        "extras": extras,
        "packages": len(sizes),
        "mb": round(sum(sizes.values()) / 1e6, 1),
        "packages_beside_torch": len(beside),
        "mb_beside_torch": round(sum(sizes[name] for name in beside) / 1e6, 1),
        "wheel_mb": round(wheel.stat().st_size / 1e6, 2),
        "importable": facts["importable"],
    }
    code = 0
    if not extras:
        output_of(*install, *TEST_TOOLS)
        shutil.copytree(ROOT / "tests", folder / "tests")
        shutil.copy(ROOT / "pyproject.toml", folder)
        command = (python, "-m", "pytest", "-p", "no:cacheprovider", "tests/loading")
        code = subprocess.run(command, cwd=folder, check=False).returncode
        figures["tests_loading"] = "passed" if code == 0 else "failed"
    tell(figures)
    return code


if __name__ == "__main__":
    sys.exit(main())
