"""Damages each object of a finished output in turn, and runs commands over it.

One object under OUT at a time is damaged in each way: deleted, emptied, cut to half, or one bit
flipped in the middle or near the end. Then `curate run` must end with 0 and byte-identical shards,
or with one clear line. With `--commands`, `verify`, `explain`, `tune`, a dry run, `export` and
`recaption` run before it, and none may show a traceback.

    python benchmarks/damage.py [--only TEXT] [--commands]
    python benchmarks/damage.py --verify [--only TEXT]

With `--verify`, only `curate verify` runs over each damage. The script counts the damages that
verify misses, separately for objects that a snapshot or a fixed path names, and for all others.

Prints a row per kind of object and damage, and JSON as its last line.
"""

import contextlib
import io
import json
import logging
import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import tests_path  # noqa: F401
from captioned import Captioned
from damages import DAMAGES, damage, objects, shards
from films import write_film
from measure import arguments, sets, tell
from served import FakeServer

from curator.cli import main
from curator.executor.engine import Engine

FILMS = {"2.mkv": 80, "5.mp4": 60}
"""Number of frames of each film."""
CACHES = ("tracks/", "scan/", "replies/", "report/", "hashes/", "index/")
"""Folders of objects that no snapshot names."""


class Output:
    """A finished run over two small films, and the caption server that it used."""

    def __init__(self, folder: Path) -> None:
        self.sources, self.out = folder / "in", folder / "out"
        self.sources.mkdir(parents=True)
        self.server = FakeServer(folder).start(captions=True)
        for name, n_frames in FILMS.items():
            write_film(self.sources / name, int(name[0]), n_frames)
        # Scans of sources that changed a moment ago are not stored.
        time.sleep(3)
        settings = Captioned(self.sources, self.out, self.server).settings
        more = ("cut.mode=encode", "shard.embedding=scene")
        self.clip = ""
        """Id of one clip of the output."""
        self.run = ["run", str(self.sources), str(self.out), *sets(*settings, *more)]
        code, said = called(self.run)
        assert code == 0, said
        code, said = called(self.run)
        assert code == 0, said
        (table,) = self.out.glob("clips/*.parquet")
        self.clip = pq.read_table(table)["clip_id"][0].as_py()

    def commands(self, scratch: Path) -> dict[str, list[str]]:
        """Returns commands that read an output, by name; any exit code is allowed."""
        out = str(self.out)
        return {
            "verify": ["verify", out],
            "explain": ["explain", out, self.clip],
            "tune": ["tune", out, "filters.motion.min=0.01", "--html", str(scratch / "tune.html")],
            "dry run": [*self.run, "--dry-run"],
            "export": ["export", out, str(scratch / "export"), "--format", "conversations"],
            "recaption": ["recaption", out, "--set", "caption.text=short"],
        }


def _run_here(self: Engine, steps: Any, units: Any, **_: Any) -> Any:  # noqa: ANN401
    return self.run_in_driver(steps, units)


def called(arguments: list[str]) -> tuple[int, str]:
    """Calls a command in this process; returns its exit code, standard error and log."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    except Exception as error:  # noqa: BLE001 - a user would see a traceback
        said.write(f"Traceback: {type(error).__name__}: {error}\n")
        code = -1
    finally:
        logging.getLogger().removeHandler(handler)
    return code, said.getvalue()


def words(said: str) -> str:
    """Returns the last line that is not a progress line."""
    lines = [line for line in said.splitlines() if not re.match(r"curate \d+:\d\d:", line)]
    return lines[-1][:200] if lines else ""


def kind_of(name: str) -> str:
    """Returns the name without hashes."""
    return re.sub(r"[0-9a-f]{16}-[0-9a-f]{16}|[0-9a-f]{8,12}(?=\.)", "*", name)


def measured(folder: Path, only: str, with_commands: bool) -> list[dict[str, object]]:
    """Damages every object in every way, and runs the pipeline after each damage."""
    output = Output(folder)
    pristine, before = folder / "pristine", shards(output.out)
    shutil.copytree(output.out, pristine)
    rows: list[dict[str, object]] = []
    for name in objects(pristine):
        for how in DAMAGES:
            if only not in f"{name} {how}" or not (output.out / name).exists():
                continue
            row: dict[str, object] = {"object": kind_of(name), "damage": how}
            scratch = folder / "scratch"
            scratch.mkdir(exist_ok=True)
            for command, words_of in output.commands(scratch).items() if with_commands else ():
                shutil.rmtree(output.out)
                shutil.copytree(pristine, output.out)
                damage(output.out / name, how)
                code, said = called(words_of)
                row[command] = "TRACEBACK " + words(said) if "Traceback" in said else code
                shutil.rmtree(scratch)
                scratch.mkdir()
            if with_commands:
                shutil.rmtree(output.out)
                shutil.copytree(pristine, output.out)
            damage(output.out / name, how)
            begun = time.monotonic()
            code, said = called(output.run)
            is_same = shards(output.out) == before
            outcome = "identical" if code == 0 and is_same else f"ends with {code}"
            if "Traceback" in said or (code == 0 and not is_same):
                outcome = "WRONG"
            row |= {
                "outcome": outcome,
                "line": words(said),
                "s": round(time.monotonic() - begun, 1),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
            if outcome != "identical":
                shutil.rmtree(output.out)
                shutil.copytree(pristine, output.out)
            elif name in objects(output.out):
                continue
            else:
                # The run wrote the object under another name, as parts of other units are.
                shutil.rmtree(output.out)
                shutil.copytree(pristine, output.out)
    output.server.kill()
    return rows


def verified(folder: Path, only: str) -> list[dict[str, object]]:
    """Damages every object in every way, and runs `verify` after each damage."""
    output = Output(folder)
    pristine = folder / "pristine"
    shutil.copytree(output.out, pristine)
    rows: list[dict[str, object]] = []
    for name in objects(pristine):
        for how in DAMAGES:
            if only not in f"{name} {how}":
                continue
            damage(output.out / name, how)
            code, _ = called(["verify", str(output.out), "--frames", "none"])
            shutil.copy2(pristine / name, output.out / name)
            kind = "cache" if name.startswith(CACHES) else "committed"
            outcome = f"{kind}, all is well" if code == 0 else f"{kind}, ends with {code}"
            rows.append({"object": kind_of(name), "damage": how, "outcome": outcome})
            print(json.dumps(rows[-1]), flush=True)
    output.server.kill()
    return rows


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="text that `<object> <damage>` must contain")
    parser.add_argument("--commands", action="store_true", help="also run the other commands")
    parser.add_argument("--verify", action="store_true", help="run only `curate verify`")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        # Starting a process for each run would take most of the time.
        patch.object(Engine, "run", _run_here),
    ):
        if options.verify:
            found = verified(Path(name), options.only)
        else:
            found = measured(Path(name), options.only, options.commands)
    print(Counter(str(row["outcome"]) for row in found))
    tell({"cases": len(found), "outcomes": Counter(str(row["outcome"]) for row in found)})
