"""What pyarrow imports."""

import subprocess
import sys

MAKES = """
import sys
import pyarrow as pa
from curator.tables.parts import leave_pandas_out
if sys.argv[1] == "without":
    leave_pandas_out()
table = pa.Table.from_pylist([{"a": 1}, {"a": None}])
print("pandas" in sys.modules)
frame = table.to_pandas()
print(type(frame).__module__.split(".")[0], pa.Table.from_pandas(frame).num_rows)
"""


def made(how: str) -> list[str]:
    """What a process says that makes a table and a data frame."""
    done = subprocess.run(
        [sys.executable, "-c", MAKES, how], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_lists_become_arrays_without_pandas_and_data_frames_with_it() -> None:
    assert made("without") == ["False", "pandas 2"]
    assert made("as it is") == ["True", "pandas 2"]
