"""Imports of the processes of a sandboxed stage, and threads of a sandbox when it is locked.

Before this was pinned, a sandbox imported Arrow, whose thread kept its rights, and its parent
OpenCV; both together took 0.25 CPU-seconds more.
"""

import subprocess
import sys

import pytest

STAGES = ("scan", "analyze", "cut")
NOT_IN_BOX = ("pyarrow", "pandas", "ray", "boto3", "torch")


def said(code: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


IMPORTED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


@pytest.mark.parametrize("stage", STAGES)
def test_a_sandbox_begins_with_little(stage: str) -> None:
    modules = said(IMPORTED, "curator.executor.sandbox_main", f"curator.stages.{stage}.stage")
    assert not set(NOT_IN_BOX).intersection(modules)


PARENT = (
    "curator.executor.unit_worker", "curator.scheduler", "curator.stages.scan.stage",
    "curator.stages.analyze.stage", "curator.tables.track_parts", "curator.stages.propose.stage",
    "curator.stages.cut.cut_driver",
)  # fmt: skip
"""What the chains of a run name."""
NOT_IN_PARENT = ("torch", "cv2", "pandas", "yaml")


def test_the_parent_of_a_sandbox_imports_nothing_that_sees_pixels() -> None:
    assert not set(NOT_IN_PARENT).intersection(said(IMPORTED, *PARENT))


LOCKED = """
import os, sys, threading
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from curator.executor import sandbox_main, sandbox
from curator.stages.analyze.stage import AnalyzeStage
if not sys.argv[1:]:
    sandbox_main._load(AnalyzeStage.imports)
else:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    sandbox.lock(())
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux locks processes")
def test_a_process_is_locked_before_it_has_threads() -> None:
    assert said(LOCKED) == []
    assert "threads that already run cannot be locked" in " ".join(said(LOCKED, "thread"))
