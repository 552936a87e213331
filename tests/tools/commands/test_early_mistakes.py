"""A wrong key, and a source that is not there, are reported before a run's packages are imported.

Before this was pinned, a wrong `--set` cost three times the CPU time: Arrow, PyAV and all stages
were imported first.
"""

import subprocess
import sys
from pathlib import Path

from curator.tools.commands.arguments import EXIT_USAGE

MISTAKES = """
import sys
from curator.cli import main
source, out = sys.argv[1:]
codes = [
    main(["run", source, out, "--set", "cut.nothing=1"]),
    main(["run", source, out, "--set", "cut.fps=none"]),
    main(["run", source, out, "--recipe", "nothing"]),
    main(["run", source + ".gone", out]),
    main(["plan", source, out, "--set", "filters.nothing.min=1"]),
    main(["plan", source + ".gone", out]),
]
print(*codes)
print(*sys.modules)
"""
OF_A_RUN = {
    "torch", "ray", "pyarrow", "pandas", "av", "cv2", "faiss", "jinja2", "boto3", "transformers",
    "curator.pipeline", "curator.executor.engine", "curator.tables.parts",
    "curator.models.weight_store",
}  # fmt: skip


def test_mistakes_are_told_before_what_a_run_imports(tmp_path: Path) -> None:
    source = tmp_path / "a.mp4"
    source.touch()
    done = subprocess.run(
        [sys.executable, "-c", MISTAKES, str(source), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    codes, modules = done.stdout.splitlines()
    assert codes.split() == [str(int(EXIT_USAGE))] * 6
    for words in (
        "cut.nothing: unknown key", "cut: fps", "'nothing'", "a.mp4.gone' does not exist",
        "filters",
    ):  # fmt: skip
        assert words in done.stderr
    assert not OF_A_RUN.intersection(modules.split())
