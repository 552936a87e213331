"""The sandboxed process of this test process: one serves the runs of many tests.

Each run would start its own, for two CPU-seconds of imports, and end it. A run gets a fresh one
where anything that the process took from its parent at its start has changed. What it measured of
a film is remembered, and how two clips match: hundreds of tests begin with a run over the same few
films.
"""

import hashlib
import os
import pickle
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox_nursery import sees_no_shots

from curator.executor.sandbox import ImportableCode, importable_code
from curator.executor.sandboxed_process import (
    KEPT_FAMILIES,
    KEPT_VARIABLES,
    Reached,
    SandboxedProcess,
    process_sandbox,
)
from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import COMMON_EDITS, Edits, Match
from curator.records.tracks import Track
from curator.stage import Stage
from curator.storage import open_source
from curator.tables.track_items import SourceItem

Verify = Callable[[ClipFootage, ClipFootage, Edits], Match | None]
Process = Callable[..., Any]


class KeptSandbox:
    """Stands for the sandbox in an `Engine`, which loads modules into it and stops it."""

    def __init__(self) -> None:
        self._began_with: object = None

    @property
    def reached(self) -> Reached:
        """How far the unit of the real sandbox is."""
        return process_sandbox().reached

    def load(self, modules: Sequence[str]) -> None:
        """Imports modules; in a fresh process if this one's surroundings are others now."""
        if self._began_with != (now := surroundings()):
            process_sandbox().stop()
            self._began_with = now
        process_sandbox().load(modules)

    def stop(self) -> None:
        """Ends the process only if the next run could not use it."""
        if self._began_with != surroundings():
            process_sandbox().stop()
            self._began_with = None


def surroundings() -> object:
    """What a sandbox takes when it starts: variables, folders, plug-ins, its shot network."""
    return variables(), tempfile.gettempdir(), code_now(), sees_no_shots()


def code_now() -> ImportableCode:
    """`importable_code`, which looks at links of a hundred folders, once for equal modules."""
    # By identity: some modules import others when they are asked for their file. A copy, because
    # threads import.
    modules = {name: module for name, module in sys.modules.copy().items() if "." not in name}
    folder = None
    with suppress(OSError):
        folder = os.getcwd()
    where = folder, os.path.expanduser("~"), os.environ.get("LD_LIBRARY_PATH")
    key = (*where, *sys.path, *modules, *map(id, modules.values()))
    if key not in _CODE:
        _CODE.clear()
        # The modules stay, so that no other one gets their identity.
        _CODE[key] = importable_code(), modules
    return _CODE[key][0]


_CODE: dict[object, tuple[ImportableCode, object]] = {}


def variables() -> dict[str, str]:
    """Environment variables that a sandbox takes from its parent."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_FAMILIES)
    }


def remembering(process: Process, folder: Path) -> Process:
    """`SandboxedProcess.process`, which analyzes equal bytes in an equal way once.

    Only whole files of this machine that the package's own measures read, on a CPU; and only what
    came of them without a failure. Everything else is done each time. The file is opened each time
    as the sandbox would open it, so that one that changed, or cannot be read, is met. The processes
    of xdist share what they remember, in a folder.
    """

    def processed(
        self: SandboxedProcess,
        stage: Stage[Any, Any, Any],
        item: Any,  # noqa: ANN401
        *told: Callable[[float], None],
    ) -> Any:  # noqa: ANN401
        key = _key(stage, item)
        if key is None:
            return process(self, stage, item, *told)
        path = folder / hashlib.sha256(repr(key).encode()).hexdigest()
        if path.exists():
            result, spent_s, counted = pickle.loads(path.read_bytes())
            for name, seconds in spent_s.items():
                stage.cpu_s[name] += seconds
            stage.counts.update(counted)
            return result
        before_s, counts = Counter(stage.cpu_s), Counter(stage.counts)
        result = process(self, stage, item, *told)
        if isinstance(result, Track):
            spent = Counter(stage.cpu_s) - before_s, stage.counts - counts
            written = folder / f"{path.name}-{os.getpid()}-{threading.get_ident()}"
            written.write_bytes(pickle.dumps((result, *spent)))
            written.rename(path)
        return result

    return processed


def remembering_matches(verify: Verify) -> Verify:
    """`verify_pair`, which compares clips of equal content once."""
    remembered: dict[bytes, Match | None] = {}

    def verified(a: ClipFootage, b: ClipFootage, edits: Edits = COMMON_EDITS) -> Match | None:
        key = b"".join(hashlib.sha256(pickle.dumps(part)).digest() for part in (a, b, edits))
        if key not in remembered:
            remembered[key] = verify(a, b, edits)
        return remembered[key]

    return verified


def _key(stage: Stage[Any, Any, Any], item: object) -> object | None:
    """All that the result depends on; None where that is not known."""
    kind = type(stage)
    is_analysis = (
        f"{kind.__module__}:{kind.__name__}" == "curator.stages.analyze.stage:AnalyzeStage"
    )
    if not is_analysis or not isinstance(item, SourceItem):
        return None
    settings, source = vars(stage), item.source
    is_own = not (settings["_clip"] or settings["_note"] or settings["_measures"].users)
    if not is_own or stage.config.device == "gpu" or not Path(source.uri).is_absolute():
        return None
    try:
        with open_source(source.uri, expected_version=source.version) as file:
            content = hashlib.sha256(file.read()).digest()
    except Exception:  # noqa: BLE001 - the sandbox meets it too
        return None
    place = replace(source, uri=Path(source.uri).suffix, version="")
    how = stage.config.model_dump_json(), sorted(settings["_families"]), settings["_threads"]
    what = repr(replace(item, source=place, families=frozenset())), sorted(item.families)
    return content, how, what, sees_no_shots(), tuple(sorted(variables().items()))
